package stats

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// shownAge is an age as the API has it.
func shownAge(ms *uint64) string {
	if ms == nil {
		return "none"
	}
	return fmt.Sprint(*ms)
}

// TestAges: a queue that does nothing says how old its messages are, by the clock of the day; by the value of a header
// if it is the only one that is asked about.
func TestAges(t *testing.T) {
	const now = 1_000_000
	ages := &group.Ages{Oldest: queue.Oldest{Ready: now - 5000, Scheduled: now - 70}, Tallies: []queue.Tally{{Value: "add", Ready: 2, Unacked: 1, OldestReady: now - 4000}, {Other: true, Scheduled: 3}}}
	old := &source{spec: group.Spec{Group: 1, Queue: 11}, stats: group.Stats{Clock: now - 4000, Ages: ages}}
	ahead := &source{spec: group.Spec{Group: 2, Queue: 12}, stats: group.Stats{Clock: now + 100, Ages: &group.Ages{Oldest: queue.Oldest{Ready: now + 200, Unacked: now}}}}
	empty := &source{spec: group.Spec{Group: 3, Queue: 13}}
	q := testQueues(t, now, old, ahead, empty)
	want := []string{"5000 none 70", "0 100 none", "none none none"}
	for i, s := range q.answer(&peerpb.QueueStatsRequest{}).Queues {
		x := queueFrom("n1", s)
		if got := fmt.Sprint(shownAge(x.OldestReadyAge), " ", shownAge(x.OldestUnackedAge), " ", shownAge(x.OldestScheduledAge)); got != want[i] || x.ByHeader != nil {
			t.Errorf("queue %d: %s, want %s, by header %v", s.Queue, got, want[i], x.ByHeader)
		}
	}
	s := statsOf(11, &old.stats, now)
	s.ByHeader = talliesOf(&old.stats, now)
	got := queueFrom("n1", s).ByHeader
	if len(got) != 2 || got[0].Value != "add" || got[0].Other || got[0].Ready != 2 || got[0].Unacknowledged != 1 || shownAge(got[0].OldestReadyAge) != "4000" ||
		!got[1].Other || got[1].Scheduled != 3 || got[1].OldestReadyAge != nil {
		t.Errorf("by header: %+v", got)
	}
	if list := talliesOf(&empty.stats, now); list != nil {
		t.Errorf("nothing is in it: %v", list)
	}
}

// TestDue: what becomes ready within a time is counted, and the machine of a queue is read only if its numbers do not
// say it.
func TestDue(t *testing.T) {
	const now = 1_000_000
	m := queue.New("q", 11)
	apply := func(c *logpb.Command) {
		c.Seq = m.Index() + 1
		m.Apply(fsm.Meta{Index: m.Index() + 1, Term: 1, Now: now, Session: fsm.SessionID{Node: 1, Boot: 1, Num: 1}, Version: fsm.NewestVersion}, c, &fsm.Effects{})
	}
	at := func(now fsm.Time, within, want uint64, read int) {
		t.Helper()
		s := of(m)
		n := s.Stats()
		if got := testQueues(t, now, s).due(s, &n, within); got != want || *s.viewed != read {
			t.Errorf("within %d from %d: %d, want %d; read %d times, want %d", within, now-1_000_000, got, want, *s.viewed, read)
		}
	}
	at(now, 9000, 0, 0)
	for _, due := range []int64{1000, 2000, 5000} {
		apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, DueAt: now + due}})
	}
	at(now, 0, 0, 0)
	at(now, 999, 0, 0)
	at(now, 1000, 1, 1)
	at(now+1500, 1500, 2, 1)
	at(now, 5000, 3, 0)
	apply(&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{Retry: logpb.QueueConfig_ALL, RetryMin: 3000, DeliveryLimit: 20}}})
	apply(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1}})
	apply(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}})
	apply(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, 1}}})
	if n := m.Stats().Delayed.Messages; n != 1 {
		t.Fatalf("%d wait for a retry", n)
	}
	at(now, 999, 0, 0)
	at(now, 2999, 2, 1)
	at(now, 3000, 3, 1)
	at(now, 5000, 4, 1)
	s := of(m)
	s.spec.Queue = 11
	if r := testQueues(t, now, s).answer(&peerpb.QueueStatsRequest{DueWithin: 3000, AsIs: true}).Queues; len(r) != 1 || r[0].MessagesDue != 3 || queueFrom("n1", r[0]).Due != 3 {
		t.Errorf("%v", r)
	}
}
