package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm"
)

// timers finds what comes next in time: expiries of ready messages and those set aside,
// and scheduled messages and those set aside that become ready. It has no stale entries.
//
// The key of a message is (instant, seq), so that keys are unique and messages
// with equal instants keep their order of arrival.
//
// Invariants:
//
//	expiries = {(expiry, seq) of m : m is ready, returned, grouped, parked or set aside, expiry
//	≠ 0}, except a message that is being offered while a command is applied, and those
//	that are protected
//	schedules, delays, returns = {(m.expireAt, seq) of m : m is scheduled, delayed,
//	deferred, m.expireAt ≠ 0}
//	order = {(expireAt, or never if that is 0, seq) of m : m is ready or returned} if
//	ordered, except a message that is being offered; otherwise empty
//
// Nothing of this is in a snapshot: Restore fills the tables from the instants of
// messages. A queue that is draining or gone has no timers.
//
// Adding and removing cost O(log n) plus a move within one block; the first entry
// costs O(1).
type timers struct {
	// Values are handles. An entry is removed before its handle is freed, so a handle
	// found here is always valid.
	expiries  sorted[uint32]
	schedules sorted[uint32]
	delays    sorted[uint32]
	returns   sorted[uint32]
	// order is the order of ready messages, if the queue goes by deadlines.
	order   sorted[uint32]
	ordered bool
}

// table returns the table for messages in this place; nil: they have no
// instant.
func (t *timers) table(p Place) *sorted[uint32] {
	switch p {
	case Ready, Returned, Grouped, Parked:
		return &t.expiries
	case Scheduled:
		return &t.schedules
	case Delayed:
		return &t.delays
	case Deferred:
		return &t.returns
	}
	return nil
}

// never is after all instants.
const never fsm.Time = 1<<63 - 1

// order is the position of a ready message that goes by its deadline.
func (x *message) order() key { return orderKey(x.expireAt, x.seq) }

func orderKey(expireAt fsm.Time, seq uint64) key {
	if expireAt == 0 {
		return key{At: never, Seq: seq}
	}
	return key{At: expireAt, Seq: seq}
}

// orderByDeadline says whether order is kept. Requires: nothing is ready.
func (t *timers) orderByDeadline(yes bool) { t.ordered = yes }

// hasOrder reports whether a message is in order. Those of a group are not.
func (t *timers) hasOrder(x *message) bool {
	return t.ordered && (x.place == Ready || x.place == Returned)
}

// watch adds message h, whose place and instant are set. It does nothing if the
// message has no instant, unless the queue goes by deadlines. Requires: it is
// not there already.
func (t *timers) watch(x *message, h uint32) {
	if t.hasOrder(x) {
		t.order.Put(orderKey(x.expireAt, x.seq), h)
	}
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.Put(key{At: x.expireAt, Seq: x.seq}, h)
	}
}

// forget removes a message, if it is there. Its place and instant must be those
// it was added with.
func (t *timers) forget(x *message) {
	if t.hasOrder(x) {
		t.order.Remove(x.order())
	}
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.Remove(key{At: x.expireAt, Seq: x.seq})
	}
}

// expire adds the expiry of message h, which is set aside; 0: it has none.
func (t *timers) expire(at fsm.Time, seq uint64, h uint32) {
	if at != 0 {
		t.expiries.Put(key{At: at, Seq: seq}, h)
	}
}

// neverExpire removes the expiry of a message set aside; 0: it has none.
func (t *timers) neverExpire(at fsm.Time, seq uint64) {
	if at != 0 {
		t.expiries.Remove(key{At: at, Seq: seq})
	}
}

// forgetWaiting removes all messages that nobody holds. The tables are
// replaced, in O(1), and the messages keep their instants: only for messages
// that are purged as a whole.
func (t *timers) forgetWaiting() {
	t.expiries.Clear()
	t.schedules.Clear()
	t.delays.Clear()
	t.returns.Clear()
	t.order.Clear()
}

// expiry returns the message that expires first; false: none ever does. Equal
// instants come in the order of their numbers.
func (t *timers) expiry() (at key, h uint32, ok bool) { return firstOf(&t.expiries) }

// nextInOrder returns the ready message that expires first, but not before an
// instant; 0: none. Those that never expire come last, by number.
//
// Requires: ordered. O(log n).
func (t *timers) nextInOrder(at fsm.Time) (h uint32) {
	for _, h := range t.order.From(key{At: at}) {
		return *h
	}
	return 0
}

// timed is the number of messages that become ready at an instant.
func (t *timers) timed() int { return t.schedules.Len() + t.delays.Len() + t.returns.Len() }

// nextTimed returns the message, scheduled or set aside, that is due first; false:
// there is none. Numbers are unique over all tables, so there is no tie.
func (t *timers) nextTimed() (due key, h uint32, ok bool) {
	due, h, ok = firstOf(&t.schedules)
	for _, in := range [...]*sorted[uint32]{&t.delays, &t.returns} {
		if k, other, some := firstOf(in); some && (!ok || k.Before(due)) {
			due, h, ok = k, other, true
		}
	}
	return due, h, ok
}

// overdue reports whether a message, scheduled or set aside, is due and has not
// become ready yet: a command could not do all that was due.
func (t *timers) overdue(now fsm.Time) bool {
	next, _, ok := t.nextTimed()
	return ok && next.At <= now
}

// nextDelayed returns the delayed message that is due first; false: there is
// none.
func (t *timers) nextDelayed() (h uint32, ok bool) {
	_, h, ok = firstOf(&t.delays)
	return h, ok
}

// scheduled iterates over the scheduled messages, starting at a key.
func (t *timers) scheduled(from key) iter.Seq2[key, *uint32] { return t.schedules.From(from) }

// scheduledSpan returns when the first and the last scheduled message are due;
// 0: there is none.
func (t *timers) scheduledSpan() (first, last fsm.Time) {
	if t.schedules.Len() == 0 {
		return 0, 0
	}
	from, _ := t.schedules.First()
	till, _ := t.schedules.Last()
	return from.At, till.At
}

// clear removes everything. Whether there is an order stays.
func (t *timers) clear() { *t = timers{ordered: t.ordered} }

// firstOf returns the first entry of a table; false: it is empty.
func firstOf[V any](s *sorted[V]) (k key, v V, ok bool) {
	if s.Len() == 0 {
		return k, v, false
	}
	k, p := s.First()
	return k, *p, true
}

// valuesOf iterates over the values of entries.
func valuesOf[V any](entries iter.Seq2[key, *V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range entries {
			if !yield(*v) {
				return
			}
		}
	}
}

// check compares the numbers of entries with the messages and deliveries found;
// each of these was checked individually when it was found.
func (t *timers) check(k *checker) {
	expire := k.timed[Ready] + k.timed[Returned] + k.timed[Grouped] + k.timed[Parked] + k.timed[0]
	k.that(t.expiries.Len() == expire, "%d messages expire, of %d", t.expiries.Len(), expire)
	k.that(t.order.Len() == k.ordered, "%d messages have an order, of %d", t.order.Len(), k.ordered)
	k.that(t.schedules.Len() == k.timed[Scheduled], "%d messages are scheduled, of %d", t.schedules.Len(), k.timed[Scheduled])
	k.that(t.delays.Len() == k.timed[Delayed], "%d messages are delayed, of %d", t.delays.Len(), k.timed[Delayed])
	k.that(t.returns.Len() == k.timed[Deferred], "%d deferred messages return, of %d", t.returns.Len(), k.timed[Deferred])
}

// checkOne checks that message h is in its table if it has an instant.
func (t *timers) checkOne(k *checker, x *message, h uint32) {
	if t.hasOrder(x) {
		k.ordered++
		p := t.order.Get(x.order())
		k.that(p != nil && *p == h, "message %d has no order", x.seq)
	}
	in := t.table(x.place)
	if in == nil || x.expireAt == 0 {
		return
	}
	k.timed[x.place]++
	k.deadline(x.expireAt)
	if p := in.Get(key{At: x.expireAt, Seq: x.seq}); p == nil || *p != h {
		k.fail("message %d is not in its index at %d", x.seq, x.expireAt)
	}
}

// checkExpiry checks that message h, which is set aside, is in the table of expiries, if it
// expires. checker.timed counts it under no place.
func (t *timers) checkExpiry(k *checker, at fsm.Time, seq uint64, h uint32) {
	if at == 0 {
		return
	}
	k.timed[0]++
	k.deadline(at)
	if p := t.expiries.Get(key{At: at, Seq: seq}); p == nil || *p != h {
		k.fail("message %d, set aside, is not in the index at %d", seq, at)
	}
}

// has reports whether a message with this place, instant and number is in a
// table.
func (t *timers) has(p Place, at fsm.Time, seq uint64) bool {
	if t.ordered && (p == Ready || p == Returned) && t.order.Get(orderKey(at, seq)) != nil {
		return true
	}
	in := t.table(p)
	return in != nil && at != 0 && in.Get(key{At: at, Seq: seq}) != nil
}
