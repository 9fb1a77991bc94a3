package queue

import (
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// deliveries covers what leads from a ready message to its end, or back:
// handing out (checkout.go), settling (settle.go), timeouts (tick.go), and
// messages on their way back that one command could not process (returning.go).
// It connects messages and consumers, which are independent of each other.
//
// Invariants:
//
//	a message is CheckedOut ⇔ one consumer, one of the detached, or one entry of
//	returning, holds it
//	every entry of returning holds something, and is at its key
//	no due message is handed out, and nothing but deferred messages is while
//	sessions are ending
//	|scratch.taken| = 0 between two commands, and its messages are in no place
//
// returning is in a snapshot: its heads in that order, its messages after those
// that consumers hold. coming and detaches are nil except while one is restored.
type deliveries struct {
	*shared
	timers    *timers
	locks     *locks
	groups    *groups
	takers    *groupTakers
	messages  *messages
	cursors   *cursors
	aside     *aside
	members   *members
	outbox    *outbox
	sessions  *sessions
	detached  *detached
	consumers *consumers
	lease     *lease

	returning sorted[*returning]
	// In order, while a snapshot is restored: what is on its way back, and the
	// detached consumers.
	coming   []*returning
	detaches []*consumer
}

// clear removes what is on its way back.
func (ds *deliveries) clear() { ds.returning = sorted[*returning]{} }

// lost iterates over what is on its way back, in the order in which it returns.
// Nothing of it may change meanwhile.
func (ds *deliveries) lost() iter.Seq[*returning] {
	return func(yield func(*returning) bool) {
		for _, p := range ds.returning.all() {
			if !yield(*p) {
				return
			}
		}
	}
}

// walk yields what a consumer holds or held. It reports false if yield did.
func (ds *deliveries) walk(of fsm.ConsumerID, all *held, yield func(Message) bool) bool {
	for held := range all.from(0) {
		if !yield(ds.describe(of, &held)) {
			return false
		}
	}
	return true
}

// findDetached returns a consumer whose session is over and that still holds
// something; nil: there is none.
func (ds *deliveries) findDetached(id fsm.ConsumerID) *consumer { return ds.detached.find(id) }

// describe describes a message that is held, for listings.
func (ds *deliveries) describe(of fsm.ConsumerID, held *checkout) Message {
	d := ds.messages.describe(held.handle)
	d.Holder, d.Delivery, d.Deadline = of, held.id, ds.clock.heldUntil(held.deadline)
	if ds.lease.phase() == Active {
		d.LockedUntil = ds.locks.until(held.lock)
	}
	return d
}

// save writes the section about what is on its way back in a snapshot's head.
// The messages follow those that consumers hold, see view.
func (ds *deliveries) save(h *logpb.QueueSnapshot) {
	for _, p := range ds.returning.all() {
		r := *p
		st := &logpb.ReturningState{
			Session: r.of.Session.Proto(), Consumer: r.of.Number, Tag: r.tag, Order: r.order, Outcome: uint32(r.outcome), Failed: r.failed,
			DueAt: int64(r.due), Group: r.group,
		}
		if r.remark != nil {
			st.Reason, st.Description = r.remark.Reason, r.remark.Description
		}
		h.Returning = append(h.Returning, st)
	}
}

// view appends what is on its way back, valid until the next change.
func (ds *deliveries) view(all []sorted[grip]) []sorted[grip] {
	for _, r := range ds.returning.all() {
		all = append(all, (*r).held.sorted)
	}
	return all
}

// freeze is like view, but what it appends never changes.
func (ds *deliveries) freeze(all []sorted[grip]) []sorted[grip] {
	for _, r := range ds.returning.all() {
		all = append(all, (*r).held.freeze())
	}
	return all
}

// restoreHead is the inverse of save, and restores the detached consumers. The
// messages themselves follow.
func (ds *deliveries) restoreHead(h *logpb.QueueSnapshot) (err error) {
	for _, st := range h.Returning {
		ds.coming = append(ds.coming, &returning{
			of: fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer}, tag: st.Tag,
			order: st.Order, outcome: logpb.Settle_Outcome(st.Outcome), failed: st.Failed, due: fsm.Time(st.DueAt), group: st.Group,
			remark: restoredRemark(st.Reason, st.Description),
		})
	}
	ds.detaches, err = ds.detached.restore(h)
	return err
}

// restore gives message h, which is checked out, to its holder: a consumer, an
// entry of what is on its way back, or a detached consumer, numbered in this
// order.
//
// Requires: consumers and restoreHead have been restored, and messages of one
// holder come by ascending delivery. A queue that has ended has no timers.
func (ds *deliveries) restore(st *logpb.MessageState, h uint32) error {
	into, c := ds.restoredHolder(uint64(st.Consumer))
	if into == nil {
		return fmt.Errorf("%w: message %d has no holder", ErrSnapshot, st.Seq)
	}
	if into.len() > 0 {
		if last, _ := into.last(); last.seq >= st.Delivery {
			return fmt.Errorf("%w: deliveries are out of order", ErrSnapshot)
		}
	}
	held := grip{deadline: fsm.Time(st.Deadline), limit: fsm.Millis(st.Limit), since: fsm.Time(st.Since), handle: h}
	var err error
	if ds.lease.phase() == Active {
		held.lock, err = ds.locks.restore(st, holding{c, st.Delivery})
	}
	into.push(checkout{id: st.Delivery, grip: held})
	if c != nil {
		ds.consumers.holds(c, 1)
	}
	if ds.lease.phase() != Active || err != nil {
		return err
	}
	if g := ds.members.of(h); g != nil {
		ds.members.set(h, ds.groups.restoreOut(g, c, st.Delivery))
	}
	if _, twice := ds.timers.held(fsm.Time(st.Deadline), st.Seq); twice {
		return fmt.Errorf("%w: message %d is held twice", ErrSnapshot, st.Seq)
	}
	ds.timers.hold(fsm.Time(st.Deadline), st.Seq, holding{c, st.Delivery})
	return nil
}

// restoredHolder returns who holds or held the messages that follow: what to put
// them into, and a consumer if it is one; nil: there is no such holder.
func (ds *deliveries) restoredHolder(no uint64) (into *held, c *consumer) {
	consumers, coming := uint64(ds.consumers.len()), uint64(len(ds.coming))
	switch {
	case no < consumers:
		c = ds.consumers.at(int(no))
	case no < consumers+coming:
		return &ds.coming[no-consumers].held, nil
	case no < consumers+coming+uint64(len(ds.detaches)):
		c = ds.detaches[no-consumers-coming]
	default:
		return nil, nil
	}
	return &c.held, c
}

// restoreReturning orders what is on its way back. It needs the numbers of the
// messages, so it comes after all of them.
func (ds *deliveries) restoreReturning() error {
	for _, r := range ds.coming {
		if r.held.len() == 0 || ds.returning.get(ds.returningKey(r)) != nil {
			return fmt.Errorf("%w: nothing of a consumer is on its way", ErrSnapshot)
		}
		ds.addReturning(r)
	}
	ds.coming, ds.detaches = nil, nil
	return nil
}

// check checks what is on its way back.
func (ds *deliveries) check(k *checker) {
	for at, p := range ds.returning.all() {
		r := *p
		if r.held.len() == 0 {
			k.fail("nothing of %v is on its way", r.of)
			return
		}
		ds.checkHeld(k, r.of, ^uint64(0), &r.held, nil)
		k.that(at == ds.returningKey(r) && ds.consumers.passed(r.order) && (r.order != 0 || r.outcome == 0 && r.due == 0) && r.due >= 0, "what %v held is on its way in the wrong place", r.of)
	}
	for c := range ds.consumers.from(0) {
		ds.checkHeld(k, c.id, c.next, &c.held, c.late)
		ds.checkOldest(k, c)
	}
	for c := range ds.detached.list() {
		ds.checkHeld(k, c.id, c.next, &c.held, nil)
		ds.checkOldest(k, c)
	}
}

// checkOldest checks that the lock of the oldest delivery of c runs.
func (ds *deliveries) checkOldest(k *checker, c *consumer) {
	for held := range c.held.from(0) {
		k.that(held.lock == 0 || ds.lease.phase() != Active || ds.locks.runs(held.lock), "consumer %v: the lock of delivery %d does not run", c.id, held.id)
		break
	}
	for _, id := range c.lockLost {
		_, held := c.held.find(id)
		k.that(!held, "consumer %v: delivery %d is held without lock", c.id, id)
	}
}

// checkHeld checks what a consumer holds or held. Its next delivery has number
// next.
func (ds *deliveries) checkHeld(k *checker, of fsm.ConsumerID, next uint64, all *held, lates []lateness) {
	n, last := 0, uint64(0)
	for held := range all.from(0) {
		if k.err != nil {
			return
		}
		ds.messages.checkOne(k, held.handle, CheckedOut)
		_, late := slices.BinarySearchFunc(lates, held.id, compareLate)
		switch {
		case held.id <= last || held.id >= next:
			k.fail("consumer %v: delivery %d of %d", of, held.id, next)
		case held.deadline < 0 || held.limit < 0 || held.since > ds.clock.atOnce():
			k.fail("consumer %v: delivery %d has a wrong deadline", of, held.id)
		case late:
			k.fail("consumer %v: delivery %d is held and was taken back", of, held.id)
		}
		last = held.id
		n++
		if ds.lease.phase() == Active {
			ds.locks.checkOne(k, held.lock, ds.messages.get(held.handle).seq, held.id)
		}
		if held.deadline != 0 && ds.lease.phase() == Active {
			k.timeouts++
			k.deadline(ds.clock.heldUntil(held.deadline))
			if to, ok := ds.timers.held(held.deadline, ds.messages.get(held.handle).seq); !ok || to.id != held.id {
				k.fail("consumer %v: delivery %d never times out", of, held.id)
			}
		}
	}
	k.that(n == all.len(), "consumer %v holds %d, counted %d", of, n, all.len())
}
