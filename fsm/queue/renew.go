package queue

import (
	"cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// renew lets deliveries of a consumer be held longer: their locks, and their
// consumer timeouts, begin anew.
//
// Refusals: Invalid for an odd number of ranges; NoSession; NotFound if there is
// no such consumer, or if none of the deliveries was renewed. Count is how many
// were. One whose lock has reached its end is not, nor is one that is not held.
// If one command cannot do them all, Next is the delivery to go on with; ranges
// must ascend for that.
//
// Ensures: at most bounds.Tick deliveries are renewed. Until is when the first of
// the renewed locks ends, or consumer timeouts if there are no locks; 0: nothing
// ends. Only a Tick takes a lock away, so one that has ended by the clock is
// renewed as well.
func (ds overtime) renew(s *session, cmd *logpb.Renew) fsm.Result {
	ranges := cmd.GetRanges()
	if len(ranges)%2 != 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s == nil && cmd.GetHolder() == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := ds.holder(s, cmd.GetHolder(), cmd.GetConsumer())
	if c == nil {
		return fsm.Result{Code: fsm.NotFound}
	}
	ds.lease.touch()
	if len(ranges) == 0 {
		ranges = []uint64{0, ^uint64(0)}
	}
	r := fsm.Result{}
	ds.scratch.taken, r.Next = c.held.within(ranges, ds.bounds.Tick, ds.scratch.taken[:0])
	for _, held := range ds.scratch.taken {
		held, _ = c.held.find(held.id) // ranges that overlap name it twice
		until, ok := ds.renewOne(c, held, duration(cmd.GetDuration()))
		if !ok {
			continue
		}
		r.Count++
		if until != 0 && (r.Until == 0 || until < r.Until) {
			r.Until = until
		}
	}
	ds.scratch.taken = ds.scratch.taken[:0]
	ds.counters.LocksRenewed += r.Count
	if r.Count == 0 && r.Next == 0 {
		r.Code = fsm.NotFound
	}
	return r
}

// renewOne renews what bounds the time of one delivery that c holds. It returns
// when that ends; 0: nothing bounds it. ok is false if the lock has reached its
// end: then nothing has changed.
func (ds overtime) renewOne(c *consumer, held checkout, d fsm.Millis) (until fsm.Time, ok bool) {
	seq, of := ds.messages.get(held.handle).seq, holding{c, held.id}
	ds.scratch.steps++
	if held.lock != 0 {
		if until, ok = ds.locks.renew(held.lock, seq, of, d); !ok {
			return 0, false
		}
	}
	if held.deadline != 0 {
		ds.timers.letGo(held.deadline, seq)
		deadline := ds.clock.heldDeadline(held.limit)
		c.held.edit(key{seq: held.id}).deadline = deadline
		ds.timers.hold(deadline, seq, of)
		if held.lock == 0 {
			until = deadline
		}
	}
	if g := ds.members.of(held.handle); g != nil && g.hold != nil && g.hold.of.c == c {
		lock := ds.settings.groupLock(c)
		if lock != 0 {
			lock = cmp.Or(d, lock)
		}
		ds.groups.lock(g, lock)
		until = cmp.Or(g.hold.until, until)
	}
	if ds.detached.has(c) {
		ds.detached.extend(c, until)
	}
	return ds.clock.heldUntil(until), true
}

// holder returns a consumer by its session, or one that is detached; nil: there
// is neither. of names the session; nil: it is s.
func (ds *deliveries) holder(s *session, of *logpb.Session, number uint64) *consumer {
	if of != nil {
		id := fsm.SessionFrom(of)
		if s = ds.sessions.get(id); s == nil {
			return ds.detached.find(fsm.ConsumerID{Session: id, Number: number})
		}
	}
	return s.consumer(number)
}

// startOldest lets the lock of the oldest delivery of c run. It is called
// whenever c has settled or lost something.
func (ds *deliveries) startOldest(c *consumer) {
	if c.held.len() == 0 {
		return
	}
	k, g := c.held.first()
	ds.locks.start(g.lock, ds.messages.get(g.handle).seq, holding{c, k.seq})
}
