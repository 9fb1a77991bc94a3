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

// settler passes settlements on to the session, those of one consumer in one
// call. The channel's gate guards it, and only later is called during a
// blocking call.
type settler struct {
	session Session
	waiting []waitingSettle // for the end of the blocking call, in order
	taken   []held          // scratch
	ids     []uint64        // scratch
}

// waitingSettle is a settlement that waits for the session.
type waitingSettle struct {
	consumer uint64
	outcome  fsm.Outcome
	ids      []uint64
}

// scratch is an empty list for pass.
func (s *settler) scratch() []held { return s.taken[:0] }

// pass settles deliveries. The list belongs to the settler again on return.
func (s *settler) pass(list []held, outcome fsm.Outcome) {
	s.taken = list
	if slices.ContainsFunc(list, func(h held) bool { return h.consumer != list[0].consumer }) {
		slices.SortStableFunc(list, func(a, b held) int { return cmp.Compare(a.consumer, b.consumer) })
	}
	for i := 0; i < len(list); {
		consumer := list[i].consumer
		s.ids = s.ids[:0]
		for i < len(list) && list[i].consumer == consumer {
			s.ids = append(s.ids, list[i].id)
			i++
		}
		s.session.Settle(consumer, ascending(s.ids), outcome)
	}
	if cap(s.taken) > keepItems {
		s.taken, s.ids = nil, nil
	}
}

// passAll settles what a transaction has settled, consecutive deliveries with
// the same outcome together.
func (s *settler) passAll(list []uncommitted) {
	for len(list) > 0 {
		outcome, taken := list[0].outcome, s.scratch()
		for len(list) > 0 && list[0].outcome == outcome {
			taken = append(taken, list[0].held)
			list = list[1:]
		}
		s.pass(taken, outcome)
	}
}

// passIDs settles deliveries of one consumer. It may sort ids.
func (s *settler) passIDs(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	s.session.Settle(consumer, ascending(ids), outcome)
}

// later keeps a settlement until flush.
func (s *settler) later(consumer uint64, ids []uint64, outcome fsm.Outcome) {
	s.waiting = append(s.waiting, waitingSettle{consumer, outcome, ids})
}

// flush passes on the settlements that had to wait.
func (s *settler) flush() {
	for _, w := range s.waiting {
		s.passIDs(w.consumer, w.ids, w.outcome)
	}
	s.waiting = s.waiting[:0]
}

// clear drops the waiting settlements and their memory.
func (s *settler) clear() { s.waiting = nil }

// ascending sorts ids if necessary.
func ascending(ids []uint64) []uint64 {
	if !slices.IsSorted(ids) {
		slices.Sort(ids)
	}
	return ids
}

// settle ends deliveries as the client requests. The gate is held.
func (ch *channel) settle(s *settlement) error {
	taken, ok := ch.consumers.settle(s, ch.tx.on, ch.settler.scratch())
	if !ok {
		return errUnknownTag(s.method, s.tag)
	}
	ch.settler.pass(taken, s.outcome)
	return nil
}

// recover returns every unacknowledged delivery. reply, if not nil, is called
// before any of them can be delivered again. The gate is held.
func (ch *channel) recover(reply func()) {
	taken := ch.consumers.takeAll(ch.settler.scratch())
	if reply != nil {
		reply()
	}
	ch.settler.pass(taken, fsm.Requeue)
}

// settleWritten acknowledges deliveries that have been written to a client
// that does not acknowledge. The writer calls it.
func (ch *channel) settleWritten(consumer uint64, ids []uint64) {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	switch {
	case ch.end.sessionClosing:
	case ch.busy:
		ch.settler.later(consumer, slices.Clone(ids), fsm.Ack)
	default:
		ch.settler.passIDs(consumer, ids, fsm.Ack)
	}
}
