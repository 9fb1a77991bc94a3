package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// consumers are all consumers of the queue, the gets of sessions among them, by
// age. Who of them may be served is decided here, single.go has the rules for a
// queue with a single active one; in which order is that of service.
//
// Invariants:
//
//	all ascends by registered, which is < next; each is in its session's table
//	serving ≤ attached ≤ len(all): attached counts all but gets and those that were
//	finished, serving of these the ones that are not cancelled
//	getsHeld = Σ held.len() of gets
//	exclusive is nil, or the only one that is not cancelled and whose session's
//	life is not over
//	c is in service ⇔ served(c) and c.credit() > 0, unless its session is ending
//	single, quiescing = choose(), once elect has run; nobody is single unless the
//	settings say so
type consumers struct {
	*shared
	sessions *sessions
	service  service

	all       []*consumer
	next      uint64 // orders consumers by age, and settlements that wait
	attached  int
	serving   int
	getsHeld  int
	exclusive *consumer
	single    *consumer // that alone is served; nil: nobody can be
	quiescing bool      // single gets nothing new
	contested bool      // elect has to choose
}

// newConsumers returns a queue without consumers. The order of age begins with 1,
// since 0 is no settlement, see returning.
func newConsumers(s *shared, ss *sessions) *consumers {
	return &consumers{shared: s, sessions: ss, service: service{shared: s}, next: 1}
}

// clear forgets all consumers. Their age goes on.
func (cs *consumers) clear() {
	cs.service.clear()
	*cs = consumers{shared: cs.shared, sessions: cs.sessions, service: cs.service, next: cs.next}
}

// inUse reports whether somebody keeps the queue from ending by its lease: a
// consumer, also a cancelled one that still owes, or a get that is not settled.
func (cs *consumers) inUse() bool { return cs.attached > 0 || cs.getsHeld > 0 }

// len is the number of consumers, gets and those that only owe included.
func (cs *consumers) len() int { return len(cs.all) }

// active is the number of those that are not cancelled, and no gets.
func (cs *consumers) active() int { return cs.serving }

// contest has elect choose: something has changed for somebody who may be served.
func (cs *consumers) contest() { cs.contested = true }

// holds counts what gets hold, n more or less.
func (cs *consumers) holds(c *consumer, n int) {
	if c.isGets() {
		cs.getsHeld += n
	}
}

// order is the next place in the order of age, for settlements that wait.
func (cs *consumers) order() uint64 {
	cs.next++
	return cs.next - 1
}

// passed reports whether a place in the order of age has been given, or is 0.
func (cs *consumers) passed(order uint64) bool { return order < cs.next }

// join makes c one that may be served.
func (cs *consumers) join(c *consumer) {
	cs.service.join(c)
	cs.contested = true
}

// leave takes c out of service for good, or until it joins again.
func (cs *consumers) leave(c *consumer) {
	if c.level != nil {
		cs.service.leave(c)
		cs.contested = true
	}
}

// from iterates over those with a place in the order of age of at least n.
func (cs *consumers) from(n uint64) iter.Seq[*consumer] {
	i, _ := slices.BinarySearchFunc(cs.all, n, func(c *consumer, r uint64) int { return cmp.Compare(c.registered, r) })
	return slices.Values(cs.all[i:])
}

// refresh puts c at the end of its ring or takes it out, as its credit wants.
func (cs *consumers) refresh(c *consumer) {
	wants := cs.served(c) && c.credit() > 0
	switch {
	case !wants:
		cs.service.suspend(c)
	case !c.serviced:
		cs.service.serve(c)
	}
}

// register adds a consumer of s to the tables.
func (cs *consumers) register(s *session, number uint64) *consumer {
	c := &consumer{
		id:      fsm.ConsumerID{Session: s.id, Number: number},
		session: s, registered: cs.next, next: 1,
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

// retire ends the service of c, which stays for what it holds.
func (cs *consumers) retire(c *consumer) {
	if c.cancelled || c.isGets() {
		return
	}
	cs.leave(c)
	c.cancelled = true
	cs.serving--
	if cs.exclusive == c {
		cs.exclusive = nil
	}
	if cs.single == c {
		cs.single, cs.quiescing = nil, false
	}
}

// at is the i-th consumer in the order of age.
func (cs *consumers) at(i int) *consumer { return cs.all[i] }

// position of c among the consumers, which are ordered by age.
func (cs *consumers) position(c *consumer) int {
	i, _ := slices.BinarySearchFunc(cs.all, c.registered, func(o *consumer, r uint64) int { return cmp.Compare(o.registered, r) })
	return i
}

// unregister ends c, which holds nothing. It is left to the caller to take it
// out of the tables: its session is nil then.
func (cs *consumers) unregister(c *consumer) {
	cs.retire(c)
	if !c.isGets() && !c.finished {
		cs.attached--
	}
	c.session.life.detached()
	c.session = nil
}

// crowded reports whether the queue has as many consumers as it may.
func (cs *consumers) crowded() bool { return len(cs.all) >= cs.bounds.Consumers }

// removeIfDone lets a cancelled consumer go that owes nothing more: it holds
// nothing. It is remembered while something of it is late, and if it is revoked.
func (cs *consumers) removeIfDone(c *consumer) {
	if c.cancelled && c.held.len() == 0 {
		cs.removeFinished(c)
	}
}

// removeFinished is removeIfDone for many consumers: of all sessions one pass.
func (cs *consumers) removeFinished(done ...*consumer) {
	var sessions []*session
	for _, c := range done {
		if !c.cancelled || c.held.len() > 0 {
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

// thin unregisters the finished consumers of a session but for the newest ones
// that are to be remembered, and returns how many.
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

// dropEnded takes consumers out of the table whose sessions have ended.
func (cs *consumers) dropEnded() {
	cs.scratch.steps += len(cs.all)
	cs.all = slices.DeleteFunc(cs.all, func(c *consumer) bool { return c.session == nil })
}

// reconsider follows when the settings about a single active consumer have
// changed: nobody is it until somebody is chosen.
func (cs *consumers) reconsider() {
	cs.single, cs.quiescing, cs.contested = nil, false, true
	for _, c := range cs.all {
		cs.refresh(c)
	}
}

// livesEnded follows when lives of nodes are over.
func (cs *consumers) livesEnded() {
	cs.contested = true
	if cs.exclusive != nil && cs.exclusive.session.life.over {
		cs.exclusive = nil
	}
}

// refreshLife follows a life that has become suspected, or is no more; nil: one
// without sessions.
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

// anyServed reports whether somebody has credit.
func (cs *consumers) anyServed() bool { return cs.service.any() }

// nextServed is the one to serve next; nil: nobody has credit.
func (cs *consumers) nextServed() *consumer { return cs.service.next() }

// handedOut follows a delivery to c, which goes to the end of its ring.
func (cs *consumers) handedOut(c *consumer) {
	cs.service.suspend(c)
	cs.refresh(c)
}

// nodeSuspected begins or ends the suspicion of a node.
func (cs *consumers) nodeSuspected(cmd *logpb.NodeSuspected, eff *fsm.Effects) fsm.Result {
	of := Boot{fsm.NodeID(cmd.GetNode()), cmd.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	l, ok := cs.sessions.setSuspected(of, !cmd.GetBack())
	if !ok {
		return fsm.Result{} // known
	}
	cs.refreshLife(l)
	eff.SuspicionChanged = true
	return fsm.Result{}
}
