package amqp

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/fsm"
)

// Why a connection ends, besides errors of its protocol.
var (
	// ErrClientClosed: the client has closed it.
	ErrClientClosed = errors.New("closed by the client")
	// ErrEnding: for the reason that Conn.Fail or Conn.Abort was given.
	ErrEnding = errors.New("connection is ending")
	// ErrRefused ends a handshake after the last answer to the client.
	ErrRefused = errors.New("handshake refused")
	// ErrDropLater is like ErrRefused, but the socket is closed after a delay.
	ErrDropLater = errors.New("login refused")

	errTooMuch = errors.New("client does not read from its connection")
	// errPanic ends a connection whose work has panicked.
	errPanic = errors.New("internal error")
)

// Conn is one client connection, whatever its protocol. Its reader is the
// goroutine that serves it, its writer a second one; a third kind lives as long
// as a request waits for the broker (Tasks).
type Conn struct {
	Socket net.Conn
	Log    *slog.Logger // gets more attributes during the handshake
	Source *Source      // what the protocol reads frames from
	Out    *Outbox
	Memory Account // all of the connection's memory
	Flow   *Flow   // publishes that the broker has not confirmed
	Tasks  Tasks   // goroutines that wait for the broker
	Terms          // set by the handshake

	// Broker is the vhost; nil: the client has not opened one.
	Broker Connection

	server    *Server
	endpoint  Endpoint   // nil: the protocol is not known yet
	protocol  string     // its name
	protocols []Protocol // that it may speak
	end       connEnd
	stats     connStats
	relieved  chan struct{} // capacity 1: DropRelieved is to be called
	remote    netip.Addr
	// certificate is the client's, which has been verified; nil: it has none.
	certificate *x509.Certificate

	// ctx ends calls of the broker once nobody waits for the answer.
	ctx    context.Context
	cancel context.CancelFunc
	leaves atomic.Bool // the reader has stopped
}

// Terms are what the handshake has settled, as far as every protocol has it.
type Terms struct {
	User, VHost string
	Mechanism   string // of the login
	// Heartbeat is how often the client writes something, at least: it is given
	// up after 2¼ to 2½ times that without input. 0: it need not.
	Heartbeat time.Duration
	// Linger is how long the client may take to leave after its close; 0: as for its
	// answer to the server's.
	Linger time.Duration
	// Beat is how often something is written to the client, at least; 0: it need
	// not be.
	Beat time.Duration
}

// connStats is what other goroutines may read of a connection.
type connStats struct {
	info    atomic.Pointer[ConnectionInfo] // nil: not open yet
	blocked atomic.Bool                    // by an alarm
	sent    atomic.Uint64                  // octets
	writes  atomic.Uint64
}

// connEnd is why and how far a connection has ended.
//
// Invariant: done is closed exactly if cause is set.
type connEnd struct {
	done chan struct{} // closed when the connection is ending
	gone chan struct{} // closed when everything is over

	mu      sync.Mutex
	running bool // the handshake is over
	cause   error
}

// begin notes why the connection ends. Only the first reason counts.
func (e *connEnd) begin(cause error) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		return false
	}
	e.cause = cause
	close(e.done)
	return true
}

// run marks the connection as running. It returns false if it has ended
// already.
func (e *connEnd) run() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = true
	return e.cause == nil
}

func (e *connEnd) isRunning() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.running
}

func (e *connEnd) reason() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

func (e *connEnd) isDone() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func newConn(s *Server, socket net.Conn) *Conn {
	c := &Conn{
		server: s, Socket: socket, protocols: s.cfg.Protocols,
		Log:      s.log.With(slog.String("remote", socket.RemoteAddr().String())),
		Memory:   Account{step: connectionStep, limit: s.cfg.HeldByConnection, bound: boundConnection},
		end:      connEnd{done: make(chan struct{}), gone: make(chan struct{})},
		relieved: make(chan struct{}, 1),
	}
	c.Flow = NewFlow(MaxUnconfirmed, MaxUnconfirmedBytes, c.Memory.newPart(connectionStep, nil))
	c.Out = NewOutbox(&c.Memory, func() { c.Abort(errTooMuch) })
	c.Source = &Source{conn: socket, admit: c.admit}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// serve runs the connection from the first byte to the last.
func (c *Conn) serve() {
	defer c.cancel()
	if err := c.guard("handshake", c.negotiate); err != nil {
		c.refuse(err)
		return
	}
	c.server.users.join(c.User, &c.Memory)
	c.Source.watch(c.Heartbeat)
	// This comes before a client can see that the connection is open.
	open := c.end.run()
	c.stats.info.Store(c.describe())
	written := make(chan struct{})
	go func() {
		defer close(written)
		if err := c.guard("write", newWriter(c).run); err != nil {
			c.Abort(err)
		}
	}()
	err := ErrEnding
	if open {
		c.Log.Info("connection open")
		err = c.guard("read", c.endpoint.Run)
	}
	c.finish(err, written)
	c.Socket.Close()
	c.vacate()
	c.Log.Info("connection closed", slog.Any("reason", c.end.reason()))
}

// negotiate performs the handshake. An error that the protocol can tell is
// told before the connection is dropped; any other error only drops it.
func (c *Conn) negotiate() error {
	deadline := time.Now().Add(c.server.cfg.HandshakeTimeout)
	ctx, cancel := context.WithDeadline(c.server.ctx, deadline)
	defer cancel()
	if err := c.Socket.SetDeadline(deadline); err != nil {
		return err
	}
	c.remote = remoteAddr(c.Socket)
	if err := c.secure(ctx); err != nil {
		return err
	}
	var err error
	if c.endpoint, err = c.server.dispatch(c); err != nil {
		return err
	}
	if err := c.endpoint.Handshake(ctx); err != nil {
		return err
	}
	if counted, ok := transport(c.Socket).(interface{ LoggedIn() }); ok {
		counted.LoggedIn() // the listener's limit counts logged-in and other clients separately
	}
	return c.Socket.SetDeadline(time.Time{})
}

// guard runs a part of the connection's work. A panic ends the connection, and
// nothing else.
func (c *Conn) guard(doing string, f func() error) (err error) {
	err = errPanic
	defer c.Contain(doing)
	return f()
}

// Contain is deferred around work for the connection on goroutines other than
// its reader's.
func (c *Conn) Contain(doing string) {
	if p := recover(); p != nil {
		c.server.panics.Add(1)
		c.Log.Error("panic while serving a connection, which is closed", slog.String("doing", doing), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		c.Abort(errPanic)
	}
}

// refuse ends a connection whose handshake has failed.
func (c *Conn) refuse(err error) {
	if c.Broker != nil {
		ctx, cancel := context.WithTimeout(c.server.ctx, c.server.cfg.OperationTimeout)
		defer cancel()
		c.Broker.Close(ctx)
	}
	if errors.Is(err, ErrDropLater) {
		c.server.dropLater(c.Socket)
		return
	}
	if told := c.endpoint != nil && c.endpoint.Refuse(err); told || errors.Is(err, ErrRefused) {
		c.linger(lingerTime)
	}
	c.Socket.Close()
	level := slog.LevelInfo
	if errors.Is(err, io.EOF) {
		level = slog.LevelDebug
	}
	c.server.unknown.log(c, level, "handshake failed", slog.Any("error", err))
}

// Fail begins the end of the connection for this reason, unless it is ending
// already: then it returns false. The caller queues the protocol's close, to
// which the client has a while to answer. It does not block.
func (c *Conn) Fail(reason error) bool {
	if !c.end.begin(reason) {
		return false
	}
	c.Source.endBy(time.Now().Add(c.closeWait()))
	return true
}

// forceClose ends the connection for this reason, without a word if it is not
// open yet.
func (c *Conn) forceClose(reason string) {
	why := fsm.Refuse(fsm.Forced, reason)
	if c.end.isRunning() {
		c.endpoint.Fail(why)
	} else {
		c.Abort(why)
	}
}

// Abort ends the connection without a word. It does not block.
func (c *Conn) Abort(err error) {
	c.end.begin(err)
	c.cancel()
	transport(c.Socket).Close()
}

// closeWait bounds the client's part of a close.
func (c *Conn) closeWait() time.Duration {
	if c.Heartbeat == 0 {
		return maxCloseWait
	}
	return min(c.Heartbeat, maxCloseWait)
}

// finish takes the connection down after the reader has stopped with err.
func (c *Conn) finish(err error, written <-chan struct{}) {
	linger := lingerTime
	switch {
	case errors.Is(err, ErrClientClosed):
		c.end.begin(err)
		c.teardown(true)
		c.endpoint.FinishClose()
		linger = cmp.Or(c.Linger, c.closeWait())
	case errors.Is(err, ErrEnding), c.end.isDone():
		c.tellClose()
	default:
		c.Abort(c.explain(err))
		c.teardown(false)
	}
	// A client that does not read must not delay the end forever.
	timer := time.AfterFunc(c.closeWait(), func() { transport(c.Socket).Close() })
	defer timer.Stop()
	c.Out.end()
	<-written
	c.linger(linger)
}

// explain translates a timeout of the socket into its cause.
func (c *Conn) explain(err error) error {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case c.Source.FrameExpired():
		return fmt.Errorf("frame was not complete after %v", frameTime)
	}
	return fmt.Errorf("missed heartbeats from client, timeout: %v", c.Heartbeat)
}

// tellClose waits until the client has answered the close, while everything
// behind the connection is taken down.
func (c *Conn) tellClose() {
	torn := make(chan struct{})
	go func() {
		defer close(torn)
		c.teardown(false)
	}()
	_ = c.guard("await the answer to a close", func() error { // it reads what the client sends
		c.endpoint.AwaitClose()
		return nil
	})
	<-torn
}

// linger lets the client read what was written before the socket is closed: a
// socket closed with unread input is reset, and the last frames are lost.
func (c *Conn) linger(limit time.Duration) {
	half, ok := c.Socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(min(limit, c.closeWait()))
	if c.Socket.SetReadDeadline(end) != nil {
		return
	}
	// Reads to the end, a timeout or a reset: each is the end.
	_, _ = io.Copy(io.Discard, c.Socket)
}

// teardown releases everything behind the connection. The reader has stopped.
// orderly: wait for methods in progress.
func (c *Conn) teardown(orderly bool) {
	c.leaves.Store(true)
	if orderly {
		c.Tasks.wait()
	} else {
		c.cancel()
	}
	c.endpoint.Shut()
	c.Tasks.wait()
	ctx, cancel := context.WithTimeout(c.server.ctx, c.server.cfg.OperationTimeout)
	defer cancel()
	var work errgroup.Group
	work.SetLimit(closeWorkers)
	for _, s := range c.endpoint.Leave() {
		work.Go(func() error {
			s.Close(ctx)
			return nil
		})
	}
	_ = work.Wait() // a session ends without errors
	c.Broker.Close(ctx)
}

// vacate gives back what the connection holds. Nothing works for it any more.
func (c *Conn) vacate() {
	clean := !errors.Is(c.end.reason(), errPanic)
	c.endpoint.Vacate(clean)
	c.Out.drop()
	c.Flow.memory.Close(clean)
	c.Out.memory.Close(clean)
	c.server.users.leave(c.User, &c.Memory, clean)
}

// Tasks counts goroutines that wait for the broker.
type Tasks struct {
	mu   sync.Mutex
	n    int
	zero *sync.Cond // nil: nobody has waited
}

// Start counts one more.
func (t *Tasks) Start() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

// Done counts one less.
func (t *Tasks) Done() {
	t.mu.Lock()
	if t.n--; t.n == 0 && t.zero != nil {
		t.zero.Broadcast()
	}
	t.mu.Unlock()
}

// wait returns once there are none.
func (t *Tasks) wait() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.zero == nil {
		t.zero = sync.NewCond(&t.mu)
	}
	for t.n > 0 {
		t.zero.Wait()
	}
}

// Refusal is what a client that has logged in was refused, or lost, for want of a
// right.
type Refusal struct {
	Protocol    string // its name
	User, VHost string
	Connection  string // its name
	Peer        netip.AddrPort
	Method      string // empty: none, the right was taken away
	Text        string
}

// Refused reports that the client was refused something, or has lost it, for want
// of a right. method is as in Refusal.
func (c *Conn) Refused(method, text string) {
	report := c.server.cfg.Refused
	if report == nil {
		return
	}
	name, peer := c.Where()
	report(Refusal{
		Protocol: c.protocol, User: c.User, VHost: c.VHost, Connection: name, Peer: peer, Method: method, Text: text,
	})
}

// Where returns the connection's name, and the client's address.
func (c *Conn) Where() (name string, client netip.AddrPort) {
	client = addrPort(c.Socket.RemoteAddr().String())
	return client.String() + " -> " + addrPort(c.Socket.LocalAddr().String()).String(), client
}

// Config is the server's configuration. It must not be changed.
func (c *Conn) Config() *Config { return &c.server.cfg }

// Context ends when nobody waits any more for what the broker is asked.
func (c *Conn) Context() context.Context { return c.ctx }

// ServerContext is Context for what must be done though the connection has ended.
func (c *Conn) ServerContext() context.Context { return c.server.ctx }

// Start does something on a goroutine that the server waits for, unless it is
// shutting down.
func (c *Conn) Start(f func()) { c.server.start(f) }

// Timeouts are the server's counts.
func (c *Conn) Timeouts() *TimeoutCounts { return &c.server.timeouts }

// Done is closed when the connection is ending.
func (c *Conn) Done() <-chan struct{} { return c.end.done }

// IsEnding reports whether Done is closed.
func (c *Conn) IsEnding() bool { return c.end.isDone() }

// ReaderIsDone reports whether Run has returned.
func (c *Conn) ReaderIsDone() bool { return c.leaves.Load() }
