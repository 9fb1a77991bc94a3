package fsmtest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestSingleActive: a queue with a single active consumer has one whenever it
// can have one, nobody else gets anything, and whatever has happened, it goes
// on handing out until nothing is ready, if what it hands out is settled.
func TestSingleActive(t *testing.T) {
	check(t, 4, func(t *rapid.T) {
		q, m := newModel(), newMachine()
		g := newGenerator(t, q, false)
		g.single, g.taste.groups = true, false
		var h history
		apply := func(s step) {
			h.add(s)
			q.apply(s.meta, s.cmd)
			before := activeConsumer(t, m, h)
			var eff fsm.Effects
			m.Apply(s.meta, s.cmd, &eff)
			after := activeConsumer(t, m, h)
			for _, d := range eff.Deliveries {
				if m.Config().SingleActive && d.To.Number != 0 && d.To != before && d.To != after {
					t.Fatalf("%v delivers to %v, active are %v and then %v\nhistory:\n%s", s.cmd, d.To, before, after, h)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) { apply(g.next()) }})
		settleUntilEmpty(t, g, m, &h, apply)
	})
}

// activeConsumer checks who is active and returns it.
func activeConsumer(t *rapid.T, m *queue.Machine, h history) (active fsm.ConsumerID) {
	if !m.Config().SingleActive {
		return active
	}
	n, live := 0, 0
	for c := range m.Consumers() {
		if c.Active {
			active = c.ID
			n++
		}
		if isServed(c) {
			live++
		}
	}
	if n > 1 || n == 0 && live > 0 {
		t.Fatalf("%d consumers are active, %d could be\nhistory:\n%s", n, live, h)
	}
	return active
}

// isServed reports whether c gets messages when it is its turn.
func isServed(c queue.Consumer) bool { return c.Status == queue.Up || c.Status == queue.Quiescing }

// settleUntilEmpty acks what consumers hold or owe, until nobody does.
func settleUntilEmpty(t *rapid.T, g *generator, m *queue.Machine, h *history, apply func(step)) {
	for range 2000 {
		owing := slices.DeleteFunc(slices.Collect(m.Consumers()), func(c queue.Consumer) bool { return c.Held == 0 && c.TimedOut == 0 })
		if len(owing) == 0 {
			break
		}
		c := owing[0]
		g.meta.Index++
		g.meta.Offset = 0
		apply(g.step(&logpb.Command{
			Kind: logpb.Command_SETTLE, Session: c.ID.Session.Proto(), Seq: g.q.session(c.ID.Session).nextSeq,
			Settle: &logpb.Settle{Consumer: c.ID.Number, Ranges: []uint64{1, c.NextDelivery}},
		}, false))
	}
	st := m.Stats()
	if due := m.NextDeadline(); due != 0 && due <= m.Clock() {
		return // what is in the way expires with the next ticks
	}
	if g.q.isPaused() {
		return // what is ready waits for that to end
	}
	if len(g.q.detachedOnes) > 0 {
		return // what they hold is not settled here
	}
	if slices.ContainsFunc(g.q.consumers, func(c *consumer) bool { return c.shared && c.prefetch == 0 || c.link.mode && c.link.left == 0 }) {
		return // its session may have no part of its limit to give
	}
	if slices.ContainsFunc(g.q.consumers, func(c *consumer) bool { return c.minTTL > 0 || c.only != "" || c.selector != "" }) {
		return // what is ready may have too little left, another group, or be chosen for nobody
	}
	if slices.ContainsFunc(slices.Collect(m.Consumers()), isServed) && st.Ready.Messages > 0 || st.Unacknowledged.Messages > 0 && g.q.count(checkedOut) != heldByGets(g.q) {
		t.Fatalf("%d consumers, %d messages are ready, %d held\n%s\nhistory:\n%s", st.Consumers, st.Ready.Messages, st.Unacknowledged.Messages, m, *h)
	}
}

func heldByGets(q *model) (n uint64) {
	for _, c := range q.consumers {
		if c.id.Number == 0 {
			n += uint64(len(q.held(c)))
		}
	}
	return n
}
