package v10

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Annotations of a modified message that say what becomes of it. They are no part of the message.
const (
	deliveryTime  = "x-opt-delivery-time"
	deferralToken = "x-opt-deferral-token"
)

// settle ends deliveries as the client says. An error ends the session.
func (s *session) settle(d *wire.Disposition) *wire.Error {
	if !d.Role {
		return nil // it settles what it has published
	}
	if d.State.Kind == wire.StateTransactional {
		var all enlisted
		s.counts.mu.Lock()
		s.counts.deliveries.each(d.First, d.Last.Or(d.First), false, func(x delivery) { all = append(all, x) })
		s.counts.mu.Unlock()
		return all.enlist(s, d)
	}
	ends, err := endsDeliveries(d)
	if err != nil || !ends {
		if d.State.Kind == wire.StateReceived {
			s.counts.renew(d.First, d.Last.Or(d.First))
			s.renew()
		}
		return err
	}
	last := d.Last.Or(d.First)
	var known bool
	s.giving, known = s.counts.take(d.First, last, s.giving[:0])
	if !d.Settled && !known { // nothing of it can still change
		s.conn.out.push(s.channel, &wire.Disposition{First: d.First, Last: wire.Some(last), Settled: true, State: s.conn.side.Forgotten(&d.State)})
	}
	s.eachLink(s.giving, func(l *outgoingLink, of []delivery, ids []uint64) {
		if !l.form.Singly(&d.State) {
			l.settle(of, ids, d)
			return
		}
		for i := range of {
			l.settle(of[i:i+1], ids[i:i+1], d)
		}
	})
	return nil
}

// enlisted are deliveries of which an outcome takes effect with a transaction.
type enlisted []delivery

// enlist tells their dialect, and answers. An error ends the session.
func (all enlisted) enlist(s *session, d *wire.Disposition) *wire.Error {
	t, unknown := d.State.Transactional, wire.Errorf(wire.ConditionNotImplemented, "Transactions not supported")
	if len(all) == 0 {
		state := s.conn.side.Forgotten(&d.State)
		if state.Kind == wire.StateTransactional {
			return unknown
		}
		s.conn.out.push(s.channel, &wire.Disposition{First: d.First, Last: d.Last, Settled: true, State: state})
	}
	for _, x := range all {
		var answer *wire.State
		if x.received != nil {
			answer = x.link.form.Enlist(t.TxnID, &t.Outcome, x.received)
		}
		if answer == nil {
			return unknown
		}
		if !d.Settled {
			s.conn.out.push(s.channel, &wire.Disposition{First: uint32(x.id), Last: wire.Some(uint32(x.id)), Settled: true, State: *answer})
		}
	}
	return nil
}

// settle ends deliveries of a link. If that is refused, those of a quiet one stay as they are, and the client is told; else it
// ends the link.
func (l *outgoingLink) settle(of []delivery, ids []uint64, d *wire.Disposition) {
	s := l.session
	how, err := l.form.Settlement(&d.State, of[0].received)
	if err == nil && how.Outcome == fsm.Defer && len(ids) > 1 {
		err = wire.Errorf(wire.ConditionInvalidField, "%s is for a single delivery, not for %d", deferralToken, len(ids))
	}
	if err == nil {
		err = s.settleLink(l, of, ids, d, how)
	}
	if err == nil {
		return
	}
	err = s.conn.side.Explain(err)
	switch {
	case l.quiet && !d.Settled:
		for i := range of {
			s.conn.out.push(s.channel, &wire.Disposition{
				First: uint32(of[i].id), Settled: true, State: wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: err}},
			})
		}
	default:
		s.broker.Settle(l.consumer, ids, fsm.Requeue)
		s.detachOutgoing(l, err)
	}
}

// settleLink ends deliveries of one link. An error ends it: nothing has been settled then.
func (s *session) settleLink(l *outgoingLink, of []delivery, ids []uint64, d *wire.Disposition, how fsm.Settlement) *wire.Error {
	if l.copies { // the broker knows nothing of what it has shown
		if !d.Settled {
			done, lost := l.form.Answers(&d.State)
			s.counts.answerShown(&awaited{of: of, state: done, lost: lost})
		}
		return nil
	}
	plain := how.Reason == "" && how.Description == "" && how.DueAt == 0 && how.Deferral == "" && how.Annotations == nil && how.Edit == nil
	if d.Settled && !l.strict && plain {
		s.broker.Settle(l.consumer, ids, how.Outcome)
		return nil
	}
	how.Exact = l.strict || l.second && !d.Settled
	if !d.Settled || l.strict || how.Outcome == fsm.Defer {
		done, lost := l.form.Answers(&d.State)
		how.Number = s.counts.await(&awaited{link: l, of: slices.Clone(of), state: done, lost: lost, outcome: how.Outcome, answered: !d.Settled})
	}
	if err := s.broker.SettleAs(l.consumer, ids, &how); err != nil {
		s.counts.forget(how.Number)
		return s.refusal("disposition", err)
	}
	return nil
}

// detachOutgoing ends a link with an error, unless it has ended.
func (s *session) detachOutgoing(l *outgoingLink, err *wire.Error) {
	if at := s.links[l.handle]; at != nil && at.out == l {
		s.detach(at, err)
	}
}

// endsDeliveries reports whether a disposition ends its deliveries. An error ends the session.
func endsDeliveries(d *wire.Disposition) (bool, *wire.Error) {
	switch d.State.Kind {
	case wire.StateAccepted, wire.StateRejected, wire.StateReleased, wire.StateModified:
		return true, nil
	case wire.NoState, wire.StateReceived:
		return d.Settled, nil
	}
	return false, wire.Errorf(wire.ConditionInvalidField, "Unrecognised state")
}

// settlementOf returns what a state that ends deliveries does to them. An error ends their link.
func settlementOf(state *wire.State) (how fsm.Settlement, err *wire.Error) {
	switch state.Kind {
	case wire.StateAccepted:
		how.Outcome = fsm.Ack
	case wire.StateRejected:
		how.Outcome = fsm.Discard
		if e := state.Rejected.Error; e != nil {
			how.Reason, how.Description = fsm.Cut(e.Condition, fsm.MaxSettleReason), fsm.Cut(e.Description, fsm.MaxSettleDescription)
		}
	case wire.StateModified:
		return modification(&state.Modified)
	default: // released, or the source's default outcome
		how.Outcome = fsm.Requeue
	}
	return how, nil
}

// modification is settlementOf for a modified message.
func modification(m *wire.Modified) (how fsm.Settlement, err *wire.Error) {
	how.Outcome = fsm.Requeue
	switch {
	case m.UndeliverableHere:
		how.Outcome = fsm.Discard
	case m.DeliveryFailed:
		how.Outcome = fsm.RequeueFailed
	}
	size := 0
	for w := m.MessageAnnotations.Walk(); w.NextPair(); {
		key := string(w.Key.Bytes())
		switch {
		case w.Key.Type != wire.Symbol || !strings.HasPrefix(key, "x-"):
			return how, wire.Errorf(wire.ConditionInvalidField, "the key of a message annotation is not a symbol that begins with x-")
		case how.Outcome == fsm.Discard:
		case key == deliveryTime:
			at, ok := w.Value.Integer()
			if w.Value.Type == wire.Timestamp {
				at, ok = w.Value.Signed(), true
			}
			if !ok {
				return how, wire.Errorf(wire.ConditionInvalidField, "%s is neither a timestamp nor an integer", deliveryTime)
			}
			how.DueAt = fsm.Time(at)
		case key == deferralToken:
			token, t := w.Value.Bytes(), w.Value.Type
			if t != wire.String && t != wire.Binary && t != wire.Symbol || len(token) == 0 || len(token) > fsm.MaxShort {
				return how, wire.Errorf(wire.ConditionInvalidField, "%s is not a string or binary of 1 to %d bytes", deferralToken, fsm.MaxShort)
			}
			how.Outcome, how.Deferral = fsm.Defer, string(token)
		default:
			size += len(w.Pair) + 1 // its key may have been encoded in the shorter way
			if len(how.Annotations) == fsm.MaxAnnotations || size > fsm.MaxAnnotationBytes {
				return how, wire.Errorf(wire.ConditionResourceLimit, "a message may be given at most %d annotations, and %d bytes of them", fsm.MaxAnnotations, fsm.MaxAnnotationBytes)
			}
			how.Annotations = append(how.Annotations, &logpb.Annotation{Key: wire.AppendSymbol(nil, key), Value: bytes.Clone(w.Encoded)})
		}
	}
	return how, nil
}

// eachLink calls f for each link that deliveries belong to, with their numbers in ascending order. The numbers are good
// until f returns.
func (s *session) eachLink(all []delivery, f func(l *outgoingLink, of []delivery, ids []uint64)) {
	order := func(a, b delivery) int {
		return cmp.Or(cmp.Compare(a.link.consumer, b.link.consumer), cmp.Compare(a.number, b.number))
	}
	if !slices.IsSortedFunc(all, order) {
		slices.SortFunc(all, order)
	}
	for len(all) > 0 {
		l, n := all[0].link, 0
		s.ids = s.ids[:0]
		for n < len(all) && all[n].link == l {
			s.ids = append(s.ids, all[n].number)
			n++
		}
		f(l, all[:n], s.ids)
		all = all[n:]
	}
}
