package host

import (
	"context"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/group"
)

// awake is a group that is awake, as the host has it.
type awake struct {
	*group.Instance
	host *Host

	watched    atomic.Bool // see watch
	considered atomic.Bool // for a snapshot
	fitted     atomic.Bool // the number of trailing entries fits their size
	complete   complete
}

// Opened implements group.Attendant.
func (a *awake) Opened() {
	a.host.groups.add(a)
	a.observe()
	a.host.elections.Begin(a)
}

// observe has the host act on what raft does, and begins to watch a learner.
func (a *awake) observe() {
	a.Raft().RegisterObserver(raft.NewObserver(a.host.observed, true, wanted))
	if a.IsLearner() {
		a.host.learners.Begin(a.ID(), a)
	}
}

// Resumed implements group.Attendant.
func (a *awake) Resumed() { a.host.groups.woken(a) }

// Woken implements group.Attendant: the host acts on changes of an instance that has woken, and on those that it has missed.
func (a *awake) Woken(r *group.Record) {
	h := a.host
	a.observe()
	if leads := a.IsLeader(); leads != a.Serves() {
		if !leads {
			a.TenureEnded()
		}
		h.tasks.Go(a.Review)
	}
	switch leader := a.Replica.Leader(); {
	case leader != "":
		h.leaderSeen(a, leader)
	case r.Leads(), r.Leader() == "", !h.config.Mesh.Alive(r.Leader()):
		h.elections.Begin(a)
	}
}

// Ended implements group.Attendant.
func (a *awake) Ended() { a.host.groups.forget(a) }

// Works implements group.Attendant.
func (a *awake) Works() { a.host.watch.add(a) }

// Watched implements group.Attendant.
func (a *awake) Watched() bool { return a.watched.Load() }

// Applied implements group.Attendant.
func (a *awake) Applied() { a.host.snapshots.note(a) }

// Unsettled implements group.Attendant.
func (a *awake) Unsettled() { a.host.lag.note(a) }

// Snapshot implements group.Attendant.
func (a *awake) Snapshot(ctx context.Context) error { return a.host.snapshots.write(ctx, a) }
