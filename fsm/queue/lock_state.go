package queue

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// frozenLocks are the locks of a snapshot. It shares chunks with the arena.
type frozenLocks struct{ pages[lock] }

// view returns the locks as they are, valid until the next change.
func (ls *locks) view() frozenLocks { return frozenLocks{ls.all.pages} }

// freeze is like view, but what it returns never changes.
func (ls *locks) freeze() frozenLocks { return frozenLocks{ls.all.freeze()} }

// fill adds a lock to its message. no may be 0, or name a lock of a queue that
// has ended, which has none any more.
func (f *frozenLocks) fill(st *logpb.MessageState, no uint32) {
	if no == 0 || int(no) >= f.capacity() {
		return
	}
	l := f.at(int(no))
	st.LockUntil, st.LockBegan = int64(l.until), int64(l.began)
	st.LockLength, st.LockMax, st.LockAuto = uint64(l.length), uint64(l.max), uint64(l.auto)
}

// restore is the inverse of fill. It returns 0 if the delivery has no lock.
func (ls *locks) restore(st *logpb.MessageState, of holding) (uint32, error) {
	no := ls.grant(lock{
		until: fsm.Time(st.LockUntil), began: fsm.Time(st.LockBegan), length: lockMillis(fsm.Millis(st.LockLength)),
		max: lockMillis(fsm.Millis(st.LockMax)), auto: lockMillis(fsm.Millis(st.LockAuto)),
	})
	if no == 0 || st.LockUntil == 0 {
		return no, nil
	}
	at := key{fsm.Time(st.LockUntil), st.Seq}
	if ls.due.get(at) != nil {
		return 0, fmt.Errorf("%w: message %d is locked twice", ErrSnapshot, st.Seq)
	}
	ls.due.put(at, of)
	return no, nil
}

// restoreTerms returns what a snapshot has of a consumer's locks.
func restoreTerms(st *logpb.ConsumerState) lockTerms {
	return lockTerms{
		lockLength: duration(st.Lock), lockMax: duration(st.MaxLock), lockAuto: duration(st.LockAutoRenew),
		lockHead: st.LockHead, lockGrace: duration(st.LockDetachGrace), lockLost: st.LostLocks, lateLocks: st.LateLocks,
	}
}

// checkOne checks the lock of a delivery of message seq.
func (ls *locks) checkOne(k *checker, no uint32, seq, delivery uint64) {
	if no == 0 {
		return
	}
	k.locks++
	l := ls.all.get(no)
	if l.length == 0 || (l.until == 0) != (l.began == 0) || l.until < 0 || l.began < 0 || l.runs() && l.end() < l.until {
		k.fail("message %d: lock from %d until %d", seq, l.began, l.until)
	}
	if !l.runs() {
		return
	}
	k.running++
	k.deadline(ls.clock.heldUntil(l.until))
	if of := ls.due.get(key{l.until, seq}); of == nil || of.id != delivery {
		k.fail("message %d: its lock never ends", seq)
	}
}

// check compares the numbers of locks with those found.
func (ls *locks) check(k *checker) {
	k.that(ls.all.live() == k.locks && ls.due.len() == k.running, "%d locks, %d run, of %d and %d", ls.all.live(), ls.due.len(), k.locks, k.running)
}
