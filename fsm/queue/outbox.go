package queue

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// outbox holds the letters: messages in the places Outbox and Waiting that have
// died or left a delayed exchange, and the queues they go to. dead.go decides
// which messages become letters, route.go what happens to them then.
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
// Letters of pending are handles in the outbox, each at most once per target.
type deadLetterTarget struct {
	id        fsm.QueueID
	next      uint64
	confirmed uint64
	pending   deque[uint32] // letters, by transfer number
	gone      bool          // the queue no longer exists, and some transfers are still pending
}

// newOutbox returns an empty outbox. Letters are numbered from 1.
func newOutbox(s *shared, ms *messages, en *ends) *outbox {
	return &outbox{shared: s, messages: ms, ends: en, next: 1}
}

// clear removes all letters and targets when the queue ends. Numbers are not
// reused.
func (o *outbox) clear() {
	*o = outbox{shared: o.shared, messages: o.messages, ends: o.ends, next: o.next}
}

// nextLetter is the number of the next letter.
func (o *outbox) nextLetter() uint64 { return o.next }

// letters is the number of letters that are not finished. 0 ends a draining
// queue. O(1).
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

// hasWork reports whether transfers to targets that are gone are still to be
// ended.
func (o *outbox) hasWork() bool { return o.gone > 0 }

// find returns where a target is, or would be. O(log targets).
func (o *outbox) find(id fsm.QueueID) (int, bool) {
	return slices.BinarySearchFunc(o.deadLetterTargets, id, func(t *deadLetterTarget, id fsm.QueueID) int { return cmp.Compare(t.id, id) })
}

// has reports whether a queue is one of the targets, and whether it is gone.
func (o *outbox) has(id fsm.QueueID) (known, gone bool) {
	i, ok := o.find(id)
	return ok, ok && o.deadLetterTargets[i].gone
}

// deadLetter describes message h, which has died. Deaths are shared with the
// record and never changed.
func (o *outbox) deadLetter(h uint32) fsm.DeadLetter {
	x, e, r := o.messages.get(h), o.messages.deadLetterInfo(h), o.messages.scheduleInfo(h)
	var remark fsm.Remark
	if e.remark != nil {
		remark = *e.remark
	}
	return fsm.DeadLetter{
		Remark: remark,
		Ref:    x.ref(), Reason: e.reason, DiedAt: e.diedAt, Priority: x.priority, ScheduledFor: r.scheduledFor,
		HasExpiration: x.hasExpiration(), Deaths: e.deaths, Fresh: e.reason != logpb.Death_NONE && e.deaths[0].Count == 1,
		TTL: r.ttl, Ceiling: r.ceiling, Forwarded: e.forwarded, Hops: uint32(e.hops),
	}
}

// letter describes letter h.
func (o *outbox) letter(h uint32) Letter {
	e := o.messages.deadLetterInfo(h)
	return Letter{Number: e.letter, DeadLetter: o.deadLetter(h), Done: o.messages.scheduleInfo(h).done, Transfers: e.transfers}
}

// unroutedLetters returns up to limit letters without a route, oldest first.
// O(limit): it starts at unrouted. The letters share their slices with the
// machine, which replaces them and never changes them.
func (o *outbox) unroutedLetters(limit int) []Letter {
	var letters []Letter
	for h := o.unrouted; h != 0 && len(letters) < limit; h = o.messages.get(h).next {
		letters = append(letters, o.letter(h))
	}
	return letters
}

// waitingLetters returns up to limit letters that have no destination for now,
// with a number above after, ascending.
func (o *outbox) waitingLetters(after uint64, limit int) []Letter {
	var letters []Letter
	for _, h := range o.waiting.from(key{seq: after + 1}) {
		if len(letters) == limit {
			break
		}
		letters = append(letters, o.letter(*h))
	}
	return letters
}

// pendingTransfers returns up to limit transfers to a target that are not
// settled, from number from on, ascending. Transfers are numbered without gaps,
// so a sender that has sent up to n continues with from = n+1. O(log targets +
// limit × transfers of a letter).
func (o *outbox) pendingTransfers(to fsm.QueueID, from uint64, limit int) []Outgoing {
	i, ok := o.find(to)
	if !ok {
		return nil
	}
	var out []Outgoing
	t := o.deadLetterTargets[i]
	for n := max(t.confirmed+1, from); n < t.next && len(out) < limit; n++ {
		l := o.letter(*t.pending.item(int(n - t.confirmed - 1)))
		at := slices.IndexFunc(l.Transfers, func(x Transfer) bool { return x.To == to })
		out = append(out, Outgoing{l.Transfers[at], l})
	}
	return out
}

// list lists up to limit targets with an id above after, ascending.
func (o *outbox) list(after fsm.QueueID, limit int) []DeadLetterTarget {
	i, found := o.find(after)
	if found {
		i++
	}
	targets := make([]DeadLetterTarget, 0, min(limit, len(o.deadLetterTargets)-i))
	for ; i < len(o.deadLetterTargets) && len(targets) < limit; i++ {
		t := o.deadLetterTargets[i]
		targets = append(targets, DeadLetterTarget{t.id, t.next, t.confirmed})
	}
	return targets
}

// save writes the outbox's section of a snapshot's head.
func (o *outbox) save(h *logpb.QueueSnapshot) {
	h.NextLetter = o.next
	for _, t := range o.deadLetterTargets {
		h.Targets = append(h.Targets, &logpb.DeadTarget{Target: uint64(t.id), Next: t.next, Settled: t.confirmed, Gone: t.gone})
	}
}

// restoreHead is the inverse of save. The letters follow, see restore.
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
	e := o.messages.editDeadLetterInfo(h)
	e.letter, e.reason, e.diedAt = st.Letter, st.Reason, fsm.Time(st.DiedAt)
	e.forwarded = st.Forwarded
	o.recount(h, 0, Place(st.Place))
	e.remark = restoredRemark(st.RemarkReason, st.RemarkDescription)
	for _, t := range st.Transfers {
		i, ok := o.find(fsm.QueueID(t.Target))
		if !ok || t.Number != o.deadLetterTargets[i].confirmed+1+uint64(o.deadLetterTargets[i].pending.len()) {
			return fmt.Errorf("%w: letter %d has a wrong transfer", ErrSnapshot, st.Letter)
		}
		o.deadLetterTargets[i].pending.push(h)
		e.transfers = append(e.transfers, Transfer{o.deadLetterTargets[i].id, t.Number, fsm.OptionalFrom[fsm.Millis](t.TtlCeilingPlusOne)})
	}
	switch {
	case st.Place == uint32(Waiting):
		if o.waiting.get(key{seq: st.Letter}) != nil {
			return fmt.Errorf("%w: letter %d twice", ErrSnapshot, st.Letter)
		}
		o.waiting.put(key{seq: st.Letter}, h)
	case o.unrouted == 0 && len(e.transfers) == 0:
		o.unrouted = h
	}
	return nil
}

// check walks the letters and compares them with the targets.
func (o *outbox) check(k *checker) {
	unrouted, last := uint32(0), uint64(0)
	pending := map[fsm.QueueID]int{}
	for h := o.messages.head(outboxList); h != 0 && k.err == nil; h = o.messages.get(h).next {
		e := o.messages.deadLetterInfo(h)
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
		k.that(t.pending.len() == pending[t.id], "target %d: %d pending", t.id, t.pending.len())
		if t.gone {
			gone++
			k.that(t.pending.len() > 0, "target %d is gone", t.id)
		}
	}
	k.that(gone == o.gone, "%d targets are gone, counted %d", gone, o.gone)
}

// checkTransfers checks the transfers of letter h. pending counts them by
// target.
func (o *outbox) checkTransfers(k *checker, h uint32, pending map[fsm.QueueID]int) {
	e := o.messages.deadLetterInfo(h)
	for _, t := range e.transfers {
		i, ok := o.find(t.To)
		if k.that(ok, "letter %d goes to nobody", e.letter); !ok {
			continue
		}
		n, to := pending[t.To], o.deadLetterTargets[i]
		k.that(n < to.pending.len() && *to.pending.item(n) == h && t.Number == to.confirmed+1+uint64(n),
			"letter %d: transfer %d is not pending", e.letter, t.Number)
		pending[t.To]++
	}
}

// checkForwarded compares the counts of the letters that are forwarded.
func (o *outbox) checkForwarded(k *checker) {
	var found forwardedCounts
	for no, list := range []int{outboxList, waitingList} {
		for h := o.messages.head(list); h != 0; h = o.messages.get(h).next {
			e := o.messages.deadLetterInfo(h)
			if !e.forwarded {
				continue
			}
			k.that(e.reason == logpb.Death_NONE && e.hops >= 1 && e.hops <= maxHops, "letter %d is forwarded for the %dth time", e.letter, e.hops)
			found.of([]Place{Outbox, Waiting}[no]).add(o.messages.get(h).count())
		}
	}
	k.that(found == o.forwarded, "%v are forwarded, counted %v", found, o.forwarded)
}

// checkWaiting checks the letters that wait.
func (o *outbox) checkWaiting(k *checker) {
	n := 0
	for h := o.messages.head(waitingList); h != 0; h = o.messages.get(h).next {
		e := o.messages.deadLetterInfo(h)
		k.that(e.letter > 0 && e.letter < o.next && (len(e.deaths) > 0 || e.reason == logpb.Death_NONE) && len(e.transfers) == 0,
			"letter %d does not wait", e.letter)
		p := o.waiting.get(key{seq: e.letter})
		k.that(p != nil && *p == h, "letter %d is not found", e.letter)
		n++
	}
	k.that(o.waiting.len() == n, "%d letters wait, of %d", o.waiting.len(), n)
	k.that(n == 0 || o.strategy() == AtLeastOnce || o.forwarded.all().Messages > 0, "letters wait for nothing")
}
