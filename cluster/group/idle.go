package group

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Leaderless reports whether raft knows of no leader.
func (i *Instance) Leaderless() bool { return i.Replica.Leader() == "" }

// Search begins an election if there is none.
func (i *Instance) Search() {
	if !i.node.Elections.Runs(i.spec.Group) {
		i.node.Elections.Begin(i)
	}
}

// wish is when somebody has first and last waited for a leader, in ns. Who finds one that leads asks no more.
type wish struct{ first, last atomic.Int64 }

// note notes that somebody waits, and reports whether that has gone on for long.
func (w *wish) note(now time.Time) bool {
	if at := now.UnixNano(); at-w.last.Swap(at) >= int64(election.WantValid) {
		w.first.Store(at)
	}
	return now.UnixNano()-w.first.Load() >= int64(election.WantValid)
}

// LastActive is when the group last applied something, or woke.
func (i *Instance) LastActive() time.Time {
	return time.Unix(0, max(i.usage.active.Load(), i.began))
}

// Idle returns where the log of a leader ends if nothing happens in its group, and nothing is due for so long.
func (i *Instance) Idle(long time.Duration) (at RecordedAt, ok bool) {
	term, leads := i.LeadsIn()
	switch {
	case !leads, i.leadership.term.Load() != term, i.Barred(), i.proposer.busy(), i.attendant.Watched(), i.Moves(), i.usage.writing.Load() > 0:
		return at, false
	}
	is := i.Raft()
	last := is.LastIndex()
	if is.CommitIndex() != last || is.AppliedIndex() != last || i.LastStored() != last {
		return at, false
	}
	for _, m := range i.Configuration() {
		if !m.Voter || m.Node != i.Node() && i.node.config.Mesh.Alive(m.Node) && i.Reached(m.Node, term).Index < last {
			return at, false
		}
	}
	at = RecordedAt{i.PositionOf(last), term}
	return at, at.Term != 0 && i.applier.rests(last, func(deadline fsm.Time) bool { return i.proposer.until(deadline) > long }, &i.settings)
}

// Follows reports whether a replica has all that a leader has, and its machine as well: raft counts what it has handed over.
// A candidate of the term that has lost is one for raft as long as it is awake.
func (i *Instance) Follows(leader string, want RecordedAt) bool {
	is := i.Raft()
	role, term := i.Role()
	return role != raft.Leader && term == want.Raft && i.Leader() == leader && !i.IsLearner() && !i.Barred() && i.usage.writing.Load() == 0 &&
		is.LastIndex() == want.Index && is.AppliedIndex() == want.Index && i.LastStored() == want.Index && i.LogEnd() == want.Position &&
		i.applier.hasUpTo(want.Index)
}

// rests reports whether the machine has every command up to an index, waits for nothing before a deadline that is far, and
// has all settings.
func (a *applier) rests(last uint64, far func(deadline fsm.Time) bool, s *settings) bool {
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	if a.given {
		return false
	}
	d := a.machine.NextDeadline()
	return !a.stopped && a.has(last) && (d == 0 || far(d)) && a.machine.Stats().Outbox.Messages == 0 && !queue.GoesOn(a.machine.Outlook().Redrive) && !s.wait(a.machine.Config())
}
