package checker

import (
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

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
