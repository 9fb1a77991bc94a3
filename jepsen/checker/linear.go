package checker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// linearTimeout bounds the search for an order of one message's ops.
const linearTimeout = 20 * time.Second

// ops beside those of clients.
const (
	comesDue = "due"     // the time of a schedule passes
	released = "release" // the broker learns that a session has ended
)

// never is the return of what may happen at any later time.
const never = math.MaxInt64

// Schedules finds messages whose cancels, fires and deliveries fit into no order
// in which a schedule exists until it is cancelled, fired or due, whichever is
// first.
func Schedules(h *history.History) Verdict {
	return linear(h, "schedule", &porcupine.NondeterministicModel{
		Init: func() []any { return []any{none} },
		Step: func(state, input, _ any) []any { return scheduleStep(state.(schedule), input.(history.Op)) },
	}, func(ops []history.Op) []history.Op {
		for _, o := range ops {
			if o.Kind == history.Schedule {
				ops = append(ops, history.Op{Kind: comesDue, Key: o.Key, Client: "clock", Call: max(o.Due-ClockError, o.Call)})
			}
		}
		return ops
	})
}

// schedule is what there is of a message that is to be ready later.
type schedule int

const (
	none schedule = iota // it was not published, or was cancelled
	waits
	ready
	taken // it was delivered, and may be again
)

func scheduleStep(s schedule, o history.Op) []any {
	move := func(from, to schedule) []any { // what is asked for has an effect only then
		switch {
		case o.Result == history.Unknown && s == from:
			return []any{s, to}
		case o.Result == history.Unknown || o.Result == history.No && s != from:
			return []any{s}
		case o.Result == history.OK && s == from:
			return []any{to}
		}
		return nil
	}
	switch o.Kind {
	case history.Schedule:
		return move(none, waits)
	case history.Cancel:
		return move(waits, none)
	case history.Fire:
		return move(waits, ready)
	case comesDue:
		if s == waits {
			return []any{ready}
		}
	case history.Deliver:
		if s != ready && s != taken {
			return nil
		}
		return []any{taken}
	case history.Empty:
		if s != none && s != taken {
			return nil
		}
	}
	return []any{s}
}

// Renewals finds messages whose renewals and settlements fit into no order in
// which a delivery is held until it is settled, or its lock has passed.
func Renewals(h *history.History) Verdict {
	return linear(h, "renewal", &porcupine.NondeterministicModel{
		Init: func() []any { return []any{holder{}} },
		Step: func(state, input, _ any) []any { return holderStep(state.(holder), input.(history.Op)) },
	}, func(ops []history.Op) []history.Op {
		for _, o := range h.Ops {
			if o.Kind != history.Lost {
				continue
			}
			for _, d := range ops {
				if d.Kind == history.Deliver && d.Client == o.Client {
					ops = append(ops, history.Op{Kind: released, Key: d.Key, Client: o.Client, On: d.On, Call: o.Call})
				}
			}
		}
		return ops
	})
}

// holder is who holds a message.
type holder struct {
	on    int           // the delivery; 0: none
	until time.Duration // at least
	done  bool          // settled
}

func holderStep(s holder, o history.Op) []any {
	holds, passed := s.on == o.On, s.until <= o.Return+ClockError
	switch o.Kind {
	case released:
		if holds {
			s.on = 0
		}
		return []any{s}
	case history.Deliver:
		if s.done || s.on != 0 && !passed {
			return nil
		}
		return []any{holder{on: o.On, until: o.Call + o.Lock}}
	case history.Renew, history.Settle, history.Requeue:
	default:
		return []any{s}
	}
	after := s
	switch o.Kind {
	case history.Renew:
		after.until = max(s.until, o.Call+o.Lock)
	case history.Settle:
		after = holder{done: true}
	case history.Requeue:
		after = holder{}
	}
	switch {
	case o.Result == history.Unknown && holds:
		return []any{s, after}
	case o.Result == history.Unknown:
		return []any{s}
	case o.Result == history.OK && holds:
		return []any{after}
	case o.Result == history.No && !holds:
		return []any{s}
	case o.Result == history.No && passed:
		return []any{holder{}} // its lock is lost, and nobody has the message yet
	}
	return nil
}

// linear looks for an order of each message's ops that a model accepts.
func linear(h *history.History, name string, model *porcupine.NondeterministicModel, more func([]history.Op) []history.Op) Verdict {
	return linearBy(h, name, func(o history.Op) string {
		if o.Key == 0 {
			return ""
		}
		return fmt.Sprintf("key %08d", o.Key)
	}, model, more)
}

// linearBy looks for an order of the ops of each part, as of names it, that a model
// accepts. Ops without a part are left out.
func linearBy(h *history.History, name string, of func(history.Op) string, model *porcupine.NondeterministicModel, more func([]history.Op) []history.Op) Verdict {
	p := problems{name: name}
	parts := map[string][]history.Op{}
	for _, o := range h.Ops {
		if part := of(o); part != "" {
			parts[part] = append(parts[part], o)
		}
	}
	model.Equal = func(a, b any) bool { return a == b }
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		var ops []porcupine.Operation
		clients := map[string]int{}
		all := more(slices.Clone(parts[part]))
		for _, o := range all {
			if _, ok := clients[o.Client]; !ok {
				clients[o.Client] = len(clients)
			}
			end := int64(o.Return)
			if o.Return == 0 || o.Result == history.Unknown && o.Kind != history.Deliver {
				end = over(all, o)
			}
			ops = append(ops, porcupine.Operation{ClientId: clients[o.Client], Input: o, Call: int64(o.Call), Output: nil, Return: end})
		}
		shown := part
		if digits, ok := strings.CutPrefix(part, "key "); ok {
			shown = "key " + strings.TrimLeft(digits, "0")
		}
		switch porcupine.CheckOperationsTimeout(model.ToModel(), ops, linearTimeout) {
		case porcupine.Illegal:
			p.add("%s: no order explains %s", shown, describe(all))
		case porcupine.Unknown:
			p.add("%s: no order of %d ops found within %v", shown, len(all), linearTimeout)
		}
	}
	return p.found()
}

// over is by when an op that may happen at any later time has happened if it has an effect. What is about one delivery has
// none after the next one of the message: an order in which it comes later is as good with it right before that.
func over(all []history.Op, o history.Op) int64 {
	i := slices.IndexFunc(all, func(d history.Op) bool { return d.Kind == history.Deliver && d.On == o.On })
	if o.On == 0 || i < 0 {
		return never
	}
	end := int64(never)
	for _, next := range all {
		if next.Kind == history.Deliver && next.Call > all[i].Return {
			end = min(end, int64(next.Return))
		}
	}
	return max(end, int64(o.Call))
}

// describe prints ops in the order of their calls.
func describe(ops []history.Op) string {
	slices.SortStableFunc(ops, func(a, b history.Op) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for i, o := range ops {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s", o.Kind)
		if o.On != 0 {
			fmt.Fprintf(&b, " %d", o.On)
		}
		if o.Result != "" {
			fmt.Fprintf(&b, " %s", o.Result)
		}
		fmt.Fprintf(&b, " [%v, %v]", o.Call, o.Return)
	}
	return b.String()
}

// Stale is how old a node's view of the definitions may be that answers without asking
// the others: a node that is not heard of for so long is no longer waited for.
const Stale = 2 * time.Second

// Registers finds definitions whose changes, refusals and reads fit into no order. What a
// node may answer by itself may be old: by Stale, and by a fault and the recovery from it.
func Registers(h *history.History, recovery time.Duration) Verdict {
	allowed := stall.Tolerance(h.Stall)
	return linearBy(h, "register", func(o history.Op) string { return o.Group }, &porcupine.NondeterministicModel{
		Init: func() []any { return []any{uint64(0)} },
		Step: func(state, input, _ any) []any { return registerStep(state.(uint64), input.(history.Op)) },
	}, func(ops []history.Op) []history.Op {
		out := ops[:0]
		for _, o := range ops {
			switch {
			case o.Result == history.Unknown && (o.Kind == history.There || o.Kind == history.Gone):
				continue // it says nothing
			case o.Kind == history.There || o.Kind == history.Gone || o.Result == history.No:
				back := o.Call - Stale - allowed
				for _, f := range h.Faults {
					if f.At <= o.Return && (f.Healed == 0 || f.Healed+recovery >= o.Call) {
						back = min(back, f.At-Stale-allowed)
					}
				}
				o.Call = max(back, 0)
				// Answers from the past are not in the order of their client.
				o.Client += " reads " + o.Return.String()
			}
			out = append(out, o)
		}
		return out
	})
}

// registerStep is a register that is 0 while it has no value. To set another value than
// it has is refused, except by a policy, whose op is Policy.
func registerStep(value uint64, o history.Op) []any {
	switch o.Kind {
	case history.Set:
		switch {
		case o.Result == history.No && value != 0 && value != o.Key:
			return []any{value}
		case o.Result == history.No:
			return nil
		case o.Result == history.Unknown && value == 0:
			return []any{value, o.Key}
		case o.Result == history.Unknown:
			return []any{value}
		case value == 0 || value == o.Key:
			return []any{o.Key}
		}
		return nil
	case history.Policy:
		if o.Result == history.Unknown {
			return []any{value, o.Key}
		}
		return []any{o.Key}
	case history.Clear:
		switch {
		case o.Result == history.Unknown:
			return []any{value, uint64(0)}
		case o.Result == history.No && value != 0:
			return nil
		}
		return []any{uint64(0)}
	case history.There:
		if value != o.Key {
			return nil
		}
	case history.Gone:
		if value != 0 {
			return nil
		}
	}
	return []any{value}
}
