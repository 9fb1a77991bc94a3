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

// ErrSnapshot is wrapped by Restore when what it reads is no state of this
// queue.
var ErrSnapshot = errors.New("not a valid snapshot of the queue")

// ErrVersion is returned by Restore when the state is of a version that this
// program does not support.
var ErrVersion = errors.New("the snapshot needs a newer program")

// maxRecord bounds one record of a snapshot.
const maxRecord = 1 << 30

// Restore replaces the state by what WriteTo has written, up to the end of r.
// If it fails the machine is as it was.
func (m *Machine) Restore(r io.Reader) error {
	n := New(m.name, m.id)
	n.newest, n.bounds = m.newest, m.bounds
	if err := n.restore(bufio.NewReaderSize(r, encoderBuffer)); err != nil {
		return err
	}
	*m = *n
	return nil
}

func (m *Machine) restore(r *bufio.Reader) error {
	var buf bytes.Buffer
	var head logpb.QueueSnapshot
	if err := readRecord(r, &buf, &head); err != nil {
		return noEOF(err)
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
	if err := m.restoreHead(&head); err != nil {
		return err
	}
	var st logpb.MessageState
	for range head.Messages {
		st = logpb.MessageState{}
		if err := readRecord(r, &buf, &st); err != nil {
			return noEOF(err)
		}
		if err := m.restoreMessage(&st); err != nil {
			return err
		}
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: something follows it", ErrSnapshot)
	}
	if err := m.restoreReturning(); err != nil {
		return err
	}
	if err := m.restoreService(head.Service, head.SingleActive); err != nil {
		return err
	}
	m.restoreIndexes()
	if err := m.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	return nil
}

// readRecord reads one record; io.EOF only before its first byte.
func readRecord(r *bufio.Reader, buf *bytes.Buffer, into interface{ UnmarshalVT([]byte) error }) error {
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
	if err := into.UnmarshalVT(buf.Bytes()); err != nil {
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

func (m *Machine) restoreHead(h *logpb.QueueSnapshot) error {
	if h.Config == nil || h.Counters == nil || h.State > uint32(Gone) {
		return fmt.Errorf("%w: its head is incomplete", ErrSnapshot)
	}
	m.configure(&logpb.Configure{Config: h.Config}, &fsm.Effects{})
	m.clock = clock{fsm.Time(h.Clock), fsm.Time(h.LockCredit), h.Term}
	m.entries.begin(h.Index)
	m.messages.restoreHead(h)
	m.version = max(h.FsmVersion, 1)
	m.active = fsm.Time(h.LastActive)
	m.lastUsed, m.phase, m.goneAt = fsm.Time(h.LastUsed), Phase(h.State), fsm.Time(h.GoneAt)
	m.outbox.restoreHead(h)
	m.nextOrder = h.NextOrder
	c := h.Counters
	if len(c.Deaths) != 16 {
		return fmt.Errorf("%w: deaths are not counted", ErrSnapshot)
	}
	m.counters = Counters{
		Enqueued: c.Enqueued, Delivered: c.Delivered, Redelivered: c.Redelivered, Acked: c.Acked, Requeued: c.Requeued,
		Expired: c.Expired, DeadLettered: c.DeadLettered, DeadDropped: c.DeadDropped, TimedOut: c.TimedOut,
		LateAcks: c.LateAcks, Purged: c.Purged, Duplicates: c.Duplicates,
		Refused: c.Refused, Scheduled: c.Scheduled, Unscheduled: c.Unscheduled, SettledExpired: c.SettledExpired,
		DeadConfirmed: c.DeadConfirmed, DeadRefused: c.DeadRefused, Unroutable: c.Unroutable,
	}
	for i := range m.counters.Deaths {
		copy(m.counters.Deaths[i][:], c.Deaths[4*i:])
	}
	m.sessions.restoreHead(h)
	return m.restoreConsumers(h)
}

func (m *Machine) restoreConsumers(h *logpb.QueueSnapshot) error {
	sessions := make([]*session, len(h.Sessions))
	for i, st := range h.Sessions {
		s, err := m.sessions.restore(st)
		if err != nil {
			return err
		}
		sessions[i] = s
	}
	for _, st := range h.Consumers {
		if uint64(st.Session) >= uint64(len(sessions)) {
			return fmt.Errorf("%w: a consumer without session", ErrSnapshot)
		}
		s := sessions[st.Session]
		if s.consumer(st.Consumer) != nil {
			return fmt.Errorf("%w: a consumer twice", ErrSnapshot)
		}
		c := m.register(s, st.Consumer)
		c.registered, c.next, c.lateAcks = st.Registered, st.NextDelivery, st.LateAcks
		c.late = restoreLate(st)
		c.tag, c.prefetch, c.priority = st.Tag, st.Prefetch, st.Priority
		c.noAck, c.exclusive, c.timeoutPlusOne = st.NoAck, st.Exclusive, st.TimeoutPlusOne
		switch {
		case c.isGets():
		case st.Status == uint32(Cancelled):
			c.cancelled, c.revoked = true, st.Revoked
			m.serving--
		default:
			m.join(c)
			if c.exclusive && !s.life.over {
				m.exclusive = c
			}
		}
	}
	m.nextOrder = h.NextOrder
	for _, st := range h.Returning {
		m.coming = append(m.coming, &returning{
			of:    fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer},
			order: st.Order, outcome: logpb.Settle_Outcome(st.Outcome), failed: st.Failed,
		})
	}
	return nil
}

func restoreLate(st *logpb.ConsumerState) []lateness {
	var late []lateness
	for i, id := range st.TimedOut {
		l := lateness{id: id}
		if i < len(st.TimedOutSince) && i < len(st.TimedOutLimits) {
			l.since, l.limit = fsm.Time(st.TimedOutSince[i]), fsm.Millis(st.TimedOutLimits[i])
		}
		late = append(late, l)
	}
	return late
}

// restoreMessage adds the next message, in the order of the encoding.
func (m *Machine) restoreMessage(st *logpb.MessageState) error {
	h, err := m.messages.restore(st)
	if err != nil {
		return err
	}
	switch Place(st.Place) {
	case CheckedOut:
		return m.restoreHeld(st, h)
	case Outbox, Waiting:
		return m.outbox.restore(st, h)
	}
	return nil
}

func (m *Machine) restoreHeld(st *logpb.MessageState, h uint32) error {
	var into *held
	var c *consumer
	switch no := uint64(st.Consumer); {
	case no < uint64(len(m.consumers)):
		c = m.consumers[no]
		into = &c.held
	case no < uint64(len(m.consumers)+len(m.coming)):
		into = &m.coming[no-uint64(len(m.consumers))].held
	default:
		return fmt.Errorf("%w: message %d has no holder", ErrSnapshot, st.Seq)
	}
	if into.len() > 0 {
		if last, _ := into.last(); last.seq >= st.Delivery {
			return fmt.Errorf("%w: deliveries are out of order", ErrSnapshot)
		}
	}
	into.push(checkout{id: st.Delivery, grip: grip{fsm.Time(st.Deadline), fsm.Millis(st.Limit), fsm.Time(st.Since), h, false}})
	if c != nil && c.isGets() {
		m.getsHeld++
	}
	if m.phase == Active {
		if _, twice := m.timers.held(fsm.Time(st.Deadline), st.Seq); twice {
			return fmt.Errorf("%w: message %d is held twice", ErrSnapshot, st.Seq)
		}
		m.timers.hold(fsm.Time(st.Deadline), st.Seq, holding{c, st.Delivery})
	}
	return nil
}

// restoreReturning puts what is on its way back in its order.
func (m *Machine) restoreReturning() error {
	for _, r := range m.coming {
		if r.held.len() == 0 || m.returning.get(m.returningKey(r)) != nil {
			return fmt.Errorf("%w: nothing of a consumer is on its way", ErrSnapshot)
		}
		m.addReturning(r)
	}
	m.coming = nil
	return nil
}

// restoreService puts consumers into their rings. single is the position + 1
// of the one that alone is served.
func (m *Machine) restoreService(order []uint32, single uint32) error {
	if uint64(single) > uint64(len(m.consumers)) {
		return fmt.Errorf("%w: nobody is served", ErrSnapshot)
	}
	if single > 0 {
		m.single = m.consumers[single-1]
		_, m.quiescing = m.choose()
	}
	for _, i := range order {
		if uint64(i) >= uint64(len(m.consumers)) || m.consumers[i].level == nil || m.consumers[i].serviced {
			return fmt.Errorf("%w: wrong service order", ErrSnapshot)
		}
		m.serve(m.consumers[i])
	}
	return nil
}

// restoreIndexes rebuilds what is derived from the messages.
func (m *Machine) restoreIndexes() {
	m.messages.restoreEntries()
	for _, c := range m.consumers {
		if c.cancelled && c.held.len() == 0 {
			c.dismissed = true
			m.attached--
		}
	}
}
