package stats

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// busyQueue is a queue in which every number of the table is different from 0.
func busyQueue() *source {
	var all queue.Stats
	fill(reflect.ValueOf(&all).Elem())
	all.Phase = queue.Active
	s := group.Stats{Ready: all.Ready, Unacknowledged: all.Unacknowledged, Consumers: all.Consumers, Returned: 3, NextExpiry: 5_000_000_000, LeaseEnd: 5, Use: &group.Use{TimedOut: 7}, Rest: &all}
	return &source{spec: group.Spec{Group: 9, Queue: 11}, stats: s} // behind others
}

// allNumbers are the names of the table.
func allNumbers() (names []string) {
	for name := range numbersByName {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestNumbersAreWhatIsShown: leaders say the same in columns as a description of the queue shows, whether
// the leader knows of columns or not.
func TestNumbersAreWhatIsShown(t *testing.T) {
	names := allNumbers()
	if len(shownNumbers) != len(names) {
		t.Errorf("of %d numbers, the API shows %d", len(names), len(shownNumbers))
	}
	idle := &source{spec: group.Spec{Group: 2, Queue: 12}}
	over := &source{spec: group.Spec{Group: 3, Queue: 13}, stats: group.Stats{Phase: queue.Gone}}
	q := testQueues(t, 1000, busyQueue(), idle, over)
	columns, rows := NewNumbers(true, names...), NewNumbers(true, names...)
	columns.addReply("n1", q.answer(&peerpb.QueueStatsRequest{Columns: names, ExpiringWithin: expiringSoon}))
	rows.addReply("n1", q.answer(&peerpb.QueueStatsRequest{ExpiringWithin: expiringSoon}))
	for _, name := range names {
		n, ok := columns.Number(11, name)
		if shown, also := rows.Number(11, name); !ok || !also || n != shown || n == 0 {
			t.Errorf("%s: %d, shown as %d", name, n, shown)
		}
		if n, ok := columns.Number(12, name); !ok || n != 0 {
			t.Errorf("%s of an empty queue: %d, %v", name, n, ok)
		}
	}
	for _, n := range []*Numbers{columns, rows} {
		if len(n.rows) != 2 || n.Leader(12) != "n1" || n.Leader(13) != "" || n.Of(13) != nil || n.Expiring(12) != nil {
			t.Errorf("%+v", n)
		}
	}
}

// TestExpiringNumbers: how many messages expire soon is counted in the same way in columns and in rows.
func TestExpiringNumbers(t *testing.T) {
	m := queue.New("q", 11)
	for i, ttl := range []uint64{50_000, 200_000, 10_000_000} {
		m.Apply(fsm.Meta{Index: uint64(i + 1), Now: 1000}, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: ttl}}, &fsm.Effects{})
	}
	q := testQueues(t, 1000, of(m))
	for _, names := range [][]string{{"messages"}, nil} {
		n := NewNumbers(true, "messages")
		n.addReply("n1", q.answer(&peerpb.QueueStatsRequest{Columns: names, ExpiringWithin: expiringSoon}))
		if got := n.Expiring(11); !slices.Equal(got, []api.ExpiringWithin{{WithinMS: 60_000, Messages: 1}, {WithinMS: 3_600_000, Messages: 2}}) || n.Of(11)[0] != 3 {
			t.Errorf("%v: %v, %d", names, got, n.Of(11))
		}
	}
}

// TestNumbersOfOtherVersions: a number that a later version asks for is answered with all that is known, and columns
// that do not fit the queues are no answer.
func TestNumbersOfOtherVersions(t *testing.T) {
	q := testQueues(t, 1000, busyQueue())
	if r := q.answer(&peerpb.QueueStatsRequest{Columns: []string{"messages", "of_later_versions"}}); len(r.Queues) != 1 || r.Columns != nil {
		t.Errorf("%v", r)
	}
	for _, columns := range [][]*peerpb.QueueColumn{
		{}, {{}}, {{}, {}, {}}, {{Values: []uint64{1}}, {}}, {{}, {Values: []uint64{1, 2, 3}}},
	} {
		n := NewNumbers(false, "messages", "consumers")
		if n.addReply("n1", &peerpb.QueueStatsReply{Ids: []uint64{1, 2}, Columns: columns}); len(n.rows) != 0 {
			t.Errorf("%v: %+v", columns, n)
		}
	}
	n := NewNumbers(false, "messages", "consumers")
	n.addReply("n1", &peerpb.QueueStatsReply{Ids: []uint64{1, 2}, Columns: []*peerpb.QueueColumn{{}, {Values: []uint64{4, 5}}}})
	n.addReply("n2", &peerpb.QueueStatsReply{Ids: []uint64{2}, Columns: []*peerpb.QueueColumn{{Values: []uint64{6}}, {}}})
	if !slices.Equal(n.Of(1), []uint64{0, 4}) || !slices.Equal(n.Of(2), []uint64{6, 0}) || n.Leader(2) != "n2" {
		t.Errorf("two nodes that say that they lead a queue: %+v", n)
	}
}

// manySources are the groups of a node that leads a share of a hundred thousand queues.
func manySources(count, share int) []*source {
	var all []*source
	for i := range count {
		if i%share == 0 {
			all = append(all, &source{spec: group.Spec{Group: fsm.GroupID(i + 1), Queue: fsm.QueueID(i + 1), VHost: "/", Name: fmt.Sprint("q", i)}, stats: group.Stats{
				Ready: queue.Count{Messages: uint64(i % 7), Bytes: uint64(100 * (i % 7))}, Applied: 5, LastActive: 1,
			}})
		}
	}
	return all
}

// BenchmarkNumbers is what one of three nodes does for a page of a hundred thousand queues: it says the numbers of those
// that it leads, and reads what the others say.
func BenchmarkNumbers(b *testing.B) {
	q, names := testQueues(b, 1000, manySources(100_000, 3)...), []string{"messages", "messages_ready", "consumers"}
	req := &peerpb.QueueStatsRequest{Columns: names}
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q.answer(req)
		}
	})
	r := q.answer(req)
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n := NewNumbers(false, names...)
			n.addReply("n1", r)
		}
	})
	b.Run("rows", func(b *testing.B) { // what a node of an earlier version does
		b.ReportAllocs()
		for b.Loop() {
			n := NewNumbers(false, names...)
			n.addReply("n1", q.answer(&peerpb.QueueStatsRequest{}))
		}
	})
}
