package fsmtest

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestWitness: each promise that is broken is noticed. What the machine answers
// and causes is falsified on its way to the witness.
func TestWitness(t *testing.T) {
	publisher, consumer := fsm.SessionID{Node: 1, Boot: 1, Num: 1}, fsm.SessionID{Node: 2, Boot: 1, Num: 1}
	enqueue := func(ttlPlusOne uint64) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Session: publisher.Proto(), Enqueue: &logpb.Enqueue{Size: 8, TtlPlusOne: ttlPlusOne}}
	}
	consume := &logpb.Command{Kind: logpb.Command_CONSUME, Session: consumer.Proto(), Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}
	ack := &logpb.Command{Kind: logpb.Command_SETTLE, Session: consumer.Proto(), Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, 1}}}
	tick := &logpb.Command{Kind: logpb.Command_TICK}
	first := fsm.Ref{Index: 1, Size: 8}
	full := &logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{
		MaxLengthPlusOne: 1, Overflow: logpb.QueueConfig_REJECT_PUBLISH,
	}}}
	to := fsm.ConsumerID{Session: consumer, Number: 1}
	again := func(_ *fsm.Result, eff *fsm.Effects) {
		eff.Deliveries = append(eff.Deliveries, fsm.Delivery{To: to, ID: 2, Ref: first})
	}
	type falsify func(r *fsm.Result, eff *fsm.Effects)
	for _, tc := range []struct {
		name     string
		commands []*logpb.Command // one a second
		repeat   bool             // the last one has the number of the one before
		falsify  falsify          // the last step
		want     string
	}{
		{"nothing", []*logpb.Command{enqueue(0), consume, ack, enqueue(500), tick}, false, func(*fsm.Result, *fsm.Effects) {}, ""},
		{"delivered after its ack", []*logpb.Command{enqueue(0), consume, ack, tick}, false, again, "is delivered and was ended"},
		{"delivered after its death", []*logpb.Command{enqueue(500), tick, consume}, false, again, "is delivered and was ended"},
		{"delivered too late", []*logpb.Command{enqueue(1001), consume}, false, again, "its life ended"},
		{"from nowhere", []*logpb.Command{consume, tick}, false, again, "was never published"},
		{"delivered though refused", []*logpb.Command{full, enqueue(0), tick}, false, func(_ *fsm.Result, eff *fsm.Effects) {
			eff.Deliveries = append(eff.Deliveries, fsm.Delivery{To: to, ID: 1, Ref: fsm.Ref{Index: 2, Size: 8}})
		}, "was refused and is delivered"},
		{"another answer", []*logpb.Command{enqueue(0), enqueue(0)}, true, func(r *fsm.Result, _ *fsm.Effects) { r.Code = fsm.Rejected }, "was answered 0, and now"},
		{"enqueued and refused", []*logpb.Command{enqueue(0)}, false, func(r *fsm.Result, _ *fsm.Effects) { r.Code = fsm.Rejected }, "is enqueued and answered"},
		{"dead too early", []*logpb.Command{enqueue(9001), tick}, false, func(_ *fsm.Result, eff *fsm.Effects) {
			eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{Ref: first, Reason: logpb.Death_EXPIRED})
		}, "not to end before"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine()
			w := newWitness(m)
			next := map[fsm.SessionID]uint64{}
			var found diffs
			for i, c := range tc.commands {
				meta := fsm.Meta{Index: uint64(i + 1), Term: 1, Now: start + fsm.Time(1000*i), Session: fsm.SessionFrom(c.Session), Version: 1}
				last := i == len(tc.commands)-1
				if c.Session != nil && !(last && tc.repeat) {
					next[meta.Session]++
				}
				c.Seq = next[meta.Session]
				var eff fsm.Effects
				r := m.Apply(meta, c, &eff)
				if last {
					tc.falsify(&r, &eff)
				}
				found = append(found, w.judge(step{meta, c, false}, r, &eff)...)
			}
			text := strings.Join(found, "\n")
			if (tc.want == "") != (text == "") || !strings.Contains(text, tc.want) {
				t.Errorf("found %q, want %q", text, tc.want)
			}
		})
	}
}

// TestWitnessCounts: what vanishes without being counted is noticed, and so is a
// letter that leaves before its target has answered.
func TestWitnessCounts(t *testing.T) {
	m := newMachine()
	w := newWitness(m)
	ref := fsm.Ref{Index: 9, Size: 8}
	w.held.live[ref] = queue.Message{Ref: ref} // it is not there any more
	w.born[ref] = &life{}
	w.ways[4] = map[copyOf]way{{target: 500, number: 1}: underWay}
	var eff fsm.Effects
	meta := fsm.Meta{Index: 10, Term: 1, Now: start, Version: 1}
	c := &logpb.Command{Kind: logpb.Command_TICK}
	text := strings.Join(w.judge(step{meta, c, false}, m.Apply(meta, c, &eff), &eff), "\n")
	for _, want := range []string{"1 messages and 0 more are 0, and 0 have ended", "target 500 has not answered transfer 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
}
