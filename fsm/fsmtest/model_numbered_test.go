package fsmtest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// named are the messages that are held as pairs of number and count say; found: all of
// them are. ok: such pairs may be in a command.
func (q *model) named(pairs []uint64) (held []*message, found, ok bool) {
	if q.version < 3 || len(pairs)%2 != 0 || len(pairs) > 2000 {
		return nil, false, false
	}
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 && pairs[i] <= pairs[i-2] {
			return nil, false, false
		}
		at := slices.IndexFunc(q.messages, func(x *message) bool {
			return x.seq == pairs[i] && uint64(x.acquired) == pairs[i+1] && x.place == checkedOut && x.holder != nil && x.back == nil &&
				x.holder.numbered && (q.isDetached(x.holder) || !q.isDown(x.holder.id.Session))
		})
		if at >= 0 {
			held = append(held, q.messages[at])
		}
	}
	return held, len(held) == len(pairs)/2, true
}

// settleNumbered is settle for messages that are named by number.
func (q *model) settleNumbered(d *logpb.Settle) fsm.Result {
	held, found, ok := q.named(d.Numbers)
	defers := d.Outcome == logpb.Settle_DEFER
	switch {
	case !ok || d.Outcome < 0 || d.Outcome > logpb.Settle_DEFER || defers && (len(d.Numbers) != 2 || d.Deferral == "" || len(d.Deferral) > 255):
		return fsm.Result{Code: fsm.Invalid}
	case !found:
		return fsm.Result{Code: fsm.NotFound}
	case defers && q.findDeferred(d.Deferral) != nil:
		return fsm.Result{Code: fsm.InUse}
	}
	q.active = q.clock
	r := fsm.Result{Count: uint64(len(held))}
	for _, x := range held {
		c, one := x.holder, []uint64{x.delivery, 1}
		q.renewGroups(c, []*message{x})
		how := &back{outcome: d.Outcome, due: q.dueAt(d.DueAt, d.DelayPlusOne, 0), remark: remarkOf(d), added: q.additionsOf(d)}
		switch all := q.coming(); {
		case defers:
			q.annotate([]*message{x}, how.added)
			r = q.putAside([]*message{x}, d)
		case len(all) > 0 && all[0].order != 0:
			q.orders++
			how.order = q.orders
			x.leave(how)
		default:
			q.conclude(how, []*message{x})
		}
		q.endSettle(c, one)
	}
	return r
}

// renewNumbered is renewHeld for messages that are named by number.
func (q *model) renewNumbered(d *logpb.Renew) (r fsm.Result) {
	held, found, ok := q.named(d.Numbers)
	switch {
	case !ok:
		return fsm.Result{Code: fsm.Invalid}
	case !found || slices.ContainsFunc(held, func(x *message) bool { return x.lockBegan != 0 && x.lockEnd() <= q.clock }):
		return fsm.Result{Code: fsm.NotFound}
	}
	q.active = q.clock
	for _, x := range held {
		r.Count++
		if until := q.renewOne(x, millis(d.Duration)); until != 0 && (r.Until == 0 || until < r.Until) {
			r.Until = until
		}
	}
	q.counters.LocksRenewed += r.Count
	return r
}

// numbers draws some of the messages that can be named by number, mostly as they are held;
// nil: none.
func (g *generator) numbers() (pairs []uint64) {
	if !g.oneIn("by number", 3) {
		return nil
	}
	for _, x := range g.q.messages {
		if x.place == checkedOut && (x.holder == nil || x.holder.numbered) && g.oneIn("named", 2) {
			pairs = append(pairs, x.seq, uint64(x.acquired)+uint64(g.n("of another delivery", 12)/11))
		}
	}
	if len(pairs) > 2 && g.oneIn("out of order", 12) {
		pairs[0] = pairs[2]
	}
	if len(pairs) > 0 && g.oneIn("half a pair", 40) {
		pairs = pairs[1:]
	}
	return pairs
}
