package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// takenAtOnce bounds the messages that one Take names.
const takenAtOnce = 1000

// take deletes messages that are ready, or sends them or copies of them to another queue.
// Count of the answer is how many. Those named that are not ready, are due, or die with
// their group are left alone, and what has no room is not copied: a copy counts in the
// length of the queue until it has arrived.
//
// What is sent is a letter that has not died, as if the queue forwarded it: it arrives
// once, waits while its target has no space, and comes back if that is gone.
//
// Refusals: Invalid before version 3, for more than takenAtOnce numbers or such that do
// not ascend, and without a target that fits the action. None of them changes anything.
func (m *Machine) take(cmd *logpb.Take, eff *fsm.Effects) fsm.Result {
	if !m.takes(cmd) {
		return fsm.Result{Code: fsm.Invalid}
	}
	numbers, action, to := cmd.GetMessages(), cmd.GetAction(), fsm.QueueID(cmd.GetTarget())
	var r fsm.Result
	for i, h := range m.messages.readyWith(numbers) {
		if h == 0 {
			h = m.groups.grouped(numbers[i])
		}
		x := m.messages.Get(h)
		if h == 0 || x.seq != numbers[i] || !x.ready() || x.due(m.clock.now()) || m.doomed(h) ||
			action == logpb.Take_COPY && !m.settings.fits(m.counted().plus(m.messages.weight(h))) {
			continue
		}
		r.Count++
		switch action {
		case logpb.Take_DELETE:
			m.ends.message(h, logpb.EndState_DELETED, Dropped, m.outbox.nextLetter(), false)
			m.messages.remove(h)
			m.messages.free(h, eff)
			m.counters.Deleted++
		case logpb.Take_COPY:
			m.outbox.send(m.outbox.copyOf(h), to, action, eff)
		default:
			m.messages.remove(h)
			m.outbox.send(h, to, action, eff)
		}
	}
	if r.Count > 0 {
		m.lease.touch()
	}
	return r
}

// takes reports whether a Take is valid.
func (s *shared) takes(cmd *logpb.Take) bool {
	action, to := cmd.GetAction(), fsm.QueueID(cmd.GetTarget())
	return s.since(3) && len(cmd.GetMessages()) <= takenAtOnce && slices.IsSorted(cmd.GetMessages()) && to != s.id &&
		action >= logpb.Take_DELETE && action <= logpb.Take_REDRIVE && (action == logpb.Take_DELETE) == (to == 0)
}

// grouped returns the Grouped message with a number; 0: there is none.
func (ls *leavings) grouped(seq uint64) uint32 { return ls.ages.Value(key{Seq: seq}) }

// copyOf makes another record of message h, which is ready, with a number of its own and the
// same payload. It is in no place and of no group, and counts by no value.
func (o *outbox) copyOf(h uint32) uint32 {
	ms := o.messages
	c := ms.Alloc()
	from, e, due := *ms.Get(h), *ms.extra(h), ms.scheduleInfo(h).scheduledFor
	messageID, correlationID := ms.label(h)
	x := ms.Mut(c)
	*x = message{
		seq: ms.next, index: from.index, offset: from.offset, size: from.size, expireAt: from.expireAt,
		head: from.head &^ labelBit, priority: from.priority,
	}
	ms.next++
	ms.counts[0].add(x.count())
	ms.entries.again(from.index)
	ms.setLabel(c, string(messageID), string(correlationID))
	if len(e.deaths) > 0 || e.annotations != nil || due != 0 {
		to := ms.editExtra(c)
		to.deaths, to.schedule = e.deaths, &scheduleInfo{scheduledFor: due}
		if e.annotations != nil {
			ms.setAnnotations(c, e.annotations)
		}
	}
	return c
}

// send posts message h, which is in no place, as a letter to a queue. How often it was
// forwarded counts anew, since somebody has sent it.
func (o *outbox) send(h uint32, to fsm.QueueID, as logpb.Take_Action, eff *fsm.Effects) {
	o.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: o.messages.scheduleInfo(h).scheduledFor, takenTo: to, takenAs: as})
	o.messages.setHops(h, 1)
	o.forward(h, eff)
}

func (o *outbox) checkTaken(k *checker, h uint32) {
	e, r := o.messages.extra(h), o.messages.scheduleInfo(h)
	k.that((r.takenTo == 0) == (r.takenAs == 0) && (r.takenTo == 0 || e.forwarded && e.hops == 1), "letter %d is sent to %d as %v", e.letter, r.takenTo, r.takenAs)
}
