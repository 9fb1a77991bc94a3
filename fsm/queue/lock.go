package queue

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
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
	numbered   bool       // deliveries can be named by number

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

// atTimeout marks the key of a delivery that ends at its consumer timeout: of equal
// instants, ends of locks come first.
const atTimeout = 1 << 63

// holding names one delivery of one consumer. c is a pointer, not an id,
// because its end would otherwise search for the session and the consumer.
type holding struct {
	c  *consumer
	id uint64
}

// deadlines are when deliveries end by themselves: when their lock ends, or at their
// consumer timeout if that comes first. A delivery names its lock by handle
// (grip.lock), and has its timeout itself. Only a Tick ends one.
//
// Invariants:
//
//	due = {end(g, seq of the message) of g : g is held or on its way back, and ends by itself}
//	every lock belongs to one delivery that is held or on its way back
//	numbers = {seq of the message → (c, delivery) : c.numbered and c holds it}, besides
//	deliveries on their way back
//
// A snapshot has both with the message. Handles and due are built anew. A queue that
// is draining or gone has none of it.
//
// A table of locks costs nothing where there are none, and a renewal of one writes
// only here, not to what the consumer holds.
type deadlines struct {
	*shared
	locks arena[lock]
	// While a delivery is on its way back, its entry may name a consumer that has
	// ended, or none after a restore: nothing ends then, see Machine.tick.
	due sorted[holding]
	// numbers has the deliveries of consumers that have them named by number, by that of the
	// message. While one is on its way back its entry stays, and nobody holds it.
	numbers sorted[holding]
}

// clear removes all of them. Deliveries may still name locks, see frozenLocks.
func (ds *deadlines) clear() { *ds = deadlines{shared: ds.shared} }

func (ds *deadlines) locked() int { return ds.locks.Live() }

// end is when and why a delivery of message seq ends by itself, on the clock of held
// messages. At is 0 if it does not.
func (ds *deadlines) end(g *grip, seq uint64) key {
	if g.lock != 0 {
		if l := ds.locks.Get(g.lock); l.until != 0 && (g.deadline == 0 || l.until <= g.deadline) {
			return key{At: l.until, Seq: seq}
		}
	}
	return key{At: g.deadline, Seq: seq | atTimeout}
}

func (ds *deadlines) watch(g *grip, seq uint64, of holding) {
	if k := ds.end(g, seq); k.At != 0 {
		ds.due.Put(k, of)
	}
}

// move is called after the end of a delivery of message seq has changed. from is what it was.
func (ds *deadlines) move(from key, g *grip, seq uint64, of holding) {
	to := ds.end(g, seq)
	if from == to {
		return
	}
	if from.At != 0 {
		ds.due.Remove(from)
	}
	if to.At != 0 {
		ds.due.Put(to, of)
	}
}

// grant returns the handle of a new lock, which runs if start is set; 0: l is none.
func (ds *deadlines) grant(l lock, start bool) uint32 {
	if l.length == 0 {
		return 0
	}
	if start {
		ds.begin(&l)
	}
	no := ds.locks.Alloc()
	*ds.locks.Mut(no) = l
	return no
}

func (ds *deadlines) begin(l *lock) {
	l.began = ds.clock.heldDeadline(0)
	l.until = min(ds.clock.heldDeadline(fsm.Millis(l.length)), l.end())
}

// start lets the lock of a delivery run. It does nothing if it runs, or there is none.
func (ds *deadlines) start(g *grip, seq uint64, of holding) {
	if g.lock == 0 || ds.locks.Get(g.lock).runs() {
		return
	}
	from := ds.end(g, seq)
	ds.begin(ds.locks.Mut(g.lock))
	ds.move(from, g, seq, of)
}

// renew lets a delivery be held longer, and changes g: its consumer timeout begins
// anew, and its lock, if it runs, ends d from now, or its own length from now if d is
// 0, but not beyond its end. until is when the lock ends, or without one the timeout;
// 0: nothing bounds it yet. ok is false if the end of the lock has come: then nothing
// has changed.
func (ds *deadlines) renew(g *grip, seq uint64, of holding, d fsm.Millis) (until fsm.Time, ok bool) {
	from := ds.end(g, seq)
	if g.lock != 0 && ds.locks.Get(g.lock).runs() {
		l := ds.locks.Mut(g.lock)
		if l.end() <= ds.clock.heldNow() {
			return 0, false
		}
		l.until = min(ds.clock.heldDeadline(cmp.Or(d, fsm.Millis(l.length))), l.end())
		until = l.until
	}
	if g.deadline != 0 {
		g.deadline = ds.clock.heldDeadline(g.limit)
	}
	if g.lock == 0 {
		until = g.deadline
	}
	ds.move(from, g, seq, of)
	return until, true
}

// renewUnasked renews a lock that is due, if its consumer has asked for that. It
// reports whether it did.
func (ds *deadlines) renewUnasked(g *grip, seq uint64, of holding) bool {
	l := ds.locks.Get(g.lock)
	if l.autoEnd() <= ds.clock.heldNow() {
		return false
	}
	from := ds.end(g, seq)
	ds.locks.Mut(g.lock).until = min(ds.clock.heldDeadline(fsm.Millis(l.length)), l.autoEnd())
	ds.move(from, g, seq, of)
	return true
}

// release ends what bounds a delivery of message seq that has ended. It does nothing
// the second time.
func (ds *deadlines) release(g *grip, seq uint64) {
	if k := ds.end(g, seq); k.At != 0 {
		ds.due.Remove(k)
	}
	if g.lock != 0 {
		ds.locks.Release(g.lock)
	}
	if ds.numbers.Len() > 0 {
		ds.numbers.Remove(key{Seq: seq})
	}
	g.deadline, g.lock = 0, 0
}

// over returns the delivery whose time was over first; false: there is none. locked:
// it is its lock that has ended.
func (ds *deadlines) over() (of holding, seq uint64, locked, ok bool) {
	k, of, ok := ds.due.Peek()
	return of, k.Seq &^ atTimeout, k.Seq&atTimeout == 0, ok && ds.clock.heldUntil(k.At) <= ds.clock.now()
}

// next is when the first delivery ends by itself, and why; 0: none does.
func (ds *deadlines) next() (fsm.Time, Due) {
	k, _, _ := ds.due.Peek()
	if k.Seq&atTimeout != 0 {
		return ds.clock.heldUntil(k.At), TimeoutDue
	}
	return ds.clock.heldUntil(k.At), LockDue
}

// runs reports whether a lock has begun.
func (ds *deadlines) runs(no uint32) bool { return ds.locks.Get(no).runs() }

func (ds *deadlines) unlocks(no uint32) fsm.Time {
	if no == 0 {
		return 0
	}
	return ds.locks.Get(no).until
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
	if c.held.Len() == 0 || s.lock(c).length == 0 {
		return 0
	}
	return c.lockGrace
}

func (c *consumer) renewsLocks() bool { return c.detachedUntil == 0 && !c.session.life.suspected }

func (t *lockTerms) loses(id uint64) {
	i, _ := slices.BinarySearch(t.lockLost, id)
	t.lockLost = slices.Concat(t.lockLost[:i], []uint64{id}, t.lockLost[i:])
	t.lockLost = t.lockLost[max(len(t.lockLost)-lostLocks, 0):]
}

// pardon forgets the deliveries first … last whose lock has ended, and returns
// how many. lockLost is cut or replaced.
func (t *lockTerms) pardon(first, last uint64) (n int) {
	left, cut := without(t.lockLost, first, last, cmp.Compare[uint64])
	t.lockLost = left
	return len(cut)
}

type frozenLocks struct{ pages[lock] }

func (ds *deadlines) capture(keep bool) frozenLocks { return frozenLocks{ds.locks.Capture(keep)} }

// fill adds a lock to its message. no may be 0, or name a lock of a queue that
// has ended, which has none any more.
func (f *frozenLocks) fill(st *logpb.MessageState, no uint32) {
	if no == 0 || int(no) >= f.Capacity() {
		return
	}
	l := f.At(int(no))
	st.LockUntil, st.LockBegan = int64(l.until), int64(l.began)
	st.LockLength, st.LockMax, st.LockAuto = uint64(l.length), uint64(l.max), uint64(l.auto)
}

// restore is the inverse of fill, and watches the delivery, which has its timeout.
func (ds *deadlines) restore(st *logpb.MessageState, g *grip, of holding) error {
	g.lock = ds.grant(lock{
		until: fsm.Time(st.LockUntil), began: fsm.Time(st.LockBegan), length: lockMillis(fsm.Millis(st.LockLength)),
		max: lockMillis(fsm.Millis(st.LockMax)), auto: lockMillis(fsm.Millis(st.LockAuto)),
	}, false)
	if ds.due.Get(ds.end(g, st.Seq)) != nil {
		return fmt.Errorf("%w: message %d is held twice", ErrSnapshot, st.Seq)
	}
	ds.watch(g, st.Seq, of)
	return nil
}

func restoreTerms(st *logpb.ConsumerState) lockTerms {
	return lockTerms{
		lockLength: duration(st.Lock), lockMax: duration(st.MaxLock), lockAuto: duration(st.LockAutoRenew),
		lockHead: st.LockHead, lockGrace: duration(st.LockDetachGrace), lockLost: st.LostLocks, lateLocks: st.LateLocks,
		numbered: st.Numbered,
	}
}

func (ds *deadlines) checkOne(k *checker, g *grip, seq, delivery uint64) {
	if g.lock != 0 {
		k.locks++
		l := ds.locks.Get(g.lock)
		if l.length == 0 || (l.until == 0) != (l.began == 0) || l.until < 0 || l.began < 0 || l.runs() && l.end() < l.until {
			k.fail("message %d: lock from %d until %d", seq, l.began, l.until)
		}
	}
	at := ds.end(g, seq)
	if at.At == 0 {
		return
	}
	k.ending++
	k.deadline(ds.clock.heldUntil(at.At))
	if of := ds.due.Get(at); of == nil || of.id != delivery {
		k.fail("message %d: its delivery never ends", seq)
	}
}

func (ds *deadlines) check(k *checker) {
	k.that(ds.locks.Live() == k.locks && ds.due.Len() == k.ending, "%d locks, %d deliveries end, of %d and %d", ds.locks.Live(), ds.due.Len(), k.locks, k.ending)
}

// detached are consumers whose sessions have ended and whose deliveries stay
// locked for a while: somebody else may still settle or renew them. A renewed lock
// keeps its consumer here for as long as it lasts.
//
// Invariants: each of them holds something, has a detachedUntil, and is no
// consumer of any session; all, byAge and byID have the same ones.
//
// They are what consumer.detach would be otherwise, and count neither as
// consumers nor for a single active consumer. The queue is in use as long as
// there are any. A snapshot has them in the order of all; byID is only looked up,
// byAge is for readers that come back.
type detached struct {
	*shared
	all   sorted[*consumer] // by detachedUntil, then by registered
	byAge sorted[*consumer] // by registered
	byID  map[fsm.ConsumerID]*consumer
}

func (d *detached) clear() {
	*d = detached{shared: d.shared, byID: map[fsm.ConsumerID]*consumer{}}
}

func (d *detached) len() int { return len(d.byID) }

func (d *detached) key(c *consumer) key { return key{At: c.detachedUntil, Seq: c.registered} }

// add adds c, which holds something and is about to be unregistered. Its locks
// end at until at the latest. What was late is forgotten, since nobody reports it.
func (d *detached) add(c *consumer, until fsm.Time) {
	c.detachedUntil, c.late, c.lockLost = until, nil, nil
	d.all.Put(d.key(c), c)
	d.byAge.Put(key{Seq: c.registered}, c)
	d.byID[c.id] = c
}

// extend lets c, which is one of them, stay at least until an instant on the clock
// of held messages.
func (d *detached) extend(c *consumer, until fsm.Time) {
	if until <= c.detachedUntil {
		return
	}
	d.all.Remove(d.key(c))
	c.detachedUntil = until
	d.all.Put(d.key(c), c)
}

func (d *detached) remove(c *consumer) {
	d.all.Remove(d.key(c))
	d.byAge.Remove(key{Seq: c.registered})
	delete(d.byID, c.id)
}

func (d *detached) find(id fsm.ConsumerID) *consumer { return d.byID[id] }

func (d *detached) has(c *consumer) bool { return c.detachedUntil != 0 }

// over returns the first one whose time is over; nil: there is none.
func (d *detached) over() *consumer {
	if at, c, ok := d.all.Peek(); ok && d.clock.heldUntil(at.At) <= d.clock.now() {
		return c
	}
	return nil
}

// nextEnd is when the time of the first one is over; 0: there is none.
func (d *detached) nextEnd() fsm.Time {
	at, _, _ := d.all.Peek()
	return d.clock.heldUntil(at.At)
}

func (d *detached) list() iter.Seq[*consumer] { return d.all.Values(key{}) }

// from iterates over those with a position of at least n in the order of age,
// which is that of all consumers.
func (d *detached) from(n uint64) iter.Seq[*consumer] { return d.byAge.Values(key{Seq: n}) }

func (d *detached) describe(b *strings.Builder) {
	for c := range d.list() {
		fmt.Fprintf(b, "detached %s:%d held=%d until=%d\n", sessionText(c.id.Session), c.id.Number, c.held.Len(), d.clock.heldUntil(c.detachedUntil))
	}
}

func (d *detached) save(h *logpb.QueueSnapshot) {
	for c := range d.list() {
		h.Detached = append(h.Detached, &logpb.DetachedState{
			Session: c.id.Session.Proto(), Consumer: c.id.Number, Registered: c.registered, Until: int64(c.detachedUntil), Tag: c.tag,
			Numbered: c.numbered,
		})
	}
}

// restore is the inverse of save. It returns them in the order of the snapshot.
func (d *detached) restore(h *logpb.QueueSnapshot) ([]*consumer, error) {
	var coming []*consumer
	for _, st := range h.Detached {
		c := &consumer{
			id:         fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer},
			registered: st.Registered, tag: st.Tag, next: ^uint64(0), cancelled: true, lockTerms: lockTerms{numbered: st.Numbered},
		}
		at := key{At: fsm.Time(st.Until), Seq: st.Registered}
		if st.Until <= 0 || d.byID[c.id] != nil || d.byAge.Get(key{Seq: c.registered}) != nil {
			return nil, fmt.Errorf("%w: a consumer is detached twice, or never", ErrSnapshot)
		}
		d.add(c, at.At)
		coming = append(coming, c)
	}
	return coming, nil
}

func (d *detached) check(k *checker) {
	k.that(d.all.Len() == len(d.byID) && d.all.Len() == d.byAge.Len(), "%d consumers are detached, and %d", d.all.Len(), len(d.byID))
	for at, p := range d.all.All() {
		c := *p
		k.that(at == d.key(c) && c.detachedUntil > 0 && d.byID[c.id] == c && c.held.Len() > 0 && c.session == nil && c.level == nil, "detached consumer %v", c.id)
		k.deadline(d.clock.heldUntil(c.detachedUntil))
	}
}
