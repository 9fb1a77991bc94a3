package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// target is a queue that letters go to. The transfers to it that are not
// settled are numbered settled+1 … next-1.
type target struct {
	id      fsm.QueueID
	next    uint64
	settled uint64
	pending deque[uint32] // letters, by transfer number
	gone    bool          // it does not exist any more, and some are still pending
}

func (m *Machine) findTarget(id fsm.QueueID) (int, bool) {
	return slices.BinarySearchFunc(m.targets, id, func(t *target, id fsm.QueueID) int { return cmp.Compare(t.id, id) })
}

// routeDead records where the oldest unrouted letters go. Count of the answer
// is the number of letters that have got their route.
func (m *Machine) routeDead(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	if cmd.GetRetry() {
		return m.routeWaiting(cmd, eff)
	}
	if m.unrouted == 0 || m.messages.extraOf(m.unrouted).letter != cmd.GetFirst() {
		return fsm.Result{}
	}
	var r fsm.Result
	for _, route := range cmd.Routes {
		if m.unrouted == 0 {
			break
		}
		h := m.unrouted
		m.unrouted = m.messages.get(h).next
		m.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = true
	return r
}

// routeWaiting gives letters that wait somewhere to go. From the first route on
// that is for a letter that does not wait any more they change nothing: they
// are of a leader that did not know.
func (m *Machine) routeWaiting(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for _, route := range cmd.Routes {
		p := m.patient.get(key{seq: route.GetLetter()})
		if p == nil {
			break
		}
		h := *p
		m.patient.remove(key{seq: route.GetLetter()})
		m.messages.remove(h)
		m.messages.putAfter(m.lastRouted(), h, Outbox)
		m.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = eff.Outbox || r.Count > 0
	return r
}

// lastRouted is the last letter of the outbox that has a route; 0: none has.
func (m *Machine) lastRouted() uint32 {
	if m.unrouted == 0 {
		return m.messages.tail(outboxList)
	}
	return m.messages.get(m.unrouted).prev
}

// wait makes letter h, which is in the outbox and goes nowhere, one that waits.
func (m *Machine) wait(h uint32) {
	r := *m.messages.rareOf(h)
	r.refused = false
	m.messages.setRare(h, r)
	m.messages.mutExtra(h).transfers = nil
	m.messages.remove(h)
	m.messages.put(h, Waiting)
	m.patient.put(key{seq: m.messages.extraOf(h).letter}, h)
}

// route gives letter h one transfer per target, but none to those that have it
// already. Without any it waits, or is dropped, as that of a delayed exchange
// always is.
func (m *Machine) route(h uint32, to *logpb.DeadRoute, eff *fsm.Effects) {
	var transfers []Transfer
	done := m.messages.rareOf(h).done
	m.noteUnroutable(h, to)
	for n, id := range to.GetTargets() {
		if id == 0 || slices.Contains(done, fsm.QueueID(id)) {
			continue
		}
		i, ok := m.findTarget(fsm.QueueID(id))
		if !ok {
			m.targets = slices.Insert(m.targets, i, &target{id: fsm.QueueID(id), next: 1})
		}
		t := m.targets[i]
		if n := t.pending.len(); t.gone || n > 0 && *t.pending.item(n - 1) == h {
			continue // gone, or named twice
		}
		t.pending.push(h)
		transfer := Transfer{Target: t.id, Number: t.next}
		if n < len(to.TtlCeilingsPlusOne) {
			transfer.CeilingPlusOne = to.TtlCeilingsPlusOne[n]
		}
		transfers = append(transfers, transfer)
		t.next++
	}
	switch {
	case len(transfers) > 0:
		m.messages.mutExtra(h).transfers = transfers
	case len(done) > 0:
		m.arrived(h, eff)
	case m.fate(logpb.Death_NONE) == AtLeastOnce && !m.settings.DelayedStore:
		m.wait(h)
	default:
		m.drop(h, eff)
	}
}

// noteUnroutable counts letter h of a delayed exchange that had no way when it
// was due. It dies of that, if there is somewhere for the dead to go.
func (m *Machine) noteUnroutable(h uint32, route *logpb.DeadRoute) {
	if !m.settings.DelayedStore || m.messages.extraOf(h).reason != logpb.Death_NONE || len(m.messages.rareOf(h).done) > 0 ||
		len(route.GetTargets()) > 0 && !route.GetUnroutable() {
		return
	}
	m.counters.Unroutable++
	if route.GetUnroutable() {
		e := m.messages.mutExtra(h)
		e.reason, e.diedAt, e.deaths = logpb.Death_UNROUTABLE, m.clock.now(), m.addDeath(e.deaths, logpb.Death_UNROUTABLE)
	}
}

// drop forgets letter h, which no target has.
func (m *Machine) drop(h uint32, eff *fsm.Effects) {
	m.counters.DeadDropped++
	m.messages.remove(h)
	m.messages.free(h, eff)
}

// arrived forgets letter h, which the targets have.
func (m *Machine) arrived(h uint32, eff *fsm.Effects) {
	m.counters.DeadConfirmed++
	m.messages.remove(h)
	m.messages.free(h, eff)
}

// settleDead notes that a target holds its transfers up to a number, but for
// those it has refused, or that it does not exist any more.
func (m *Machine) settleDead(cmd *logpb.SettleDead, eff *fsm.Effects) fsm.Result {
	i, ok := m.findTarget(fsm.QueueID(cmd.GetTarget()))
	if !ok {
		return fsm.Result{}
	}
	t := m.targets[i]
	if cmd.Gone || t.gone { // who is gone has taken nothing since
		if !t.gone {
			t.gone = true
			m.gone++
		}
		m.endGone(m.bounds.Back(), eff)
		return fsm.Result{}
	}
	upto := min(cmd.Upto, t.next-1, t.settled+uint64(m.bounds.Tick))
	refused := cmd.Refused
	for t.settled < upto {
		for len(refused) > 0 && refused[0] <= t.settled {
			refused = refused[1:]
		}
		no := len(refused) > 0 && refused[0] == t.settled+1
		if no {
			m.counters.DeadRefused++
		}
		m.settleNext(t, !no, no, eff)
	}
	m.dropGone(t)
	return fsm.Result{}
}

// settleNext ends the first transfer to t that is not settled.
func (m *Machine) settleNext(t *target, has, refused bool, eff *fsm.Effects) {
	t.settled++
	h := *t.pending.item(0)
	t.pending.pop()
	m.settleTransfer(h, t.id, has, refused, eff)
}

// endGone ends up to n transfers to targets that are gone.
func (m *Machine) endGone(n int, eff *fsm.Effects) {
	for i := 0; i < len(m.targets) && m.gone > 0 && n > 0; i++ {
		t := m.targets[i]
		for ; t.gone && n > 0 && t.pending.len() > 0; n-- {
			m.settleNext(t, false, false, eff)
		}
		if m.dropGone(t) {
			i--
		}
	}
}

// dropGone forgets target t if it is gone and nothing is on its way there.
func (m *Machine) dropGone(t *target) bool {
	if !t.gone || t.pending.len() > 0 {
		return false
	}
	i, _ := m.findTarget(t.id)
	m.targets = slices.Delete(m.targets, i, i+1)
	m.gone--
	return true
}

// settleTransfer ends one transfer of letter h: the target has it, or has
// refused it, or is gone. With the last transfer the letter ends, unless it has
// to arrive everywhere and does not.
func (m *Machine) settleTransfer(h uint32, id fsm.QueueID, has, refused bool, eff *fsm.Effects) {
	left, r := m.messages.extraOf(h).transfers, *m.messages.rareOf(h)
	if has && (len(left) > 1 || r.refused) || refused {
		if has {
			r.done = slices.Concat(r.done, []fsm.QueueID{id})
		}
		r.refused = r.refused || refused
		m.messages.setRare(h, r)
	}
	if len(left) > 1 {
		i := slices.IndexFunc(left, func(t Transfer) bool { return t.Target == id })
		m.messages.mutExtra(h).transfers = slices.Concat(left[:i], left[i+1:])
		return
	}
	switch some := has || len(r.done) > 0; {
	case m.fate(logpb.Death_NONE) == AtLeastOnce && (r.refused || !some):
		m.wait(h)
	case some:
		m.arrived(h, eff)
	default:
		m.drop(h, eff)
	}
}

// PendingTransfers returns up to limit transfers to a target that are not
// settled, from number from on, ascending.
func (m *Machine) PendingTransfers(to fsm.QueueID, from uint64, limit int) []Outgoing {
	i, ok := m.findTarget(to)
	if !ok {
		return nil
	}
	var out []Outgoing
	t := m.targets[i]
	for n := max(t.settled+1, from); n < t.next && len(out) < limit; n++ {
		l := m.letter(*t.pending.item(int(n - t.settled - 1)))
		at := slices.IndexFunc(l.Transfers, func(x Transfer) bool { return x.Target == to })
		out = append(out, Outgoing{l.Transfers[at], l})
	}
	return out
}

// Targets lists up to limit of the queues that letters were routed to, with an
// id above after, ascending.
func (m *Machine) Targets(after fsm.QueueID, limit int) []Target {
	i, found := m.findTarget(after)
	if found {
		i++
	}
	targets := make([]Target, 0, min(limit, len(m.targets)-i))
	for ; i < len(m.targets) && len(targets) < limit; i++ {
		t := m.targets[i]
		targets = append(targets, Target{t.id, t.next, t.settled})
	}
	return targets
}

// HasTarget reports whether a queue is one of the targets.
func (m *Machine) HasTarget(id fsm.QueueID) bool {
	_, ok := m.findTarget(id)
	return ok
}
