package session

import (
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// maxTimeouts is how many consumer timeouts a node remembers, and of how many consumers of its own
// clients it remembers who they were: a channel may be closed because of a timeout.
const maxTimeouts = 256

// What becomes of a consumer at a timeout, in the words of the metric of actions.
const (
	actionCancel  = "cancel"
	actionSuspend = "suspend"
	actionClose   = "channel_close"
	actionGet     = "get"
)

// lastTimeouts remembers consumer timeouts: those in queues while this node led them, and which
// consumers of this node's clients were told of one. A restart forgets them.
type lastTimeouts struct {
	mu       sync.Mutex
	timeouts []*peerpb.ConsumerTimeout // by age
	late     []*peerpb.LateConsumer    // by age, each consumer once
}

// led records a timeout in a queue that this node leads.
func (l *lastTimeouts) led(of group.Spec, t *fsm.Timeout, at fsm.Time) {
	tag := t.Tag
	if t.To.Number == 0 {
		tag = getTag
	}
	x := &peerpb.ConsumerTimeout{
		At: int64(at), Queue: uint64(of.Queue), Vhost: of.VHost, Name: of.Name,
		Node: uint32(t.To.Session.Node), Boot: t.To.Session.Boot, Session: t.To.Session.Num, Number: t.To.Number, Tag: tag,
		Messages: uint64(len(t.Deliveries)), Held: uint64(t.Held), Timeout: uint64(t.Limit),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timeouts = append(lastOf(l.timeouts), x)
}

// served records which consumer of a session is told of a timeout; 0 stands for the session's gets.
// Messages of it may be told again.
func (l *lastTimeouts) served(s *Session, number uint64, suspend bool) {
	x := &peerpb.LateConsumer{Session: s.origin(), Number: number, Action: actionClose}
	if x.Session == nil {
		return
	}
	switch takes, ok := s.client.(cancellable); {
	case number == 0:
		x.Action = actionGet
	case suspend:
		x.Action = actionSuspend
	case ok && takes.Cancellable():
		x.Action = actionCancel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = slices.DeleteFunc(l.late, func(o *peerpb.LateConsumer) bool {
		return o.Number == number && o.Session.Session == s.id.Num && o.Session.Boot == s.id.Boot
	})
	l.late = append(lastOf(l.late), x)
}

// lastOf makes space for one more in a list, which drops its first.
func lastOf[T any](list []T) []T {
	return slices.Delete(list, 0, max(0, len(list)-maxTimeouts+1))
}

// list returns what is remembered, by age.
func (l *lastTimeouts) list() *peerpb.TimeoutsReply {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &peerpb.TimeoutsReply{Led: slices.Clone(l.timeouts), Served: slices.Clone(l.late)}
}
