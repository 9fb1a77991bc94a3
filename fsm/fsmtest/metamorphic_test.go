package fsmtest

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// generated draws a history, sparing the indexes between its entries.
func generated(t *rapid.T) history {
	q := newModel()
	g := newGenerator(t, q, false)
	var h history
	t.Repeat(map[string]func(*rapid.T){"step": func(*rapid.T) {
		s := g.next()
		s.meta.Index *= spare
		q.apply(s.meta, s.cmd)
		h.add(s)
	}})
	return h
}

const spare = 1000

// spoken is what one command answers and causes, without where the payloads
// lie and which indexes are released, which is the log's business.
func spoken(m *queue.Machine, s step) string {
	var eff fsm.Effects
	r := m.Apply(s.meta, s.cmd, &eff)
	for i := range eff.Deliveries {
		eff.Deliveries[i].Ref = fsm.Ref{}
	}
	return fmt.Sprintf("%+v %+v %+v %+v %v", r, eff.Deliveries, eff.Timeouts, eff.Cancelled, eff.Gone)
}

// TestRedundantTicks: ticks that come before anything is due change nothing,
// now or later.
func TestRedundantTicks(t *testing.T) {
	check(t, 20, func(t *rapid.T) {
		h := generated(t)
		g := &generator{t: t}
		plain, ticked := newMachine(), newMachine()
		for i, e := range h {
			if i > 0 && e.term == h[i-1].term {
				earlyTicks(t, g, ticked, e)
			}
			for _, s := range e.steps() {
				if a, b := spoken(plain, s), spoken(ticked, s); a != b {
					t.Fatalf("entry %d %v\nplain  %s\nticked %s\nhistory:\n%s", e.index, s.cmd, a, b, h)
				}
			}
			if a, b := visible(plain), visible(ticked); a != b {
				t.Fatalf("after entry %d\nplain\n%s\nticked\n%s\nhistory:\n%s", e.index, a, b, h)
			}
		}
	})
}

// earlyTicks applies a few ticks that are not due, before entry e.
func earlyTicks(t *rapid.T, g *generator, m *queue.Machine, e entry) {
	for i := range g.n("ticks", 3) {
		now := m.Clock()
		if later := fsm.Time(e.header.Now); later > now {
			now += fsm.Time(g.n("wait", int(min(later-now, 100_000))))
		}
		if d := m.NextDeadline(); d != 0 && d <= now {
			return
		}
		var eff fsm.Effects
		meta := fsm.Meta{Index: e.index - spare/2 + uint64(i), Term: e.term, Now: now}
		m.Apply(meta, &logpb.Command{Kind: logpb.Command_TICK}, &eff)
		if len(eff.Deliveries)+len(eff.Timeouts)+len(eff.Cancelled)+len(released(&eff)) > 0 || eff.Gone || eff.Outbox {
			t.Fatalf("a tick that is not due causes %+v", eff)
		}
	}
}

// TestCutOfEntries: it makes no difference whether commands lie in one entry
// or each in its own.
func TestCutOfEntries(t *testing.T) {
	check(t, 20, func(t *rapid.T) {
		h := generated(t)
		joined, cut := newMachine(), newMachine()
		for _, e := range h {
			for i, s := range e.steps() {
				own := s
				own.meta.Index += uint64(i)
				own.meta.Offset = 0
				if a, b := spoken(joined, s), spoken(cut, own); a != b {
					t.Fatalf("entry %d %v\njoined %s\ncut    %s\nhistory:\n%s", e.index, s.cmd, a, b, h)
				}
			}
			if a, b := visible(joined), visible(cut); a != b {
				t.Fatalf("after entry %d\njoined\n%s\ncut\n%s\nhistory:\n%s", e.index, a, b, h)
			}
		}
	})
}
