package queue

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// peekAt takes all steps of a look at m.
func peekAt(m *Machine, p *Peek) (list []Message, more bool) {
	for !p.Step(m) {
	}
	return p.Result()
}

// TestPeek: by number whatever the order of service, by page, without what has
// expired, and without any effect.
func TestPeek(t *testing.T) {
	m := New("q", 1)
	var eff fsm.Effects
	s := fsm.SessionID{Node: 1, Boot: 1, Num: 1}
	seq := uint64(0)
	do := func(c *logpb.Command) {
		seq++
		c.Session, c.Seq = s.Proto(), seq
		if r := m.Apply(fsm.Meta{Index: seq, Term: 1, Now: 1000, Session: s}, c, &eff); r.Code != fsm.OK {
			t.Fatalf("%v: %v", c, r)
		}
	}
	for i, e := range []*logpb.Enqueue{{}, {PriorityPlusOne: 9}, {TtlPlusOne: 101}, {PriorityPlusOne: 2}, {DelayPlusOne: 5001}, {DelayPlusOne: 101}} {
		e.Size = uint32(10 + i)
		do(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	show := func(in Place, after uint64, limit int, now fsm.Time) string {
		list, more := peekAt(m, NewPeek([]Place{in}, after, limit, now))
		text := ""
		for _, x := range list {
			text += fmt.Sprint(x.Seq, " ")
		}
		return text + fmt.Sprint(more)
	}
	do(&logpb.Command{Kind: logpb.Command_GET, Get: &logpb.Get{}}) // takes 2
	before := m.Hash()
	for _, c := range []struct {
		in    Place
		after uint64
		limit int
		now   fsm.Time
		want  string
	}{
		{Ready, 0, 10, 1000, "1 3 4 false"}, {Ready, 0, 2, 1000, "1 3 true"}, {Ready, 3, 2, 1000, "4 false"}, {Ready, 0, 1, 1000, "1 true"},
		{Ready, 0, 10, 1099, "1 3 4 false"}, {Ready, 0, 10, 1100, "1 4 false"}, {Ready, 0, 2, 1100, "1 4 false"},
		{CheckedOut, 0, 10, 1000, "2 false"}, {CheckedOut, 2, 10, 1000, "false"},
		{Scheduled, 0, 1, 1000, "5 true"}, {Scheduled, 5, 1, 1000, "6 false"}, {Delayed, 0, 9, 1000, "false"}, {Outbox, 0, 9, 1000, "false"},
	} {
		if got := show(c.in, c.after, c.limit, c.now); got != c.want {
			t.Errorf("%d after %d, %d of them at %d: %s, want %s", c.in, c.after, c.limit, c.now, got, c.want)
		}
	}
	if m.Hash() != before {
		t.Error("a peek has changed the queue")
	}
	do(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{1, 1}}})
	if got := show(Ready, 0, 10, 1000); got != "1 2 3 4 false" {
		t.Errorf("with a returned one: %s", got)
	}
}

// TestPeekOnlyOwed: what a consumer has taken that need not settle can be left out.
func TestPeekOnlyOwed(t *testing.T) {
	m := New("q", 1)
	var eff fsm.Effects
	s := fsm.SessionID{Node: 1, Boot: 1, Num: 1}
	for i, c := range []*logpb.Command{
		{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1}},
		{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, NoAck: true}},
		{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}},
		{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1}},
		{Kind: logpb.Command_GET, Get: &logpb.Get{}},
	} {
		no := uint64(i + 1)
		c.Session, c.Seq = s.Proto(), no
		if r := m.Apply(fsm.Meta{Index: no, Term: 1, Now: 1000, Session: s}, c, &eff); r.Code != fsm.OK {
			t.Fatalf("%v: %v", c, r)
		}
	}
	for _, owed := range []bool{false, true} {
		p := NewPeek([]Place{CheckedOut}, 0, 10, 1000)
		if owed {
			p.OnlyOwed()
		}
		var got []uint64
		list, _ := peekAt(m, p)
		for _, x := range list {
			got = append(got, x.Seq)
		}
		if want := map[bool][]uint64{false: {1, 2}, true: {2}}[owed]; !slices.Equal(got, want) {
			t.Errorf("only owed %t: %v, want %v", owed, got, want)
		}
	}
}

// TestPeekInSteps: no step walks over more than a few messages, all steps
// together show the first ones by number, and what is taken, purged or comes
// between two steps does no harm.
func TestPeekInSteps(t *testing.T) {
	const n = 3*peekStep + 7
	filled := func() *driver {
		d := newDriver(&logpb.QueueConfig{DeliveryLimit: 20})
		for range n {
			d.enqueue(t, 0)
		}
		return d
	}
	numbers := func(p *Peek) (all []uint64) {
		list, _ := p.Result()
		for _, x := range list {
			all = append(all, x.Seq)
		}
		return all
	}
	held := func() *driver {
		d := filled()
		d.consume(t, 0)
		for d.m.NextDeadline() != 0 {
			d.tick(t)
		}
		return d
	}
	returned := func() *driver { // the newest first
		d := held()
		d.cmd = logpb.Command{Kind: logpb.Command_CANCEL, Cancel: &logpb.Cancel{Consumer: 1}}
		d.do(t, taker)
		for id := uint64(n); id > 0; id-- {
			d.set = logpb.Settle{Consumer: 1, Outcome: logpb.Settle_REQUEUE, Ranges: []uint64{id, 1}}
			d.cmd = logpb.Command{Kind: logpb.Command_SETTLE, Settle: &d.set}
			d.do(t, taker)
		}
		return d
	}
	for _, c := range []struct {
		name  string
		in    Place
		fill  func() *driver
		steps int
		do    func(d *driver)
		want  []uint64
	}{
		{"ready", Ready, filled, 1, nil, []uint64{1, 2, 3}},
		{"returned", Ready, returned, 4, nil, []uint64{1, 2, 3}},
		{"held", CheckedOut, held, 4, nil, []uint64{1, 2, 3}},
		{"taken meanwhile", Ready, returned, 4, func(d *driver) {
			d.cmd = logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 2, Prefetch: peekStep + 1}}
			d.do(t, taker)
			for d.m.NextDeadline() != 0 {
				d.tick(t)
			}
		}, []uint64{1, 2, 3}},
		{"purged meanwhile", Ready, returned, 2, func(d *driver) {
			d.cmd = logpb.Command{Kind: logpb.Command_PURGE}
			d.do(t, publisher)
			d.enqueue(t, 0)
		}, []uint64{n - 2, n - 1, n}},
		{"settled meanwhile", CheckedOut, held, 4, func(d *driver) { d.ack(t, 1, peekStep) }, []uint64{1, 2, 3}},
	} {
		d := c.fill()
		p := NewPeek([]Place{c.in}, 0, 3, d.meta.Now)
		if c.name == "purged meanwhile" { // what was seen of the newest
			p = NewPeek([]Place{c.in}, n-3, 3, d.meta.Now)
		}
		steps := 0
		for done := false; !done; steps++ {
			if done = p.Step(d.m); steps == 0 && c.do != nil {
				c.do(d)
			}
		}
		if got := numbers(p); steps != c.steps || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v after %d steps, want %v after %d", c.name, got, steps, c.want, c.steps)
		}
	}
}
