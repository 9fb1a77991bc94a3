package queue

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// ErrSnapshot is wrapped by Restore when its input is not a state of this
// queue.
var ErrSnapshot = errors.New("not a valid snapshot of the queue")

// ErrVersion is returned by Restore when the state has a version that this
// program does not support.
var ErrVersion = errors.New("the snapshot needs a newer program")

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
	if err := n.restore(bufio.NewReaderSize(r, encoderBuffer)); err != nil {
		return err
	}
	*m = *n
	return nil
}

// restore reads into a new machine. The order is that of the encoding:
// consumers before what they hold, messages before their indexes, and Check
// last, so that no damage goes unnoticed.
func (m *Machine) restore(r *bufio.Reader) error {
	var buf bytes.Buffer
	var head logpb.QueueSnapshot
	if err := readRecord(r, &buf); err != nil {
		return noEOF(err)
	}
	if err := logpb.Unmarshal(buf.Bytes(), &head); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	if head.FsmVersion > m.newest {
		return fmt.Errorf("%w: it is of version %d, this one supports up to %d", ErrVersion, head.FsmVersion, m.newest)
	}
	if head.Version != snapshotVersion {
		return fmt.Errorf("%w: version %d", ErrSnapshot, head.Version)
	}
	if string(head.Name) != m.name || head.QueueId != uint64(m.id) {
		return fmt.Errorf("%w: it is of queue %d %q", ErrSnapshot, head.QueueId, head.Name)
	}
	for range head.Parts {
		if err := readRecord(r, &buf); err != nil {
			return noEOF(err)
		}
		var part logpb.QueueSnapshot
		if err := logpb.Unmarshal(buf.Bytes(), &part); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		addPart(&head, &part)
	}
	if err := m.restoreHead(&head); err != nil {
		return err
	}
	var st logpb.MessageState
	for range head.Messages {
		st = logpb.MessageState{}
		if err := readRecord(r, &buf); err != nil {
			return noEOF(err)
		}
		if err := st.UnmarshalVT(buf.Bytes()); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
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
	if err := m.deliveries.restoreReturning(); err != nil {
		return err
	}
	if err := m.consumers.restoreService(head.Service, head.SingleActive); err != nil {
		return err
	}
	m.groups.restored()
	m.entries.restore()
	m.labels.restore()
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return nil
}

// readRecord reads one record into buf; io.EOF only before its first byte.
func readRecord(r *bufio.Reader, buf *bytes.Buffer) error {
	size, err := binary.ReadUvarint(r)
	if err != nil {
		return err
	}
	if size > maxRecord {
		return fmt.Errorf("%w: a record of %d bytes", ErrSnapshot, size)
	}
	buf.Reset()
	if _, err := io.CopyN(buf, r, int64(size)); err != nil {
		return noEOF(err)
	}
	return nil
}

// noEOF turns the end of the input within a record into an error.
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
	m.messages.restoreHead(h)
	m.version = max(h.FsmVersion, 1)
	m.lease.restore(h)
	m.outbox.restoreHead(h)
	m.ends.restoreHead(h)
	c := h.Counters
	if len(c.Deaths) != len(m.counters.Deaths)*len(m.counters.Deaths[0]) {
		return fmt.Errorf("%w: deaths are not counted", ErrSnapshot)
	}
	m.counters = Counters{
		Enqueued: c.Enqueued, Delivered: c.Delivered, Redelivered: c.Redelivered, Acked: c.Acked, Requeued: c.Requeued,
		Expired: c.Expired, DeadLettered: c.DeadLettered, DeadDropped: c.DeadDropped, TimedOut: c.TimedOut,
		LateAcks: c.LateAcks, Purged: c.Purged, Duplicates: c.Duplicates,
		Refused: c.Refused, Scheduled: c.Scheduled, Unscheduled: c.Unscheduled, AckedExpired: c.SettledExpired,
		DeadConfirmed: c.DeadConfirmed, DeadRefused: c.DeadRefused, Unroutable: c.Unroutable,
		AsideCounters:  AsideCounters{Deferred: c.Deferred, Kicked: c.Kicked},
		ParkedCounters: ParkedCounters{Parked: c.Parked, Unparked: c.Unparked},
		Removals:       Removals{c.Cancelled, c.Replaced, c.Forwarded},
		LockCounters:   LockCounters{c.LocksLost, c.LocksRenewed, c.LateLocks},
		GroupCounters:  GroupCounters{c.GroupsTaken, c.GroupsLost},
		IDCounters:     IDCounters{c.SameId, c.IdsForgotten},
	}
	for i := range m.counters.Deaths {
		c.Deaths = c.Deaths[copy(m.counters.Deaths[i][:], c.Deaths):]
	}
	if err := m.seen.restore(h); err != nil {
		return err
	}
	m.sessions.restoreHead(h)
	if err := m.deliveries.restoreHead(h); err != nil {
		return err
	}
	if err := m.consumers.restoreAll(h); err != nil {
		return err
	}
	return m.groups.restore(h, m.consumers.len(), m.consumers.at)
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
		return m.deliveries.restore(st, h)
	case Delayed, Deferred:
		return m.aside.restore(st, h)
	case Outbox, Waiting:
		return m.outbox.restore(st, h)
	}
	return nil
}
