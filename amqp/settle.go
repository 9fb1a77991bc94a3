package amqp

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// settlement is basic.ack, nack or reject.
type settlement struct {
	method   uint32
	tag      uint64
	multiple bool
	outcome  fsm.Outcome
}

// settle ends deliveries as the client asks. The gate is held.
func (ch *channel) settle(s *settlement) error {
	ok := true
	ch.taken = ch.taken[:0]
	ch.mu.Lock()
	switch {
	case s.multiple && s.tag == 0:
		ch.taken = ch.unacked.takeAll(ch.taken)
	case s.multiple:
		ch.taken, ok = ch.unacked.takeUpTo(s.tag, ch.taken)
	default:
		var h held
		if h, ok = ch.unacked.take(s.tag); ok {
			ch.taken = append(ch.taken, h)
		}
	}
	if ch.tx != nil {
		for _, h := range ch.taken {
			ch.txSettles = append(ch.txSettles, txSettle{h, s.outcome})
		}
		ch.taken = ch.taken[:0]
	}
	ch.mu.Unlock()
	if !ok {
		return errUnknownTag(s.method, s.tag)
	}
	ch.settleTaken(s.outcome)
	return nil
}

// recover puts every unacknowledged delivery back. reply, if not nil, is
// called before any of them can come again. The gate is held.
func (ch *channel) recover(reply func()) {
	ch.mu.Lock()
	ch.taken = ch.unacked.takeAll(ch.taken[:0])
	ch.mu.Unlock()
	if reply != nil {
		reply()
	}
	ch.settleTaken(fsm.Requeue)
}

// settleTaken passes the deliveries in taken on, those of one consumer in one
// call. The gate is held.
func (ch *channel) settleTaken(outcome fsm.Outcome) {
	if slices.ContainsFunc(ch.taken, func(h held) bool { return h.consumer != ch.taken[0].consumer }) {
		slices.SortStableFunc(ch.taken, func(a, b held) int { return cmp.Compare(a.consumer, b.consumer) })
	}
	for i := 0; i < len(ch.taken); {
		consumer := ch.taken[i].consumer
		ch.ids = ch.ids[:0]
		for i < len(ch.taken) && ch.taken[i].consumer == consumer {
			ch.ids = append(ch.ids, ch.taken[i].id)
			i++
		}
		ch.session.Settle(consumer, ascending(ch.ids), outcome)
	}
	if cap(ch.taken) > keepItems {
		ch.taken, ch.ids = nil, nil
	}
}

// ascending sorts ids if they are not.
func ascending(ids []uint64) []uint64 {
	if !slices.IsSorted(ids) {
		slices.Sort(ids)
	}
	return ids
}

// settleWritten acknowledges deliveries that have been written to a client
// that does not acknowledge. The writer calls it.
func (ch *channel) settleWritten(consumer uint64, ids []uint64) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	switch {
	case ch.closing:
	case ch.busy:
		ch.settles = append(ch.settles, lateSettle{consumer, fsm.Ack, slices.Clone(ids)})
	default:
		ch.session.Settle(consumer, ascending(ids), fsm.Ack)
	}
}

// settleLate passes on what had to wait for the session. The gate is held and
// no blocking call is under way.
func (ch *channel) settleLate() {
	for _, s := range ch.settles {
		ch.session.Settle(s.consumer, ascending(s.ids), s.outcome)
	}
	ch.settles = ch.settles[:0]
}
