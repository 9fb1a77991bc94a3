package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// settle ends deliveries of a consumer. Ids that it does not hold are ignored;
// those that were taken back from it for lateness are forgiven.
func (m *Machine) settle(s *session, cmd *logpb.Settle, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	ranges, outcome := cmd.GetRanges(), cmd.GetOutcome()
	if len(ranges)%2 != 0 || outcome < logpb.Settle_ACK || outcome > logpb.Settle_DISCARD {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := s.consumer(cmd.GetConsumer())
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	m.active = m.clock
	m.taken = m.taken[:0]
	var late []lateness
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, length := ranges[0], ranges[1]
		if length == 0 {
			continue
		}
		last := first + length - 1
		if last < first {
			last = ^uint64(0)
		}
		m.take(c, first, last)
		if len(c.late) > 0 {
			late = c.forgive(first, last, late)
			m.contested = true
		}
	}
	m.contested = m.contested || s.silent
	if len(late) > 0 {
		m.settledLate(c, late, eff)
	}
	switch outcome {
	case logpb.Settle_ACK:
		m.ack(m.taken, eff)
	case logpb.Settle_REQUEUE:
		m.giveBack(m.taken, false, false, eff)
	case logpb.Settle_REQUEUE_FAILED:
		m.giveBack(m.taken, true, false, eff)
	case logpb.Settle_DISCARD:
		m.discard(m.taken, eff)
	}
	m.refresh(c)
	m.dismissIfDone(c)
	return fsm.Result{}
}

// settledLate counts and tells what c has settled although it had been taken
// back.
func (m *Machine) settledLate(c *consumer, late []lateness, eff *fsm.Effects) {
	told := fsm.LateAck{Of: c.id, Tag: c.tag, First: c.lateAcks == 0}
	told.Deliveries, told.Limit, told.Held = describeLate(late, m.clock)
	eff.LateAcks = append(eff.LateAcks, told)
	c.lateAcks += uint64(len(late))
	m.counters.LateAcks += uint64(len(late))
}

// ack ends messages that were taken from their holder.
func (m *Machine) ack(taken []checkout, eff *fsm.Effects) {
	m.counters.Acked += uint64(len(taken))
	for _, held := range taken {
		if m.messages.get(held.handle).due(m.clock) {
			m.counters.SettledExpired++
		}
		m.free(held.handle, eff)
	}
}

// discard lets messages die that were taken from their holder, in this order.
func (m *Machine) discard(taken []checkout, eff *fsm.Effects) {
	for _, held := range taken {
		x := m.messages.mut(held.handle)
		bump(&x.acquired)
		bump(&x.failed)
		m.die(held.handle, logpb.Death_REJECTED, eff)
	}
}

// giveBack returns messages that were taken from their holders: to the end of
// the returns in the order given, or with bySeq each behind the last one there
// that is older. Those that have failed too often die first, in order; then
// those that are past their expiry, earliest first. The settings may have the
// others wait before they are ready.
func (m *Machine) giveBack(taken []checkout, failed, bySeq bool, eff *fsm.Effects) {
	seq := func(held checkout) uint64 { return m.messages.get(held.handle).seq }
	if bySeq {
		slices.SortFunc(taken, func(a, b checkout) int { return compare(seq(a), seq(b)) })
	}
	kept := taken[:0]
	m.overdue = m.overdue[:0]
	for _, held := range taken {
		x := m.messages.mut(held.handle)
		bump(&x.acquired)
		if failed {
			bump(&x.failed)
		}
		switch limit := m.config.DeliveryLimit; {
		case failed && limit >= 0 && int64(x.failed) > limit:
			m.die(held.handle, logpb.Death_DELIVERY_LIMIT, eff)
		case x.due(m.clock):
			m.overdue = append(m.overdue, held.handle)
		default:
			kept = append(kept, held)
		}
	}
	m.expireReturned(eff)
	m.counters.Requeued += uint64(len(kept))
	if m.config.Retry != logpb.QueueConfig_AT_ONCE {
		kept = slices.DeleteFunc(kept, func(held checkout) bool {
			until := m.retryAt(m.messages.get(held.handle), failed)
			if until != 0 {
				m.delay(held.handle, until)
			}
			return until != 0
		})
	}
	at := m.lists[returnedList].tail
	for i := range kept {
		if bySeq {
			i = len(kept) - 1 - i
			for at != 0 && m.messages.get(at).seq > seq(kept[i]) {
				at = m.messages.get(at).prev
			}
		}
		h := kept[i].handle
		m.setPlace(m.messages.mut(h), Returned)
		m.insertAfter(at, h)
		if !bySeq {
			at = h
		}
	}
	for _, held := range kept {
		m.watch(held.handle)
	}
}
