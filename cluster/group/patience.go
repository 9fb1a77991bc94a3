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

// want records that somebody at this node waits for a group to have a leader, and tells its members.
func (e *elections) want(id fsm.GroupID, members []string) {
	e.mu.Lock()
	for _, m := range members {
		if m != e.node {
			e.wants[m] = appendItem(e.wants[m], item{kind: itemWant, group: id})
		}
	}
	e.mu.Unlock()
	if g := e.find(id); g != nil {
		g.want(e.now())
	}
	e.touch(id, time.Time{})
	e.worker.Wake() // the items leave
}

// urgency says whether an election may rest, see rests.
type urgency struct {
	dead   time.Time // since when the leader's node has been unreachable; zero: it is not
	back   time.Time // since when it has been reachable again; zero: it never was unreachable, or still is
	due    time.Time // when somebody will need a leader; zero: somebody does
	urgent bool      // somebody waits
}

// rests reports whether the election has time: the leader's node has died, may come back, and nobody waits.
// A false alarm then costs a busy machine nothing but the groups that have work.
func (v *election) rests(now time.Time, reached map[string]bool) bool {
	v.urgent = v.urgent || v.group.wanted(now)
	switch {
	case v.leader == "", reached[v.leader]:
		if !v.dead.IsZero() {
			v.dead, v.back = time.Time{}, now
		}
		return false
	case v.dead.IsZero():
		v.dead, v.back = now, time.Time{}
		delete(v.positions, v.leader)
	}
	return !v.urgent && now.Before(v.restsUntil())
}

// restsUntil is when an election that rests ends its patience.
func (v *election) restsUntil() time.Time {
	if end := v.dead.Add(deathPatience); end.Before(v.due) {
		return end
	}
	return v.due
}

// fewUnapplied is how many entries hasUnapplied reads.
const fewUnapplied = 8

// hasUnapplied reports whether the log has commands of clients that are not applied here: a follower may
// learn late what is committed.
func (r *replica) hasUnapplied() bool {
	is := r.raft.Load()
	first, last := is.AppliedIndex()+1, is.LastIndex()
	if last >= first+fewUnapplied {
		return true
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := r.log.GetLog(i, &l); err != nil || l.Type == raft.LogCommand && !onlyConfigures(l.Data) {
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
