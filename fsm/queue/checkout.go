package queue

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// assign hands ready messages to consumers with credit until either runs out,
// or the command may hand out no more: then the next command continues.
//
// It runs once after each command and, for messages that cannot wait, within an
// Enqueue. Ensures: nobody has credit, or first returns 0, or handOuts = 0, or
// sessions are ending. In the last three cases NextDue is at once if something
// that could be handed out is left.
//
// If nobody has credit for a message that is ready, the sessions of consumers
// that share a limit and may have it are told.
//
// The order is a function of the state: messages by priority, returned ones
// first, as far as somebody with credit may have them; consumers by the order of their
// ring.
func (m *Machine) assign(eff *fsm.Effects) {
	m.groups.settle()
	if m.settings.forwards() {
		return
	}
	for (m.consumers.anyServed() || m.groups.servesAny()) && m.scratch.handOuts > 0 && !m.sessions.isEnding() {
		h, c := m.nextDelivery(eff)
		switch {
		case h == 0 && m.groups.servesAny():
			return
		case h == 0:
			m.consumers.tellShort(m.messages.readyCount(), eff)
			return
		}
		m.scratch.handOuts--
		id, lock := m.checkOut(h, c)
		m.deliver(c, id, h, lock, eff)
		m.consumers.handedOut(c)
	}
	m.consumers.passOver() // NextDue is exact
	m.consumers.tellShort(m.messages.readyCount(), eff)
}

// checkOut hands message h, which is ready, to c.
//
// Requires: h is Ready or Returned, and not due unless it is scratch.fresh; c has
// credit, or is gets.
//
// Ensures: h is CheckedOut, in c.held under the former c.next, in deadlines if it ends
// by itself, and locked if the settings or c say so; no list and no expiry knows it any more. The caller adds the
// delivery, of which it gets the number and the lock, to the effects and moves c in its ring. x.acquired counts earlier
// deliveries here; it grows when this one ends, not when it begins.
func (m *Machine) checkOut(h uint32, c *consumer) (id uint64, lock uint32) {
	invariants.Assert(!m.messages.Get(h).due(m.clock.now()) || m.mayGo(h), "no message is handed out past its expiry")
	m.messages.remove(h)
	return m.hand(h, c, false)
}

// hand is checkOut for a message that is in no place. apart: c does not get its group, and it
// has a lock of its own.
func (m *Machine) hand(h uint32, c *consumer, apart bool) (id uint64, lock uint32) {
	g := m.groupOf(h)
	if g != nil {
		m.setGroup(h, m.groups.handOut(g, c, c.next, m.settings.groupLock(c), !apart))
	}
	x := m.messages.Mut(h)
	m.messages.setPlace(h, x, CheckedOut)
	m.counters.Delivered++
	if x.acquired > 0 {
		m.counters.Redelivered++
	}
	id = c.next
	c.next++
	c.link.handedOut()
	limit := m.settings.timeout(c)
	held := grip{limit: limit.Value, since: m.clock.atOnce(), handle: h}
	if limit.Given {
		held.deadline = m.clock.heldDeadline(limit.Value)
	}
	if (g == nil || apart) && m.settings.locks(c) { // otherwise its group is locked
		held.lock = m.deadlines.grant(m.settings.lock(c), !c.lockHead || c.held.Len() == 0)
	}
	*c.held.Add(key{Seq: id}) = held
	m.consumers.holds(c, 1)
	m.deadlines.watch(&held, x.seq, holding{c, id})
	if c.numbered {
		m.deadlines.number(x.seq, holding{c, id})
	}
	return id, held.lock
}

// deliver appends delivery id of message h, which c holds, to the effects. lock is
// its lock; 0: it has none. The caller may change the result, which is good until
// the next delivery.
//
// Deaths are shared with the record, which replaces them and never changes them.
// Ready is left at 0: only gets have it.
func (m *Machine) deliver(c *consumer, id uint64, h, lock uint32, eff *fsm.Effects) *fsm.Delivery {
	eff.Deliveries = append(eff.Deliveries, fsm.Delivery{})
	d, x := &eff.Deliveries[len(eff.Deliveries)-1], m.messages.Get(h)
	d.To, d.ID, d.Ref, d.Acquired, d.Failed, d.ExpireAt = c.id, id, x.ref(), x.acquired, x.failed, x.expireAt
	d.EnqueuedAt = m.messages.enqueuedAt(h)
	if c.link.on || c.numbered {
		d.Sequence = x.seq
	}
	d.LockedUntil = m.clock.heldUntil(m.deadlines.unlocks(lock))
	if x.info != 0 {
		if g := m.groupOf(h); g != nil && g.heldBy(c) {
			d.LockedUntil = max(d.LockedUntil, m.clock.heldUntil(g.hold.until)) // it has only one of them
		}
		d.Annotations, d.Edit = fsm.AnnotationMap(m.messages.extra(h).annotations), fsm.EditOf(m.messages.extra(h).annotations)
		d.Deaths, d.ScheduledFor = m.messages.extra(h).deaths, m.messages.scheduleInfo(h).scheduledFor
	}
	if d.LockedUntil != 0 {
		d.LockRemaining = fsm.Millis(max(d.LockedUntil-m.clock.now(), 0))
	}
	return d
}

// lift removes messages that nobody holds any more from the counts of held
// messages. They are then in no place.
//
// Requires: each is CheckedOut and in no held. Ensures: place 0, seq is set, and
// no timeout and no lock is left. The caller frees each of them, or gives it a place.
func (m *Machine) lift(taken []checkout) {
	for i := range taken {
		held := &taken[i]
		x := m.messages.Mut(held.handle)
		held.seq = x.seq
		m.messages.setPlace(held.handle, x, 0)
		if x.info != 0 {
			if e := m.messages.extra(held.handle); !m.uniques.survived(e) && e.unique != (messageID{}) {
				m.uniques.lifted(m.messages.editExtra(held.handle))
			}
			if g := m.groupOf(held.handle); g != nil {
				m.groups.addOut(g, -1)
			}
		}
		m.deadlines.release(&held.grip, held.seq)
	}
}

// get takes one message for a session. With no-ack it is settled at once. The
// queue is reported empty only if it has nothing, not if the command reached
// its bounds before it could tell.
//
// Every get counts as a use of the queue, even an empty one, if its session is
// known and gets are allowed. Empty is a promise: at this entry nothing was
// ready, due to become ready, or on its way back, or the queue was paused.
//
// Ensures: at most one delivery, whose id is in scratch.delivered, so that
// session.record can answer a repetition with the same message.
func (m *Machine) get(s *session, cmd *logpb.Get, eff *fsm.Effects) fsm.Result {
	if m.settings.SingleActive && !m.settings.Classic {
		return fsm.Result{Code: fsm.Reserved}
	}
	if m.settings.forwards() {
		return fsm.Result{Code: fsm.Forwards}
	}
	m.lease.use()
	if m.sessions.isEnding() {
		return fsm.Result{Code: fsm.NotYet} // something older may be about to come back
	}
	if m.paused() {
		return fsm.Result{Code: fsm.Empty}
	}
	c := s.consumer(0)
	h, _ := m.unexpired(eff, func() uint32 { return m.nextForGet(c) }, m.mayGive)
	switch {
	case h == 0 && (m.timers.overdue(m.clock.now()) || m.nextForGet(c) != 0 || m.groups.doomed() != 0 || m.unfinished()):
		return fsm.Result{Code: fsm.NotYet} // there may be something behind what the command could not do
	case h == 0:
		return fsm.Result{Code: fsm.Empty}
	case c == nil && m.consumers.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = m.consumers.register(s, 0)
	}
	m.sessions.renewSuspicion(s)
	id, lock := m.checkOut(h, c)
	d := m.deliver(c, id, h, lock, eff)
	d.Ready = m.messages.readyCount()
	m.scratch.delivered = id
	if cmd.GetNoAck() {
		d.LockedUntil, d.LockRemaining = 0, 0
		m.scratch.taken = m.scratch.taken[:0]
		m.consumers.take(c, id, id)
		m.renewGroups(c, nil)
		m.ack(m.scratch.taken, eff)
		m.scratch.taken = m.scratch.taken[:0]
	}
	return fsm.Result{Count: d.Ready}
}

// repeat answers a command that has been performed before. A get whose message
// is still held returns it again.
//
// Requires: 1 ≤ cmd.Seq < s.next. It changes nothing.
// A command other than the last synchronous one is answered OK or Rejected, without
// numbers: publishes have no others, and of an earlier synchronous call the
// session has had the answer, or it would not have sent a later one.
func (m *Machine) repeat(s *session, cmd *logpb.Command, eff *fsm.Effects) fsm.Result {
	if cmd.Seq != s.last.seq {
		if s.wasRefused(cmd.Seq) {
			return fsm.Result{Code: fsm.Rejected}
		}
		return fsm.Result{}
	}
	if c := s.consumer(0); c != nil && s.last.delivery != 0 {
		first, n := s.last.delivery, uint64(1)
		if cmd.Kind == logpb.Command_RECEIVE_DEFERRED {
			n = s.last.count
		}
		for id := first; id < first+n; id++ {
			if held, ok := c.held.find(id); ok {
				m.deliver(c, id, held.handle, held.lock, eff).Ready = s.last.count
			}
		}
	}
	r := fsm.Result{Code: s.last.code, Count: s.last.count, Consumers: s.last.consumers, Next: s.last.next}
	if cmd.Kind == logpb.Command_GROUP && r.Code == fsm.OK {
		m.groups.describe(cmd.Group, &r)
	}
	return r
}

// expireNext expires the earliest due message. It returns false if there is
// none or the budget is spent.
//
// Ensures: if it is true, one expiry and one unit of the budget less; otherwise
// nothing has changed. scratch.fresh cannot expire here: it is not in timers yet.
func (m *Machine) expireNext(eff *fsm.Effects) bool {
	if m.scratch.budget == 0 {
		return false
	}
	if h := m.groups.doomed(); h != 0 {
		m.scratch.budget--
		m.leaveWaiting(h)
		m.outbox.die(h, m.groupDeath(h), eff)
		return true
	}
	k, h, ok := m.timers.expiry()
	if !ok || k.At > m.clock.now() {
		return false
	}
	m.scratch.budget--
	m.expire(h, eff)
	return true
}

// nextDelivery returns the message to hand out next, and to whom; 0: none. It expires due
// messages that are in the way, and gives up when the command may expire no more.
//
// Ensures: the result is still in its list, and not due unless it is
// scratch.fresh. It may expire others although nobody is served in the end, up
// to scratch.budget; what has expired is in eff.
func (m *Machine) nextDelivery(eff *fsm.Effects) (uint32, *consumer) {
	for {
		m.consumers.passOver()
		h, c := m.candidate()
		if h == 0 || m.mayGive(h) {
			return h, c
		}
		if !m.expireNext(eff) {
			return 0, nil
		}
	}
}

// mayGive reports whether message h, which is next, may be handed out. While anything is due that
// would end its group, nobody gets the group: the hold would cover what is due.
func (m *Machine) mayGive(h uint32) bool {
	if !m.mayGo(h) {
		return false
	}
	g := m.groupOf(h)
	if g == nil || g.hold != nil || !m.settings.GroupExpiry {
		return true
	}
	first, _, ok := m.timers.expiry()
	return (!ok || first.At > m.clock.now()) && !m.timers.overdue(m.clock.now())
}

// candidate returns the message to hand out next, due or not, and to whom: the
// older one of those that are of no group and those of groups. 0: there is none, or
// more is to be passed over. Nothing of a group is handed out while something is on its
// way back, which may be an older message of the group.
func (m *Machine) candidate() (h uint32, c *consumer) {
	if least, ok := m.consumers.leastServed(); ok {
		if h = m.cursors.first(least, m.messages); h != 0 {
			c = m.consumers.nextServed(h)
		}
	}
	if !m.groups.servesAny() || m.returnings.any() {
		return h, c
	}
	if g, t := m.groups.nextServed(); h == 0 || g.listed < m.messages.Get(h).seq {
		return m.groups.first(g), t.c
	}
	return h, c
}

// unexpired returns the message that next finds, once it may go; 0: there is none. It
// expires due messages that are in the way; ok is false if the command may expire no more.
func (m *Machine) unexpired(eff *fsm.Effects, next func() uint32, mayGo func(uint32) bool) (h uint32, ok bool) {
	for {
		if h = next(); h == 0 || mayGo(h) {
			return h, true
		}
		if !m.expireNext(eff) {
			return 0, false
		}
	}
}

// oldestReady returns the message that a queue drops that is too long, due or not, whoever holds
// its group; 0: nothing is ready.
func (m *Machine) oldestReady() uint32 {
	h := m.messages.nextReady()
	if g := m.groups.oldest(); g != 0 && (h == 0 || m.messages.Get(g).seq < m.messages.Get(h).seq) {
		return g
	}
	return h
}

// holders iterates over all tables of deliveries: by consumer, what is on its way back, and
// by detached consumer.
func (m *Machine) holders() iter.Seq2[fsm.ConsumerID, *held] {
	return func(yield func(fsm.ConsumerID, *held) bool) {
		for c := range m.consumers.from(0) {
			if !yield(c.id, &c.held) {
				return
			}
		}
		for r := range m.returnings.all() {
			if !yield(r.of, &r.held) {
				return
			}
		}
		for c := range m.detached.list() {
			if !yield(c.id, &c.held) {
				return
			}
		}
	}
}

// restoreHeld gives message h, which is checked out, to its holder: a consumer, an
// entry of what is on its way back, or a detached consumer, numbered in this
// order.
//
// Requires: consumers and restoreHead have been restored, and messages of one
// holder come by ascending delivery. A queue that is not whole has no timers.
func (m *Machine) restoreHeld(st *logpb.MessageState, h uint32) error {
	var into *held
	var c *consumer
	if n := m.consumers.len(); uint64(st.Consumer) < uint64(n) {
		c = m.consumers.at(int(st.Consumer))
		into = &c.held
	} else {
		into, c = m.returnings.restoring(uint64(st.Consumer) - uint64(n))
	}
	if into == nil {
		return fmt.Errorf("%w: message %d has no holder", ErrSnapshot, st.Seq)
	}
	if into.Len() > 0 {
		if last, _ := into.Last(); last.Seq >= st.Delivery {
			return fmt.Errorf("%w: deliveries are out of order", ErrSnapshot)
		}
	}
	held := grip{deadline: fsm.Time(st.Deadline), limit: fsm.Millis(st.Limit), since: fsm.Time(st.Since), handle: h}
	var err error
	if st.Deferral != "" {
		m.aside.mark(h, st.Deferral)
	}
	if m.lease.isWhole() {
		err = m.deadlines.restore(st, &held, holding{c, st.Delivery})
		if c != nil && c.numbered {
			m.deadlines.number(st.Seq, holding{c, st.Delivery})
		}
	}
	into.push(checkout{id: st.Delivery, grip: held})
	if c != nil {
		m.consumers.holds(c, 1)
	}
	if !m.lease.isWhole() || err != nil {
		return err
	}
	if g := m.groupOf(h); g != nil {
		m.setGroup(h, m.groups.restoreOut(g, c, st.Delivery))
	}
	return nil
}

func (m *Machine) checkDeliveries(k *checker) {
	numbered, on := 0, 0
	for r := range m.returnings.all() {
		on += r.held.Len()
		if r.held.Len() == 0 {
			k.fail("nothing of %v is on its way", r.of)
			return
		}
		m.checkHeld(k, r.of, ^uint64(0), &r.held, nil)
		k.that(m.returnings.at(r) == r && m.consumers.passed(r.order) && (r.order != 0 || r.outcome == 0 && r.due == 0) && r.due >= 0, "what %v held is on its way in the wrong place", r.of)
	}
	for c := range m.consumers.from(0) {
		m.checkHeld(k, c.id, c.next, &c.held, c.late)
		m.checkOldest(k, c)
		numbered += m.checkNumbered(k, c)
	}
	for c := range m.detached.list() {
		m.checkHeld(k, c.id, c.next, &c.held, nil)
		m.checkOldest(k, c)
		numbered += m.checkNumbered(k, c)
	}
	m.deadlines.checkNumbers(k, numbered, on)
}

// checkOldest checks that the lock of the oldest delivery of c runs.
func (m *Machine) checkOldest(k *checker, c *consumer) {
	for held := range c.held.from(0) {
		k.that(held.lock == 0 || !m.lease.isWhole() || m.deadlines.runs(held.lock), "consumer %v: the lock of delivery %d does not run", c.id, held.id)
		break
	}
	for _, id := range c.lockLost {
		_, held := c.held.find(id)
		k.that(!held, "consumer %v: delivery %d is held without lock", c.id, id)
	}
}

func (m *Machine) checkHeld(k *checker, of fsm.ConsumerID, next uint64, all *held, lates []lateness) {
	n, last := 0, uint64(0)
	for held := range all.from(0) {
		if k.err != nil {
			return
		}
		m.messages.checkOne(k, held.handle, CheckedOut)
		_, late := slices.BinarySearchFunc(lates, held.id, compareLate)
		switch {
		case held.id <= last || held.id >= next:
			k.fail("consumer %v: delivery %d of %d", of, held.id, next)
		case held.deadline < 0 || held.limit < 0 || held.since > m.clock.atOnce():
			k.fail("consumer %v: delivery %d has a wrong deadline", of, held.id)
		case late:
			k.fail("consumer %v: delivery %d is held and was taken back", of, held.id)
		}
		last = held.id
		n++
		if m.lease.isWhole() {
			m.deadlines.checkOne(k, &held.grip, m.messages.Get(held.handle).seq, held.id)
		}
	}
	k.that(n == all.Len(), "consumer %v holds %d, counted %d", of, n, all.Len())
}

// grip is the record of one message held by a consumer. Its deadline is fixed
// when it is handed out, and moves when it is renewed: later settings do not
// affect it. limit ≠ 0 ⇐ deadline ≠ 0.
type grip struct {
	// Invariant: 0 ≤ deadline, 0 ≤ limit. The command that handed the message out
	// has computed all three; a snapshot holds them.
	deadline fsm.Time   // of the consumer timeout, see clock.heldUntil; 0: never
	limit    fsm.Millis // the timeout behind deadline
	since    fsm.Time   // when it was handed out; 0: not known
	// In the arena of messages. The handle is valid as long as the message is held.
	handle uint32
	lock   uint32 // handle in locks; 0: it has none
}

// checkout is one delivery that a consumer holds or held. Its seq is known only
// after the message was lifted, see Machine.lift. It is a copy: changing it
// changes nothing of what is held.
type checkout struct {
	// 1 ≤ id < consumer.next: the number of the delivery.
	id uint64
	grip
	seq    uint64 // of the message, see Machine.lift
	by     uint32 // who held it, see scratch.holder; 0: not noted
	failed bool   // it goes back as failed; set when it does
	// Its lock has ended: a Retry of failures alone does not delay it, even if that
	// counts as one.
	lapsed bool
}

// lateness is a delivery that was taken back from a consumer. The message has a
// place of its own again, so there is no handle: all that is left is the id
// that the consumer may still settle.
type lateness struct {
	id    uint64
	since fsm.Time   // when it was handed out; 0: not known
	limit fsm.Millis // its timeout; 0: not known
}

func compareLate(l lateness, id uint64) int { return cmp.Compare(l.id, id) }

// describeLate returns the ids of late deliveries, at least one, their smallest limit, and for
// how long the oldest has been held, if that is known.
func describeLate(late []lateness, now fsm.Time) (ids []uint64, limit, held fsm.Millis) {
	ids, limit = make([]uint64, len(late)), late[0].limit
	for i, l := range late {
		ids[i], limit = l.id, min(limit, l.limit)
		if l.since != 0 {
			held = max(held, fsm.Millis(now-l.since))
		}
	}
	return ids, limit, held
}

// held is what a consumer holds, ascending by delivery id.
//
// Keys have at = 0 and seq = id. It is shared with snapshots by block, so a
// million deliveries freeze in the time of their table of blocks.
type held struct{ sorted[grip] }

func (d *held) push(c checkout) { d.Put(key{Seq: c.id}, c.grip) }

func (d *held) find(id uint64) (checkout, bool) {
	if g := d.Get(key{Seq: id}); g != nil {
		return checkout{id: id, grip: *g}, true
	}
	return checkout{}, false
}

// take removes the checkouts first … last and appends them to dst. Ids that are
// not there are left out. O(log n + what is taken).
func (d *held) take(first, last uint64, dst []checkout) []checkout {
	d.Cut(key{Seq: first}, key{Seq: last}, func(k key, g grip) { dst = append(dst, checkout{id: k.Seq, grip: g}) })
	return dst
}

func (d *held) takeFirst(dst []checkout) []checkout {
	k, _ := d.First()
	g, _ := d.Remove(k)
	return append(dst, checkout{id: k.Seq, grip: g})
}

func (d *held) from(id uint64) iter.Seq[checkout] {
	return func(yield func(checkout) bool) {
		for k, g := range d.sorted.From(key{Seq: id}) {
			if !yield(checkout{id: k.Seq, grip: *g}) {
				return
			}
		}
	}
}

// within appends what is held of some ranges to dst, which is empty, but no more
// than limit. next is the first delivery that is left out; 0: there is none.
func (d *held) within(ranges []uint64, limit int, dst []checkout) (_ []checkout, next uint64) {
	for ; len(ranges) > 0; ranges = ranges[2:] {
		first, last, ok := span(ranges)
		if !ok {
			continue
		}
		for held := range d.from(first) {
			if held.id > last {
				break
			}
			if len(dst) == limit {
				return dst, held.id
			}
			dst = append(dst, held)
		}
	}
	return dst, 0
}

func span(ranges []uint64) (first, last uint64, ok bool) {
	first, length := ranges[0], ranges[1]
	if last = first + length - 1; last < first {
		last = ^uint64(0)
	}
	return first, last, length != 0
}
