package v10

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// conn is one client connection: the amqp.Endpoint of its protocol.
type conn struct {
	*amqp.Conn
	protocol Protocol
	in       *wire.Reader
	out      outbox
	side     Side // of its dialect
	list     sessionList

	terms // set by the handshake

	starved atomic.Bool // sessions have been given no new window, see mayGrant

	// For the reader.
	stage    stage
	sessions map[uint16]*session // until their number is free
	alarm    *amqp.Alarm         // of which the sessions have heard
	answered bool                // the client's close came before the reader stopped
}

// terms are what client and server have announced, besides amqp.Terms.
type terms struct {
	containerID string
	properties  *fsm.Table // of the client
	maxFrame    uint32     // that the client takes
	channelMax  uint16
}

func newConn(p Protocol, shared *amqp.Conn) *conn {
	shared.Flow.Slack = windowSlack
	c := &conn{
		Conn: shared, protocol: p, out: outbox{shared.Out}, sessions: map[uint16]*session{},
		in: wire.NewReader(shared.Source, shared.Config().InitialFrameMax),
	}
	c.side = p.Dialect.Open(&Client{shared, c})
	return c
}

// windowSlack is how many times the bounds of publishes without an outcome the client is read on. At the bounds it is given no
// new window, but it may settle what it has received.
const windowSlack = 2

// mayGrant reports whether sessions are given new windows. If not, grantAgain does that once enough publishes have their
// outcomes.
func (c *conn) mayGrant() bool {
	if !c.Flow.IsFull() {
		return true
	}
	c.starved.Store(true)
	return !c.Flow.IsFull() // grantAgain may have missed it
}

// grantAgain gives sessions the windows that they were not given. It is called, without locks of counts, after publishes
// have their outcomes.
func (c *conn) grantAgain() {
	if c.starved.Load() && c.Flow.IsLow() && c.starved.CompareAndSwap(true, false) {
		for _, s := range c.list.all() {
			s.counts.grant(nil)
		}
	}
}

// Describe implements amqp.Endpoint.
func (c *conn) Describe(i *amqp.ConnectionInfo) {
	i.Protocol, i.Container, i.FrameMax, i.ChannelMax, i.Properties = "AMQP 1-0", c.containerID, c.maxFrame, c.channelMax, c.properties
	i.Given = c.given()
}

// given is what the client calls the connection; empty: nothing.
func (c *conn) given() (name string) {
	for _, f := range c.properties.GetFields() {
		if f.Name == "connection_name" {
			name = string(f.Value.Str)
		}
	}
	return name
}

// Encoder implements amqp.Endpoint.
func (c *conn) Encoder(w *amqp.Writer) amqp.Encoder {
	return &writer{Writer: w, piece: int(c.maxFrame - transferHead)}
}

// Run implements amqp.Endpoint.
func (c *conn) Run() error {
	c.Renew() // one before the connection was running has missed it
	err := c.read()
	e := new(wire.Error)
	switch {
	case errors.As(err, &e):
		c.fail(e)
		return amqp.ErrEnding
	case errors.Is(err, os.ErrDeadlineExceeded) && !c.Source.FrameExpired() && !c.IsEnding():
		c.fail(wire.Errorf(wire.ConditionResourceLimit, "no frame received from client within idle timeout threshold"))
		return amqp.ErrEnding
	}
	return err
}

// read processes frames until the connection ends, and returns the reason.
func (c *conn) read() error {
	for !c.IsEnding() {
		f, err := c.in.ReadFrame()
		if err != nil {
			return err
		}
		c.Source.FrameDone()
		if err := c.frame(f); err != nil {
			return err
		}
		if !c.AwaitFlow() {
			return amqp.ErrEnding
		}
	}
	return amqp.ErrEnding
}

// frame processes one frame.
func (c *conn) frame(f wire.Frame) error {
	if len(f.Body) == 0 {
		return nil
	}
	code, err := wire.Peek(f.Body)
	switch {
	case err != nil:
		return err
	case c.IsEnding():
		c.answered = code == wire.CodeClose
		return amqp.ErrEnding
	case code == wire.CodeClose:
		return c.clientClose(f.Body)
	case f.Channel > c.channelMax:
		return wire.Errorf(wire.ConditionFraming, "channel number (%d) exceeds maximum channel number (%d)", f.Channel, c.channelMax)
	case code == wire.CodeBegin:
		return c.begin(f)
	case code == wire.CodeOpen:
		return wire.Errorf(wire.ConditionIllegalState, "the connection is open")
	case code < wire.CodeOpen || code > wire.CodeClose:
		return wire.Errorf(wire.ConditionDecode, "frame body: no performative")
	}
	if s := c.sessions[f.Channel]; s != nil && !s.seenEnd {
		s.seenEnd = code == wire.CodeEnd
		return s.submit(f.Body)
	}
	return nil // it crosses an end of the server's
}

func (c *conn) clientClose(body []byte) error {
	var m wire.Close
	if _, err := wire.Decode(body, &m); err != nil {
		return err
	}
	if m.Error != nil {
		c.Log.Info("closed by the client", "reason", m.Error)
	}
	return amqp.ErrClientClosed
}

// begin opens a session.
func (c *conn) begin(f wire.Frame) error {
	var b wire.Begin
	if _, err := wire.Decode(f.Body, &b); err != nil {
		return err
	}
	old := c.sessions[f.Channel]
	switch {
	case old != nil && old.seenEnd:
		if !c.Await(old.finished) {
			return amqp.ErrEnding
		}
		delete(c.sessions, f.Channel)
	case old != nil:
		old.refuse(wire.Errorf(wire.ConditionIllegalState, "the session is open"))
		return nil
	}
	s := newSession(c, f.Channel, &b)
	c.sessions[f.Channel] = s
	return s.open(&b)
}

// Admit implements amqp.Endpoint. During an alarm the client's windows are shut, unless its dialect refuses messages; it is
// read on: what it settles frees what is short.
func (c *conn) Admit() bool {
	a := c.Alarm()
	if a == nil && c.alarm != nil || a != nil && c.alarm == nil {
		c.SetBlocked(a != nil)
		for _, s := range c.sessions {
			s.counts.setAlarm(a != nil && c.side.Waits())
		}
		if a != nil {
			c.Start(func() {
				select {
				case <-a.Over:
					c.WakeReader()
				case <-c.Done():
				}
			})
		}
	}
	c.alarm = a
	return true
}

// DropRelieved implements amqp.Endpoint. A session that is relieved drops what it holds itself.
func (c *conn) DropRelieved() {}

// Fail implements amqp.Endpoint.
func (c *conn) Fail(reason error) { c.fail(protocolError(reason)) }

// fail ends the connection with close, unless it is ending already. It does not block.
func (c *conn) fail(e *wire.Error) {
	if c.Conn.Fail(e) {
		c.out.pushEnd(&wire.Close{Error: c.side.Explain(e)})
	}
}

// Renew implements amqp.Endpoint.
func (c *conn) Renew() {
	if err := c.Broker.Renew(); err != nil {
		e := protocolError(err)
		c.Refused("", e.Description)
		c.fail(e)
		return
	}
	c.side.Renew()
}

// AwaitClose implements amqp.Endpoint.
func (c *conn) AwaitClose() {
	for !c.answered {
		f, err := c.in.ReadFrame()
		if err != nil {
			return
		}
		c.Source.FrameDone()
		code, _ := wire.Peek(f.Body) // what cannot be decoded is no close
		c.answered = code == wire.CodeClose
	}
}

// FinishClose implements amqp.Endpoint.
func (c *conn) FinishClose() { c.out.pushEnd(&wire.Close{}) }

// Shut implements amqp.Endpoint.
func (c *conn) Shut() {
	c.SetBlocked(false)
	c.side.Leave()
	for _, s := range c.sessions {
		s.shut()
	}
}

// Leave implements amqp.Endpoint.
func (c *conn) Leave() (sessions []amqp.Session) {
	for _, s := range c.sessions {
		if s.claim() {
			sessions = append(sessions, s.broker)
		}
	}
	return sessions
}

// Vacate implements amqp.Endpoint.
func (c *conn) Vacate(clean bool) {
	for _, s := range c.sessions {
		s.vacate(clean)
	}
}

// Parts implements amqp.Endpoint.
func (c *conn) Parts() (parts []*amqp.Account) {
	for _, s := range c.list.all() {
		parts = append(parts, s.memory)
	}
	return parts
}

// sessionList is the open sessions, for any goroutine.
type sessionList struct {
	mu   sync.Mutex
	open map[*session]struct{}
}

func (l *sessionList) add(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*session]struct{}{}
	}
	l.open[s] = struct{}{}
}

func (l *sessionList) remove(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, s)
}

func (l *sessionList) all() (sessions []*session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.open {
		sessions = append(sessions, s)
	}
	return sessions
}
