package amqptest

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/fsm"
)

// Replay is a socket whose input is there from the beginning: first, then
// repeat times again. What is written is counted and forgotten.
type Replay struct {
	first, again []byte
	repeat       int
	// Until, if set, is closed when the input may end.
	Until <-chan struct{}
	at    []byte

	mu      sync.Mutex
	written int
	enough  int           // input ends when this much is written; 0: at once
	reached chan struct{} // closed then
	waits   bool          // for reached; fixed
	closed  bool
}

// NewReplay has a socket read first, and then repeat times again. It ends when enough octets are written, at once if that is
// 0.
func NewReplay(first, again []byte, repeat, enough int) *Replay {
	return &Replay{first: first, again: again, repeat: repeat, at: first, enough: enough, waits: enough > 0, reached: make(chan struct{})}
}

// Read implements net.Conn.
func (m *Replay) Read(p []byte) (int, error) {
	for len(m.at) == 0 {
		if m.repeat == 0 {
			if m.waits {
				<-m.reached
			}
			if m.Until != nil {
				<-m.Until
			}
			return 0, io.EOF
		}
		m.repeat--
		m.at = m.again
	}
	n := copy(p, m.at)
	m.at = m.at[n:]
	return n, nil
}

// Write implements net.Conn.
func (m *Replay) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, net.ErrClosed
	}
	m.written += len(p)
	m.reach()
	return len(p), nil
}

func (m *Replay) reach() {
	if m.enough > 0 && (m.written >= m.enough || m.closed) {
		m.enough = 0
		close(m.reached)
	}
}

// Close implements net.Conn.
func (m *Replay) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.reach()
	return nil
}

// LocalAddr implements net.Conn.
func (m *Replay) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (m *Replay) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn.
func (m *Replay) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (m *Replay) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (m *Replay) SetWriteDeadline(time.Time) error { return nil }

// Sink is a Broker that forgets publishes, and confirms several at a time before it takes the next one.
type Sink struct {
	*Broker
	left int
	all  chan struct{}
}

// NewSink returns one that expects n publishes.
func NewSink(n int) *Sink { return &Sink{NewBroker(), n, make(chan struct{})} }

// All is closed once all publishes have come.
func (k *Sink) All() <-chan struct{} { return k.all }

type sinkConnection struct {
	amqp.Connection
	sink *Sink
}

type sinkSession struct {
	amqp.Session
	sink   *Sink
	events fsm.SessionEvents
}

// sinkBatch is how many publishes a Sink confirms at a time.
const sinkBatch = 32

// Connect implements amqp.Broker.
func (k *Sink) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := k.Broker.Connect(ctx, user, vhost)
	return &sinkConnection{c, k}, err
}

func (c *sinkConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	return &sinkSession{s, c.sink, events}, err
}

func (s *sinkSession) Admit(*fsm.Publish) error { return nil }

func (s *sinkSession) Publish(p *fsm.Publish) (routed bool, err error) {
	if s.sink.left--; s.sink.left == 0 {
		close(s.sink.all)
	}
	if n := p.Number; n%sinkBatch == 0 {
		s.events.Confirmed(n-sinkBatch+1, n, nil)
	}
	return true, nil
}

// Feeder is a Broker that has n messages for any consumer.
type Feeder struct {
	*Broker
	payload fsm.Payload
	n       int
}

// NewFeeder returns one whose messages are n times the same.
func NewFeeder(payload fsm.Payload, n int) *Feeder {
	return &Feeder{Broker: NewBroker(), payload: payload, n: n}
}

type feederConnection struct {
	amqp.Connection
	*Feeder
}

type feederSession struct {
	amqp.Session
	*Feeder
	events fsm.SessionEvents
	credit chan int
	ended  chan struct{}
}

// Connect implements amqp.Broker.
func (f *Feeder) Connect(ctx context.Context, user, vhost string) (amqp.Connection, error) {
	c, err := f.Broker.Connect(ctx, user, vhost)
	return &feederConnection{c, f}, err
}

func (c *feederConnection) OpenSession(events fsm.SessionEvents) (amqp.Session, error) {
	s, err := c.Connection.OpenSession(events)
	return &feederSession{s, c.Feeder, events, make(chan int, 4096), make(chan struct{})}, err
}

func (s *feederSession) Consume(context.Context, fsm.ConsumeSpec) error {
	go func() {
		defer close(s.ended)
		const batch = 64
		messages := make([]fsm.Message, 0, batch)
		credit := 2000
		for id := 1; id <= s.n; {
			for credit < batch {
				n, ok := <-s.credit
				if !ok {
					return
				}
				credit += n
			}
			messages = messages[:0]
			for len(messages) < batch && id <= s.n {
				messages = append(messages, fsm.Message{Consumer: 1, ID: uint64(id), Payload: s.payload})
				id++
			}
			credit -= len(messages)
			s.events.Deliver(messages)
		}
	}()
	return nil
}

func (s *feederSession) Settle(_ uint64, ids []uint64, _ fsm.Outcome) { s.credit <- len(ids) }

func (s *feederSession) Close(ctx context.Context) {
	close(s.credit)
	<-s.ended
	s.Session.Close(ctx)
}
