package deadletter

import (
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of one look at the queues that bring their dead letters to another.
const (
	sourcesAtOnce    = 512 // under the target's lock
	endSourcesAtOnce = 512 // sessions that one look ends
)

// Target is the group that dead letters come to: *group.Group.
type Target interface {
	View(f func(m *queue.Machine))
	Submit(b group.Batch) error
}

// EndSources ends the sessions of queues that are gone: nobody else does, for
// they live on no node. What such a queue has sent and is still on its way
// does not begin its session anew: the target remembers the end for as long as
// the first command of a stream is taken, and every later one needs a session.
// It reports whether there may be more to end.
func EndSources(g Target, v *catalog.View) (more bool) {
	var ends []*logpb.Command
	for after := fsm.QueueID(0); len(ends) < endSourcesAtOnce; {
		var ids []fsm.QueueID
		g.View(func(m *queue.Machine) { ids = m.Sources(after, sourcesAtOnce) })
		for _, id := range ids {
			if after = id; len(ends) < endSourcesAtOnce && stream.IsOver(v, id) {
				ends = append(ends, &logpb.Command{
					Kind: logpb.Command_SESSION_DOWN, Session: fsm.SessionID{Boot: uint64(id)}.Proto(),
				})
			}
		}
		if len(ids) < sourcesAtOnce {
			break
		}
	}
	if len(ends) == 0 {
		return false
	}
	_ = g.Submit(group.BatchOf(ends...)) // the next look finds what was lost
	return true
}
