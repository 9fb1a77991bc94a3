package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

const lostLocks = 256 // deliveries whose lock has ended that a consumer remembers

// locked is the lock of a delivery.
type locked struct {
	lockUntil, lockBegan       fsm.Time   // 0: it does not run yet
	lockLength, lockMax, renew fsm.Millis // length 0: there is none
}

// lockTerms are what a consumer wants of locks, and has lost.
type lockTerms struct {
	own, max, auto, grace uint64
	head                  bool
	lost                  []uint64
	lateLocks             uint64
}

// detached is a consumer without session, and until when.
type detached struct {
	c     *consumer
	until fsm.Time
}

// lockOf is the lock of the next delivery to c.
func (q *model) lockOf(c *consumer) (l locked) {
	length, longest := c.own, c.max
	if length == 0 {
		length = q.config.Lock
	}
	if longest == 0 {
		longest = q.config.MaxLock
	}
	if length == 0 || c.noAck {
		return l
	}
	short := func(d uint64) fsm.Millis { return fsm.Millis(min(d, 1<<32-1)) }
	return locked{lockLength: short(length), lockMax: short(longest), renew: short(c.auto)}
}

// lockEnd is beyond what no renewal goes.
func (x *message) lockEnd() fsm.Time {
	if x.lockMax == 0 {
		return fsm.MaxTime
	}
	return x.lockBegan.Add(x.lockMax)
}

// startOldest lets the lock of the oldest delivery of each consumer run.
func (q *model) startOldest() {
	for _, c := range q.holders() {
		if held := q.held(c); len(held) > 0 {
			q.startLock(held[0])
		}
	}
}

func (q *model) startLock(x *message) {
	if x.lockLength != 0 && x.lockBegan == 0 {
		x.lockBegan = q.clock
		x.lockUntil = min(q.clock.Add(x.lockLength), x.lockEnd())
	}
}

// holders are all who may hold something.
func (q *model) holders() []*consumer {
	all := slices.Clone(q.consumers)
	for _, d := range q.detachedOnes {
		all = append(all, d.c)
	}
	return all
}

// leaveSession takes c out of its session. What it held goes back, or stays
// locked.
func (q *model) leaveSession(c *consumer) {
	if c.grace > 0 {
		q.giveUpAll(c)
	}
	if c.grace > 0 && len(q.held(c)) > 0 && q.lockOf(c).lockLength > 0 {
		q.dropGroups(c)
		q.forget(c)
		c.cancelled, c.timedOut, c.lost = true, nil, nil
		q.detachedOnes = append(q.detachedOnes, detached{c, q.clock.Add(millis(c.grace))})
		q.sortDetached()
		return
	}
	q.detach(c, true)
	q.dropGroups(c)
	q.forget(c)
}

func (q *model) sortDetached() {
	slices.SortFunc(q.detachedOnes, func(a, b detached) int {
		return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.c.order, b.c.order))
	})
}

// isDetached reports whether c has lost its session and holds something.
func (q *model) isDetached(c *consumer) bool {
	return slices.ContainsFunc(q.detachedOnes, func(d detached) bool { return d.c == c })
}

// dropDetached forgets those that hold nothing any more.
func (q *model) dropDetached() {
	q.detachedOnes = slices.DeleteFunc(q.detachedOnes, func(d detached) bool { return len(q.held(d.c)) == 0 })
}

// holder is whom a command means.
func (q *model) holder(s *session, of *logpb.Session, number uint64) *consumer {
	id := fsm.SessionID{}
	if s != nil {
		id = s.id
	}
	if of != nil {
		id = fsm.SessionFrom(of)
	}
	if !q.isDown(id) {
		if c := q.consumer(fsm.ConsumerID{Session: id, Number: number}); c != nil {
			return c
		}
	}
	for _, d := range q.detachedOnes {
		if of != nil && d.c.id == (fsm.ConsumerID{Session: id, Number: number}) {
			return d.c
		}
	}
	return nil
}

// renew lets deliveries be held for longer.
func (q *model) renewHeld(s *session, r *logpb.Renew) fsm.Result {
	if len(r.GetNumbers()) > 0 {
		return q.renewNumbered(r)
	}
	if len(r.GetRanges())%2 != 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s == nil && r.GetHolder() == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := q.holder(s, r.GetHolder(), r.GetConsumer())
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	q.active = q.clock
	ranges := r.GetRanges()
	if len(ranges) == 0 {
		ranges = []uint64{1, 1 << 62}
	}
	answer, left := fsm.Result{}, q.bounds.Tick
	for ; len(ranges) > 0 && answer.Next == 0; ranges = ranges[2:] {
		for _, x := range q.held(c) {
			if !inRanges(ranges[:2], x.delivery) {
				continue
			}
			if left == 0 {
				answer.Next = x.delivery
				break
			}
			left--
			if x.lockBegan != 0 && x.lockEnd() <= q.clock {
				continue
			}
			answer.Count++
			if until := q.renewOne(x, millis(r.GetDuration())); until != 0 && (answer.Until == 0 || until < answer.Until) {
				answer.Until = until
			}
		}
	}
	q.counters.LocksRenewed += answer.Count
	if answer.Count == 0 && answer.Next == 0 {
		answer.Code = fsm.NotFound
	}
	return answer
}

// renewOne returns when the time of x ends now; 0: never.
func (q *model) renewOne(x *message, d fsm.Millis) fsm.Time {
	asked := d
	if x.lockBegan != 0 {
		if d == 0 {
			d = x.lockLength
		}
		x.lockUntil = min(q.clock.Add(d), x.lockEnd())
	}
	if x.deadline != 0 {
		x.deadline = q.clock.Add(x.limit)
	}
	until := x.lockUntil
	if x.lockLength == 0 {
		until = x.deadline
	}
	if q.holderOfGroup(x) == x.holder {
		g := q.group(x.group)
		q.lockGroup(g, asked)
		until = cmp.Or(g.until, until)
	}
	for i, d := range q.detachedOnes {
		if d.c == x.holder {
			q.detachedOnes[i].until = max(d.until, until)
			q.sortDetached()
			break
		}
	}
	return until
}

// nextOverdue is the delivery whose time was over first; nil: none is. If its
// lock and its timeout end at once it is the lock.
func (q *model) nextOverdue() (first *message, lock bool) {
	at := fsm.Time(0)
	for _, c := range q.holders() {
		for _, x := range q.held(c) {
			if t := x.lockUntil; t != 0 && t <= q.clock && (first == nil || cmp.Or(cmp.Compare(t, at), cmp.Compare(x.seq, first.seq)) < 0) {
				first, lock, at = x, true, t
			}
		}
	}
	for _, c := range q.holders() {
		for _, x := range q.held(c) {
			if t := x.deadline; t != 0 && t <= q.clock && (first == nil || t < at || t == at && !lock && x.seq < first.seq) {
				first, lock, at = x, false, t
			}
		}
	}
	return first, lock
}

// renewsItself renews the lock of x, which has ended, if that is wanted.
func (q *model) renewsItself(x *message) bool {
	end := min(x.lockBegan.Add(x.renew), x.lockEnd())
	if x.renew == 0 || end <= q.clock || q.isDetached(x.holder) || q.suspicionOf(x.holder.id.Session) != nil {
		return false
	}
	x.lockUntil = min(q.clock.Add(x.lockLength), end)
	return true
}

// loses takes x, whose lock has ended, from its consumer.
func (q *model) loses(x *message) {
	c := x.holder
	q.counters.LocksLost++
	x.failing = q.config.CountLockExpiry || q.isDetached(c)
	if q.isDetached(c) {
		return
	}
	x.lapsed = true
	q.tell(c, fsm.LocksLost, x.delivery, "")
	c.lost = append(c.lost, x.delivery)
	slices.Sort(c.lost)
	c.lost = c.lost[max(0, len(c.lost)-lostLocks):]
}

// endDetached takes back what is detached for too long.
func (q *model) endDetached() {
	q.dropDetached()
	for len(q.detachedOnes) > 0 && q.detachedOnes[0].until <= q.clock && q.budget > 0 {
		q.budget--
		q.detach(q.detachedOnes[0].c, true)
		q.detachedOnes = q.detachedOnes[1:]
	}
}

// settleLost forgets deliveries whose lock has ended, once they are settled.
func (q *model) settleLost(c *consumer, ranges []uint64) {
	before := len(c.lost)
	c.lost = slices.DeleteFunc(slices.Clone(c.lost), func(id uint64) bool { return inRanges(ranges, id) })
	n := uint64(before - len(c.lost))
	c.lateLocks += n
	q.counters.LateLocks += n
}

// locks describes what a consumer has of locks.
func (q *model) locks(c *consumer) queue.ConsumerLocks {
	l := q.lockOf(c)
	return queue.ConsumerLocks{
		Lock: l.lockLength, MaxLock: l.lockMax, AutoRenew: millis(c.auto), Head: c.head, Grace: millis(c.grace),
		LostLocks: len(c.lost), LateLocks: c.lateLocks,
	}
}

// lockedOnes is how many deliveries have a lock.
func (q *model) lockedOnes() (n int) {
	for _, x := range q.messages {
		if x.lockLength != 0 && q.isWhole() {
			n++
		}
	}
	return n
}
