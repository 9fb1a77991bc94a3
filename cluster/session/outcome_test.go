package session

import (
	"errors"
	"fmt"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// mustOutcome checks the only outcome that the client was told.
func (x *strays) mustOutcome(want error) {
	x.t.Helper()
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	got := new(fsm.NotTaken)
	switch refused := new(fsm.NotTaken); {
	case len(x.c.why) != 1:
		x.t.Errorf("outcomes %v, want %v", x.c.why, want)
	case errors.As(want, &refused):
		if !errors.As(x.c.why[0], &got) || *got != *refused {
			x.t.Errorf("outcome %v, want %v", x.c.why[0], want)
		}
	case x.c.why[0] != want:
		x.t.Errorf("outcome %v, want %v", x.c.why[0], want)
	}
	x.c.why = nil
}

// A refused publish says which queue has refused it, and why. Many that one queue refuses are told at once.
func TestRefusalNamesTheQueue(t *testing.T) {
	x := newStrays(t)
	q := x.MustQueue("q")
	for range 3 {
		x.publish("", "q", false)
	}
	x.answer(q, fsm.Rejected)
	x.mustOutcome(&fsm.NotTaken{Queue: "q"})
	x.publish("", "q", false)
	x.answer(q, fsm.NotFound)
	x.mustOutcome(&fsm.NotTaken{Queue: "q", Reason: fsm.OutOfOrder})

	groups := x.MustDeclare(&logpb.DeclareQueue{Vhost: "/", Name: "g", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{Fields: []*logpb.Field{
		{Name: "x-message-groups", Value: &logpb.Value{Tag: 't', Int: 1}}, {Name: "x-group-required", Value: &logpb.Value{Tag: 't', Int: 1}},
	}}})
	x.publish("", "g", false)
	x.answer(groups, fsm.Rejected)
	x.mustOutcome(&fsm.NotTaken{Queue: "g", Reason: fsm.NoGroup})

	x.n++
	p := fsm.Publish{
		Number: x.n, RoutingKey: "q", TTL: -1, Priority: -1, Payload: fsm.AppendPayloadHead(nil, "", "q", nil),
		Schedule: &fsm.Schedule{Delay: 1000, ID: "s", Conflict: logpb.Enqueue_REJECT},
	}
	if _, err := x.s.Publish(&p); err != nil {
		t.Fatal(err)
	}
	x.answer(q, fsm.Rejected)
	x.mustOutcome(&fsm.NotTaken{Queue: "q", Reason: fsm.Scheduled})
}

// A publish whose queues are all deleted is told apart from one that a queue has.
func TestOutcomeOfDeletedQueues(t *testing.T) {
	for _, tc := range []struct {
		name string
		a    fsm.Code // of the one that is not deleted; Gone: both are
		want error
	}{
		{"all", fsm.Gone, fsm.ErrUnroutable},
		{"the other one has it", fsm.OK, nil},
		{"the other one refuses", fsm.Rejected, &fsm.NotTaken{Queue: "a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newStrays(t)
			a, b := x.MustQueue("a"), x.MustQueue("b")
			x.bind("amq.fanout", a)
			x.bind("amq.fanout", b)
			x.publish("amq.fanout", "k", false)
			x.answer(a, tc.a)
			x.deleteQueue(b)
			if tc.a == fsm.Gone {
				x.deleteQueue(a)
			}
			x.mustOutcome(tc.want)
		})
	}
}

// Of several copies a refusal counts most, and none that a queue has is unroutable.
func TestGraver(t *testing.T) {
	no := &fsm.NotTaken{}
	for _, c := range []struct{ a, b, want error }{
		{fsm.ErrUnroutable, fsm.ErrUnroutable, fsm.ErrUnroutable}, {fsm.ErrUnroutable, nil, nil}, {nil, fsm.ErrUnroutable, nil},
		{nil, nil, nil}, {nil, no, no}, {no, nil, no}, {fsm.ErrUnroutable, no, no}, {no, fsm.ErrUnroutable, no},
	} {
		if got := graver(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
	}
}

// A client is told of the end of a queue that it publishes to, after the outcomes of what it was sent, and nothing of
// others.
func TestTargetIsGone(t *testing.T) {
	x := newStrays(t)
	q, other := x.MustQueue("q"), x.MustQueue("other")
	id, err := x.s.Target(t.Context(), "q")
	if err != nil || id != q.ID {
		t.Fatalf("target %d, %v", id, err)
	}
	if _, err := x.s.Target(t.Context(), "none"); !isKind(err, fsm.NotFoundKind) {
		t.Errorf("no queue: %v", err)
	}
	x.publish("", "other", false)
	x.answer(other, fsm.OK)
	x.publish("", "q", false)
	x.publish("", "q", false)
	x.stale.Store(true) // so they cannot be routed again yet
	x.deleteQueue(other)
	x.deleteQueue(q)
	x.expect("settled")
	x.stale.Store(false)
	grouptest.Eventually(t, func() bool {
		x.c.mu.Lock()
		defer x.c.mu.Unlock()
		return len(x.c.log) >= 3
	})
	x.expect("settled", "settled", fmt.Sprint("gone ", q.ID))
	x.MustQueue("q") // it begins another life
	if again, err := x.s.Target(t.Context(), "q"); err != nil || again == id {
		t.Errorf("target %d, %v", again, err)
	}
}

// A user without the right to publish does not learn which queues there are.
func TestTargetNeedsARight(t *testing.T) {
	w := newWorld(t)
	w.MustQueue("q")
	w.permit("guest", nil, ".*", "x", ".*")
	s := w.mustSession(&recorder{})
	for _, name := range []string{"q", "none"} {
		if _, err := s.Target(t.Context(), name); !isKind(err, fsm.AccessRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
