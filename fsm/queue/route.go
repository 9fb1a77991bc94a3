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
}

func (m *Machine) findTarget(id fsm.QueueID) (int, bool) {
	return slices.BinarySearchFunc(m.targets, id, func(t *target, id fsm.QueueID) int { return cmp.Compare(t.id, id) })
}

// routeDead records where the oldest unrouted letters go. Count of the answer
// is the number of letters that have got their route.
func (m *Machine) routeDead(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	if m.unrouted == 0 || m.extraOf(m.unrouted).letter != cmd.GetFirst() {
		return fsm.Result{}
	}
	var r fsm.Result
	for _, route := range cmd.Routes {
		if m.unrouted == 0 {
			break
		}
		h := m.unrouted
		m.unrouted = m.messages.get(h).next
		m.route(h, route.GetTargets(), eff)
		r.Count++
	}
	eff.Outbox = true
	return r
}

// route gives letter h one transfer per target.
func (m *Machine) route(h uint32, targets []uint64, eff *fsm.Effects) {
	var transfers []Transfer
	for _, id := range targets {
		if id == 0 {
			continue
		}
		i, ok := m.findTarget(fsm.QueueID(id))
		if !ok {
			m.targets = slices.Insert(m.targets, i, &target{id: fsm.QueueID(id), next: 1})
		}
		t := m.targets[i]
		if n := t.pending.len(); n > 0 && *t.pending.item(n - 1) == h {
			continue // named twice
		}
		t.pending.push(h)
		transfers = append(transfers, Transfer{t.id, t.next})
		t.next++
	}
	if len(transfers) == 0 {
		m.counters.DeadDropped++
		m.remove(h)
		m.free(h, eff)
		return
	}
	m.mutExtra(h).transfers = transfers
}

// settleDead notes that a target holds its transfers up to a number, or that
// it does not exist any more.
func (m *Machine) settleDead(cmd *logpb.SettleDead, eff *fsm.Effects) fsm.Result {
	i, ok := m.findTarget(fsm.QueueID(cmd.GetTarget()))
	if !ok {
		return fsm.Result{}
	}
	t := m.targets[i]
	upto := min(cmd.Upto, t.next-1)
	if cmd.Gone {
		upto = t.next - 1
	}
	for t.settled < upto {
		t.settled++
		h := *t.pending.item(0)
		t.pending.pop()
		m.settleTransfer(h, t.id, eff)
	}
	if cmd.Gone {
		m.targets = slices.Delete(m.targets, i, i+1)
	}
	return fsm.Result{}
}

// settleTransfer ends one transfer of letter h, and the letter with the last.
func (m *Machine) settleTransfer(h uint32, id fsm.QueueID, eff *fsm.Effects) {
	left := m.extraOf(h).transfers
	if len(left) == 1 {
		m.remove(h)
		m.free(h, eff)
		return
	}
	i := slices.IndexFunc(left, func(t Transfer) bool { return t.Target == id })
	m.mutExtra(h).transfers = slices.Concat(left[:i], left[i+1:])
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
		out = append(out, Outgoing{n, m.letter(*t.pending.item(int(n - t.settled - 1)))})
	}
	return out
}

// Targets lists the queues that letters were routed to, ascending.
func (m *Machine) Targets() []Target {
	targets := make([]Target, len(m.targets))
	for i, t := range m.targets {
		targets[i] = Target{t.id, t.next, t.settled}
	}
	return targets
}
