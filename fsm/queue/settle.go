package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// settle ends deliveries of a consumer, of this session or of another one, which
// may have ended. Ids that it does not hold are ignored; ids that were taken back
// because they were late are removed from its late list, and counted, as are those
// whose lock has ended.
//
// cmd.Ranges are pairs of first id and length. A range may have gaps and may reach
// beyond all ids.
//
// Ensures: no id of the ranges is in c.held or c.late. At most bounds.Tick of the
// messages have ended; the rest is in one returning, which no longer counts in the
// credit of c. A strict settlement that has ended none is answered NotFound;
// otherwise count is how many it has. One that names messages by number is
// settleNumbered's.
func (m *Machine) settle(s *session, cmd *logpb.Settle, eff *fsm.Effects) (code fsm.Code, count uint64) {
	if len(cmd.GetNumbers()) > 0 {
		return m.settleNumbered(cmd, eff)
	}
	if s == nil && cmd.GetHolder() == nil {
		return fsm.NoSession, 0
	}
	ranges, outcome := cmd.GetRanges(), cmd.GetOutcome()
	if len(ranges)%2 != 0 || !isOutcome(outcome) || outcome == logpb.Settle_DEFER && !defersOne(cmd) {
		return fsm.Invalid, 0
	}
	c := m.holder(s, cmd.GetHolder(), cmd.GetConsumer())
	switch {
	case c == nil:
		return fsm.NotFound, 0
	case outcome == logpb.Settle_DEFER && m.aside.find(cmd.Deferral) != 0:
		return fsm.InUse, 0
	}
	m.lease.touch()
	before := c.held.Len()
	rest := m.takeRanges(c, ranges, eff)
	switch n := before - c.held.Len(); {
	case cmd.GetStrict() && n == 0:
		code = fsm.NotFound
	case cmd.GetStrict():
		count = uint64(n)
	}
	if outcome == logpb.Settle_DEFER {
		return m.endTaken(c, cmd, rest, eff)
	}
	m.endTaken(c, cmd, rest, eff)
	return code, count
}

func isOutcome(o logpb.Settle_Outcome) bool { return logpb.Settle_ACK <= o && o <= logpb.Settle_DEFER }

// endTaken ends what c has settled: what is in scratch.taken, and rest, unless that is nil. The answer
// counts if something is deferred.
func (m *Machine) endTaken(c *consumer, cmd *logpb.Settle, rest *held, eff *fsm.Effects) (code fsm.Code, count uint64) {
	switch due, outcome := m.dueAt(cmd.GetDueAt(), cmd.GetDelayPlusOne(), 0), cmd.GetOutcome(); {
	case outcome == logpb.Settle_DEFER:
		annotate(m.scratch.taken, annotationsOf(m.shared, cmd), m.messages)
		code, count = m.deferTaken(c, cmd.Deferral, due, eff)
	case outcome == logpb.Settle_ACK && rest == nil && m.mayEnd() == len(m.scratch.taken):
		m.ack(m.scratch.taken, eff) // most settlements are no more than this
	default:
		settled := returning{of: c.id, tag: c.tag, outcome: outcome, due: due, remark: remarkOf(cmd), annotations: annotationsOf(m.shared, cmd)}
		if rest != nil {
			settled.held = *rest
		}
		m.endDeliveries(&settled, eff)
	}
	m.scratch.taken = m.scratch.taken[:0]
	m.afterTaking(c)
	m.consumers.removeFinished(c)
	return code, count
}

// takeRanges takes what c has settled: to scratch.taken, and beyond what one command may end to rest;
// nil: that is nothing.
func (m *Machine) takeRanges(c *consumer, ranges []uint64, eff *fsm.Effects) (rest *held) {
	m.scratch.taken = m.scratch.taken[:0]
	var late []lateness
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, last, ok := span(ranges)
		if !ok {
			continue
		}
		rest = m.takeSettled(c, first, last, rest)
		if len(c.late) > 0 {
			late = c.forgive(first, last, late)
			m.consumers.contest()
		}
		if len(c.lockLost) > 0 {
			n := uint64(c.pardon(first, last))
			c.lateLocks += n
			m.counters.LateLocks += n
		}
	}
	m.renewGroups(c, rest)
	if len(late) > 0 {
		m.consumers.settledLate(c, late, eff)
	}
	return rest
}

// afterTaking is called when c, which may be detached, has settled or lost
// something. It is the end of c if that is detached and holds nothing any more.
func (m *Machine) afterTaking(c *consumer) {
	if m.deadlines.locked() > 0 && c.held.Len() > 0 { // the lock of the oldest one runs
		k, g := c.held.First()
		m.deadlines.start(g, m.messages.Get(g.handle).seq, holding{c, k.Seq})
	}
	if m.detached.has(c) {
		if c.held.Len() == 0 {
			m.detached.remove(c)
		}
		return
	}
	if c.status() != Up {
		m.consumers.contest()
	}
	m.consumers.refresh(c)
}

// remarkOf returns what a receiver says about messages that it discards, cut to
// what a client may say; nil: nothing.
func remarkOf(cmd *logpb.Settle) *fsm.Remark {
	if cmd.GetOutcome() != logpb.Settle_DISCARD || cmd.Reason == "" && cmd.Description == "" {
		return nil
	}
	return restoredRemark(cmd.Reason[:min(len(cmd.Reason), fsm.MaxSettleReason)], cmd.Description[:min(len(cmd.Description), fsm.MaxSettleDescription)])
}

func restoredRemark(reason, description string) *fsm.Remark {
	if reason == "" && description == "" {
		return nil
	}
	return &fsm.Remark{Reason: reason, Description: description}
}

// takeSettled takes what c has settled, as takeRanges does. Large tables are severed, in O(log n +
// blocks), so that a range over a million deliveries does not walk over them.
func (m *Machine) takeSettled(c *consumer, first, last uint64, rest *held) *held {
	if c.held.Len() <= m.bounds.Tick {
		m.consumers.take(c, first, last)
		return rest
	}
	part := held{c.held.Sever(key{Seq: first}, key{Seq: last})}
	m.consumers.holds(c, -part.Len())
	for part.Len() > 0 && len(m.scratch.taken) < m.bounds.Tick {
		m.scratch.taken = part.takeFirst(m.scratch.taken)
	}
	if part.Len() == 0 {
		return rest
	}
	if rest == nil {
		return &part
	}
	rest.Join(part.sorted)
	return rest
}

// mayEnd returns how many of the deliveries in scratch.taken this command may end: none while
// earlier settlements are unfinished.
func (m *Machine) mayEnd() int {
	if m.returnings.settling() {
		return 0
	}
	return min(len(m.scratch.taken), m.bounds.Tick)
}

// endDeliveries ends the deliveries in scratch.taken, which were settled as r says. Beyond the bound of
// one command, or while earlier settlements are unfinished, they follow later.
func (m *Machine) endDeliveries(r *returning, eff *fsm.Effects) {
	n := m.mayEnd()
	for _, held := range m.scratch.taken[n:] {
		r.held.push(held)
	}
	if r.held.Len() > 0 {
		rest := *r // r itself stays on the stack of settle
		rest.order = m.consumers.order()
		m.returnings.add(&rest)
	}
	m.conclude(r, m.scratch.taken[:n], eff)
}

// conclude ends deliveries that nobody holds any more, as r says. The caller has
// counted them against the bounds of the command. taken is consumed. Requires:
// they are in no held, CheckedOut and in timers.
func (m *Machine) conclude(r *returning, taken []checkout, eff *fsm.Effects) {
	if r.outcome != logpb.Settle_ACK && len(taken) > 0 {
		m.scratch.noteHolder(taken, r.of, r.tag)
	}
	switch r.outcome {
	case logpb.Settle_ACK:
		m.ack(taken, eff)
	case logpb.Settle_DISCARD:
		annotate(taken, r.annotations, m.messages)
		m.discard(r.remark, taken, eff)
	default:
		for i := range taken {
			taken[i].failed = r.outcome == logpb.Settle_REQUEUE_FAILED
		}
		annotate(taken, r.annotations, m.messages)
		m.giveBack(taken, m.settings.Classic || m.settings.ReturnInOrder, r.due, eff)
	}
}

// ack ends messages that were taken from their holder. An ack after the expiry
// counts as one: expiry has no effect on what is held.
func (m *Machine) ack(taken []checkout, eff *fsm.Effects) {
	m.lift(taken)
	m.counters.Acked += uint64(len(taken))
	for i := range taken {
		h := taken[i].handle
		if m.messages.Get(h).due(m.clock.now()) {
			m.counters.AckedExpired++
		}
		m.messages.free(h, eff)
	}
}

// discard ends messages that were taken from their holder as dead, in this
// order. Their letters carry what the receiver says, if it says something.
func (m *Machine) discard(remark *fsm.Remark, taken []checkout, eff *fsm.Effects) {
	m.lift(taken)
	for _, held := range taken {
		x := m.messages.Mut(held.handle)
		bump(&x.acquired)
		bump(&x.failed)
		if remark != nil {
			m.messages.editExtra(held.handle).remark = remark
		}
		m.dieHeld(&held, logpb.Death_REJECTED, eff)
	}
}

// dieHeld is the end of a message that somebody held, which is in no place.
func (m *Machine) dieHeld(held *checkout, reason logpb.Death_Reason, eff *fsm.Effects) {
	m.aside.mark(held.handle, "")
	m.scratch.heldBy(held.by)
	m.outbox.die(held.handle, reason, eff)
	m.scratch.heldBy(0)
}

// giveBack returns messages that were taken from their holders: to the end of
// the returned list in the given order or, with bySeq, each after the last one
// there that is older. Those that have failed too often die first, in order, or are
// parked; then those die that have expired, earliest first. The others may be delayed
// before they become ready: until due or, if that is 0, as the settings say.
//
// Requires: they are in no held and CheckedOut; failed is set. taken is consumed:
// kept is built in it.
//
// Ensures: each of them is a letter, gone, Parked, Returned, Delayed or, if it was taken from
// there, Deferred, and watched if it has an instant. Requeued counts those Returned and Delayed. Expired and failed ones are checked
// here, before they get a place, so no due message is put into a list and found
// again by the next catchUp.
func (m *Machine) giveBack(taken []checkout, bySeq bool, due fsm.Time, eff *fsm.Effects) {
	if len(taken) == 0 {
		return
	}
	m.lift(taken)
	if bySeq {
		slices.SortFunc(taken, func(a, b checkout) int { return cmp.Compare(a.seq, b.seq) })
	}
	m.endOverdueGroups(taken)
	kept, parks := taken[:0], m.outbox.parks()
	m.scratch.overdue = m.scratch.overdue[:0]
	for _, held := range taken {
		x := m.messages.Mut(held.handle)
		bump(&x.acquired)
		if held.failed {
			bump(&x.failed)
		}
		exceeds := held.failed && m.settings.exceeds(x)
		switch {
		case exceeds && !parks:
			m.dieHeld(&held, logpb.Death_DELIVERY_LIMIT, eff)
		case m.doomed(held.handle):
			m.dieHeld(&held, m.groupDeath(held.handle), eff)
		case x.due(m.clock.now()) && !m.covered(held.handle):
			m.scratch.overdue = append(m.scratch.overdue, held)
		case exceeds:
			m.aside.mark(held.handle, "")
			m.messages.park(held.handle)
		default:
			kept = append(kept, held)
		}
	}
	m.expireReturned(eff)
	kept = slices.DeleteFunc(kept, func(held checkout) bool { return m.aside.again(held.handle) })
	m.counters.Requeued += uint64(len(kept))
	if m.settings.backoff.kind != logpb.QueueConfig_AT_ONCE || due != 0 {
		kept = slices.DeleteFunc(kept, func(held checkout) bool { return m.aside.delay(held, due) })
	}
	if m.groups.any() {
		kept = m.regroup(kept)
	}
	if bySeq {
		m.messages.putBack(kept)
	} else if len(kept) > 0 {
		m.messages.returnAll(kept)
	}
	for _, held := range kept {
		m.messages.watch(held.handle)
	}
}

// expireReturned expires the messages of scratch.overdue, which are in no
// place. The order is that of catchUp.
func (m *Machine) expireReturned(eff *fsm.Effects) {
	slices.SortFunc(m.scratch.overdue, func(a, b checkout) int {
		x, y := m.messages.Get(a.handle), m.messages.Get(b.handle)
		return cmp.Or(cmp.Compare(x.expireAt, y.expireAt), cmp.Compare(x.seq, y.seq))
	})
	for i := range m.scratch.overdue {
		m.dieHeld(&m.scratch.overdue[i], logpb.Death_EXPIRED, eff)
	}
}
