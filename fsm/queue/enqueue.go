package queue

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// enqueue takes in one message, for now or for later, unless it is a duplicate
// of one that was taken in, or its key has a message: then the answer is OK and
// nothing else happens. A dead letter with such a key is refused, so that its source
// decides what becomes of it.
//
// A message that replaces a scheduled one is none: that is a request about the
// message that is there. What was not taken in is not remembered, so that it may be
// published again: what is refused and, from version 3 on, what is ignored.
func (m *Machine) enqueue(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if !isPublish(cmd) || cmd.SendTo != 0 && m.since(3) {
		return fsm.Invalid
	}
	if cmd.Restored != nil {
		return m.takeRestored(meta, cmd, eff)
	}
	if !cmd.Routed || m.settings.IdleCountsRouted {
		m.lease.touch()
	}
	var replaced uint32
	if cmd.ScheduleId != "" && cmd.Conflict == logpb.Enqueue_REPLACE {
		replaced = m.pending(cmd.ScheduleId, 0)
	}
	var first uint32
	if m.settings.Unique {
		first = m.withKey(m.uniqueKey(cmd))
	}
	asks := m.seen.asks(cmd)
	switch isSecond := first != 0 && first != replaced; {
	case isSecond && len(cmd.Deaths) > 0:
		return m.reject(eff)
	case isSecond, asks && replaced == 0 && m.seen.has(cmd):
		m.counters.SameID++
		m.entries.refuse(eff)
		return fsm.OK
	}
	enqueued := m.counters.Enqueued
	code := m.takeIn(meta, cmd, eff)
	if asks && code == fsm.OK && (m.counters.Enqueued > enqueued || !m.since(3)) {
		m.seen.note(cmd)
	}
	return code
}

// takeIn takes in one message, for now or for later. With TTL 0 it is offered
// to consumers with credit, and expires here if none takes it. A message that
// does not fit into the queue is refused, unless a consumer takes it at once.
//
// Which way a message goes:
//
//	no group, but one is required         refused
//	the queue takes none                  refused
//	due later, or a delayed exchange      enqueueLater: Scheduled
//	TTL passed on its way                 dies, as if it had been ready
//	queue full, nobody has credit         refused, without a record
//	TTL 0                                 offered; dies unless handed out
//	queue full, somebody has credit       offered; refused unless handed out
//	any other                             Ready or Grouped; it waits for the end of the command
//
// A message with a TTL is offered at once, too, so that most are never watched. But
// not while something is on its way back, since that is older.
//
// Requires: cmd.Head ≤ headMask, because the record has 14 bits for it.
// Ensures: OK means that the message was taken in, even if it has died already;
// Rejected that it is in no place.
func (m *Machine) takeIn(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if cmd.GroupId == "" && m.settings.GroupRequired && m.settings.grouped() || m.settings.RefusePublishes {
		return m.reject(eff)
	}
	due := m.dueAt(cmd.DueAt, cmd.DelayPlusOne, m.settings.DeliveryDelay)
	if due > m.clock.now() || m.settings.DelayedStore {
		return m.enqueueLater(meta, cmd, max(due, m.clock.now(), 1), eff)
	}
	ttl := m.settings.messageTTL(cmd.TtlPlusOne, cmd.TtlCeilingPlusOne)
	if ttl.Given && ttl.Value > 0 && cmd.TtlFrom > 0 && m.expiry(cmd.TtlFrom, ttl.Value) <= m.clock.now() {
		h := m.store(meta, cmd, due, eff) // it has expired on its way
		m.counters.Enqueued++
		m.outbox.die(h, logpb.Death_EXPIRED, eff)
		return fsm.OK
	}
	now := ttl.Given && ttl.Value == 0
	full := !now && m.full(cmd, 0)
	if full && (m.settings.forwards() || !m.consumers.anyServed() && (cmd.GroupId == "" || !m.takers.claimed())) {
		return m.refuse(meta, cmd, eff)
	}
	h := m.store(meta, cmd, due, eff)
	if ttl.Given {
		m.messages.Mut(h).expireAt = m.expiry(cmd.TtlFrom, ttl.Value)
	}
	var before emptiness
	if full {
		before = m.groups.emptiness(cmd.GroupId)
	}
	m.messages.put(h, m.placeOf(h))
	early := m.settings.DeadlineOrder && !now // m is found by its expiry
	if early {
		m.messages.watch(h)
	}
	if now || full || ttl.Given && !m.unfinished() { // what is on its way back goes first
		m.offer(h, now, eff)
	}
	if full && !m.stays(h, cmd, eff) {
		m.groups.emptyAgain(cmd.GroupId, before)
		return m.refuse(meta, cmd, eff)
	}
	if !early && m.messages.Get(h).ready() {
		m.messages.watch(h) // no other message needs m
	}
	m.counters.Enqueued++
	return fsm.OK
}

// offer assigns ready messages, with message h among them. If now is set, h
// expires unless it is taken.
//
// Requires: h is ready and not watched. Ensures: if now, h is not ready, unless its
// group is held or ends. Its record
// may be free then, and is zero: its place is 0.
func (m *Machine) offer(h uint32, now bool, eff *fsm.Effects) {
	if now {
		m.scratch.fresh = h
	}
	m.forward(eff)
	m.assign(eff)
	m.scratch.fresh = 0
	if now && m.messages.Get(h).ready() {
		m.expire(h, eff)
	}
}

// stays reports whether message h, which has come to a full queue, was taken or may stay, in what
// the limits say without it. Otherwise it is removed without a trace.
func (m *Machine) stays(h uint32, cmd *logpb.Enqueue, eff *fsm.Effects) bool {
	if !m.messages.Get(h).ready() {
		return true
	}
	m.messages.remove(h)
	if m.full(cmd, 0) {
		m.messages.free(h, eff)
		return false
	}
	m.messages.put(h, m.placeOf(h)) // m was the last one
	if m.settings.DeadlineOrder {
		m.messages.watch(h)
	}
	return true
}

// store makes a record of a message, in no place and without an expiry.
//
// Requires: cmd was validated by enqueue. due is when it was to become ready; 0: as
// the command says, which may have been scheduled in another queue. Deaths are
// copied, since a machine keeps nothing of a command.
func (m *Machine) store(meta *fsm.Meta, cmd *logpb.Enqueue, due fsm.Time, eff *fsm.Effects) uint32 {
	head := uint16(cmd.Head)
	if cmd.HasExpiration {
		head |= expirationBit
	}
	h := m.messages.add(fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size}, head, m.settings.priority(cmd.PriorityPlusOne), cmd.Tally, eff)
	if m.settings.ends > 0 && (cmd.MessageId != "" || cmd.CorrelationId != "") {
		m.messages.setLabel(h, cmd.MessageId, cmd.CorrelationId)
	}
	if cmd.GroupId != "" && m.settings.grouped() {
		m.setGroup(h, m.groups.find(strings.Clone(cmd.GroupId)))
	}
	if cmd.Hops > 0 {
		m.messages.setHops(h, cmd.Hops)
	}
	if m.settings.Unique {
		if key := m.uniqueKey(cmd); key != (messageID{}) && m.uniques.find(key) == 0 { // what a backup brings back may be the second one
			m.uniques.give(h, m.messages.editExtra(h), key)
		}
	}
	if len(cmd.Deaths) > 0 {
		m.messages.editExtra(h).deaths = m.outbox.copyDeaths(cmd.Deaths)
	}
	if annotations := annotationsAt(m.shared, cmd); annotations != nil {
		m.messages.setAnnotations(h, annotations)
	}
	if due == 0 {
		due = fsm.Time(max(cmd.ScheduledFor, 0))
	}
	if due != 0 {
		m.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due})
	}
	return h
}

// kept is what counts in the limits and is never dropped to satisfy them:
// scheduled and deferred messages, states of groups, and letters that are delivered
// at least once. O(1), as all sums here are: counts are kept by place.
func (m *Machine) kept() Count {
	return m.messages.count(Scheduled).plus(m.messages.count(Deferred)).plus(m.outbox.counted()).plus(Count{Bytes: m.groups.stateBytes()})
}

func (m *Machine) counted() Count {
	return m.kept().plus(m.messages.count(Ready)).plus(m.messages.count(Returned)).plus(m.messages.count(Grouped)).plus(m.messages.count(Delayed)).plus(m.messages.count(Parked))
}

// full reports whether there is no space for one more message, which replaces
// scheduled message old if that is not 0. A queue that drops is full if the
// message would fit were it not for what cannot be dropped. A message that does
// not fit by itself never makes a queue that drops full: it is taken in and
// dropped by trim.
func (m *Machine) full(cmd *logpb.Enqueue, old uint32) bool {
	return m.settings.limited() && !m.scratch.fits && m.fullFor(m.sizeOf(cmd), old)
}

// sizeOf is what a message counts that is to be taken in.
func (s *shared) sizeOf(cmd *logpb.Enqueue) Count {
	size := Count{1, uint64(cmd.Size - cmd.Head)}
	if s.since(3) && len(cmd.Annotations) > 0 {
		size.Bytes += uint64(len(fsm.EditOf(annotationsAt(s, cmd))))
	}
	return size
}

// fullFor is full for messages of this size.
func (m *Machine) fullFor(size Count, old uint32) bool {
	if !m.settings.limited() {
		return false
	}
	kept, all := m.kept(), m.counted()
	if old != 0 {
		less := m.messages.weight(old)
		kept.sub(less)
		all.sub(less)
	}
	if m.settings.Overflow != logpb.QueueConfig_DROP_HEAD {
		return !m.settings.fits(all.plus(size))
	}
	return kept != (Count{}) && m.settings.fits(size) && !m.settings.fits(kept.plus(size))
}

// refuse answers a message that is refused because the queue is full.
//
// A transfer that its source keeps has not been published, and goes nowhere: the source
// offers it again. Versions before 3 dead-letter it each time.
//
// Requires: the message has no record. With reject-publish-dlx it is dead-lettered
// as an effect, by its position in the entry; the entry is released with it, but
// payloads of DeadLetters are read before.
func (m *Machine) refuse(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if m.settings.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX && m.settings.DeadLetter && !(cmd.Kept && m.since(3)) {
		m.counters.Deaths[logpb.Death_MAXLEN-1][SentOnce]++
		m.ends.refused(meta, cmd, m.outbox.nextLetter())
		deaths := m.outbox.addDeath(m.outbox.copyDeaths(cmd.Deaths), logpb.Death_MAXLEN, 0)
		eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{
			Ref:    fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size},
			Reason: logpb.Death_MAXLEN, DiedAt: m.clock.now(), Priority: m.settings.priority(cmd.PriorityPlusOne),
			ScheduledFor: fsm.Time(cmd.ScheduledFor), HasExpiration: cmd.HasExpiration, Fresh: deaths[0].Count == 1, Deaths: deaths,
			Annotations: annotationsAt(m.shared, cmd),
		})
	}
	return m.reject(eff)
}

func (m *Machine) reject(eff *fsm.Effects) fsm.Code {
	m.counters.Refused++
	m.entries.refuse(eff)
	return fsm.Rejected
}

func (m *Machine) tooLong() bool {
	return m.settings.dropsHead() &&
		m.messages.readyCount()+m.messages.count(Delayed).Messages+m.messages.count(Parked).Messages > 0 && !m.settings.fits(m.counted())
}

// trim drops parked messages while the queue is too long, those that were parked
// first, since nobody is going to be handed them; then what would be handed out next,
// and when nothing is ready, the longest delayed message. Due messages that are in
// the way expire first. If there is more to do than one command may, the next
// Tick continues.
//
// It runs after assignment: what a consumer takes at once needs no space. Ensures:
// the queue is within its limits, or tooLong makes NextDue be at once.
func (m *Machine) trim(eff *fsm.Effects) {
	for n := m.bounds.Drops; n > 0 && m.tooLong(); n-- {
		h, ok := m.unexpired(eff, m.oldestReady, func(h uint32) bool { return m.mayGo(h) && !m.doomed(h) })
		switch {
		case !ok:
			return
		case !m.tooLong():
		case m.messages.head(parkedList) != 0:
			m.endWaiting(m.messages.head(parkedList), logpb.Death_MAXLEN, eff)
		case h == 0:
			m.endWaiting(m.messages.head(delayedList), logpb.Death_MAXLEN, eff)
		default:
			m.messages.remove(h)
			m.outbox.die(h, logpb.Death_MAXLEN, eff)
		}
	}
}

// purge removes what nobody holds, and letters that have no destination. Nothing is dead-lettered.
// O(1) for the messages themselves, see messages.discardList.
func (m *Machine) purge() fsm.Result {
	n := m.messages.readyCount() + m.messages.count(Waiting).Messages
	for _, in := range [...]Place{Scheduled, Delayed, Deferred, Parked} {
		n += m.messages.count(in).Messages
	}
	m.counters.Purged += n
	m.counters.Unscheduled += m.messages.count(Scheduled).Messages
	m.ends.several(n, logpb.EndState_PURGED, m.outbox.nextLetter())
	m.dropReady()
	m.outbox.purge()
	return fsm.Result{Count: n}
}

// dropReady removes all messages that are ready, scheduled, set aside or parked. When the
// last scheduled or delayed message goes, the queue counts as active until now.
func (m *Machine) dropReady() {
	if m.lease.expectant() {
		m.lease.touch()
	}
	m.messages.dropReady()
	m.aside.clear()
}

// sweep releases purged messages and forgets ids, as many as one command of this kind may.
func (m *Machine) sweep(kind logpb.Command_Kind, eff *fsm.Effects) {
	n := m.bounds.Before
	if kind == logpb.Command_TICK || kind == logpb.Command_PURGE {
		n = m.bounds.Sweep
	}
	if m.lease.phase() != Active {
		return
	}
	if m.messages.head(purgedList) != 0 {
		m.messages.sweep(n, eff)
	}
	if m.seen.len() > 0 {
		m.seen.forget(n)
	}
}

const (
	// maxSeen bounds the ids that a queue remembers. Beyond it the oldest is
	// forgotten early.
	maxSeen = 1 << 20

	// forgetLate is how long an id may be remembered beyond the window, so that
	// one tick forgets many. It has no effect on what is a duplicate.
	forgetLate fsm.Millis = 1000
)

// messageID is the start of the SHA-256 of what a publisher calls a message: ids
// of any length cost the same, and nobody can make two that meet.
type messageID [16]byte

// seen are the ids of the messages that have been taken in within the window
// against duplicates.
//
// Invariants:
//
//	order has, for each id of ids, that id at its key; and nothing else
//	the keys of order are (when the message was taken in, count), and ascend
//	all of it is empty if the settings have no window
//	since is at most 1 after the clock, and never falls while there is a window
//
// An id is remembered whatever becomes of its message, and forgotten by time alone
// (forget), or if there are too many. ids is never iterated, so the order of a map
// cannot reach the state. A snapshot has order, without the counts.
type seen struct {
	*shared

	ids   map[messageID]key
	order sorted[messageID]
	count uint64 // of ids so far; keys with equal instants differ by it
	// since is when the first message was taken in that can have a duplicate: those
	// before it were outside of a window that was shorter.
	since fsm.Time
}

func (s *seen) clear() { *s = seen{shared: s.shared} }

// configured is called when the settings have changed, with the window before. An
// id that was outside of it remains so, forgotten or not.
func (s *seen) configured(before fsm.Millis) {
	switch {
	case s.settings.dedup == 0:
		s.clear()
	case before != 0 && before < s.settings.dedup:
		s.since = max(s.since, s.clock.now()-fsm.Time(before)+1)
	}
}

// within reports whether a message that was taken in at an instant may have a
// duplicate: it has been within the window ever since.
func (s *seen) within(at fsm.Time) bool {
	return at >= s.since && at.Add(s.settings.dedup) > s.clock.now()
}

// asks reports whether a message may be a duplicate: it has an id, and has not died before, which
// makes it no second message.
func (s *seen) asks(cmd *logpb.Enqueue) bool {
	return s.settings.dedup != 0 && cmd.MessageId != "" && len(cmd.Deaths) == 0
}

// has reports whether a message with the same id was taken in within the window. asks must hold,
// as for note.
func (s *seen) has(cmd *logpb.Enqueue) bool {
	k, ok := s.ids[hashOf(cmd.MessageId)]
	return ok && s.within(k.At)
}

func (s *seen) note(cmd *logpb.Enqueue) { s.add(hashOf(cmd.MessageId), s.clock.now()) }

func (s *seen) add(id messageID, at fsm.Time) {
	if k, ok := s.ids[id]; ok {
		s.order.Remove(k)
	} else if s.order.Len() >= max(s.bounds.IDs, 1) {
		if first, _ := s.order.First(); s.within(first.At) {
			s.counters.IDsForgotten++
		}
		s.forgetFirst()
	}
	s.put(id, at)
}

func (s *seen) put(id messageID, at fsm.Time) {
	if s.ids == nil {
		s.ids = map[messageID]key{}
	}
	s.count++
	k := key{At: at, Seq: s.count}
	s.ids[id] = k
	s.order.Put(k, id)
}

func hashOf(id string) messageID {
	sum := sha256.Sum256([]byte(id))
	return messageID(sum[:16])
}

func (s *seen) forgetFirst() {
	k, id := s.order.First()
	delete(s.ids, *id)
	s.order.Remove(k)
}

func (s *seen) forget(n int) {
	for ; n > 0 && s.order.Len() > 0; n-- {
		if k, _ := s.order.First(); s.within(k.At) {
			break
		}
		s.forgetFirst()
	}
}

// due is when a tick should forget ids; 0: there are none.
func (s *seen) due() fsm.Time {
	if s.order.Len() == 0 {
		return 0
	}
	k, _ := s.order.First()
	if k.At < s.since {
		return s.clock.atOnce() // this window says nothing of it
	}
	return max(k.At.Add(s.settings.dedup).Add(forgetLate), 1)
}

func (s *seen) len() int { return s.order.Len() }

func (s *seen) capture(keep bool) sorted[messageID] { return s.order.Capture(keep) }

// saveSeen writes ids to a snapshot's head: the ids, one after the other, and the
// time of each since the one before.
func saveSeen(order *sorted[messageID], h *logpb.QueueSnapshot) {
	last := fsm.Time(0)
	h.SeenIds = make([]byte, 0, order.Len()*len(messageID{}))
	h.SeenAfter = make([]uint64, 0, order.Len())
	for k, id := range order.All() {
		h.SeenIds = append(h.SeenIds, id[:]...)
		h.SeenAfter = append(h.SeenAfter, uint64(k.At-last))
		last = k.At
	}
}

func (s *seen) save(h *logpb.QueueSnapshot) { h.SeenSince = int64(s.since) }

// restore is the inverse of save and saveSeen. Requires: the settings are restored.
func (s *seen) restore(h *logpb.QueueSnapshot) error {
	at, rest := fsm.Time(0), h.SeenIds
	s.since = fsm.Time(h.SeenSince)
	for _, after := range h.SeenAfter {
		if len(rest) < len(messageID{}) || after > uint64(fsm.MaxTime-at) {
			return fmt.Errorf("%w: an id is missing", ErrSnapshot)
		}
		at += fsm.Time(after)
		id := messageID(rest)
		if _, twice := s.ids[id]; twice {
			return fmt.Errorf("%w: an id twice", ErrSnapshot)
		}
		rest = rest[len(messageID{}):]
		s.put(id, at)
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: an id has no time", ErrSnapshot)
	}
	return nil
}

func (s *seen) check(k *checker) {
	k.that(len(s.ids) == s.order.Len(), "%d ids in one table, %d in the other", len(s.ids), s.order.Len())
	k.that(s.order.Len() == 0 && s.since == 0 || s.settings.dedup != 0, "ids without a window")
	k.that(0 <= s.since && s.since <= s.clock.now().Add(1), "ids count since %v", s.since)
	for at, id := range s.order.All() {
		if s.ids[*id] != at || at.Seq > s.count || at.At > s.clock.now() {
			k.fail("an id is remembered at %v, found at %v", at, s.ids[*id])
			return
		}
	}
}
