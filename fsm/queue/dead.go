package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// strategy is the effective dead-letter strategy. It is asked for at each step
// of a letter: a letter may end under another strategy than it began.
func (o *outbox) strategy() Disposition {
	switch {
	case o.settings.DelayedStore:
		return AtLeastOnce
	case !o.settings.DeadLetter:
		return Dropped
	case o.settings.DeadLetterStrategy == logpb.QueueConfig_AT_MOST_ONCE:
		return SentOnce
	case o.settings.DeadLetterStrategy == logpb.QueueConfig_AT_LEAST_ONCE:
		return AtLeastOnce
	}
	return Transactional
}

// disposition is what happens to messages that die for this reason. Messages
// dropped by a length limit bypass the outbox, which would grow instead, and so
// does everything while the outbox is full.
//
//	strategy               EXPIRED, REJECTED, DELIVERY_LIMIT   MAXLEN, or outbox full
//	no exchange            Dropped                             Dropped
//	at-most-once           SentOnce                            SentOnce
//	default                Transactional                       SentOnce
//	at-least-once          AtLeastOnce                         SentOnce
//	delayed exchange       AtLeastOnce                         AtLeastOnce
func (o *outbox) disposition(reason logpb.Death_Reason) Disposition {
	s := o.strategy()
	if s > SentOnce && !o.settings.DelayedStore && (reason == logpb.Death_MAXLEN || o.full()) {
		return SentOnce
	}
	return s
}

// full reports whether the outbox has reached its bound. Letters of a delayed
// exchange are posted all the same, and so is what is forwarded: they have no other
// way. What is forwarded does not count.
func (o *outbox) full() bool {
	return o.settings.maxLetters.Given && o.letters()-o.forwarded.all().Messages >= o.settings.maxLetters.Value
}

// die ends message h, which is in no place: it becomes a letter of the outbox,
// or is freed, with or without a letter that is sent once.
//
// Requires: place 0, and no timer knows h.
// Ensures: h is in the outbox, or freed: the caller must not use it again.
func (o *outbox) die(h uint32, reason logpb.Death_Reason, eff *fsm.Effects) {
	if reason == logpb.Death_EXPIRED {
		o.counters.Expired++
	}
	what := o.disposition(reason)
	o.counters.Deaths[reason-1][what]++
	o.ends.message(h, EndReason(reason), what, o.next, what > SentOnce)
	if what == Dropped {
		o.messages.free(h, eff)
		return
	}
	o.counters.DeadLettered++
	e := o.messages.editDeadLetterInfo(h)
	e.reason, e.diedAt = reason, o.clock.now()
	e.deaths = o.addDeath(e.deaths, reason)
	if what == SentOnce {
		eff.DeadLetters = append(eff.DeadLetters, o.deadLetter(h))
		o.messages.free(h, eff)
		return
	}
	o.post(h, eff)
}

// post appends message h, which is in no place, to the outbox. Letters are
// never posted anywhere but at the end, so numbers ascend from unrouted on.
func (o *outbox) post(h uint32, eff *fsm.Effects) {
	e := o.messages.editDeadLetterInfo(h)
	e.letter, e.group = o.next, nil
	o.next++
	o.messages.put(h, Outbox)
	if o.unrouted == 0 {
		o.unrouted = h
	}
	eff.Outbox = true
}

// addDeath returns the history with one more death in this queue in front. The
// record of a new pair of queue and reason is completed from the payload by the
// sender.
//
// The result and its first record are new. The other records are shared with
// history, which is not changed. Time and First of a pair that dies again are those
// of its first death, as x-death has them.
func (o *outbox) addDeath(history []*logpb.Death, reason logpb.Death_Reason) []*logpb.Death {
	now := &logpb.Death{Reason: reason, Queue: o.name, Count: 1, Time: int64(o.clock.now()), First: len(history) == 0}
	i := slices.IndexFunc(history, func(d *logpb.Death) bool { return d.Reason == reason && d.Queue == o.name })
	if i < 0 {
		return slices.Concat([]*logpb.Death{now}, history)
	}
	old := history[i]
	now.Count, now.Time, now.First = old.Count+1, old.Time, old.First
	now.Exchange, now.RoutingKeys, now.OriginalExpiration = old.Exchange, old.RoutingKeys, old.OriginalExpiration
	return slices.Concat([]*logpb.Death{now}, history[:i], history[i+1:])
}

// copyDeaths returns a history that shares nothing with a command.
func copyDeaths(from []*logpb.Death) []*logpb.Death {
	deaths := make([]*logpb.Death, len(from))
	for i, d := range from {
		deaths[i] = &logpb.Death{
			Reason: d.GetReason(), Queue: d.GetQueue(), Count: d.GetCount(), Time: d.GetTime(), Exchange: d.GetExchange(),
			RoutingKeys: slices.Clone(d.GetRoutingKeys()), OriginalExpiration: d.GetOriginalExpiration(),
			First: d.GetFirst(), LastExchange: d.GetLastExchange(),
		}
	}
	return deaths
}

// purge turns all waiting letters into purged messages, and returns how many.
// O(1). Their entries are released when they are swept.
func (o *outbox) purge() uint64 {
	n := o.messages.count(Waiting).Messages
	o.messages.discardList(waitingList, Waiting)
	o.forwarded.waiting = Count{}
	o.waiting.clear()
	return n
}
