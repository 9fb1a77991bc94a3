package cluster

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// sendings are messages for a queue, with these texts.
func sendings(queue string, texts ...string) (all []fsm.Publish) {
	for _, text := range texts {
		all = append(all, fsm.Publish{RoutingKey: queue, Payload: append(fsm.AppendPayloadHead(nil, "", queue, nil), text...), TTL: -1, Priority: -1})
	}
	return all
}

// What is asked of a queue by number is answered at every node, and what is posted to it is done as a whole: messages for
// another queue come there once.
func TestQueuesAnswerDirectly(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	a, b := c.mustClient("n1"), c.mustClient("n2")
	a.mustDeclare("q")
	a.mustDeclare("other")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	now := fsm.Time(c.all["n1"].self.Now())
	later := sendings("q", "d")
	later[0].Schedule = &fsm.Schedule{At: now + 3_600_000, Delay: -1}
	var first uint64
	must(retried(t, func(ctx context.Context) (err error) {
		first, err = a.session.Perform(ctx, "q", &fsm.Unit{Sends: append(sendings("q", "a", "b", "c"), later...)})
		return err
	}))
	ctx := deadline(t)
	peek := func(from uint64, limit int, group string) (found []uint64, states []fsm.MessageState) {
		t.Helper()
		all, err := b.session.PeekFrom(ctx, "q", from, limit, group)
		must(err)
		for i := range all {
			found, states = append(found, all[i].Message.Sequence-first), append(states, all[i].State)
		}
		return found, states
	}
	if found, states := peek(first+1, 9, ""); !slices.Equal(found, []uint64{1, 2, 3}) || !slices.Equal(states, []fsm.MessageState{fsm.ReadyState, fsm.ReadyState, fsm.ScheduledState}) {
		t.Errorf("from the second on: %v, %v", found, states)
	}
	if found, _ := peek(0, 2, ""); !slices.Equal(found, []uint64{0, 1}) {
		t.Errorf("the first two are %v", found)
	}
	if found, _ := peek(first+4, 9, ""); len(found) != 0 {
		t.Errorf("behind the last one: %v", found)
	}
	keys := [2][]byte{}
	for i, of := range []*client{a, b} {
		key, err := of.session.LockKey(ctx, "q")
		must(err)
		keys[i] = key
	}
	if other, err := a.session.LockKey(ctx, "other"); err != nil || len(keys[0]) != 16 || !bytes.Equal(keys[0], keys[1]) || bytes.Equal(keys[0], other) {
		t.Errorf("the keys are %x, of another queue %x, %v", keys, other, err)
	}
	if n, err := b.session.DeleteBefore(ctx, "q", 9, now-3_600_000, ""); n != 0 || err != nil {
		t.Errorf("%d are deleted that are not old enough, %v", n, err)
	}
	if n, err := b.session.DeleteBefore(ctx, "q", 2, now+3_600_000, ""); n != 2 || err != nil {
		t.Errorf("%d are deleted, %v", n, err)
	}
	if found, _ := peek(0, 9, ""); !slices.Equal(found, []uint64{2, 3}) {
		t.Errorf("left are %v", found)
	}

	must(b.session.Consume(ctx, fsm.ConsumeSpec{Queue: "q", Number: 1, Tag: "c", Credit: true, Numbered: true}))
	b.session.Credit(1, fsm.Flow{Credit: 9})
	b.await("the last one", func() bool { return len(b.inbox) == 1 })
	held := fsm.Handle{Number: b.inbox[0].Sequence, Acquired: b.inbox[0].Acquired}
	for i, h := range []fsm.Handle{{Number: held.Number, Acquired: held.Acquired + 1}, held} {
		must(a.session.Post(ctx, "q", &fsm.Unit{Onward: sendings("other", "x", "y"), Endings: []fsm.Ending{{Handles: []fsm.Handle{h}}}}, uint64(i+1)))
	}
	a.await("two outcomes", func() bool { return len(a.settled) == 2 })
	if a.why[1] != fsm.ErrNotHeld || !a.settled[2] {
		t.Errorf("the outcomes are %v, %v", a.settled, a.why)
	}
	a.mustConsume("other", 1, 0)
	a.await("what was handed on", func() bool { return len(a.inbox) == 2 })
	mustBodies(t, a.bodies(), []string{"x", "y"})
	if found, _ := peek(0, 9, ""); !slices.Equal(found, []uint64{3}) {
		t.Errorf("left are %v", found)
	}
}
