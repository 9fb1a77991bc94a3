package stats

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// barrierWait bounds how long one group may take to commit an empty entry.
const barrierWait = 5 * time.Second

// Quarantined lists the queues that do not lead on this node because work for
// them has panicked here.
func (l *Local) Quarantined() []api.Quarantine {
	list := []api.Quarantine{}
	for _, g := range l.c.Host.Quarantined() {
		if q := g.Quarantined(); q != nil {
			list = append(list, api.Quarantine{
				VHost: g.Spec().VHost, Name: g.Spec().Name, Group: uint32(g.Spec().Group), SinceMS: int64(q.Since),
				Doing: q.Doing, Panic: q.Panic, Term: q.Term, Index: q.Index, Stopped: q.Stopped,
			})
		}
	}
	return list
}

// Unproven lists the replicas on this node that do not vote because they cannot prove what they
// acknowledged. The catalog's has no name.
func (l *Local) Unproven() []api.Unproven {
	list := []api.Unproven{}
	add := func(x api.Unproven, d *group.Doubt) {
		if d != nil {
			x.SinceMS, x.Reason, x.Stuck = int64(d.Since), d.Why, d.Stuck
			list = append(list, x)
		}
	}
	add(api.Unproven{}, l.c.Catalog.Doubt())
	for _, g := range l.c.Host.Learners() {
		s := g.Spec()
		add(api.Unproven{VHost: s.VHost, Name: s.Name, Group: uint32(s.Group)}, g.Doubt())
	}
	return list
}

// Closed lists the replicas on this node that could not be opened.
func (l *Local) Closed() []api.Closed { return l.c.Closed() }

// LiftQuarantine allows this node to lead a queue again. An error that is a *fsm.Refusal is the
// caller's fault.
func (l *Local) LiftQuarantine(q *catalog.Queue) error {
	g := l.c.Host.Group(q.Group)
	if g == nil {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s has no replica on node '%s'", q, l.c.Name))
	}
	err := g.LiftQuarantine()
	if errors.Is(err, group.ErrNotQuarantined) || errors.Is(err, group.ErrStopped) {
		return fsm.Refuse(fsm.Precondition, err.Error())
	}
	return err
}

// StandingStill lists the queues that this node leads and whose work makes no progress, preceded by
// the catalog.
func (l *Local) StalledQueues() []api.Standstill {
	list := []api.Standstill{}
	if s := l.c.Catalog.Stall(); s != nil {
		list = append(list, standstill(s))
	}
	for _, s := range l.c.Host.Stalls() {
		list = append(list, standstill(&s))
	}
	return list
}

func standstill(s *group.Stall) api.Standstill {
	var of group.Spec
	if s.Group != nil { // otherwise it is the catalog
		of = s.Group.Spec()
	}
	return api.Standstill{
		VHost: of.VHost, Name: of.Name, Group: uint32(of.Group), Reason: s.Reason, ForMS: s.For.Milliseconds(), Keeps: s.Keeps,
		Term: s.Term, Last: s.Last, Commit: s.Commit, Applied: s.Applied,
	}
}

// Parked lists the queues that this node leads and that have parked messages.
func (l *Local) Parked() (ids []fsm.QueueID) {
	for _, g := range l.c.Host.Groups() {
		if g.Leading() == 0 {
			continue
		}
		g.View(func(m *queue.Machine) {
			if m.Stats().Parked.Messages > 0 {
				ids = append(ids, m.ID())
			}
		})
	}
	return ids
}

// ReplicasOf describes this node's replicas of the queues with a name; "": of all. It makes no
// request to the queues: what is due in them stays due. hashed: with the hashes of their states,
// which cost a pass over all messages.
func (l *Local) ReplicasOf(name string, hashed bool) []api.Replica {
	var list []api.Replica
	for _, g := range l.c.Host.Groups() {
		spec := g.Spec()
		if name != "" && spec.Name != name {
			continue
		}
		r := api.Replica{
			VHost: spec.VHost, Name: spec.Name, QueueID: uint64(spec.Queue), Group: uint32(spec.Group),
			Node: l.c.Name, Leader: g.Leading() != 0, LeaderNode: g.Leader(), Term: g.Term(), Quarantined: g.Quarantined() != nil,
		}
		g.View(func(m *queue.Machine) {
			s := m.Stats()
			if hashed {
				h := m.Hash()
				r.StateHash = hex.EncodeToString(h[:])
			}
			r.AppliedIndex = m.Index()
			r.Ready, r.Unacknowledged = s.Ready.Messages, s.Unacknowledged.Messages
			r.Outbox, r.Consumers = s.Outbox.Messages, s.Consumers
		})
		list = append(list, r)
	}
	return list
}

// Barrier makes the followers of all queues that this node leads learn what is committed.
func (l *Local) Barrier(context.Context) error {
	var errs []error
	for _, g := range l.c.Host.Groups() {
		if g.Leading() != 0 {
			errs = append(errs, g.Barrier(barrierWait))
		}
	}
	return errors.Join(errs...)
}

// Raft sums up the replicas of queues on this node, those without a log left out.
func (l *Local) Raft() (sum metrics.Raft) {
	for _, g := range l.c.Host.Groups() {
		if g.IsLocal() {
			continue
		}
		p := g.Progress()
		sum.Term, sum.Commit, sum.Last, sum.Applied = sum.Term+p.Term, sum.Commit+p.Commit, sum.Last+p.Last, sum.Applied+p.Applied
		sum.Snapshot += max(g.SnapshotIndex(), 0)
		addMember(&sum.Members, &p)
	}
	return sum
}

// Led counts the replicas on this node, and sums up those that lead.
func (l *Local) Led() (replicas int, sum metrics.Led) {
	groups, now, clock, view := l.c.Host.Groups(), l.c.Clock.Steady(), l.c.Clock.Now(), l.c.Catalog.View()
	for _, g := range groups {
		if g.Leading() == 0 {
			continue
		}
		var s queue.Stats
		var next fsm.Time
		g.View(func(m *queue.Machine) {
			s = m.Stats()
			next, _ = m.ScheduledSpan()
			addTimes(&sum.Times, m, clock)
			late, oldest := m.Lateness()
			sum.ConsumersTimedOut += late
			if oldest != 0 {
				sum.OldestUnacked = max(sum.OldestUnacked, time.Duration(max(now, s.Clock)-oldest)*time.Millisecond)
			}
		})
		sum.Queues++
		if q, ok := view.QueueByID(g.Spec().Queue); ok && q.StoreOf != "" {
			sum.Delayed = append(sum.Delayed, metrics.Delayed{VHost: q.VHost, Exchange: q.StoreOf, Messages: s.Scheduled.Messages, NextDue: next})
		} else {
			sum.Scheduled += s.Scheduled.Messages
		}
		sum.Locked += uint64(s.Locked)
		sum.DelayedRetry, sum.Deferred = sum.DelayedRetry+s.Delayed.Messages, sum.Deferred+s.Deferred.Messages
		sum.Parked += s.Parked.Messages
		sum.Consumers += s.Consumers
		sum.Ready, sum.ReadyBytes = sum.Ready+s.Ready.Messages, sum.ReadyBytes+s.Ready.Bytes
		sum.Unacked, sum.UnackedBytes = sum.Unacked+s.Unacknowledged.Messages, sum.UnackedBytes+s.Unacknowledged.Bytes
		sum.Waiting += s.Waiting.Messages
		sum.Outbox, sum.OutboxBytes = sum.Outbox+s.Outbox.Messages, sum.OutboxBytes+s.Outbox.Bytes
	}
	return len(groups), sum
}

// addTimes compares a queue with the node's clock.
func addTimes(t *metrics.Times, m *queue.Machine, clock fsm.Time) {
	if at := m.Outlook().NextExpiry; at != 0 && (t.NextExpiry == 0 || at < t.NextExpiry) {
		t.NextExpiry = at
	}
	if due := m.NextDeadline(); due != 0 {
		t.TickLag = max(t.TickLag, fsm.Millis(clock-due))
	}
	t.Ahead = max(t.Ahead, fsm.Millis(m.Clock()-clock))
}

// addMember counts a replica by what it is.
func addMember(m *metrics.Members, p *group.Progress) {
	switch {
	case p.Role == "leader":
		m.Leaders++
	case p.Role == "follower" && p.Voter:
		m.Followers++
	case p.Role == "follower":
		m.Learners++
	case p.Role == "candidate":
		m.Candidates++
	default:
		m.Stopped++
	}
}
