package queue

import (
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// lostLocks bounds how many deliveries whose lock has ended a consumer
// remembers. The newest ones are kept.
const lostLocks = 256

// lockTerms are what a Consume says of locks, as it gave them, and what became
// of the locks of a consumer. Only lockLost is replaced, never changed.
//
// Invariant: lockLost ascends, its ids are < next of the consumer and not held,
// and there are at most lostLocks.
type lockTerms struct {
	lockLength fsm.Millis // 0: the queue's
	lockMax    fsm.Millis // 0: the queue's
	lockAuto   fsm.Millis // 0: not renewed without being asked
	lockGrace  fsm.Millis // 0: locks end with the session
	lockHead   bool       // only the lock of the oldest delivery runs

	lockLost  []uint64 // deliveries whose lock has ended, not settled
	lateLocks uint64   // settlements of such deliveries
	// detachedUntil is when the last lock ends at the latest, on the clock of held
	// messages, once the session has ended; 0: it has not.
	detachedUntil fsm.Time
}

// lock is the lock of one delivery. Instants are on the clock of held messages.
// Durations were fixed when the message was handed out.
//
// Invariants: 1 ≤ length; until = 0 ⇔ began = 0 ⇔ it does not run yet; else
// until ≤ end().
type lock struct {
	until  fsm.Time // when it ends
	began  fsm.Time // when it began to run
	length uint32   // how long it lasts by itself
	max    uint32   // with all renewals; 0: no bound
	auto   uint32   // so long it is renewed without being asked; 0: never
}

// lockMillis is a duration of a lock. More than 49 days count as that.
func lockMillis(d fsm.Millis) uint32 { return uint32(min(d, math.MaxUint32)) }

// runs reports whether the lock has begun.
func (l *lock) runs() bool { return l.began != 0 }

// end is the instant beyond which no renewal extends the lock. Requires: it
// runs.
func (l *lock) end() fsm.Time {
	if l.max == 0 {
		return fsm.MaxTime
	}
	return l.began.Add(fsm.Millis(l.max))
}

// autoEnd is like end for renewals that nobody asks for.
func (l *lock) autoEnd() fsm.Time {
	if l.auto == 0 {
		return 0
	}
	return min(l.began.Add(fsm.Millis(l.auto)), l.end())
}

// locks are the locks of all deliveries that have one. A delivery names its lock
// by handle (grip.lock). A lock ends with its delivery, or a Tick ends it.
//
// Invariants:
//
//	due = {(until, seq of the message) of l : l runs}
//	every lock belongs to one delivery that is held or on its way back
//
// A snapshot has a lock with its message. Handles and due are built anew. A queue
// that is draining or gone has no locks.
//
// A table of its own costs nothing where there are no locks, and a renewal writes
// only here, not to what the consumer holds.
type locks struct {
	*shared
	all arena[lock]
	// While a delivery is on its way back, the consumer may have ended, as in timers.
	due sorted[holding]
}

// clear removes all locks. Deliveries may still name them, see frozenLock.
func (ls *locks) clear() { *ls = locks{shared: ls.shared} }

// len is the number of locks, including those that do not run yet.
func (ls *locks) len() int { return ls.all.live() }

// grant returns the handle of a new lock that does not run; 0: l is none.
func (ls *locks) grant(l lock) uint32 {
	if l.length == 0 {
		return 0
	}
	no := ls.all.alloc()
	*ls.all.mut(no) = l
	return no
}

// start lets a lock run. It does nothing if the lock runs, or there is none.
func (ls *locks) start(no uint32, seq uint64, of holding) {
	if no == 0 || ls.all.get(no).runs() {
		return
	}
	l := ls.all.mut(no)
	l.began = ls.clock.heldDeadline(0)
	l.until = min(ls.clock.heldDeadline(fsm.Millis(l.length)), l.end())
	ls.due.put(key{l.until, seq}, of)
}

// renew lets a lock end d from now, or its own length from now if d is 0, but not
// beyond its end. It returns when it ends; 0: it does not run yet. ok is false
// if its end has come: then nothing has changed.
func (ls *locks) renew(no uint32, seq uint64, of holding, d fsm.Millis) (until fsm.Time, ok bool) {
	l := ls.all.get(no)
	if !l.runs() {
		return 0, true
	}
	if l.end() <= ls.clock.heldNow() {
		return 0, false
	}
	if d == 0 {
		d = fsm.Millis(l.length)
	}
	return ls.extend(no, seq, of, min(ls.clock.heldDeadline(d), l.end())), true
}

// renewUnasked renews a lock that is due, if its consumer has asked for that. It
// reports whether it did.
func (ls *locks) renewUnasked(no uint32, seq uint64, of holding) bool {
	l := ls.all.get(no)
	if l.autoEnd() <= ls.clock.heldNow() {
		return false
	}
	ls.extend(no, seq, of, min(ls.clock.heldDeadline(fsm.Millis(l.length)), l.autoEnd()))
	return true
}

// extend changes when a lock that runs ends.
func (ls *locks) extend(no uint32, seq uint64, of holding, until fsm.Time) fsm.Time {
	l := ls.all.mut(no)
	if l.until != until {
		ls.due.remove(key{l.until, seq})
		l.until = until
		ls.due.put(key{until, seq}, of)
	}
	return until
}

// release ends the lock of message seq.
func (ls *locks) release(no uint32, seq uint64) {
	if l := ls.all.get(no); l.runs() {
		ls.due.remove(key{l.until, seq})
	}
	ls.all.release(no)
}

// first returns the lock that ends first; false: none runs.
func (ls *locks) first() (at key, of holding, ok bool) { return firstOf(&ls.due) }

// runs reports whether a lock has begun.
func (ls *locks) runs(no uint32) bool { return ls.all.get(no).runs() }

// until is when a lock ends, on the machine's clock; 0: there is none, or it does
// not run.
func (ls *locks) until(no uint32) fsm.Time {
	if no == 0 {
		return 0
	}
	return ls.clock.heldUntil(ls.all.get(no).until)
}

// locks reports whether the next delivery to c has a lock.
func (s *settings) locks(c *consumer) bool { return (c.lockLength|fsm.Millis(s.Lock)) != 0 && !c.noAck }

// lock is the lock of the next delivery to c. Its length is 0 if there is none,
// as with no-ack.
func (s *settings) lock(c *consumer) lock {
	if !s.locks(c) {
		return lock{}
	}
	length, longest := c.lockLength, c.lockMax
	if length == 0 {
		length = duration(s.Lock)
	}
	if longest == 0 {
		longest = duration(s.MaxLock)
	}
	return lock{length: lockMillis(length), max: lockMillis(longest), auto: lockMillis(c.lockAuto)}
}

// grace is how long what c holds stays locked after its session; 0: it goes back.
// Without locks there is nothing to keep.
func (s *settings) grace(c *consumer) fsm.Millis {
	if c.isGets() || c.held.len() == 0 || s.lock(c).length == 0 {
		return 0
	}
	return c.lockGrace
}

// renewsLocks reports whether locks of c may be renewed without being asked: it has
// a session, and its node is heard from.
func (c *consumer) renewsLocks() bool { return c.detachedUntil == 0 && !c.session.life.suspected }

// loses remembers that the lock of a delivery has ended.
func (t *lockTerms) loses(id uint64) {
	i, _ := slices.BinarySearch(t.lockLost, id)
	t.lockLost = slices.Concat(t.lockLost[:i], []uint64{id}, t.lockLost[i:])
	t.lockLost = t.lockLost[max(len(t.lockLost)-lostLocks, 0):]
}

// pardon forgets the deliveries first … last whose lock has ended, and returns
// how many. lockLost is cut or replaced.
func (t *lockTerms) pardon(first, last uint64) (n int) {
	i, _ := slices.BinarySearch(t.lockLost, first)
	j := i
	for j < len(t.lockLost) && t.lockLost[j] <= last {
		j++
	}
	switch {
	case i == j:
	case j-i == len(t.lockLost):
		t.lockLost = nil
	default:
		t.lockLost = slices.Concat(t.lockLost[:i], t.lockLost[j:])
	}
	return j - i
}
