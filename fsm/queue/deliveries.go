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
//	a message is CheckedOut ⇔ one consumer, or one entry of returning, holds it
//	every entry of returning holds something, and is at its key
//	no due message is handed out, and nothing is while sessions are ending
//	|scratch.taken| = 0 between two commands, and its messages are in no place
//
// returning is in a snapshot: its heads in that order, its messages after those
// that consumers hold. coming is nil except while one is restored.
type deliveries struct {
	*shared
	timers    *timers
	messages  *messages
	outbox    *outbox
	sessions  *sessions
	consumers *consumers
	lease     *lease

	returning sorted[*returning]
	coming    []*returning // in order, while a snapshot is restored
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

// save writes the section about what is on its way back in a snapshot's head.
// The messages follow those that consumers hold, see view.
func (ds *deliveries) save(h *logpb.QueueSnapshot) {
	for _, p := range ds.returning.all() {
		r := *p
		h.Returning = append(h.Returning, &logpb.ReturningState{
			Session: r.of.Session.Proto(), Consumer: r.of.Number, Order: r.order, Outcome: uint32(r.outcome), Failed: r.failed,
		})
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

// restoreHead is the inverse of save. The messages themselves follow.
func (ds *deliveries) restoreHead(h *logpb.QueueSnapshot) {
	for _, st := range h.Returning {
		ds.coming = append(ds.coming, &returning{
			of:    fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer},
			order: st.Order, outcome: logpb.Settle_Outcome(st.Outcome), failed: st.Failed,
		})
	}
}

// restore gives message h, which is checked out, to its holder: a consumer, or
// an entry of what is on its way back, which are numbered after the consumers.
//
// Requires: consumers and restoreHead have been restored, and messages of one
// holder come by ascending delivery. A queue that has ended has no timers.
func (ds *deliveries) restore(st *logpb.MessageState, h uint32) error {
	var into *held
	var c *consumer
	switch no := uint64(st.Consumer); {
	case no < uint64(ds.consumers.len()):
		c = ds.consumers.at(int(no))
		into = &c.held
	case no < uint64(ds.consumers.len()+len(ds.coming)):
		into = &ds.coming[no-uint64(ds.consumers.len())].held
	default:
		return fmt.Errorf("%w: message %d has no holder", ErrSnapshot, st.Seq)
	}
	if into.len() > 0 {
		if last, _ := into.last(); last.seq >= st.Delivery {
			return fmt.Errorf("%w: deliveries are out of order", ErrSnapshot)
		}
	}
	into.push(checkout{id: st.Delivery, grip: grip{fsm.Time(st.Deadline), fsm.Millis(st.Limit), fsm.Time(st.Since), h, false}})
	if c != nil {
		ds.consumers.holds(c, 1)
	}
	if ds.lease.phase() != Active {
		return nil
	}
	if _, twice := ds.timers.held(fsm.Time(st.Deadline), st.Seq); twice {
		return fmt.Errorf("%w: message %d is held twice", ErrSnapshot, st.Seq)
	}
	ds.timers.hold(fsm.Time(st.Deadline), st.Seq, holding{c, st.Delivery})
	return nil
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
	ds.coming = nil
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
		k.that(at == ds.returningKey(r) && ds.consumers.passed(r.order) && (r.order != 0 || r.outcome == 0), "what %v held is on its way in the wrong place", r.of)
	}
	for c := range ds.consumers.from(0) {
		ds.checkHeld(k, c.id, c.next, &c.held, c.late)
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
