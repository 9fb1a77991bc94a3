package queue

import (
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// namedAtOnce bounds the messages that one command names by number.
const namedAtOnce = 1000

// named are the pairs of number and count by which a command names messages that are
// held. ok: they can be performed.
func (s *shared) named(pairs []uint64) (ok bool) {
	if !s.since(3) || len(pairs)%2 != 0 || len(pairs) > 2*namedAtOnce {
		return false
	}
	for i := 2; i < len(pairs); i += 2 {
		if pairs[i] <= pairs[i-2] {
			return false
		}
	}
	return true
}

// heldBy iterates over the deliveries that pairs name. It ends with a holding without
// consumer at the first message that is not held so. Requires: named(pairs).
func (m *Machine) heldBy(pairs []uint64) iter.Seq[holding] {
	return func(yield func(holding) bool) {
		for ; len(pairs) > 0; pairs = pairs[2:] {
			m.scratch.steps++
			of := m.deadlines.numbered(pairs[0])
			if of.c != nil {
				held, ok := of.c.held.find(of.id)
				if !ok || !m.detached.has(of.c) && of.c.session.life.over || uint64(m.messages.Get(held.handle).acquired) != pairs[1] {
					of.c = nil
				}
			}
			if !yield(of) || of.c == nil {
				return
			}
		}
	}
}

// areHeld reports whether all messages that pairs name are held so.
func (m *Machine) areHeld(pairs []uint64) bool {
	for of := range m.heldBy(pairs) {
		if of.c == nil {
			return false
		}
	}
	return true
}

// settleNumbered ends the deliveries that a settlement names by number, whoever holds
// them, or none of them: NotFound. Count is how many.
func (m *Machine) settleNumbered(cmd *logpb.Settle, eff *fsm.Effects) (code fsm.Code, count uint64) {
	pairs := cmd.GetNumbers()
	switch {
	case !m.namesDeliveries(cmd):
		return fsm.Invalid, 0
	case !m.areHeld(pairs):
		return fsm.NotFound, 0
	case cmd.Outcome == logpb.Settle_DEFER && m.aside.find(cmd.Deferral) != 0:
		return fsm.InUse, 0
	}
	m.lease.touch()
	for of := range m.heldBy(pairs) {
		m.scratch.taken = m.scratch.taken[:0]
		m.consumers.take(of.c, of.id, of.id)
		m.renewGroups(of.c, nil)
		code, n := m.endTaken(of.c, cmd, nil, eff)
		if cmd.Outcome == logpb.Settle_DEFER {
			return code, n
		}
	}
	return fsm.OK, uint64(len(pairs) / 2)
}

// namesDeliveries reports whether a settlement by number can be performed.
func (s *shared) namesDeliveries(cmd *logpb.Settle) bool {
	defers := cmd.Outcome == logpb.Settle_DEFER
	return s.named(cmd.Numbers) && isOutcome(cmd.Outcome) && (!defers || len(cmd.Numbers) == 2 && fitsToken(cmd.Deferral))
}

// renewNumbered renews the locks of the deliveries that a Renew names by number, whoever
// holds them, or none of them, if one is not held so or its lock has reached its end.
func (m *Machine) renewNumbered(cmd *logpb.Renew) (r fsm.Result) {
	pairs := cmd.GetNumbers()
	if !m.named(pairs) {
		return fsm.Result{Code: fsm.Invalid}
	}
	for of := range m.heldBy(pairs) {
		if of.c == nil || !m.deadlines.renewable(of) {
			return fsm.Result{Code: fsm.NotFound}
		}
	}
	m.lease.touch()
	for of := range m.heldBy(pairs) {
		held, _ := of.c.held.find(of.id)
		until, _ := m.renewOne(of.c, held, duration(cmd.GetDuration()))
		r.Count++
		if until != 0 && (r.Until == 0 || until < r.Until) {
			r.Until = until
		}
	}
	m.counters.LocksRenewed += r.Count
	return r
}

// number notes that a message, by its number, is held by a consumer whose deliveries can
// be named so.
func (ds *deadlines) number(seq uint64, of holding) { ds.numbers.Put(key{Seq: seq}, of) }

// numbered is who holds a message, or has held it and is not done with; without a
// consumer: nobody whose deliveries can be named so.
func (ds *deadlines) numbered(seq uint64) holding { return ds.numbers.Value(key{Seq: seq}) }

// renewable reports whether renew does something for a delivery that is held.
func (ds *deadlines) renewable(of holding) bool {
	held, _ := of.c.held.find(of.id)
	if held.lock == 0 {
		return true
	}
	l := ds.locks.Get(held.lock)
	return !l.runs() || l.end() > ds.clock.heldNow()
}

// checkNumbered checks that what c holds is found by number, if it is to be. It returns
// how many that are.
func (m *Machine) checkNumbered(k *checker, c *consumer) (n int) {
	if !c.numbered {
		return 0
	}
	for held := range c.held.from(0) {
		n++
		seq := m.messages.Get(held.handle).seq
		k.that(!m.lease.isWhole() || m.deadlines.numbered(seq) == holding{c, held.id}, "message %d is held, and not found by number", seq)
	}
	return n
}

// checkNumbers checks that so many deliveries that are held are found by number, and of
// those that are on their way back as many at most.
func (ds *deadlines) checkNumbers(k *checker, held, back int) {
	n := ds.numbers.Len() - held
	k.that(0 <= n && n <= back, "%d deliveries are found by number, of %d and %d", ds.numbers.Len(), held, back)
}
