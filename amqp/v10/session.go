package v10

import (
	"bytes"
	"context"
	"log/slog"
	"sync"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// session is one session of a connection. It performs the client's frames one after the other.
//
// The holder of gate calls the broker's session: Publish and Settle do not block. A call that blocks runs without gate
// while busy is set, and what comes meanwhile is queued.
//
// Invariants: queue and tasks are empty unless busy; finished is closed once both sides have ended the session and what
// it held is back at its queues.
//
// Lock order: gate, counts.mu, the outbox's, that of outcomes.
type session struct {
	unreturned
	conn    *conn
	channel uint16
	broker  amqp.Session
	memory  *amqp.Account // deliveries that arrive, frames that wait
	written amqp.WriteReport

	publisher publisher
	counts    counts

	seenEnd bool // the client's end; reader only

	gate      sync.Mutex
	state     sessionState
	busy      bool
	queue     [][]byte // frames
	queued    int64    // their bytes
	tasks     []func() // of events; they go before queue
	links     map[uint32]*link
	pairs     pairs
	dynamic   dynamicNodes
	handleMax uint32
	claimed   bool // the broker's session is being closed, or has been
	closed    bool // it has been
	ended     bool // by the client
	finished  chan struct{}
	space     chan struct{} // capacity 1: the queue has become shorter

	// Reused by frame after frame.
	transfer    wire.Transfer
	flow        wire.Flow
	disposition wire.Disposition
	arrival     Delivery
	giving      []delivery
	ids         []uint64
}

type sessionState uint8

const (
	sessionOpen   sessionState = iota
	sessionEnding              // one side has ended it; nothing but the client's end counts
)

// Bounds of the frames that a session queues; then the reader waits.
const (
	maxQueued      = 1024
	maxQueuedBytes = 1 << 20
)

func newSession(c *conn, channel uint16, b *wire.Begin) *session {
	s := &session{
		conn: c, channel: channel, links: map[uint32]*link{}, handleMax: min(b.HandleMax, uint32(c.protocol.LinkMax-1)),
		finished: make(chan struct{}), space: make(chan struct{}, 1),
	}
	s.memory = c.NewPart(s.relieve)
	s.publisher.init(s)
	s.counts.init(s)
	s.pairs.init(s)
	s.dynamic.init(s)
	s.counts.in.begin(b.NextOutgoingID, b.OutgoingWindow, c.Alarm() != nil && c.side.Waits())
	s.counts.client.window = b.IncomingWindow
	return s
}

// open answers the client's begin. The reader calls it.
func (s *session) open(b *wire.Begin) error {
	broker, err := s.conn.Broker.OpenSession(s)
	if err != nil && isInternal(err) {
		s.conn.Log.Error("begin failed", slog.Any("error", err))
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	s.broker, s.written.Session = broker, broker
	s.conn.list.add(s)
	s.conn.out.push(s.channel, &wire.Begin{
		RemoteChannel: wire.Some(s.channel), IncomingWindow: s.counts.in.left, OutgoingWindow: 1<<32 - 1, HandleMax: s.handleMax,
	})
	switch {
	case err != nil:
		s.claimed, s.closed = true, true
		s.end(protocolError(err))
	case b.RemoteChannel.Present:
		s.proceed(s.end(wire.Errorf(wire.ConditionInvalidField, "remote-channel is set in a begin that answers nothing")))
	}
	return nil
}

// submit performs a frame, at once if nothing is in progress. The reader calls it, and waits there while too much is
// queued.
func (s *session) submit(body []byte) error {
	for s.enqueue(body) {
		if !s.conn.Await(s.space) {
			return amqp.ErrEnding
		}
		body = nil
	}
	return nil
}

// enqueue performs a frame, or queues it; nil: there is none. full: the reader must wait.
func (s *session) enqueue(body []byte) (full bool) {
	s.gate.Lock()
	defer s.gate.Unlock()
	switch {
	case body == nil:
	case !s.busy:
		s.proceed(s.process(body))
	default:
		s.queue = append(s.queue, bytes.Clone(body))
		s.queued += int64(len(body))
		if over := s.memory.Take(int64(len(body))); over != nil {
			s.memory.Add(int64(len(body)))
			s.tasks = append(s.tasks, s.ending(wire.Errorf(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over))))
		}
	}
	return s.busy && (len(s.queue) >= maxQueued || s.queued >= maxQueuedBytes)
}

// proceed has a call that blocks made, if there is one. The gate is held, and busy is not set.
func (s *session) proceed(next func()) {
	if next == nil {
		return
	}
	s.busy = true
	s.conn.Tasks.Start()
	go s.run(next)
}

// run makes a call that blocks, and then performs what is queued.
func (s *session) run(next func()) {
	defer s.conn.Tasks.Done()
	defer s.conn.Contain("session")
	for next != nil {
		next()
		next = s.next()
	}
}

// next performs what is queued until something blocks.
func (s *session) next() func() {
	s.gate.Lock()
	defer s.gate.Unlock()
	for {
		if len(s.tasks) > 0 {
			task := s.tasks[0]
			s.tasks = s.tasks[1:]
			return task
		}
		if len(s.queue) == 0 {
			s.busy, s.queue, s.tasks = false, nil, nil
			s.wakeReader()
			return nil
		}
		body := s.queue[0]
		s.queue = s.queue[1:]
		s.queued -= int64(len(body))
		s.memory.Add(-int64(len(body)))
		s.wakeReader()
		if next := s.process(body); next != nil {
			return next
		}
	}
}

func (s *session) wakeReader() {
	select {
	case s.space <- struct{}{}:
	default: // it is awake
	}
}

// post has a task performed on a goroutine of its own. Events use it, since they may not block or call the
// session. counts.mu is held, and counts are not closed, so that the teardown still waits for the task.
func (s *session) post(task func()) {
	s.conn.Tasks.Start()
	go func() {
		s.gate.Lock()
		if s.busy {
			s.tasks = append(s.tasks, task)
			s.gate.Unlock()
			s.conn.Tasks.Done()
			return
		}
		s.busy = true
		s.gate.Unlock()
		s.run(task)
	}()
}

// process performs a frame. It returns a call that blocks, if there is one. The gate is held.
func (s *session) process(body []byte) (next func()) {
	code, _ := wire.Peek(body)
	if s.state != sessionOpen {
		if code == wire.CodeEnd {
			s.ended = true
			s.free()
		}
		return nil
	}
	next, err := s.perform(code, body)
	if err != nil {
		return s.end(err)
	}
	return next
}

// perform performs a frame of an open session. An error ends it.
func (s *session) perform(code byte, body []byte) (next func(), err *wire.Error) {
	switch code {
	case wire.CodeTransfer:
		payload, e := wire.Decode(body, &s.transfer)
		if e != nil {
			return nil, s.conn.undecodable(e)
		}
		return s.receive(&s.transfer, payload)
	case wire.CodeFlow:
		if _, e := wire.Decode(body, &s.flow); e != nil {
			return nil, s.conn.undecodable(e)
		}
		return nil, s.takeFlow(&s.flow)
	case wire.CodeDisposition:
		if _, e := wire.Decode(body, &s.disposition); e != nil {
			return nil, s.conn.undecodable(e)
		}
		return nil, s.settle(&s.disposition)
	case wire.CodeAttach:
		a := new(wire.Attach)
		if _, e := wire.Decode(bytes.Clone(body), a); e != nil { // it is answered later
			return nil, s.conn.undecodable(e)
		}
		return s.attach(a)
	case wire.CodeDetach:
		d := new(wire.Detach)
		if _, e := wire.Decode(body, d); e != nil {
			return nil, s.conn.undecodable(e)
		}
		return s.detached(d), nil
	}
	d := new(wire.End)
	if _, e := wire.Decode(body, d); e != nil {
		return nil, s.conn.undecodable(e)
	}
	return s.endByClient(d), nil
}

// undecodable ends the connection.
func (c *conn) undecodable(err error) *wire.Error {
	c.fail(protocolError(err))
	return nil
}

// end ends the session with an error, unless it has ended. It returns the call that closes the broker's session. The gate
// is held.
func (s *session) end(e *wire.Error) (next func()) {
	if s.state != sessionOpen {
		return nil
	}
	e = s.conn.side.Explain(e)
	s.conn.Log.Info("session error", slog.Int("channel", int(s.channel)), slog.Any("error", e))
	s.state = sessionEnding
	s.counts.close()
	s.dropLinks()
	s.pushLast(&wire.End{Error: e})
	if s.claimed {
		return nil
	}
	s.claimed = true
	return s.close
}

// ending is end as a task.
func (s *session) ending(e *wire.Error) func() {
	return func() {
		s.gate.Lock()
		next := s.end(e)
		s.gate.Unlock()
		if next != nil {
			next()
		}
	}
}

// refuse ends the session with an error. The reader calls it.
func (s *session) refuse(e *wire.Error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.busy {
		s.tasks = append(s.tasks, s.ending(e))
	} else {
		s.proceed(s.end(e))
	}
}

// endByClient answers the client's end once what the session holds is back in its queues.
func (s *session) endByClient(d *wire.End) (next func()) {
	if d.Error != nil {
		s.conn.Log.Info("session ended by the client", slog.Int("channel", int(s.channel)), slog.Any("error", d.Error))
	}
	s.state, s.ended, s.claimed = sessionEnding, true, true
	s.counts.close()
	s.dropLinks()
	return func() {
		s.closeBroker()
		s.pushLast(&wire.End{})
		s.isClosed()
	}
}

// close closes the broker's session after the server's end.
func (s *session) close() {
	s.closeBroker()
	s.isClosed()
}

func (s *session) closeBroker() {
	s.dynamic.delete()
	ctx, cancel := context.WithTimeout(s.conn.ServerContext(), s.conn.Config().OperationTimeout)
	defer cancel()
	s.broker.Close(ctx)
}

func (s *session) isClosed() {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.closed = true
	s.free()
}

// free frees the number once both sides have ended the session.
func (s *session) free() {
	if !s.closed || !s.ended {
		return
	}
	s.conn.list.remove(s)
	s.memory.Close(false)
	close(s.finished)
}

// pushLast pushes the outcomes that are known, and the session's last frame. Later outcomes are lost.
func (s *session) pushLast(last *wire.End) {
	s.conn.Flow.Release(s.conn.out.pushLast(&s.publisher.outcomes, last))
	s.conn.grantAgain()
}

// dropLinks drops the deliveries that arrive.
func (s *session) dropLinks() {
	for _, l := range s.links {
		s.drop(l)
		s.memory.Add(-l.held)
		l.isOver()
	}
	clear(s.links)
	clear(s.pairs.byName)
}

// relieve ends a session that holds too much. It does not block.
func (s *session) relieve(over *amqp.Account) bool {
	why := "memory alarm: the session's incomplete deliveries and waiting frames were discarded"
	if over != nil {
		why = amqp.AboutHeld(over)
	}
	s.conn.Start(func() {
		defer s.conn.Contain("relieve a session")
		s.counts.mu.Lock()
		defer s.counts.mu.Unlock()
		if !s.counts.closed {
			s.post(s.ending(wire.Errorf(wire.ConditionResourceLimit, "%s", why)))
		}
	})
	return true
}

// shut ends the session with its connection.
func (s *session) shut() {
	s.counts.close()
	s.conn.Flow.Release(s.publisher.outcomes.close())
	s.gate.Lock()
	defer s.gate.Unlock()
	s.state = sessionEnding
}

// claim is called before the connection closes the broker's session. It returns false if that is being closed, or has
// been.
func (s *session) claim() bool {
	s.gate.Lock()
	defer s.gate.Unlock()
	claims := !s.claimed
	s.claimed = true
	return claims
}

// vacate gives back what the session holds.
func (s *session) vacate(clean bool) {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.dropLinks()
	s.memory.Add(-s.queued)
	s.queue, s.queued = nil, 0
	if !s.closed || !s.ended {
		s.memory.Close(clean)
	}
}
