package queue

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// snapshotVersion is the version of the encoding as such. Later versions of the
// machine add fields instead, see Machine.Version.
const snapshotVersion = 2

// Snapshot is the state of a machine at one moment. It does not change, and its
// methods may be called from any goroutine, one at a time.
//
// It shares memory with the machine and holds no payloads, so it may be written
// while entries are applied. It keeps the frozen pieces alive: drop it when it
// is written.
type Snapshot struct {
	head      *logpb.QueueSnapshot   // without sessions and consumers, until complete
	parts     []*logpb.QueueSnapshot // more of it
	completed bool
	sessions  []session      // ascending
	consumers []consumer     // by age
	held      []sorted[grip] // by consumer, then what is on its way back, then by detached consumer
	messages  frozen
	ends      deque[end]
	locks     frozenLocks
	seen      sorted[messageID]
}

// Snapshot returns the current state. It is cheap: large structures are shared,
// and copied in pieces when the machine changes them. The first write to each
// piece after it costs a copy of that piece. Requires: all commands of the last
// entry were applied.
func (m *Machine) Snapshot() *Snapshot {
	s := m.view()
	s.messages = m.messages.freeze()
	s.ends = m.ends.freeze()
	s.seen = m.seen.freeze()
	s.consumers, s.held = m.consumers.freeze()
	s.held = m.detached.freeze(m.deliveries.freeze(s.held))
	s.locks = m.locks.freeze()
	s.sessions = m.sessions.freeze()
	return s
}

// view returns a snapshot that is valid until the machine changes. It marks
// nothing as shared, so later writes copy nothing.
func (m *Machine) view() *Snapshot {
	s := &Snapshot{
		head:     m.head(),
		messages: m.messages.view(), ends: m.ends.view(), seen: m.seen.view(),
		sessions: m.sessions.view(),
	}
	s.consumers, s.held = m.consumers.view()
	s.held = m.detached.view(m.deliveries.view(s.held))
	s.locks = m.locks.view()
	return s
}

// head returns the snapshot's head without sessions and consumers. It shares
// the settings, which are replaced and never changed.
func (m *Machine) head() *logpb.QueueSnapshot {
	h := &logpb.QueueSnapshot{
		Version: snapshotVersion, Name: []byte(m.name), QueueId: uint64(m.id),
		Index:  m.entries.last(),
		Config: m.settings.QueueConfig, Counters: m.counters.proto(),
	}
	m.clock.save(h)
	m.messages.save(h)
	m.ends.save(h)
	m.outbox.save(h)
	m.sessions.save(h)
	m.consumers.save(h)
	m.lease.save(h)
	m.deliveries.save(h)
	m.detached.save(h)
	m.groups.save(h, m.consumers.position)
	m.seen.save(h)
	if m.version > 1 {
		h.FsmVersion = m.version
	}
	return h
}

// proto returns the counters in the form of the snapshot.
func (c *Counters) proto() *logpb.QueueCounters {
	deaths := make([]uint64, 0, len(c.Deaths)*len(c.Deaths[0]))
	for _, d := range c.Deaths {
		deaths = append(deaths, d[:]...)
	}
	return &logpb.QueueCounters{
		Enqueued: c.Enqueued, Delivered: c.Delivered, Redelivered: c.Redelivered, Acked: c.Acked, Requeued: c.Requeued,
		Expired: c.Expired, DeadLettered: c.DeadLettered, DeadDropped: c.DeadDropped, TimedOut: c.TimedOut,
		LateAcks: c.LateAcks, Purged: c.Purged, Duplicates: c.Duplicates,
		Refused: c.Refused, Scheduled: c.Scheduled, Unscheduled: c.Unscheduled, SettledExpired: c.AckedExpired,
		DeadConfirmed: c.DeadConfirmed, DeadRefused: c.DeadRefused, Deaths: deaths, Unroutable: c.Unroutable, Forwarded: c.Forwarded,
		Deferred: c.Deferred, Kicked: c.Kicked, Parked: c.Parked, Unparked: c.Unparked,
		Cancelled: c.Cancelled, Replaced: c.Replaced,
		LocksLost: c.LocksLost, LocksRenewed: c.LocksRenewed, LateLocks: c.LateLocks,
		GroupsTaken: c.GroupsTaken, GroupsLost: c.GroupsLost,
		SameId: c.SameID, IdsForgotten: c.IDsForgotten,
	}
}

// LiveIndexes iterates over the entries that had live messages, ascending.
func (s *Snapshot) LiveIndexes() iter.Seq[uint64] { return s.messages.live.indexes() }

// WriteTo writes the canonical encoding: a QueueSnapshot, its parts if it is long, and
// one MessageState per message, each preceded by its length as a varint. The order of
// the messages is: ready, highest priority first; returned; scheduled; delayed;
// deferred; of groups; parked; held, by consumer and delivery; on their way back; held by
// detached consumers; outbox; waiting letters; purged. The records of ends follow,
// oldest first, as EndStates. Equal states have equal encodings.
//
// It may be called more than once, and writes the same bytes each time.
// It fails rather than write a record that Restore refuses. Messages are encoded one by one. Handles, indexes, scratch, blocks and the
// unused ends of tables are not encoded.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	s.complete()
	e := &encoder{w: w}
	e.head(s.head)
	for _, p := range s.parts {
		e.head(p)
	}
	for no := maxPriority; no >= 0; no-- {
		s.messages.writeList(e, no)
	}
	s.messages.writeList(e, returnedList)
	s.messages.writeList(e, scheduledList)
	s.messages.writeList(e, delayedList)
	s.messages.writeList(e, deferredList)
	s.messages.writeList(e, groupedList)
	s.messages.writeList(e, parkedList)
	for i, all := range s.held {
		for id, held := range all.all() {
			st := s.messages.fill(&e.message, held.handle)
			st.Consumer, st.Delivery = uint32(i), id.seq
			st.Deadline, st.Limit, st.Since = int64(held.deadline), uint64(held.limit), int64(held.since)
			s.locks.fill(st, held.lock)
			e.record(st)
		}
	}
	s.messages.writeList(e, outboxList)
	s.messages.writeList(e, waitingList)
	s.messages.writePurged(e)
	for i := range s.ends.len() {
		e.record(s.ends.item(i).state())
	}
	e.flush(0)
	return e.written, e.err
}

// complete adds sessions, consumers and ids to the head, and divides it if it is long.
// It is done here and not by Snapshot, which must be short.
func (s *Snapshot) complete() {
	if s.completed {
		return
	}
	s.completed = true
	slices.SortFunc(s.head.Groups, func(a, b *logpb.GroupState) int { return strings.Compare(a.Id, b.Id) })
	saveSeen(&s.seen, s.head)
	for i := range s.sessions {
		s.head.Sessions = append(s.head.Sessions, s.sessions[i].save())
	}
	for i := range s.consumers {
		c := &s.consumers[i]
		at, _ := slices.BinarySearchFunc(s.sessions, c.id.Session, func(x session, id fsm.SessionID) int { return x.id.Compare(id) })
		s.head.Consumers = append(s.head.Consumers, c.save(at))
	}
	if s.head.FsmVersion >= 3 && proto.Size(s.head) > partSize {
		s.parts = divide(s.head)
	}
}

// record is what follows the head of a snapshot.
type record interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
}

// encoder writes records and remembers the first error. message is reused for
// every record.
type encoder struct {
	w       io.Writer
	buf     []byte
	written int64
	err     error
	message logpb.MessageState
}

const encoderBuffer = 64 << 10

// admit ends the snapshot if a record is longer than Restore takes.
func (e *encoder) admit(size int) {
	if size > maxRecord && e.err == nil {
		e.err = fmt.Errorf("%w: a record of %d bytes", ErrSnapshot, size)
	}
}

// head writes the first record or a part of it, preceded by its length.
func (e *encoder) head(h *logpb.QueueSnapshot) {
	encoded, err := logpb.Marshal(h)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.admit(len(encoded))
	e.buf = binary.AppendUvarint(e.buf, uint64(len(encoded)))
	e.buf = append(e.buf, encoded...)
	e.flush(encoderBuffer)
}

// record writes one record, preceded by its length. It remembers an error, and
// writes nothing after one.
func (e *encoder) record(r record) {
	size := r.SizeVT()
	e.admit(size)
	e.buf = binary.AppendUvarint(e.buf, uint64(size))
	at := len(e.buf)
	e.buf = slices.Grow(e.buf, size)[:at+size]
	if _, err := r.MarshalToSizedBufferVT(e.buf[at:]); err != nil && e.err == nil {
		e.err = err
	}
	e.flush(encoderBuffer)
}

// flush writes what is buffered if it is more than limit bytes.
func (e *encoder) flush(limit int) {
	if len(e.buf) <= limit {
		return
	}
	if e.err == nil {
		n, err := e.w.Write(e.buf)
		e.written, e.err = e.written+int64(n), err
	}
	e.buf = e.buf[:0]
}

// Hash is the SHA-256 of the canonical encoding of the state. O(n). Replicas
// are compared by it at the same index.
func (m *Machine) Hash() [32]byte {
	h := sha256.New()
	if _, err := m.view().WriteTo(h); err != nil {
		panic(err) // a hash accepts every write
	}
	return [32]byte(h.Sum(nil))
}
