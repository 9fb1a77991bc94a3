package group

import (
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Want says that somebody at this node waits for a group to have a leader. Members are its nodes; this one
// need not be among them. Who goes on waiting says so again: a member may not have noticed yet that the
// leader is gone.
func (h *Host) Want(group fsm.GroupID, members []string) { h.elections.want(group, members) }

// want implements electable.
func (g *Group) want(now time.Time) { g.wantedAt.Store(now.UnixNano()) }

// wanted implements electable.
func (g *Group) wanted(now time.Time) bool {
	at := g.wantedAt.Load()
	return at != 0 && now.UnixNano()-at < int64(wantValid)
}

// patience implements electable: nothing is due sooner, nobody holds a message, and no letter is on its way.
func (g *Group) patience() time.Duration {
	if g.hasUnapplied() {
		return 0
	}
	return g.applier.patience(g.host.config.Clock.Now())
}

// fewUnapplied is how many entries hasUnapplied reads.
const fewUnapplied = 8

// hasUnapplied reports whether the log has commands of clients that are not applied here: a follower may
// learn late what is committed.
func (g *Group) hasUnapplied() bool {
	is := g.raft.Load()
	first, last := is.AppliedIndex()+1, is.LastIndex()
	if last >= first+fewUnapplied {
		return true
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := g.log.GetLog(i, &l); err != nil || l.Type == raft.LogCommand && !onlyConfigures(l.Data) {
			return true
		}
	}
	return false
}

// onlyConfigures reports whether an entry brings in settings and nothing else.
func onlyConfigures(data []byte) bool {
	e := logpb.EntryFromVTPool()
	defer e.ReturnToVTPool()
	if e.UnmarshalVT(data) != nil {
		return false
	}
	for _, c := range e.Commands {
		if c.Kind != logpb.Command_CONFIGURE {
			return false
		}
	}
	return true
}

// patience is Group.patience by the machine alone. A machine that is at work is not waited for.
func (a *applier) patience(now fsm.Time) (least time.Duration) {
	defer a.guard.contain("read what is due")
	if !a.mu.TryLock() {
		return 0
	}
	defer a.mu.Unlock()
	s, due := a.machine.Stats(), a.machine.NextDeadline()
	switch {
	case s.Unacknowledged.Messages > 0, s.Outbox.Messages > 0:
		return 0
	case due == 0:
		return never
	}
	return max(0, time.Duration(due-now)*time.Millisecond)
}
