package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// routeDead records the routes of the oldest unrouted letters. Count of the
// answer is the number of letters that got their route.
//
// cmd.First is the number of the oldest letter that was unrouted for its proposer.
// If it is not that of the machine, another leader was first, and nothing changes.
// So the command may be repeated. It is also performed while draining.
func (o *outbox) routeDead(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	if cmd.GetRetry() {
		return o.routeWaiting(cmd, eff)
	}
	if o.unrouted == 0 || o.messages.deadLetterInfo(o.unrouted).letter != cmd.GetFirst() {
		return fsm.Result{}
	}
	var r fsm.Result
	for _, route := range cmd.Routes {
		if o.unrouted == 0 {
			break
		}
		h := o.unrouted
		o.unrouted = o.messages.get(h).next
		o.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = true
	return r
}

// routeWaiting assigns routes to waiting letters. The first route for a letter
// that no longer waits, and all routes after it, are ignored: they come from a
// leader with an outdated view.
//
// The routes before that have had their effect. Each letter goes to the end of the
// routed ones, so that transfers to one target ascend in the order of the list.
func (o *outbox) routeWaiting(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for _, route := range cmd.Routes {
		p := o.waiting.get(key{seq: route.GetLetter()})
		if p == nil {
			break
		}
		h := *p
		o.waiting.remove(key{seq: route.GetLetter()})
		o.recount(h, Waiting, Outbox)
		o.messages.remove(h)
		o.messages.putAfter(o.lastRouted(), h, Outbox)
		o.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = eff.Outbox || r.Count > 0
	return r
}

// lastRouted returns the last letter of the outbox that has a route; 0: none
// has.
func (o *outbox) lastRouted() uint32 {
	if o.unrouted == 0 {
		return o.messages.tail(outboxList)
	}
	return o.messages.get(o.unrouted).prev
}

// wait makes letter h, which is in the outbox and has no destination, a waiting
// one.
//
// Requires: no transfer of h is pending any more. done stays, so that targets that
// have the letter do not get it twice.
func (o *outbox) wait(h uint32) {
	r := *o.messages.scheduleInfo(h)
	r.refused = false
	o.messages.setScheduleInfo(h, r)
	o.messages.editDeadLetterInfo(h).transfers = nil
	o.recount(h, Outbox, Waiting)
	o.messages.remove(h)
	o.messages.put(h, Waiting)
	o.waiting.put(key{seq: o.messages.deadLetterInfo(h).letter}, h)
}

// route gives letter h one transfer per target, except to targets that already
// have it. If there is none it waits, comes back if the queue no longer forwards it, or is dropped, as a letter of a delayed
// exchange always is.
//
// Requires: h is in the outbox without transfers, and unrouted is past it. Targets
// that are new get their record here, in the order of ids. Numbers are used up
// in the order of letters and, within one, of the route.
func (o *outbox) route(h uint32, to *logpb.DeadRoute, eff *fsm.Effects) {
	var transfers []Transfer
	done := o.messages.scheduleInfo(h).done
	o.noteUnroutable(h, to)
	for n, id := range to.GetTargets() {
		if id == 0 || slices.Contains(done, fsm.QueueID(id)) {
			continue
		}
		i, ok := o.find(fsm.QueueID(id))
		if !ok {
			o.deadLetterTargets = slices.Insert(o.deadLetterTargets, i, &deadLetterTarget{id: fsm.QueueID(id), next: 1})
		}
		t := o.deadLetterTargets[i]
		if n := t.pending.len(); t.gone || n > 0 && *t.pending.item(n - 1) == h {
			continue // gone, or named twice
		}
		t.pending.push(h)
		transfer := Transfer{To: t.id, Number: t.next}
		if n < len(to.TtlCeilingsPlusOne) {
			transfer.Ceiling = fsm.OptionalFrom[fsm.Millis](to.TtlCeilingsPlusOne[n])
		}
		transfers = append(transfers, transfer)
		t.next++
	}
	switch {
	case len(transfers) > 0:
		o.messages.editDeadLetterInfo(h).transfers = transfers
	case len(done) > 0:
		o.arrived(h, 0, eff)
	case o.messages.deadLetterInfo(h).forwarded && !o.settings.forwards() && !o.scratch.ended:
		o.comeBack(h)
	case o.messages.deadLetterInfo(h).forwarded || o.strategy() == AtLeastOnce && !o.settings.DelayedStore:
		o.wait(h)
	default:
		o.drop(h, eff)
	}
}

// noteUnroutable counts letter h of a delayed exchange that had no route when
// it was due. It dies of that, if the route has a destination for dead letters.
func (o *outbox) noteUnroutable(h uint32, route *logpb.DeadRoute) {
	if !o.settings.DelayedStore || o.messages.deadLetterInfo(h).forwarded || o.messages.deadLetterInfo(h).reason != logpb.Death_NONE || len(o.messages.scheduleInfo(h).done) > 0 ||
		len(route.GetTargets()) > 0 && !route.GetUnroutable() {
		return
	}
	o.counters.Unroutable++
	o.ends.message(h, logpb.EndState_UNROUTABLE, AtLeastOnce, o.next, false)
	if route.GetUnroutable() {
		e := o.messages.editDeadLetterInfo(h)
		e.reason, e.diedAt, e.deaths = logpb.Death_UNROUTABLE, o.clock.now(), o.addDeath(e.deaths, logpb.Death_UNROUTABLE)
	}
}

// drop removes letter h, which no target has.
func (o *outbox) drop(h uint32, eff *fsm.Effects) {
	o.counters.DeadDropped++
	o.ends.settled(o.messages.deadLetterInfo(h).letter)
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	o.messages.free(h, eff)
}

// arrived removes letter h, which the targets have. last is the one that has just
// taken it, and may not be noted yet; 0: none has.
func (o *outbox) arrived(h uint32, last fsm.QueueID, eff *fsm.Effects) {
	if e := o.messages.deadLetterInfo(h); e.forwarded {
		o.counters.Forwarded++
		o.ends.forwarded(h, o.messages.scheduleInfo(h).done, last, o.next)
	} else {
		o.counters.DeadConfirmed++
		o.ends.settled(e.letter)
	}
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	o.messages.free(h, eff)
}

// confirmTransfers records that a target holds its transfers up to a number,
// except those it has refused, or that it no longer exists.
//
// cmd.Last is cumulative, so a repetition does nothing; beyond next-1 it counts as
// that. cmd.Refused must ascend. One command ends bounds.Tick transfers at most:
// DeadLetterTarget.Confirmed says how far it got.
func (o *outbox) confirmTransfers(cmd *logpb.SettleDead, eff *fsm.Effects) fsm.Result {
	i, ok := o.find(fsm.QueueID(cmd.GetTarget()))
	if !ok {
		return fsm.Result{}
	}
	t := o.deadLetterTargets[i]
	if cmd.Gone || t.gone { // a target that is gone has taken nothing since
		if !t.gone {
			t.gone = true
			o.gone++
		}
		o.endGone(o.bounds.Back(), eff)
		return fsm.Result{}
	}
	last := min(cmd.Last, t.next-1, t.confirmed+uint64(o.bounds.Tick))
	refused := cmd.Refused
	for t.confirmed < last {
		for len(refused) > 0 && refused[0] <= t.confirmed {
			refused = refused[1:]
		}
		no := len(refused) > 0 && refused[0] == t.confirmed+1
		if no {
			o.counters.DeadRefused++
		}
		o.endTransfer(t, !no, no, eff)
	}
	o.dropGone(t)
	return fsm.Result{}
}

// endTransfer ends the first unsettled transfer to t.
func (o *outbox) endTransfer(t *deadLetterTarget, has, refused bool, eff *fsm.Effects) {
	t.confirmed++
	h := *t.pending.item(0)
	t.pending.pop()
	o.resolveTransfer(h, t.id, has, refused, eff)
}

// endGone ends up to n transfers to targets that are gone. They end by id of
// the target, then by number. The numbers of a target are dropped with it,
// since ids of queues are never used again.
func (o *outbox) endGone(n int, eff *fsm.Effects) {
	for i := 0; i < len(o.deadLetterTargets) && o.gone > 0 && n > 0; i++ {
		t := o.deadLetterTargets[i]
		for ; t.gone && n > 0 && t.pending.len() > 0; n-- {
			o.endTransfer(t, false, false, eff)
		}
		if o.dropGone(t) {
			i--
		}
	}
}

// dropGone removes target t if it is gone and has no pending transfers.
func (o *outbox) dropGone(t *deadLetterTarget) bool {
	if !t.gone || t.pending.len() > 0 {
		return false
	}
	i, _ := o.find(t.id)
	o.deadLetterTargets = slices.Delete(o.deadLetterTargets, i, i+1)
	o.gone--
	return true
}

// resolveTransfer ends one transfer of letter h: the target has it, has refused
// it, or is gone. The letter ends with its last transfer, unless it must arrive
// everywhere and has not.
//
// Slices are replaced, since letters and snapshots share them. Ensures: h may be
// freed, or wait: the caller must not use it again.
func (o *outbox) resolveTransfer(h uint32, id fsm.QueueID, has, refused bool, eff *fsm.Effects) {
	left, r := o.messages.deadLetterInfo(h).transfers, *o.messages.scheduleInfo(h)
	if has {
		o.ends.arrived(o.messages.deadLetterInfo(h).letter, id)
	}
	if has && (len(left) > 1 || r.refused) || refused {
		if has {
			r.done = slices.Concat(r.done, []fsm.QueueID{id})
		}
		r.refused = r.refused || refused
		o.messages.setScheduleInfo(h, r)
	}
	if len(left) > 1 {
		i := slices.IndexFunc(left, func(t Transfer) bool { return t.To == id })
		o.messages.editDeadLetterInfo(h).transfers = slices.Concat(left[:i], left[i+1:])
		return
	}
	switch some := has || len(r.done) > 0; {
	case o.arrives(h) && (r.refused || !some):
		o.wait(h)
	case has:
		o.arrived(h, id, eff)
	case some:
		o.arrived(h, 0, eff)
	default:
		o.drop(h, eff)
	}
}

// goOn ends transfers to targets that are gone, as many as a command of this
// kind may, unless it ends transfers itself. Then it drops letters that wait for
// nothing.
func (o *outbox) goOn(kind logpb.Command_Kind, eff *fsm.Effects) {
	switch {
	case o.gone == 0 || kind == logpb.Command_SETTLE_DEAD:
	case kind == logpb.Command_TICK:
		o.endGone(o.bounds.Back(), eff)
	default:
		o.endGone(o.bounds.Before, eff)
	}
	o.settleWaiting()
}
