package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxToken bounds the bytes of a deferral token.
const maxToken = 255

// defersOne reports whether a settlement defers one delivery under a token.
func defersOne(cmd *logpb.Settle) bool {
	return len(cmd.Ranges) == 2 && cmd.Ranges[1] == 1 && len(cmd.Deferral) > 0 && len(cmd.Deferral) <= maxToken
}

// deferTaken puts the message in scratch.taken, if there is one, aside for c under
// a token that is free. It returns to the others at due, if that is not 0, or
// expires before. One that has expired already dies now, as with any other end
// of a delivery.
//
// It ends at once even while earlier settlements are unfinished, since it takes
// no place among the returned messages.
func (ds *deliveries) deferTaken(c *consumer, token string, due fsm.Time, eff *fsm.Effects) (code fsm.Code, count uint64) {
	taken := ds.scratch.taken
	if len(taken) == 0 {
		return fsm.NotFound, 0
	}
	ds.lift(taken)
	ds.heldBy(taken, c.id, c.tag)
	h := taken[0].handle
	ds.scratch.taken = taken[:0]
	x := ds.messages.mut(h)
	bump(&x.acquired)
	if x.due(ds.clock.now()) {
		ds.scratch.heldBy(taken[0].by)
		ds.outbox.die(h, logpb.Death_EXPIRED, eff)
		ds.scratch.heldBy(0)
		return fsm.OK, 0
	}
	if due != 0 {
		due = max(due, ds.clock.atOnce())
	}
	ds.aside.put(h, Deferred, due, token)
	ds.counters.Deferred++
	return fsm.OK, 1
}

// receiveDeferred hands deferred messages to a consumer that names their tokens.
// Count of the answer is how many; NotFound says that some were not there.
//
// They count in the credit of the consumer, but are handed out whatever credit
// it has, since it has asked for them, up to the most that any consumer may hold.
// A consumer that is not served for another reason than its credit is refused as
// Reserved: it has timed out, its node is suspected, or it is not the active one.
func (ds *deliveries) receiveDeferred(s *session, cmd *logpb.ReceiveDeferred, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	tokens := cmd.GetTokens()
	if len(tokens) == 0 || len(tokens) > ds.bounds.HandOuts {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := s.consumer(cmd.GetConsumer())
	switch {
	case c == nil || c.isGets() || c.cancelled:
		return fsm.Result{Code: fsm.NotFound}
	case !ds.consumers.served(c) || c.held.len()+len(tokens) > maxCredit:
		return fsm.Result{Code: fsm.Reserved}
	}
	ds.lease.touch()
	var r fsm.Result
	for _, token := range tokens {
		h := ds.firstDeferred(token, eff)
		if h == 0 {
			r.Code = fsm.NotFound
			continue
		}
		r.Count++
		ds.aside.take(h)
		if !ds.settings.grouped() && ds.members.of(h) != nil {
			ds.messages.ungroup(h)
		}
		id, lock := ds.hand(h, c)
		ds.deliver(c, id, h, lock, eff)
	}
	ds.consumers.refresh(c)
	return r
}

// firstDeferred returns the message under a token; 0: there is none. Due
// messages expire, up to the budget, so that deaths keep their order; one that
// is still due counts as gone, and so does one that is due to return.
func (ds *deliveries) firstDeferred(token string, eff *fsm.Effects) uint32 {
	for {
		h := ds.aside.find(token)
		if h == 0 || ds.messages.get(h).due(ds.clock.now()) {
			return 0
		}
		at := ds.messages.scheduleInfo(h).expireAt
		if at == 0 || at > ds.clock.now() {
			return h
		}
		if !ds.expireNext(eff) {
			return 0
		}
	}
}
