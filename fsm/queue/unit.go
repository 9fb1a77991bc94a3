package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// unit performs several commands as one, or none of them if one would be refused:
// publishes first, then settlements by number, each kind in order. Count of the answer is
// how many publishes there are, Next the number of the first one: they are numbered
// without gaps, and one that is a duplicate uses up a number.
//
// Refusals: Invalid; NotFound if a delivery is not held so; InUse if a token is of another
// deferred message; Rejected if the queue would refuse a publish. A queue that is full
// refuses a unit even if a consumer could take what it brings.
func (m *Machine) unit(meta *fsm.Meta, cmd *logpb.Unit, eff *fsm.Effects) (r fsm.Result) {
	if !m.isUnit(cmd) {
		return fsm.Result{Code: fsm.Invalid}
	}
	if code := m.refusesUnit(cmd); code != fsm.OK {
		if cmd.GetSize() > 0 {
			m.entries.refuse(eff)
		}
		return fsm.Result{Code: code}
	}
	at := *meta
	m.scratch.fits = true
	for _, c := range cmd.GetCommands() {
		if c.Kind != logpb.Command_ENQUEUE {
			continue
		}
		number := m.messages.nextSeq()
		if r.Count++; r.Count == 1 {
			r.Next = number
		}
		if c.Enqueue.SendTo != 0 {
			m.sendOn(&at, c.Enqueue, eff)
		} else {
			code := m.enqueue(&at, c.Enqueue, eff)
			invariants.Assert(code == fsm.OK, "a publish of a unit is refused")
		}
		m.messages.passTo(number + 1)
		at.Offset += c.Enqueue.GetSize()
	}
	m.scratch.fits = false
	for _, c := range cmd.GetCommands() {
		if c.Kind == logpb.Command_SETTLE {
			code, _ := m.settleNumbered(c.Settle, eff)
			invariants.Assert(code == fsm.OK, "a settlement of a unit is refused")
		}
	}
	return r
}

// performedAtOnce bounds the commands of a unit.
const performedAtOnce = 4500

// isUnit reports whether a unit can be performed at all. What needs a name, or brings a past,
// cannot be in one.
func (m *Machine) isUnit(cmd *logpb.Unit) bool {
	if !m.since(3) || len(cmd.GetCommands()) == 0 || len(cmd.GetCommands()) > performedAtOnce {
		return false
	}
	size, pairs, tokens := uint64(0), []uint64(nil), []string(nil)
	for _, c := range cmd.Commands {
		e, s := c.GetEnqueue(), c.GetSettle()
		switch c.GetKind() {
		case logpb.Command_ENQUEUE:
			if !isPublish(e) || e.Restored != nil || len(e.Deaths) > 0 || e.ScheduleId != "" || e.SendTo == uint64(m.id) {
				return false
			}
			size += uint64(e.Size)
		case logpb.Command_SETTLE:
			if len(s.GetNumbers()) == 0 || !m.namesDeliveries(s) {
				return false
			}
			pairs = append(pairs, s.Numbers...)
			if s.Outcome == logpb.Settle_DEFER {
				tokens = append(tokens, s.Deferral)
			}
		default:
			return false
		}
	}
	return size == uint64(cmd.Size) && len(pairs) <= 2*namedAtOnce && !repeats(tokens) && !namesTwice(pairs)
}

func isPublish(e *logpb.Enqueue) bool {
	return e.GetSize() != 0 && e.Head <= e.Size && e.Head <= headMask
}

// namesTwice reports whether pairs of several settlements name a message twice.
func namesTwice(pairs []uint64) bool {
	var all []uint64
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, pairs[i])
	}
	slices.Sort(all)
	return len(slices.Compact(all)) < len(pairs)/2
}

// refusesUnit returns why a unit is refused; OK: it is not. Requires: isUnit.
func (m *Machine) refusesUnit(cmd *logpb.Unit) fsm.Code {
	var more Count
	for _, c := range cmd.Commands {
		switch {
		case c.Kind == logpb.Command_SETTLE && !m.areHeld(c.Settle.Numbers):
			return fsm.NotFound
		case c.Kind == logpb.Command_SETTLE && c.Settle.Outcome == logpb.Settle_DEFER && m.aside.find(c.Settle.Deferral) != 0:
			return fsm.InUse
		case c.Kind == logpb.Command_ENQUEUE && c.Enqueue.SendTo == 0 && c.Enqueue.GroupId == "" && m.settings.GroupRequired && m.settings.grouped():
			return fsm.Rejected
		case c.Kind == logpb.Command_ENQUEUE:
			more = more.plus(m.sizeOf(c.Enqueue))
		}
	}
	if more.Messages > 0 && m.fullFor(more, 0) {
		m.counters.Refused += more.Messages
		return fsm.Rejected
	}
	return fsm.OK
}

// sendOn takes in a message that is not for this queue: it is a letter to another one at
// once, as if somebody had moved it there.
func (m *Machine) sendOn(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) {
	h := m.store(meta, cmd, 0, eff)
	m.counters.Enqueued++
	m.lease.touch()
	m.outbox.send(h, fsm.QueueID(cmd.SendTo), logpb.Take_MOVE, eff)
}

// passTo uses up the numbers before a number.
func (ms *messages) passTo(number uint64) {
	invariants.Assert(ms.next <= number, "numbers are used up")
	ms.next = number
}
