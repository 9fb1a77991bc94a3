package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm"
)

// timers finds what comes next in time: expiries of ready messages, scheduled
// and delayed messages that become ready, and deliveries that are held too long.
// Nothing stale is in them.
//
// Entries of messages are at (instant, seq), so that no two are at one place and
// equal instants keep the order in which messages came. Those of deliveries are
// on the time of held messages, see clock.
//
// Invariants:
//
//	expiries = {(expireAt, seq) of m : m is ready or returned, m.expireAt ≠ 0},
//	but for a message that is being offered while a command is applied
//	schedules, delays = the same of the scheduled and of the delayed ones, and
//	of these m.expireAt ≠ 0
//	timeouts = {(deadline, seq) of d : d is held or on its way back, d.deadline ≠ 0}
type timers struct {
	expiries  sorted[uint32]
	schedules sorted[uint32]
	delays    sorted[uint32]
	timeouts  sorted[holding]
}

// holding names one delivery of one consumer.
type holding struct {
	c  *consumer
	id uint64
}

// table is that for messages with this place; nil: they wait for no instant.
func (t *timers) table(p Place) *sorted[uint32] {
	switch p {
	case Ready, Returned:
		return &t.expiries
	case Scheduled:
		return &t.schedules
	case Delayed:
		return &t.delays
	}
	return nil
}

// watch adds message h, whose place and instant are set. Without an instant it
// does nothing.
func (t *timers) watch(x *message, h uint32) {
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.put(key{x.expireAt, x.seq}, h)
	}
}

// forget takes a message out, whose place and instant are still those it was
// watched with; it need not be there.
func (t *timers) forget(x *message) {
	if x.expireAt == 0 {
		return
	}
	if in := t.table(x.place); in != nil {
		in.remove(key{x.expireAt, x.seq})
	}
}

// forgetWaiting takes out all that is not held by anybody.
func (t *timers) forgetWaiting() {
	t.expiries.clear()
	t.schedules.clear()
	t.delays.clear()
}

// forgetHeld takes out all deliveries.
func (t *timers) forgetHeld() { t.timeouts.clear() }

// expiry is the message that expires first; false: none ever does.
func (t *timers) expiry() (at key, h uint32, ok bool) { return firstOf(&t.expiries) }

// timed is the number of messages that become ready at an instant.
func (t *timers) timed() int { return t.schedules.len() + t.delays.len() }

// nextTimed is the scheduled or delayed message that is due first; false: there
// is none.
func (t *timers) nextTimed() (due key, h uint32, ok bool) {
	due, h, ok = firstOf(&t.schedules)
	if k, other, delayed := firstOf(&t.delays); delayed && (!ok || k.before(due)) {
		return k, other, true
	}
	return due, h, ok
}

// scheduled iterates over the scheduled messages from a place in time on.
func (t *timers) scheduled(from key) iter.Seq2[key, *uint32] { return t.schedules.from(from) }

// scheduledSpan is when the first and when the last scheduled message is due;
// 0: there is none.
func (t *timers) scheduledSpan() (first, last fsm.Time) {
	if t.schedules.len() == 0 {
		return 0, 0
	}
	from, _ := t.schedules.first()
	till, _ := t.schedules.last()
	return from.at, till.at
}

// hold adds a delivery of message seq that times out.
func (t *timers) hold(deadline fsm.Time, seq uint64, of holding) {
	if deadline != 0 {
		t.timeouts.put(key{deadline, seq}, of)
	}
}

// letGo takes out a delivery of message seq that has ended.
func (t *timers) letGo(deadline fsm.Time, seq uint64) {
	if deadline != 0 {
		t.timeouts.remove(key{deadline, seq})
	}
}

// held is the delivery of message seq with this deadline; false: there is none.
func (t *timers) held(deadline fsm.Time, seq uint64) (holding, bool) {
	if p := t.timeouts.get(key{deadline, seq}); p != nil {
		return *p, true
	}
	return holding{}, false
}

// timeout is the delivery that times out first; false: none ever does.
func (t *timers) timeout() (at key, of holding, ok bool) { return firstOf(&t.timeouts) }

// clear forgets everything.
func (t *timers) clear() { *t = timers{} }

// firstOf is the first entry of a table; false: it is empty.
func firstOf[V any](s *sorted[V]) (k key, v V, ok bool) {
	if s.len() == 0 {
		return k, v, false
	}
	k, p := s.first()
	return k, *p, true
}

// check compares the numbers of entries with what was found: each was looked up
// when its message, or delivery, was.
func (t *timers) check(k *checker) {
	k.that(t.expiries.len() == k.timed[Ready]+k.timed[Returned], "%d messages expire, of %d", t.expiries.len(), k.timed[Ready]+k.timed[Returned])
	k.that(t.schedules.len() == k.timed[Scheduled], "%d messages are scheduled, of %d", t.schedules.len(), k.timed[Scheduled])
	k.that(t.delays.len() == k.timed[Delayed], "%d messages are delayed, of %d", t.delays.len(), k.timed[Delayed])
	k.that(t.timeouts.len() == k.timeouts, "%d timeouts of %d", t.timeouts.len(), k.timeouts)
}

// checkOne checks that message h is where its instant says, if it waits for one.
func (t *timers) checkOne(k *checker, x *message, h uint32) {
	in := t.table(x.place)
	if in == nil || x.expireAt == 0 {
		return
	}
	k.timed[x.place]++
	k.deadline(x.expireAt)
	if p := in.get(key{x.expireAt, x.seq}); p == nil || *p != h {
		k.fail("message %d is not in its index at %d", x.seq, x.expireAt)
	}
}

// has reports whether a message with this place, instant and number is watched.
func (t *timers) has(p Place, at fsm.Time, seq uint64) bool {
	in := t.table(p)
	return in != nil && at != 0 && in.get(key{at, seq}) != nil
}
