package catalog

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/proto/logpb"
)

// Queues that are declared alike share what they have in common, before and after a restore, and no others do. What is
// shared changes no state.
func TestAlike(t *testing.T) {
	t.Parallel()
	declared := func(i int, args string, members ...uint32) *logpb.DeclareQueue {
		return &logpb.DeclareQueue{
			Vhost: "/", Name: fmt.Sprintf("q%d", i), Durable: true, Members: members,
			Arguments: &logpb.Table{Fields: []*logpb.Field{{Name: "x-queue-type", Value: &logpb.Value{Tag: 'S', Str: []byte(args)}}}},
		}
	}
	var qs queueIndex
	var all []*Queue
	for i, m := range []*logpb.DeclareQueue{
		declared(0, "quorum", 1, 2, 3), declared(1, "quorum", 1, 2, 3), declared(2, "classic", 1, 2, 3), declared(3, "quorum", 2, 1, 3), declared(4, "quorum", 1, 2, 3),
	} {
		q := newQueue(m, 1, 1)
		qs.share(q)
		if got := q.declaration(); !sameRow(got, m) {
			t.Errorf("queue %d was declared as %v, and is %v", i, m, got)
		}
		all = append(all, q)
	}
	for i, want := range []bool{true, true, false, false, true} {
		q, first := all[i], all[0]
		if got := q.Arguments == first.Arguments && &q.declaredMembers[0] == &first.declaredMembers[0]; got != want {
			t.Errorf("queue %d shares with the first one: %v", i, got)
		}
	}
	for i := range 2 * maxAlike {
		if qs.share(newQueue(declared(i, fmt.Sprint("kind ", i), 1), 1, 1)); qs.alike.Len() > maxAlike {
			t.Fatalf("%d kinds are kept", qs.alike.Len())
		}
	}
}
