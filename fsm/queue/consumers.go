package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// consumers are all consumers of the queue, including the gets of sessions, by
// age. This part decides who may be served (single.go has the rules for single
// active consumers); service decides in which order.
//
// Invariants:
//
//	all ascends by registered, which is < next; each is in its session's table
//	serving ≤ attached ≤ len(all): attached counts all but gets and finished
//	consumers, serving those of them that are not cancelled
//	getsHeld = Σ held.len() of gets
//	exclusive is nil, or the only one that is not cancelled and whose session's
//	life is not over
//	c is in service ⇔ served(c) and c.credit() > 0 and it takes not only one group,
//	unless its session is ending
//	single, quiescing = choose(), once elect has run; single is nil unless the
//	settings ask for a single active consumer
//
// all has the consumers of ending sessions, too. These may still be in rings,
// but nobody is served before they are gone. The order of age is that of the
// log, so it is the same on all replicas, and a snapshot refers to consumers by
// their position in it.
type consumers struct {
	*shared
	sessions *sessions
	detached *detached
	groups   *groups
	takers   *groupTakers
	services services
	short    short

	// next is never reused: two consumers, or two settlements, never tie.
	all      []*consumer
	next     uint64 // orders consumers by age, and pending settlements
	attached int
	serving  int
	getsHeld int
	// Except for single, the rest is derived: Restore counts attached, serving
	// and getsHeld again, finds exclusive by its flag, and computes quiescing.
	// contested may differ after it: choosing once more changes nothing.
	exclusive *consumer
	single    *consumer // the only one that is served; nil: nobody can be
	quiescing bool      // single gets nothing new
	contested bool      // elect must choose

	capacity Capacity // without present; in no snapshot
}

// newConsumers returns an empty set of consumers. The order of age begins with
// 1, since 0 means no settlement, see returning.
func newConsumers(s *shared, ss *sessions, d *detached, gs *groups, ts *groupTakers, ms *messages) *consumers {
	return &consumers{shared: s, sessions: ss, detached: d, groups: gs, takers: ts, next: 1, services: services{
		shared: s, messages: ms, cursors: ms.cursors, general: service{shared: s},
	}}
}

// clear removes all consumers. The order of age continues.
func (cs *consumers) clear() {
	cs.services.clear()
	*cs = consumers{shared: cs.shared, sessions: cs.sessions, detached: cs.detached, groups: cs.groups, takers: cs.takers, services: cs.services, next: cs.next, capacity: cs.capacity}
}

// inUse reports whether the lease is suspended: there is a consumer, possibly a
// cancelled one that still holds messages, or a delivery that a get has not settled
// or that one of the detached holds. Deliveries on their way back do not count.
func (cs *consumers) inUse() bool { return cs.attached > 0 || cs.getsHeld > 0 || cs.detached.len() > 0 }

// len is the number of consumers, including gets and cancelled ones.
func (cs *consumers) len() int { return len(cs.all) }

// active is the number of consumers that are neither cancelled nor gets. This
// is what if-unused, auto-delete and queue.declare-ok count.
func (cs *consumers) active() int { return cs.serving }

// contest makes elect choose, because a consumer that may be served has
// changed.
func (cs *consumers) contest() { cs.contested = true }

// holds adds n, which may be negative, to the deliveries that c holds. It is
// called with every change of c.held.
func (cs *consumers) holds(c *consumer, n int) {
	if c.isGets() {
		cs.getsHeld += n
	}
}

// order returns the next position in the order of age, for a pending
// settlement.
func (cs *consumers) order() uint64 {
	cs.next++
	return cs.next - 1
}

// passed reports whether a position in the order of age has been used, or is 0.
func (cs *consumers) passed(order uint64) bool { return order < cs.next }

// join adds c to those that may be served. Requires: c is not cancelled, not
// gets, and in no level. It gets a place in a ring only with refresh.
func (cs *consumers) join(c *consumer) {
	cs.services.forConsumer(c).join(c)
	cs.contested = true
}

// leave takes c out of service until it joins again.
func (cs *consumers) leave(c *consumer) {
	cs.short.drop(c)
	if c.level != nil {
		cs.services.leave(c)
		cs.contested = true
	}
}

// from iterates over the consumers with a position of at least n in the order
// of age. O(log n) to find it. all must not change meanwhile.
func (cs *consumers) from(n uint64) iter.Seq[*consumer] {
	i, _ := slices.BinarySearchFunc(cs.all, n, func(c *consumer, r uint64) int { return cmp.Compare(c.registered, r) })
	return slices.Values(cs.all[i:])
}

// refresh moves c to the end of its ring or removes it, depending on its
// credit.
//
// A consumer that is in its ring and may stay keeps its position there. It must
// be called after every change of what served and credit depend on: prefetch,
// held, late, suspicion, single.
func (cs *consumers) refresh(c *consumer) {
	served := cs.served(c)
	wants := served && c.credit() > 0
	cs.short.note(c, served && !wants)
	if cs.takers.any() || cs.groups.on() {
		cs.groups.refresh(c, wants)
		wants = wants && cs.takers.generally(c)
	}
	switch {
	case !wants:
		cs.services.suspend(c)
	case !c.serviced:
		cs.services.serve(c)
	}
}

// register adds a consumer of s to the tables.
//
// Requires: s has no consumer with this number, and the queue is not crowded.
// Ensures: it is the youngest, has no settings and is in no level. Gets go on with
// the numbers of their deliveries.
func (cs *consumers) register(s *session, number uint64) *consumer {
	c := &consumer{
		id:      fsm.ConsumerID{Session: s.id, Number: number},
		session: s, registered: cs.next, next: 1,
	}
	if number == 0 && s.nextGet > 0 {
		c.next, s.nextGet = s.nextGet, 0
	}
	cs.next++
	cs.all = append(cs.all, c)
	s.attach(c)
	if number != 0 {
		cs.attached++
		cs.serving++
	}
	return c
}

// retire ends the service of c, which remains for the messages that it holds.
//
// Ensures: it is in no level and is neither exclusive nor single. It does
// nothing for gets. A caller that keeps c calls removeIfDone, since c may hold
// nothing.
func (cs *consumers) retire(c *consumer) {
	if c.cancelled || c.isGets() {
		return
	}
	cs.leave(c)
	cs.groups.retire(c)
	c.cancelled = true
	cs.serving--
	if cs.exclusive == c {
		cs.exclusive = nil
	}
	if cs.single == c {
		cs.single, cs.quiescing = nil, false
	}
}

// at returns the i-th consumer in the order of age.
func (cs *consumers) at(i int) *consumer { return cs.all[i] }

// position returns the position of c in the order of age.
func (cs *consumers) position(c *consumer) int {
	i, _ := slices.BinarySearchFunc(cs.all, c.registered, func(o *consumer, r uint64) int { return cmp.Compare(o.registered, r) })
	return i
}

// unregister ends c, which holds nothing or is detached, and sets its session to
// nil. The caller removes it from the tables.
//
// Ensures: c.session is nil, by which dropEnded finds it. No part may look at
// it any more, unless it is detached, except as a pointer in timers and locks that
// nobody reads.
func (cs *consumers) unregister(c *consumer) {
	cs.retire(c)
	cs.groups.drop(c)
	if !c.isGets() && !c.finished {
		cs.attached--
	}
	c.session.life.detached()
	c.session = nil
}

// crowded reports whether the queue has reached its limit of consumers. From version
// 3 on, gets that hold nothing make room: their session knows how they go on.
func (cs *consumers) crowded() bool {
	if len(cs.all) < cs.bounds.Consumers {
		return false
	}
	if cs.since(3) {
		cs.dropGets()
	}
	return len(cs.all) >= cs.bounds.Consumers
}

// dropGets unregisters all gets that hold nothing. O(consumers).
func (cs *consumers) dropGets() {
	for _, c := range cs.all {
		if !c.isGets() || c.held.len() > 0 || c.remembered() || len(c.lockLost) > 0 || c.session.life.over {
			continue
		}
		s := c.session
		s.nextGet = c.next
		s.prune(func(o *consumer) bool { return o == c })
		cs.unregister(c)
	}
	cs.dropEnded()
}

// removeIfDone removes a cancelled consumer that holds nothing. It does nothing if
// c is or was detached. It is remembered while it has late deliveries, or if it was revoked.
func (cs *consumers) removeIfDone(c *consumer) {
	if c.session != nil && c.cancelled && c.held.len() == 0 {
		cs.removeFinished(c)
	}
}

// removeFinished is removeIfDone for many consumers, in one pass over each
// session.
//
// done may name consumers that still hold something: nothing happens to them.
// Ensures: those of the others that remain are finished, count neither as
// attached nor as serving, and have something to be remembered for.
func (cs *consumers) removeFinished(done ...*consumer) {
	var sessions []*session
	for _, c := range done {
		if !c.cancelled || c.held.len() > 0 || c.session == nil {
			continue
		}
		if !c.finished {
			c.finished = true
			cs.attached--
		}
		if s := c.session; !s.thinning {
			s.thinning = true
			sessions = append(sessions, s)
		}
	}
	removed := 0
	for _, s := range sessions {
		s.thinning = false
		removed += cs.thin(s)
	}
	if removed > 0 {
		cs.dropEnded()
	}
}

// thin unregisters the finished consumers of a session, except the newest ones
// that must be remembered, and returns how many. O(consumers of the session).
// The surplus is taken from those with the lowest numbers.
func (cs *consumers) thin(s *session) (removed int) {
	surplus := -lateConsumers
	for _, c := range s.consumers {
		if c.finished && c.remembered() {
			surplus++
		}
	}
	cs.scratch.steps += len(s.consumers)
	s.prune(func(c *consumer) bool {
		if !c.finished || c.remembered() && surplus <= 0 {
			return false
		}
		if c.remembered() {
			surplus--
		}
		removed++
		cs.unregister(c)
		return true
	})
	return removed
}

// dropEnded removes consumers from the table whose sessions have ended. It
// costs one pass over all consumers, so it is called once for many.
func (cs *consumers) dropEnded() {
	cs.scratch.steps += len(cs.all)
	cs.all = slices.DeleteFunc(cs.all, func(c *consumer) bool { return c.session == nil })
}

// reconsider is called when the settings about a single active consumer have
// changed: there is none until one is elected.
func (cs *consumers) reconsider() {
	cs.single, cs.quiescing, cs.contested = nil, false, true
	cs.refreshAll()
}

// refreshAll is called when the settings say otherwise who is served.
func (cs *consumers) refreshAll() {
	for _, c := range cs.all {
		cs.refresh(c)
	}
}

// livesEnded is called when lives of nodes have ended.
func (cs *consumers) livesEnded() {
	cs.contested = true
	if cs.exclusive != nil && cs.exclusive.session.life.over {
		cs.exclusive = nil
	}
}

// refreshLife is called when a life becomes suspected or ceases to be. l is nil
// if it has no sessions.
func (cs *consumers) refreshLife(l *life) {
	cs.contested = true
	if l == nil {
		return
	}
	for _, c := range cs.all {
		cs.scratch.steps++
		if c.session.life == l {
			cs.refresh(c)
		}
	}
}

// anyServed reports whether any consumer has credit.
func (cs *consumers) anyServed() bool { return cs.services.any() }

// leastServed returns the least life that the least demanding consumer with credit
// asks for; false: none has credit. What that one cannot have nobody can have.
func (cs *consumers) leastServed() (fsm.Millis, bool) { return cs.services.least() }

// nextServed returns the consumer that is handed message h, which is the next one
// for the least demanding that has credit. It does not move it: handedOut does.
func (cs *consumers) nextServed(h uint32) *consumer { return cs.services.next(h) }

// handedOut moves c to the end of its ring after a delivery. If its credit is
// used up it leaves the ring.
func (cs *consumers) handedOut(c *consumer) {
	cs.services.suspend(c)
	cs.refresh(c)
}

// nodeSuspected begins or ends the suspicion of a node.
//
// The command is proposed by the leader when it has not heard from a node for a
// while, and with Back when it has again. It ends no stream and takes nothing
// back: the first Tick after the deadline does, see endSuspicions. Repeating it
// neither extends the deadline nor answers an error.
func (cs *consumers) nodeSuspected(cmd *logpb.NodeSuspected, eff *fsm.Effects) fsm.Result {
	of := Boot{fsm.NodeID(cmd.GetNode()), cmd.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	l, ok := cs.sessions.setSuspected(of, !cmd.GetBack())
	if !ok {
		return fsm.Result{} // already known
	}
	cs.refreshLife(l)
	eff.SuspicionChanged = true
	return fsm.Result{}
}
