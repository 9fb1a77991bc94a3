package stats

import (
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// source is a group without a replica: a machine, or numbers alone.
type source struct {
	spec    group.Spec
	stats   group.Stats
	machine *queue.Machine // nil: it does nothing
	viewed  *int           // how often a machine was asked for; nil: it must not be
	expired func()         // called by Expire; nil: it must not be
	stopped *group.Quarantine
}

func of(m *queue.Machine) *source {
	return &source{spec: group.Spec{Queue: m.ID(), Group: fsm.GroupID(m.ID())}, machine: m, viewed: new(int)}
}

func (s *source) Spec() group.Spec { return s.spec }
func (s *source) IsLocal() bool    { return false }
func (s *source) Stats() group.Stats {
	if s.machine != nil {
		return group.StatsOf(s.machine)
	}
	return s.stats
}
func (s *source) Progress() replica.Progress {
	return replica.Progress{Role: "leader", Term: 2, Last: 5, Commit: 5, Applied: 5}
}
func (s *source) SnapshotIndex() int64           { return -1 }
func (s *source) LogBytes() uint64               { return s.stats.Ready.Bytes }
func (s *source) Quarantined() *group.Quarantine { return s.stopped }
func (s *source) Expire(time.Duration) error {
	s.expired()
	return nil
}
func (s *source) View(f func(m *queue.Machine)) {
	*s.viewed++
	f(s.machine)
}

// sources are the groups of a node without replicas.
type sources map[fsm.GroupID]*source

func (all sources) Led() iter.Seq[Group] {
	return func(yield func(Group) bool) {
		for _, id := range slices.Sorted(maps.Keys(all)) {
			if !yield(all[id]) {
				return
			}
		}
	}
}

func (all sources) Leads(id fsm.GroupID) Group {
	if s := all[id]; s != nil {
		return s
	}
	return nil
}

// testQueues are the queues of a node that leads all that are given, at a time.
func testQueues(t testing.TB, now fsm.Time, all ...*source) *Queues {
	t.Helper()
	c, led := &catalog.Catalog{}, sources{}
	for _, s := range all {
		led[s.spec.Group] = s
	}
	return &Queues{nodes: testNodes(), c: QueuesConfig{
		Groups: led, Catalog: c, Clock: func() fsm.Time { return now }, Sessions: func() []*peerpb.ConsumingSession { return nil },
	}}
}

// TestIdleQueuesAreNotRead: lists, counts and scrapes do not read the machine of a queue in which nothing comes
// as soon as they ask for.
func TestIdleQueuesAreNotRead(t *testing.T) {
	const now, day = 1_000_000, 86_400_000
	idle := &source{spec: group.Spec{Group: 1, Queue: 11}, stats: group.Stats{Ready: queue.Count{Messages: 3, Bytes: 9}, LastActive: 5}}
	later := &source{spec: group.Spec{Group: 2, Queue: 12}, stats: group.Stats{NextDeadline: now + day + 1, NextExpiry: now + day + 2, LeaseEnd: now + day + 1}}
	q := testQueues(t, now, idle, later)
	all := q.answer(&peerpb.QueueStatsRequest{ExpiringWithin: []uint64{1000, day}}).Queues
	if len(all) != 2 || all[0].MessagesReady+all[1].MessagesReady != 3 || all[0].Expiring != nil || all[1].Expiring != nil {
		t.Errorf("%v", all)
	}
	for _, x := range q.answerTime(&peerpb.TimeRequest{Within: []uint64{1000, day}}).Queues {
		if x.Expire != nil || x.Queue == 12 && (x.NextAt != now+day+1 || x.DeletedAt != now+day+1) {
			t.Errorf("%v", x)
		}
	}
	if list := q.answerConsumers(&peerpb.ConsumersRequest{}).Consumers; list != nil {
		t.Errorf("%v", list)
	}
}

// TestDueQueuesAreRead: what comes within the times that are asked about is counted, and what is due is done first,
// unless it is asked about queues as they are.
func TestDueQueuesAreRead(t *testing.T) {
	const now = 1_000_000
	m := queue.New("q", 11)
	m.Apply(fsm.Meta{Index: 1, Now: now}, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: 5001}}, &fsm.Effects{})
	s, expired := of(m), 0
	s.expired = func() { expired++ }
	for _, x := range []struct {
		now     fsm.Time
		asIs    bool
		within  uint64
		counted []uint64
		expires int
	}{
		{now, false, 4999, nil, 0},
		{now, false, 5000, []uint64{1}, 0},
		{now + 3999, false, 0, nil, 0},
		{now + 4000, false, 0, nil, 1}, // its clock may be ahead of ours
		{now + 6000, false, 0, []uint64{1}, 1},
		{now + 6000, true, 0, []uint64{1}, 0},
	} {
		expired = 0
		all := testQueues(t, x.now, s).answer(&peerpb.QueueStatsRequest{ExpiringWithin: []uint64{x.within}, AsIs: x.asIs}).Queues
		if len(all) != 1 || !slices.Equal(all[0].Expiring, x.counted) || expired != x.expires {
			t.Errorf("%+v: expired %d times, %v", x, expired, all)
		}
	}
}

// TestQuarantinedQueuesAreMissing: a group that is quarantined while it is read has no numbers to show, not zeros.
func TestQuarantinedQueuesAreMissing(t *testing.T) {
	s := &source{spec: group.Spec{Group: 1, Queue: 11}, stats: group.Stats{Listed: true}, stopped: &group.Quarantine{}}
	q := testQueues(t, 1000, s)
	if r := q.answer(&peerpb.QueueStatsRequest{}); len(r.Queues) != 0 {
		t.Errorf("rows: %v", r)
	}
	if r := q.answer(&peerpb.QueueStatsRequest{Columns: []string{"messages"}}); len(r.Ids) != 0 {
		t.Errorf("columns: %v", r)
	}
	if r := q.answerTime(&peerpb.TimeRequest{}); len(r.Queues) != 0 {
		t.Errorf("what comes next: %v", r)
	}
}
