package queue

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Disposition is what happens to a message that has died.
type Disposition uint8

const (
	// Dropped: the queue has no dead-letter exchange.
	Dropped Disposition = iota
	// SentOnce: sent once by the leader, as an effect (at-most-once).
	SentOnce
	// Transactional: in the outbox until the targets have it, or there are
	// none.
	Transactional
	// AtLeastOnce: in the outbox until a target has it.
	AtLeastOnce
)

var dispositions = [...]string{Dropped: "disabled", SentOnce: "at_most_once", Transactional: "transactional", AtLeastOnce: "at_least_once"}

// String returns the dead-letter strategy of the disposition, as metrics name
// it.
func (d Disposition) String() string { return dispositions[d] }

// Transfer is one copy of a letter on its way to one queue. Numbers count from
// 1 per target and are the sequence numbers of the stream at the target.
type Transfer struct {
	To     fsm.QueueID
	Number uint64
	// Ceiling is the smallest TTL of the exchanges on the way.
	Ceiling fsm.Optional[fsm.Millis]
	// Edit is what an exchange with filters changes of the copy, opaque octets; empty:
	// nothing.
	Edit string
}

// outbox holds the letters: messages in the places Outbox and Waiting that have
// died or left a delayed exchange, and the queues they go to. It decides which
// messages become letters, and what happens to them then.
//
// Letters are numbered in the order in which they die. In the list of the
// outbox those with a route come first; the unrouted ones follow without a gap.
//
// Invariants:
//
//	1 ≤ letter < next for every letter
//	unrouted = the first letter in the list without transfers; behind it no
//	letter has any, and their numbers are consecutive and end at next-1
//	waiting has exactly the letters with place Waiting, none of which has transfers;
//	there are none unless letters are delivered at least once, or some are forwarded
//	for every target t: t.confirmed < t.next, and t.pending has the letters of the
//	transfers confirmed+1 … next-1, in this order
//	gone = number of targets that are gone; such a target has pending transfers
//
// Cycle of a letter: post (no route) → routeDead (transfers to its targets) →
// confirmTransfers (one transfer less) → gone with the last one. With at-least-once
// it waits instead if it has no target or was refused, and routeWaiting gives it a
// new route.
//
// The leader reads what to do (unroutedLetters, pendingTransfers, waitingLetters)
// and proposes commands; the machine does nothing by itself, so a change of leader
// loses nothing. A snapshot has next and the targets in its head, and the letters
// with their transfers in the order of the lists.
type outbox struct {
	*shared
	messages *messages
	ends     *ends
	uniques  *uniques

	next     uint64         // number of the next letter
	unrouted uint32         // first letter without a route; 0: none
	waiting  sorted[uint32] // letters that have no destination for now, by number
	// A target stays for good, since its numbers must go on, unless it is gone.
	deadLetterTargets []*deadLetterTarget // by id
	// gone is kept so that hasWork costs O(1).
	gone int // number of targets that are gone
	// forwarded counts the letters that have not died.
	forwarded forwardedCounts
}

// deadLetterTarget is a queue that letters go to. The unsettled transfers to it
// are numbered confirmed+1 … next-1. The numbers are those of the command stream
// at the target, so none is used twice and none is skipped.
//
// Invariants: 1 ≤ next; confirmed < next; pending.len() = next - 1 - confirmed.
// Letters of pending are handles in the outbox, each once per target, or once for each
// copy that an exchange with filters has made for it; copies of one letter are neighbours.
type deadLetterTarget struct {
	id        fsm.QueueID
	next      uint64
	confirmed uint64
	pending   deque[uint32] // letters, by transfer number
	gone      bool          // the queue no longer exists, and some transfers are still pending
}

// clear removes all letters and targets when the queue ends. Numbers begin with 1, and are
// not reused.
func (o *outbox) clear() {
	*o = outbox{shared: o.shared, messages: o.messages, ends: o.ends, uniques: o.uniques, next: max(o.next, 1)}
}

func (o *outbox) nextLetter() uint64 { return o.next }

// left is how many messages are in the queue, letters among them. Before version 3
// purged ones that are not released yet count, too.
func (o *outbox) left() uint64 {
	n := uint64(o.messages.Live())
	if o.since(3) {
		n -= o.messages.count(Purged).Messages
	}
	return n
}

func (o *outbox) letters() uint64 {
	return o.messages.count(Outbox).Messages + o.messages.count(Waiting).Messages
}

// counted is the number and size of the letters that count as messages of the
// queue: those that are forwarded, and all if it delivers at least once.
func (o *outbox) counted() Count {
	if o.strategy() != AtLeastOnce {
		return o.forwarded.all()
	}
	return o.messages.count(Outbox).plus(o.messages.count(Waiting))
}

func (o *outbox) hasWork() bool { return o.gone > 0 }

func (o *outbox) find(id fsm.QueueID) (int, bool) {
	return slices.BinarySearchFunc(o.deadLetterTargets, id, func(t *deadLetterTarget, id fsm.QueueID) int { return cmp.Compare(t.id, id) })
}

// has reports whether a queue is one of the targets, and whether it is gone.
func (o *outbox) has(id fsm.QueueID) (known, gone bool) {
	i, ok := o.find(id)
	return ok, ok && o.deadLetterTargets[i].gone
}

func (o *outbox) deadLetter(h uint32) fsm.DeadLetter {
	x, e, r := o.messages.Get(h), o.messages.extra(h), o.messages.scheduleInfo(h)
	var remark fsm.Remark
	if e.remark != nil {
		remark = *e.remark
	}
	expireAt := fsm.Time(0)
	if e.forwarded {
		expireAt = x.expireAt
	}
	return fsm.DeadLetter{
		Remark: remark, Sequence: x.seq, ExpireAt: expireAt,
		Ref: x.ref(), Reason: e.reason, DiedAt: e.diedAt, Priority: x.priority, ScheduledFor: r.scheduledFor,
		HasExpiration: x.hasExpiration(), Deaths: e.deaths, Fresh: e.reason != logpb.Death_NONE && e.deaths[0].Count == 1,
		TTL: r.ttl, Ceiling: r.ceiling, TakenTo: r.takenTo, Redriven: r.takenAs == logpb.Take_REDRIVE, Forwarded: e.forwarded, Hops: uint32(e.hops), Annotations: e.annotations,
	}
}

func (o *outbox) save(h *logpb.QueueSnapshot) {
	h.NextLetter = o.next
	for _, t := range o.deadLetterTargets {
		h.Targets = append(h.Targets, &logpb.DeadTarget{Target: uint64(t.id), Next: t.next, Settled: t.confirmed, Gone: t.gone})
	}
}

func (o *outbox) restoreHead(h *logpb.QueueSnapshot) {
	o.next = h.NextLetter
	for _, t := range h.Targets {
		o.deadLetterTargets = append(o.deadLetterTargets, &deadLetterTarget{id: fsm.QueueID(t.Target), next: t.Next, confirmed: t.Settled, gone: t.Gone})
		if t.Gone {
			o.gone++
		}
	}
}

// restore adds message h, whose place is set, as a letter. Letters come in the
// order of their lists, which is that of the transfer numbers of each target:
// so pending fills up in order, or the snapshot is damaged.
func (o *outbox) restore(st *logpb.MessageState, h uint32) error {
	e := o.messages.editExtra(h)
	e.letter, e.reason, e.diedAt = st.Letter, st.Reason, fsm.Time(st.DiedAt)
	e.forwarded = st.Forwarded
	o.recount(h, 0, Place(st.Place))
	e.remark = restoredRemark(st.RemarkReason, st.RemarkDescription)
	for _, t := range st.Transfers {
		i, ok := o.find(fsm.QueueID(t.Target))
		if !ok || t.Number != o.deadLetterTargets[i].confirmed+1+uint64(o.deadLetterTargets[i].pending.Len()) {
			return fmt.Errorf("%w: letter %d has a wrong transfer", ErrSnapshot, st.Letter)
		}
		o.deadLetterTargets[i].pending.Push(h)
		e.transfers = append(e.transfers, Transfer{o.deadLetterTargets[i].id, t.Number, fsm.OptionalFrom[fsm.Millis](t.TtlCeilingPlusOne), string(t.Edit)})
	}
	switch {
	case st.Place == uint32(Waiting):
		if o.waiting.Get(key{Seq: st.Letter}) != nil {
			return fmt.Errorf("%w: letter %d twice", ErrSnapshot, st.Letter)
		}
		o.waiting.Put(key{Seq: st.Letter}, h)
	case o.unrouted == 0 && len(e.transfers) == 0:
		o.unrouted = h
	}
	return nil
}

func (o *outbox) check(k *checker) {
	unrouted, last := uint32(0), uint64(0)
	pending := map[fsm.QueueID]int{}
	for h := o.messages.head(outboxList); h != 0 && k.err == nil; h = o.messages.Get(h).next {
		e := o.messages.extra(h)
		k.that(e.letter > 0 && e.letter < o.next, "letter %d of %d", e.letter, o.next)
		k.that(unrouted == 0 || len(e.transfers) == 0 && e.letter == last+1, "letter %d is routed too early", e.letter)
		last = e.letter
		k.that(e.reason == logpb.Death_NONE && (e.forwarded || o.messages.scheduleInfo(h).scheduledFor != 0) ||
			len(e.deaths) > 0 && e.deaths[0].Queue == o.name && e.deaths[0].Reason == e.reason, "letter %d has no death", e.letter)
		if len(e.transfers) == 0 && unrouted == 0 {
			unrouted = h
		}
		o.checkTransfers(k, h, pending)
	}
	k.that(unrouted == o.unrouted, "the first unrouted letter is wrong")
	k.that(unrouted == 0 || last == o.next-1, "letter %d is missing", o.next-1)
	o.checkWaiting(k)
	o.checkForwarded(k)
	gone := 0
	for i, t := range o.deadLetterTargets {
		k.that(t.id != 0 && (i == 0 || o.deadLetterTargets[i-1].id < t.id), "target %d is out of order", t.id)
		k.that(t.confirmed < t.next && t.next-t.confirmed-1 == uint64(pending[t.id]), "target %d: settled %d, next %d", t.id, t.confirmed, t.next)
		k.that(t.pending.Len() == pending[t.id], "target %d: %d pending", t.id, t.pending.Len())
		if t.gone {
			gone++
			k.that(t.pending.Len() > 0, "target %d is gone", t.id)
		}
	}
	k.that(gone == o.gone, "%d targets are gone, counted %d", gone, o.gone)
}

func (o *outbox) checkTransfers(k *checker, h uint32, pending map[fsm.QueueID]int) {
	e := o.messages.extra(h)
	for _, t := range e.transfers {
		i, ok := o.find(t.To)
		if k.that(ok, "letter %d goes to nobody", e.letter); !ok {
			continue
		}
		n, to := pending[t.To], o.deadLetterTargets[i]
		k.that(n < to.pending.Len() && *to.pending.Item(n) == h && t.Number == to.confirmed+1+uint64(n),
			"letter %d: transfer %d is not pending", e.letter, t.Number)
		pending[t.To]++
	}
}

func (o *outbox) checkForwarded(k *checker) {
	var found forwardedCounts
	for no, list := range []int{outboxList, waitingList} {
		for h := o.messages.head(list); h != 0; h = o.messages.Get(h).next {
			o.checkTaken(k, h)
			e := o.messages.extra(h)
			if !e.forwarded {
				continue
			}
			k.that(e.reason == logpb.Death_NONE && e.hops >= 1 && e.hops <= maxHops+1, "letter %d is forwarded for the %dth time", e.letter, e.hops)
			found.of([]Place{Outbox, Waiting}[no]).add(o.messages.weight(h))
		}
	}
	k.that(found == o.forwarded, "%v are forwarded, counted %v", found, o.forwarded)
}

func (o *outbox) checkWaiting(k *checker) {
	n := 0
	for h := o.messages.head(waitingList); h != 0; h = o.messages.Get(h).next {
		e := o.messages.extra(h)
		k.that(e.letter > 0 && e.letter < o.next && (len(e.deaths) > 0 || e.reason == logpb.Death_NONE) && len(e.transfers) == 0,
			"letter %d does not wait", e.letter)
		k.that(o.waiting.Value(key{Seq: e.letter}) == h, "letter %d is not found", e.letter)
		n++
	}
	k.that(o.waiting.Len() == n, "%d letters wait, of %d", o.waiting.Len(), n)
	k.that(n == 0 || o.strategy() == AtLeastOnce || o.forwarded.all().Messages > 0, "letters wait for nothing")
}

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
//
// With DropExpired what expires is Dropped in all rows but the last one.
func (o *outbox) disposition(reason logpb.Death_Reason) Disposition {
	s := o.strategy()
	if reason == logpb.Death_EXPIRED && o.settings.DropExpired && o.since(3) && !o.settings.DelayedStore {
		return Dropped
	}
	if s > SentOnce && !o.settings.DelayedStore && (reason == logpb.Death_MAXLEN || o.full()) {
		return SentOnce
	}
	return s
}

// full reports whether the outbox has reached its bound. Letters of a delayed exchange, and what is
// forwarded, are posted all the same: they have no other way.
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
	o.ends.message(h, endReason(reason), what, o.next, what > SentOnce)
	if what == Dropped {
		o.messages.free(h, eff)
		return
	}
	o.counters.DeadLettered++
	e := o.messages.editExtra(h)
	e.reason, e.diedAt = reason, o.clock.now()
	e.deaths = o.addDeath(e.deaths, reason, o.messages.Get(h).failed)
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
	e := o.messages.editExtra(h)
	o.uniques.drop(e)
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
// of its first death, as x-death has them. failed is how many deliveries have failed: the
// one that was rejected is among them, and does not count.
func (o *outbox) addDeath(history []*logpb.Death, reason logpb.Death_Reason, failed uint32) []*logpb.Death {
	now := &logpb.Death{Reason: reason, Queue: o.name, Count: 1, Time: int64(o.clock.now()), First: len(history) == 0}
	switch {
	case !o.since(3):
	case reason == logpb.Death_REJECTED:
		now.Failed = max(failed, 1) - 1
	default:
		now.Failed = failed
	}
	i := slices.IndexFunc(history, func(d *logpb.Death) bool { return d.Reason == reason && d.Queue == o.name })
	if i < 0 {
		return slices.Concat([]*logpb.Death{now}, history)
	}
	old := history[i]
	if o.since(3) {
		now.LastTime = now.Time
	}
	now.Count, now.Time, now.First = old.Count+1, old.Time, old.First
	now.Exchange, now.RoutingKeys, now.OriginalExpiration = old.Exchange, old.RoutingKeys, old.OriginalExpiration
	return slices.Concat([]*logpb.Death{now}, history[:i], history[i+1:])
}

// copyDeaths returns what a machine keeps of a history. Before version 3 that was not when a pair has died last.
func (o *outbox) copyDeaths(from []*logpb.Death) []*logpb.Death {
	deaths := make([]*logpb.Death, len(from))
	for i, d := range from {
		deaths[i] = &logpb.Death{
			Reason: d.GetReason(), Queue: d.GetQueue(), Count: d.GetCount(), Time: d.GetTime(), Exchange: d.GetExchange(),
			RoutingKeys: slices.Clone(d.GetRoutingKeys()), OriginalExpiration: d.GetOriginalExpiration(),
			First: d.GetFirst(), LastExchange: d.GetLastExchange(),
		}
		if o.since(3) {
			deaths[i].LastTime, deaths[i].Failed = d.GetLastTime(), d.GetFailed()
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
	o.waiting.Clear()
	return n
}

// routeDead records the routes of the oldest unrouted letters. Count of the
// answer is the number of letters that got their route.
//
// cmd.First is the number of the oldest letter that was unrouted for its proposer.
// If it is not that of the machine, another leader was first, and nothing changes.
// So the command may be repeated. It is also performed while draining.
func (o *outbox) routeDead(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	if cmd.GetRetry() {
		return o.routeWaiting(cmd, eff)
	}
	if o.unrouted == 0 || o.messages.extra(o.unrouted).letter != cmd.GetFirst() {
		return fsm.Result{}
	}
	var r fsm.Result
	for _, route := range cmd.Routes {
		if o.unrouted == 0 {
			break
		}
		h := o.unrouted
		o.unrouted = o.messages.Get(h).next
		o.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = true
	return r
}

// routeWaiting assigns routes to waiting letters. The first route for a letter
// that no longer waits, and all routes after it, are ignored: they come from a
// leader with an outdated view.
//
// The routes before that have had their effect. Each letter goes to the end of the
// routed ones, so that transfers to one target ascend in the order of the list.
func (o *outbox) routeWaiting(cmd *logpb.RouteDead, eff *fsm.Effects) fsm.Result {
	var r fsm.Result
	for _, route := range cmd.Routes {
		h := o.waiting.Value(key{Seq: route.GetLetter()})
		if h == 0 {
			break
		}
		o.waiting.Remove(key{Seq: route.GetLetter()})
		o.recount(h, Waiting, Outbox)
		o.messages.remove(h)
		o.messages.putAfter(o.lastRouted(), h, Outbox)
		o.route(h, route, eff)
		r.Count++
	}
	eff.Outbox = eff.Outbox || r.Count > 0
	return r
}

func (o *outbox) lastRouted() uint32 {
	if o.unrouted == 0 {
		return o.messages.tail(outboxList)
	}
	return o.messages.Get(o.unrouted).prev
}

// wait makes letter h, which is in the outbox and has no destination, a waiting
// one.
//
// Requires: no transfer of h is pending any more. done stays, so that targets that
// have the letter do not get it twice.
func (o *outbox) wait(h uint32) {
	r := *o.messages.scheduleInfo(h)
	r.refused = false
	o.messages.setScheduleInfo(h, r)
	o.messages.editExtra(h).transfers = nil
	o.recount(h, Outbox, Waiting)
	o.messages.remove(h)
	o.messages.put(h, Waiting)
	o.waiting.Put(key{Seq: o.messages.extra(h).letter}, h)
}

// route gives letter h one transfer per target, except to targets that already
// have it. If there is none it waits, comes back if the queue no longer forwards it, dies, or is dropped, as letters of a
// delayed exchange and copies always are.
//
// Requires: h is in the outbox without transfers, and unrouted is past it. Targets
// that are new get their record here, in the order of ids. Numbers are used up
// in the order of letters and, within one, of the route.
func (o *outbox) route(h uint32, to *logpb.DeadRoute, eff *fsm.Effects) {
	var transfers []Transfer
	done := o.messages.scheduleInfo(h).done
	o.noteUnroutable(h, to)
	for n, id := range to.GetTargets() {
		if id == 0 || slices.Contains(done, fsm.QueueID(id)) {
			continue
		}
		i, ok := o.find(fsm.QueueID(id))
		if !ok {
			o.deadLetterTargets = slices.Insert(o.deadLetterTargets, i, &deadLetterTarget{id: fsm.QueueID(id), next: 1})
		}
		t := o.deadLetterTargets[i]
		if n := t.pending.Len(); t.gone || n > 0 && *t.pending.Item(n - 1) == h && len(to.Edits) == 0 {
			continue // gone, or named twice
		}
		t.pending.Push(h)
		transfer := Transfer{To: t.id, Number: t.next}
		if n < len(to.TtlCeilingsPlusOne) {
			transfer.Ceiling = fsm.OptionalFrom[fsm.Millis](to.TtlCeilingsPlusOne[n])
		}
		if n < len(to.Edits) && len(to.Edits[n]) > 0 {
			transfer.Edit = string(to.Edits[n])
		}
		transfers = append(transfers, transfer)
		t.next++
	}
	switch {
	case len(transfers) > 0:
		o.messages.editExtra(h).transfers = transfers
	case len(done) > 0:
		o.arrived(h, 0, eff)
	case o.messages.scheduleInfo(h).takenAs == logpb.Take_COPY:
		o.free(h, eff)
	case o.messages.extra(h).forwarded && (o.messages.scheduleInfo(h).takenTo != 0 || !o.settings.forwards()) && !o.scratch.ended:
		o.comeBack(h)
	case o.settings.ForwardCopies && o.messages.extra(h).goesOn():
		o.counters.Unroutable++
		o.free(h, eff)
	case o.settings.ForwardRefusedDies && o.messages.extra(h).goesOn():
		o.dieForwarded(h, eff)
	case o.messages.extra(h).forwarded || o.strategy() == AtLeastOnce && !o.settings.DelayedStore:
		o.wait(h)
	default:
		o.drop(h, eff)
	}
}

// noteUnroutable counts letter h of a delayed exchange that had no route when
// it was due. It dies of that, if the route has a destination for dead letters.
func (o *outbox) noteUnroutable(h uint32, route *logpb.DeadRoute) {
	if !o.settings.DelayedStore || o.messages.extra(h).forwarded || o.messages.extra(h).reason != logpb.Death_NONE || len(o.messages.scheduleInfo(h).done) > 0 ||
		len(route.GetTargets()) > 0 && !route.GetUnroutable() {
		return
	}
	o.counters.Unroutable++
	o.ends.message(h, logpb.EndState_UNROUTABLE, AtLeastOnce, o.next, false)
	if route.GetUnroutable() {
		e := o.messages.editExtra(h)
		e.reason, e.diedAt, e.deaths = logpb.Death_UNROUTABLE, o.clock.now(), o.addDeath(e.deaths, logpb.Death_UNROUTABLE, o.messages.Get(h).failed)
	}
}

func (o *outbox) drop(h uint32, eff *fsm.Effects) {
	o.counters.DeadDropped++
	o.ends.settled(o.messages.extra(h).letter)
	o.free(h, eff)
}

// free frees letter h, which has ended.
func (o *outbox) free(h uint32, eff *fsm.Effects) {
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	o.messages.free(h, eff)
}

// arrived removes letter h, which the targets have. last is the one that has just
// taken it, and may not be noted yet; 0: none has.
func (o *outbox) arrived(h uint32, last fsm.QueueID, eff *fsm.Effects) {
	switch e, r := o.messages.extra(h), o.messages.scheduleInfo(h); {
	case r.takenAs == logpb.Take_COPY: // what it is a copy of ends by itself
		o.counters.Copied++
	case e.forwarded:
		o.counters.Forwarded++
		if r.takenAs == logpb.Take_REDRIVE {
			o.counters.Redriven++
		}
		o.ends.forwarded(h, r.done, last, o.next)
	default:
		o.counters.DeadConfirmed++
		o.ends.settled(e.letter)
	}
	o.free(h, eff)
}

// confirmTransfers records that a target holds its transfers up to a number,
// except those it has refused, or that it no longer exists.
//
// cmd.Last is cumulative, so a repetition does nothing; beyond next-1 it counts as
// that. cmd.Refused must ascend. One command ends bounds.Tick transfers at most:
// DeadLetterTarget.Confirmed says how far it got.
func (o *outbox) confirmTransfers(cmd *logpb.SettleDead, eff *fsm.Effects) fsm.Result {
	i, ok := o.find(fsm.QueueID(cmd.GetTarget()))
	if !ok {
		return fsm.Result{}
	}
	t := o.deadLetterTargets[i]
	if cmd.Gone || t.gone { // a target that is gone has taken nothing since
		if !t.gone {
			t.gone = true
			o.gone++
		}
		o.endGone(o.bounds.Back(), eff)
		return fsm.Result{}
	}
	last := min(cmd.Last, t.next-1, t.confirmed+uint64(o.bounds.Tick))
	refused := cmd.Refused
	for t.confirmed < last {
		for len(refused) > 0 && refused[0] <= t.confirmed {
			refused = refused[1:]
		}
		no := len(refused) > 0 && refused[0] == t.confirmed+1
		if no {
			o.counters.DeadRefused++
		}
		o.endTransfer(t, !no, no, eff)
	}
	o.dropGone(t)
	return fsm.Result{}
}

func (o *outbox) endTransfer(t *deadLetterTarget, has, refused bool, eff *fsm.Effects) {
	t.confirmed++
	h := *t.pending.Item(0)
	t.pending.Pop()
	o.resolveTransfer(h, t.id, has, refused, eff)
}

// endGone ends up to n transfers to targets that are gone, by id of the target, then by number.
func (o *outbox) endGone(n int, eff *fsm.Effects) {
	for i := 0; i < len(o.deadLetterTargets) && o.gone > 0 && n > 0; i++ {
		t := o.deadLetterTargets[i]
		for ; t.gone && n > 0 && t.pending.Len() > 0; n-- {
			o.endTransfer(t, false, false, eff)
		}
		if o.dropGone(t) {
			i--
		}
	}
}

func (o *outbox) dropGone(t *deadLetterTarget) bool {
	if !t.gone || t.pending.Len() > 0 {
		return false
	}
	i, _ := o.find(t.id)
	o.deadLetterTargets = slices.Delete(o.deadLetterTargets, i, i+1)
	o.gone--
	return true
}

// resolveTransfer ends one transfer of letter h: the target has it, has refused
// it, or is gone. The letter ends with its last transfer, unless it must arrive
// everywhere and has not.
//
// Slices are replaced, since letters and snapshots share them. Ensures: h may be
// freed, or wait: the caller must not use it again.
func (o *outbox) resolveTransfer(h uint32, id fsm.QueueID, has, refused bool, eff *fsm.Effects) {
	left, r := o.messages.extra(h).transfers, *o.messages.scheduleInfo(h)
	if has {
		o.ends.arrived(o.messages.extra(h).letter, id)
	}
	if has && (len(left) > 1 || r.refused) || refused {
		if has {
			r.done = slices.Concat(r.done, []fsm.QueueID{id})
		}
		r.refused = r.refused || refused
		o.messages.setScheduleInfo(h, r)
	}
	if len(left) > 1 {
		i := slices.IndexFunc(left, func(t Transfer) bool { return t.To == id })
		o.messages.editExtra(h).transfers = slices.Concat(left[:i], left[i+1:])
		return
	}
	switch some := has || len(r.done) > 0; {
	case !some && o.settings.forwards() && o.settings.ForwardRefusedDies && !o.settings.ForwardCopies && o.messages.extra(h).goesOn():
		o.dieForwarded(h, eff)
	case o.arrives(h) && (r.refused || !some):
		o.wait(h)
	case has:
		o.arrived(h, id, eff)
	case some:
		o.arrived(h, 0, eff)
	default:
		o.drop(h, eff)
	}
}

// goOn ends transfers to targets that are gone, unless the command ends transfers itself, and drops
// letters that wait for nothing.
func (o *outbox) goOn(kind logpb.Command_Kind, eff *fsm.Effects) {
	switch {
	case o.gone == 0 || kind == logpb.Command_SETTLE_DEAD:
	case kind == logpb.Command_TICK:
		o.endGone(o.bounds.Back(), eff)
	default:
		o.endGone(o.bounds.Before, eff)
	}
	o.settleWaiting()
}

// goesOn reports whether a letter is a message that goes on by itself: nobody has sent it.
func (e *extra) goesOn() bool { return e.forwarded && (e.schedule == nil || e.schedule.takenTo == 0) }

// dieForwarded makes letter h, which was to be forwarded and is in the outbox without
// transfers, a dead one.
func (o *outbox) dieForwarded(h uint32, eff *fsm.Effects) {
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	e := o.messages.editExtra(h)
	e.transfers, e.forwarded = nil, false
	due := o.messages.scheduleInfo(h).scheduledFor
	if e.schedule = nil; due != 0 {
		e.schedule = &scheduleInfo{scheduledFor: due}
	}
	o.die(h, logpb.Death_UNROUTABLE, eff)
}

// maxHops is how often a message is forwarded. The next time it dies.
const maxHops = 4

// forward makes letters of what is ready in a queue that forwards, in the order in
// which it would be handed out, and as many as a command may hand out.
//
// It runs once after each command and, for messages that cannot wait, within an
// Enqueue. Ensures: nothing is ready, or handOuts = 0, or the command may expire no
// more, or sessions are ending. In the last three cases NextDue is at once if
// something is left.
func (m *Machine) forward(eff *fsm.Effects) {
	for m.settings.forwards() && m.scratch.handOuts > 0 && !m.sessions.isEnding() {
		h, _ := m.unexpired(eff, m.messages.nextReady, m.mayGo)
		if h == 0 {
			return
		}
		m.scratch.handOuts--
		m.messages.remove(h)
		limit := uint32(maxHops)
		if m.settings.ForwardCopies { // for which that is no hop: their sender takes it off again
			limit++
		}
		if hops := uint32(m.messages.extra(h).hops); hops < limit {
			m.messages.setHops(h, hops+1)
			m.outbox.forward(h, eff)
		} else {
			m.outbox.die(h, logpb.Death_MAXHOPS, eff)
		}
	}
}

func (ms *messages) setHops(h, hops uint32) {
	ms.editExtra(h).hops = uint8(min(hops, maxHops+1))
}

// forwardedCounts are the letters that are forwarded, by place.
type forwardedCounts struct{ posted, waiting Count }

func (f *forwardedCounts) of(p Place) *Count {
	if p == Waiting {
		return &f.waiting
	}
	return &f.posted
}

func (f *forwardedCounts) all() Count { return f.posted.plus(f.waiting) }

// underWay is the number and size of the letters that are forwarded. O(1).
func (o *outbox) underWay() Count { return o.forwarded.all() }

// forward posts message h, which is in no place, as a letter that has not died. It
// keeps its expiry, which counts again if it comes back.
func (o *outbox) forward(h uint32, eff *fsm.Effects) {
	e := o.messages.editExtra(h)
	e.reason, e.diedAt, e.forwarded = logpb.Death_NONE, o.clock.now(), true
	o.post(h, eff)
	o.recount(h, 0, Outbox)
}

// recount moves letter h from a place, or none, to another, or none, in the counts of
// what is forwarded. It does nothing for a letter that has died.
func (o *outbox) recount(h uint32, from, to Place) {
	if !o.messages.extra(h).forwarded {
		return
	}
	if from != 0 {
		o.forwarded.of(from).sub(o.messages.weight(h))
	}
	if to != 0 {
		o.forwarded.of(to).add(o.messages.weight(h))
	}
}

// arrives reports whether letter h stays until it has arrived everywhere: it is
// forwarded, or its queue delivers dead letters at least once.
func (o *outbox) arrives(h uint32) bool {
	return o.messages.extra(h).forwarded || o.strategy() == AtLeastOnce
}

// comeBack makes letter h, which was to be forwarded and is in the outbox without
// transfers, ready again behind all others: its queue no longer forwards.
func (o *outbox) comeBack(h uint32) {
	o.recount(h, Outbox, 0)
	o.messages.remove(h)
	e := o.messages.editExtra(h)
	e.letter, e.diedAt, e.forwarded, e.hops = 0, 0, false, e.hops-1
	due := o.messages.scheduleInfo(h).scheduledFor
	if e.schedule = nil; due != 0 {
		e.schedule = &scheduleInfo{scheduledFor: due}
	}
	o.messages.dropInfo(h)
	x := o.messages.Mut(h)
	x.acquired, x.failed = 0, 0
	o.messages.renew(h)
	o.messages.put(h, Ready)
	o.messages.watch(h)
}

// settleWaiting drops dead letters that wait although the queue no longer delivers
// at least once. While something that is forwarded is left, they stay.
func (o *outbox) settleWaiting() {
	if o.messages.count(Waiting).Messages > 0 && o.strategy() != AtLeastOnce && o.forwarded.all().Messages == 0 {
		o.counters.DeadDropped += o.purge()
	}
}

// Parked messages have failed more often than the default delivery limit allows, in
// a queue without dead-letter exchange. Nobody gets them, and only what somebody has
// set ends them: a TTL, a length limit, a purge. They wait for Unpark, or for
// settings that do not park them.

func (s *settings) exceeds(x *message) bool {
	return s.DeliveryLimit >= 0 && int64(x.failed) > s.DeliveryLimit
}

// parks reports whether what exceeds the delivery limit is parked: nobody has set
// the limit, and there is nowhere to send a dead letter. Before version 3 it dies.
func (o *outbox) parks() bool {
	return o.since(3) && !o.settings.DeliveryLimitSet && o.strategy() == Dropped
}

// park puts message h, which is in no place, to the parked ones. It keeps its
// group, and its expiry goes on.
func (ms *messages) park(h uint32) {
	ms.put(h, Parked)
	ms.watch(h)
	ms.counters.Parked++
}

// unpark makes parked messages ready, those that were parked first, and their failures count anew:
// up to n, or 0 for all, as far as one command may. Count is how many; the next call continues.
func (m *Machine) unpark(cmd *logpb.Unpark) fsm.Result {
	if !m.since(3) {
		return fsm.Result{Code: fsm.Invalid}
	}
	n, r := m.bounds.upTo(cmd.GetCount()), fsm.Result{}
	for h := m.messages.head(parkedList); h != 0 && r.Count < n; h = m.messages.head(parkedList) {
		m.messages.Mut(h).failed = 0
		m.unparkOne(h)
		r.Count++
	}
	return r
}

// unparkOne makes parked message h ready, as one that is tried again. If it has
// expired meanwhile it is due at once.
func (m *Machine) unparkOne(h uint32) {
	m.messages.remove(h)
	m.counters.Unparked++
	m.lease.touch()
	m.tryAgain(h)
}

// unparks reports whether messages are parked that the settings do not park. With a limit that
// somebody has set they stay, since it would drop them.
func (o *outbox) unparks() bool {
	return o.messages.head(parkedList) != 0 && (o.settings.DeliveryLimit < 0 || o.strategy() != Dropped)
}

// settleParked ends the parking of messages that the settings do not park, as many as a command of
// this kind may: what exceeds the limit dies, the rest becomes ready.
func (m *Machine) settleParked(kind logpb.Command_Kind, eff *fsm.Effects) {
	n := m.bounds.Before
	if kind == logpb.Command_TICK {
		n = m.bounds.Back()
	}
	for ; n > 0 && m.outbox.unparks(); n-- {
		if k, _, ok := m.timers.expiry(); ok && k.At <= m.clock.now() {
			return // the next tick goes on
		}
		if h := m.messages.head(parkedList); m.settings.exceeds(m.messages.Get(h)) {
			m.endWaiting(h, logpb.Death_DELIVERY_LIMIT, eff)
		} else {
			m.unparkOne(h)
		}
	}
}
