package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// Mutex finds messages whose deliveries and returns fit into no order in which one client
// at a time holds the message, until it returns it, its session is lost, or a fault makes
// the cluster believe that.
func Mutex(h *history.History) Verdict {
	return linear(h, "mutex", &porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, input, _ any) []any { return mutexStep(state.(int), input.(history.Op)) },
	}, func(ops []history.Op) []history.Op {
		lost := lostSessions(h)
		for _, d := range ops {
			if d.Kind != history.Deliver || wasEnded(ops, d) {
				continue // that ended the hold; a release at any time would only be one more order to try
			}
			if at, ok := lost[d.Client]; ok {
				ops = append(ops, history.Op{Kind: released, Key: d.Key, Client: d.Client + " ends", On: d.On, Call: max(at, d.Call)})
			} else if f, ok := faultSince(h.Faults, d.Call, holdEnd(ops, d)); ok {
				ops = append(ops, history.Op{Kind: released, Key: d.Key, Client: d.Client + " ends", On: d.On, Call: max(f.At, d.Call)})
			}
		}
		return ops
	})
}

// ended is the state of a mutex whose message was acked.
const ended = -1

func mutexStep(holds int, o history.Op) []any {
	mine := holds == o.On
	switch o.Kind {
	case history.Deliver:
		if holds != 0 {
			return nil
		}
		return []any{o.On}
	case released:
		if mine {
			return []any{0}
		}
	case history.Requeue, history.Settle:
		after := 0
		if o.Kind == history.Settle {
			after = ended
		}
		switch {
		case mine && o.Result == history.Unknown:
			return []any{holds, after}
		case mine && o.Result == history.OK:
			return []any{after}
		case mine:
			return nil // it is refused to the holder
		case o.Result == history.OK:
			return nil // it is granted to somebody else
		}
	}
	return []any{holds}
}

// lostSessions returns when each session that has ended was last heard of.
func lostSessions(h *history.History) map[string]time.Duration {
	lost := map[string]time.Duration{}
	for _, o := range h.Ops {
		if o.Kind == history.Lost {
			lost[o.Client] = o.Call
		}
	}
	return lost
}

// wasEnded reports whether a client was told that it has given a delivery up.
func wasEnded(ops []history.Op, d history.Op) bool {
	return slices.ContainsFunc(ops, func(o history.Op) bool {
		return o.On == d.On && (o.Kind == history.Requeue || o.Kind == history.Settle) && o.Result == history.OK
	})
}

// holdEnd is when a client gave a delivery up, as far as it knows.
func holdEnd(ops []history.Op, d history.Op) time.Duration {
	for _, o := range ops {
		if o.On == d.On && (o.Kind == history.Requeue || o.Kind == history.Settle) && o.Return != 0 {
			return o.Return
		}
	}
	return never
}

// faultSince returns the first fault that overlaps an interval.
func faultSince(faults []history.Fault, from, to time.Duration) (history.Fault, bool) {
	for _, f := range faults {
		if f.At <= to && (f.Healed == 0 || f.Healed >= from) {
			return f, true
		}
	}
	return history.Fault{}, false
}

// Active finds single active consumers that were replaced although they lived: one
// received a message before, and another one after, a delivery to somebody else, with no
// fault, or recovery from one, in between, and without having held a delivery for its
// timeout. A consumer whose ack meets the timeout is replaced and goes on.
func Active(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "active"}
	bySession := map[string][]*held{}
	all := holds(h)
	for _, d := range all {
		bySession[d.Client] = append(bySession[d.Client], d)
	}
	var sessions []string
	for s := range bySession {
		sessions = append(sessions, s)
	}
	slices.Sort(sessions)
	for _, s := range sessions {
		of := bySession[s]
		for _, other := range all {
			if other.Client == s || other.Return < of[0].Return || other.Call > of[len(of)-1].Return {
				continue
			}
			before, after := around(of, other)
			if before == nil || after == nil || overheld(of, before, other, h.Stall) {
				continue
			}
			if _, ok := faultSince(h.Faults, before.Call-recovery, after.Return); !ok {
				p.add("%s got key %d at %v and key %d at %v, and %s key %d at %v", s, before.Key, before.Return, after.Key, after.Return,
					other.Client, other.Key, other.Return)
			}
		}
	}
	return p.found()
}

// overheld reports whether a consumer may have held one of its deliveries for its timeout,
// that is the lock, between two deliveries. A client receives what was handed out later by a
// few stalls.
func overheld(of []*held, from, to *held, stalled time.Duration) bool {
	return slices.ContainsFunc(of, func(d *held) bool {
		end := d.gaveUp
		if end == 0 || end > to.Return {
			end = to.Return
		}
		return d.Lock > 0 && d.Return <= to.Return && end >= from.Return && end+3*stalled+ClockError >= d.Return+d.Lock
	})
}

// around returns the last delivery that was received before another one can have been
// handed out, and the first that was handed out after that one was received.
func around(of []*held, other *held) (before, after *held) {
	for _, d := range of {
		if d.Return < other.Call {
			before = d
		}
		if d.Call > other.Return && after == nil {
			after = d
		}
	}
	return before, after
}

// TimedOut finds consumers that were ended though they had held nothing for their
// timeout, that is the lock of a delivery, or more than once; those that were not ended
// though they had; messages that came again though they had been acked in time; and those
// that did not though they had not. It is for queues that are empty in the end.
func TimedOut(h *history.History, recovery time.Duration) Verdict {
	p := problems{name: "timeout"}
	allowed := stall.Tolerance(h.Stall)
	ends, of := map[string][]history.Op{}, map[string][]*held{}
	for _, o := range h.Ops {
		if o.Kind == history.Cancelled {
			ends[o.Client] = append(ends[o.Client], o)
		}
	}
	again := map[uint64][]*held{}
	for _, d := range holds(h) {
		of[d.Client] = append(of[d.Client], d)
		again[d.Key] = append(again[d.Key], d)
	}
	for _, list := range again {
		slices.SortStableFunc(list, func(a, b *held) int { return cmp.Compare(a.Turn, b.Turn) })
	}
	for _, d := range holds(h) {
		due := excused(h.Faults, d.Return+d.Lock, allowed, recovery)
		switch end := ends[d.Client]; {
		case len(end) > 1:
			p.add("%s was ended at %v and at %v", d.Client, end[0].Return, end[1].Return)
			ends[d.Client] = end[:1]
		case len(end) == 0 && d.gaveUp > due+allowed && (d.lost == 0 || d.lost > due+allowed):
			p.add("%s held key %d from %v to %v and was not ended", d.Client, d.Key, d.Return, d.gaveUp)
		case len(end) == 1 && !slices.ContainsFunc(of[d.Client], func(x *held) bool { return x.Call+x.Lock-ClockError <= end[0].Return }):
			p.add("%s was ended at %v and had held nothing for its timeout", d.Client, end[0].Return)
			delete(ends, d.Client)
		}
		if last := again[d.Key][len(again[d.Key])-1]; last.On == d.On && (d.gaveUp == 0 || d.gaveUp > due+allowed) {
			p.add("key %d came to %s at %v, was not acked in time, and never came again", d.Key, d.Client, d.Return)
		}
		if d.gaveUp == 0 || d.gaveUp+allowed > d.Call+d.Lock {
			continue // perhaps too late
		}
		for _, next := range again[d.Key] {
			if next.Turn < d.Turn || next.Return <= d.gaveUp+allowed {
				continue
			}
			if _, ok := faultSince(h.Faults, d.Call-recovery, d.gaveUp+allowed); !ok {
				p.add("key %d was acked by %s at %v, in time, and came again to %s at %v", d.Key, d.Client, d.gaveUp, next.Client, next.Return)
			}
			break
		}
	}
	return p.found()
}
