package queue

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"google.golang.org/protobuf/proto"
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
func (m *Machine) Snapshot() *Snapshot { return m.capture(true) }

// capture returns the current state. Unless keep, it is valid until the machine changes,
// and marks nothing as shared: later writes copy nothing.
func (m *Machine) capture(keep bool) *Snapshot {
	s := &Snapshot{
		head: m.head(), messages: m.messages.capture(keep), ends: m.ends.capture(keep), seen: m.seen.capture(keep),
		locks: m.deadlines.capture(keep), sessions: m.sessions.capture(keep), consumers: m.consumers.capture(),
		held: make([]sorted[grip], 0, m.consumers.len()),
	}
	for _, held := range m.holders() {
		s.held = append(s.held, held.Capture(keep))
	}
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
	m.returnings.save(h)
	m.detached.save(h)
	m.groups.save(h, m.consumers, m.detached)
	m.seen.save(h)
	m.pause.save(h)
	h.Redrive = m.redrive.last
	if m.version > 1 {
		h.FsmVersion = m.version
	}
	return h
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
	for _, no := range inOrder {
		s.messages.writeList(e, no)
	}
	for i, all := range s.held {
		for id, held := range all.All() {
			st := s.messages.fill(&e.message, held.handle)
			st.Consumer, st.Delivery = uint32(i), id.Seq
			st.Deadline, st.Limit, st.Since = int64(held.deadline), uint64(held.limit), int64(held.since)
			s.locks.fill(st, held.lock)
			e.record(st)
		}
	}
	s.messages.writeList(e, outboxList)
	s.messages.writeList(e, waitingList)
	s.messages.writePurged(e)
	for i := range s.ends.Len() {
		e.record(s.ends.Item(i).state())
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

func (e *encoder) admit(size int) {
	if size > maxRecord && e.err == nil {
		e.err = fmt.Errorf("%w: a record of %d bytes", ErrSnapshot, size)
	}
}

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
	if _, err := m.capture(false).WriteTo(h); err != nil {
		panic(err) // a hash accepts every write
	}
	return [32]byte(h.Sum(nil))
}

// ErrSnapshot is wrapped by Restore when its input is not a state of this
// queue.
var ErrSnapshot = errors.New("not a valid snapshot of the queue")

// ErrVersion is returned by Restore when the state has a version that this
// program does not support.
var ErrVersion = errors.New("the snapshot requires a newer version of the program")

// maxRecord bounds one record of a snapshot, for the writer as for the reader.
const maxRecord = 1 << 30

// Restore replaces the state with what WriteTo has written, up to the end of r.
// If it fails, the machine is unchanged.
//
// What a snapshot leaves out is built again: lists, indexes by time and number,
// entries, counts, rings, lives. Afterwards the machine gives the same answers,
// effects and snapshots as the one that wrote it, though its handles differ.
// Bounds and the highest supported version stay those of m. O(n).
func (m *Machine) Restore(r io.Reader) error {
	n := New(m.name, m.id)
	n.newest, n.bounds = m.newest, m.bounds
	n.ends.keep(m.ends.kept())
	if err := n.restore(buffered(r)); err != nil {
		return err
	}
	*m = *n
	return nil
}

// Restored is New with the state that WriteTo has written, up to the end of r. newest is as in Supports.
func Restored(name string, id fsm.QueueID, newest uint32, r io.Reader) (*Machine, error) {
	m := New(name, id)
	m.Supports(newest)
	if err := m.restore(buffered(r)); err != nil {
		return nil, err
	}
	return m, nil
}

// buffered reads in large pieces, with a buffer no larger than what there is.
func buffered(r io.Reader) *bufio.Reader {
	size := encoderBuffer
	if l, ok := r.(interface{ Len() int }); ok {
		size = min(l.Len(), size)
	}
	return bufio.NewReaderSize(r, size)
}

// restore reads into a new machine: consumers before what they hold, messages before their indexes,
// and Check last, so that no damage goes unnoticed.
func (m *Machine) restore(r *bufio.Reader) error {
	var buf bytes.Buffer
	var head logpb.QueueSnapshot
	if err := readRecord(r, &buf, func(b []byte) error { return logpb.Unmarshal(b, &head) }); err != nil {
		return err
	}
	if head.FsmVersion > m.newest {
		return fmt.Errorf("%w: it has version %d, but this one supports only up to %d", ErrVersion, head.FsmVersion, m.newest)
	}
	if head.Version != snapshotVersion {
		return fmt.Errorf("%w: version %d", ErrSnapshot, head.Version)
	}
	if string(head.Name) != m.name || head.QueueId != uint64(m.id) {
		return fmt.Errorf("%w: it is of queue %d %q", ErrSnapshot, head.QueueId, head.Name)
	}
	for range head.Parts {
		var part logpb.QueueSnapshot
		if err := readRecord(r, &buf, func(b []byte) error { return logpb.Unmarshal(b, &part) }); err != nil {
			return err
		}
		addPart(&head, &part)
	}
	if err := m.restoreHead(&head); err != nil {
		return err
	}
	var st logpb.MessageState
	for range head.Messages {
		st = logpb.MessageState{}
		if err := readRecord(r, &buf, st.UnmarshalVT); err != nil {
			return err
		}
		if err := m.restoreMessage(&st); err != nil {
			return err
		}
	}
	if err := m.ends.restoreAll(r, &buf, head.Ends); err != nil {
		return err
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: something follows it", ErrSnapshot)
	}
	if err := m.returnings.restored(); err != nil {
		return err
	}
	if err := m.consumers.restoreService(head.Service, head.SingleActive); err != nil {
		return err
	}
	m.groups.restored()
	m.entries.restore()
	m.labels.Restore()
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return nil
}

func readRecord(r *bufio.Reader, buf *bytes.Buffer, decode func([]byte) error) error {
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return noEOF(err)
	}
	if size > maxRecord {
		return fmt.Errorf("%w: a record of %d bytes", ErrSnapshot, size)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(size)); err != nil {
		return noEOF(err)
	}
	if err := decode(buf.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// restoreHead restores everything that is not about single messages. Settings
// come first: the rest depends on them, and configure acts on an empty machine.
// The clock comes before sessions and deliveries, which compare with it.
func (m *Machine) restoreHead(h *logpb.QueueSnapshot) error {
	if h.Config == nil || h.Counters == nil || h.State > uint32(Gone) {
		return fmt.Errorf("%w: its head is incomplete", ErrSnapshot)
	}
	m.configure(&logpb.Configure{Config: h.Config}, &fsm.Effects{})
	m.clock.restore(h)
	m.entries.begin(h.Index)
	m.entries.expectAll(h.Messages)
	if err := m.messages.restoreHead(h); err != nil {
		return err
	}
	m.version = max(h.FsmVersion, 1)
	m.lease.restore(h)
	m.outbox.restoreHead(h)
	m.ends.restoreHead(h)
	if err := m.counters.restore(h.Counters); err != nil {
		return err
	}
	if err := m.seen.restore(h); err != nil {
		return err
	}
	m.pause.restore(h)
	m.redrive.last = h.Redrive
	m.sessions.restoreHead(h)
	detached, err := m.detached.restore(h)
	if err != nil {
		return err
	}
	m.returnings.restoreHead(h, detached)
	if err := m.consumers.restoreAll(h); err != nil {
		return err
	}
	return m.groups.restore(h, m.consumers, detached)
}

// restoreMessage adds the next message, in the order of the encoding. The place
// is set first; then its holder or its route is added.
func (m *Machine) restoreMessage(st *logpb.MessageState) error {
	h, err := m.messages.restore(st)
	if err != nil {
		return err
	}
	switch Place(st.Place) {
	case CheckedOut:
		return m.restoreHeld(st, h)
	case Delayed, Deferred:
		return m.aside.restore(st, h)
	case Outbox, Waiting:
		return m.outbox.restore(st, h)
	}
	return nil
}

// partSize is about how long a part of a snapshot's head is, and how long a head is
// that is not divided.
const partSize = 1 << 20

// divide takes the lists out of a head, which it changes, and returns them in parts.
// Each has as much as goes into partSize, but at least one element. Lists that cannot
// be long stay. Equal heads are divided equally.
func divide(h *logpb.QueueSnapshot) []*logpb.QueueSnapshot {
	d := &divider{}
	split(d, &h.Targets, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.DeadTarget { return &p.Targets })
	split(d, &h.Sessions, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.SessionState { return &p.Sessions })
	split(d, &h.Consumers, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.ConsumerState { return &p.Consumers })
	split(d, &h.Ended, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.Session { return &p.Ended })
	split(d, &h.EndedAt, numberSize, func(p *logpb.QueueSnapshot) *[]int64 { return &p.EndedAt })
	split(d, &h.Returning, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.ReturningState { return &p.Returning })
	split(d, &h.Groups, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.GroupState { return &p.Groups })
	split(d, &h.EndedGroups, textSize, func(p *logpb.QueueSnapshot) *[]string { return &p.EndedGroups })
	split(d, &h.GroupTakers, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.GroupTakerState { return &p.GroupTakers })
	split(d, &h.Detached, messageSize, func(p *logpb.QueueSnapshot) *[]*logpb.DetachedState { return &p.Detached })
	split(d, &h.SeenIds, byteSize, func(p *logpb.QueueSnapshot) *[]byte { return &p.SeenIds })
	split(d, &h.SeenAfter, numberSize, func(p *logpb.QueueSnapshot) *[]uint64 { return &p.SeenAfter })
	h.Parts = uint64(len(d.parts))
	return d.parts
}

// addPart is the inverse of divide for one part: it adds what p lists to h.
func addPart(h, p *logpb.QueueSnapshot) {
	ids := append(h.SeenIds, p.SeenIds...)
	proto.Merge(h, p)
	h.SeenIds = ids
}

// divider fills parts one after the other. left is what is left of the last one.
type divider struct {
	parts []*logpb.QueueSnapshot
	left  int
}

// split moves a list to the parts. size bounds what an element takes there, and in is
// the list of a part.
func split[T any](d *divider, list *[]T, size func(T) int, in func(*logpb.QueueSnapshot) *[]T) {
	for _, x := range *list {
		n := size(x)
		if n > d.left && d.left < partSize || len(d.parts) == 0 {
			d.parts, d.left = append(d.parts, &logpb.QueueSnapshot{}), partSize
		}
		d.left -= n
		to := in(d.parts[len(d.parts)-1])
		*to = append(*to, x)
	}
	*list = nil
}

func messageSize[M proto.Message](m M) int { return proto.Size(m) + 8 }
func textSize(s string) int                { return len(s) + 8 }
func numberSize[N int64 | uint64](N) int   { return 10 }
func byteSize(byte) int                    { return 1 }
