package amqp

import (
	"context"
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

	"github.com/quorate/quorate/amqp/v091/wire"
)

var (
	errClientClosed = errors.New("closed by the client")
	errEnding       = errors.New("connection is ending")
	errTooMuch      = errors.New("client does not read from its connection")
)

// conn is one client connection. Its reader is the goroutine that serves it,
// its writer a second one; a third kind lives as long as a method of a channel
// waits for the broker.
type conn struct {
	server *Server
	socket net.Conn
	log    *slog.Logger
	reader *reader
	out    *outbox
	memory account // all of the connection's memory
	flow   *flow   // publishes that the broker has not confirmed
	tasks  *tasks
	end    connEnd
	stats  connStats

	terms  // set by the handshake
	broker Connection

	// ctx ends calls of the broker once nobody waits for the answer.
	ctx    context.Context
	cancel context.CancelFunc
	leaves atomic.Bool // the reader has stopped
}

// terms are the result of the handshake's negotiation.
type terms struct {
	user, vhost      string
	mechanism        string
	clientProperties wire.Table
	capable          capabilities
	frameMax         uint32
	channelMax       uint16
	heartbeat        time.Duration
}

// connStats is what other goroutines may read of a connection.
type connStats struct {
	info     atomic.Pointer[ConnectionInfo] // nil: not open yet
	channels channelList
	blocked  atomic.Bool   // by an alarm
	sent     atomic.Uint64 // octets
	writes   atomic.Uint64
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

func newConn(s *Server, socket net.Conn) *conn {
	c := &conn{
		server: s, socket: socket,
		log:    s.log.With(slog.String("remote", socket.RemoteAddr().String())),
		memory: account{step: connectionStep, limit: s.cfg.HeldByConnection, bound: boundConnection},
		tasks:  newTasks(),
		end:    connEnd{done: make(chan struct{}), gone: make(chan struct{})},
	}
	c.flow = newFlow(maxUnconfirmed, maxUnconfirmedBytes, c.memory.newPart(connectionStep, nil))
	c.out = newOutbox(&c.memory, func() { c.abort(errTooMuch) })
	c.reader = newReader(c)
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	return c
}

// serve runs the connection from the first byte to the last.
func (c *conn) serve() {
	defer c.cancel()
	if err := c.guard("handshake", c.negotiate); err != nil {
		c.refuse(err)
		return
	}
	c.server.users.join(c.user, &c.memory)
	c.reader.source.watch(c.heartbeat)
	// This comes before a client can see that the connection is open.
	open := c.end.run()
	c.stats.info.Store(c.describe())
	written := make(chan struct{})
	go func() {
		defer close(written)
		if err := c.guard("write", newWriter(c).run); err != nil {
			c.abort(err)
		}
	}()
	err := errEnding
	if open {
		c.log.Info("connection open")
		// A CloseConnections before the connection was running has missed it.
		if e := c.renew(wire.IDConnectionOpen); e != nil {
			err = e
		} else {
			err = c.guard("read", c.reader.run)
		}
	}
	c.finish(err, written)
	c.socket.Close()
	c.vacate()
	c.log.Info("connection closed", slog.Any("reason", c.end.reason()))
}

// errPanic ends a connection whose work has panicked.
var errPanic = &wire.Error{Code: wire.CodeInternalError, Text: "internal error"}

// guard runs a part of the connection's work. A panic ends the connection, and
// nothing else.
func (c *conn) guard(doing string, f func() error) (err error) {
	err = errPanic
	defer c.contain(doing)
	return f()
}

// contain is deferred around work for the connection on goroutines other than
// its reader's.
func (c *conn) contain(doing string) {
	if p := recover(); p != nil {
		c.server.panics.Add(1)
		c.log.Error("panic while serving a connection, which is closed", slog.String("doing", doing), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		c.abort(errPanic)
	}
}

// refuse ends a connection whose handshake has failed.
func (c *conn) refuse(err error) {
	if c.broker != nil {
		ctx, cancel := context.WithTimeout(c.server.ctx, c.server.cfg.OperationTimeout)
		defer cancel()
		c.broker.Close(ctx)
	}
	if errors.Is(err, errDropLater) {
		c.server.dropLater(c.socket)
		return
	}
	if e := new(wire.Error); errors.As(err, &e) {
		if methodOf(e) == wire.IDConnectionOpen {
			c.refused(e)
		}
		if _, err := c.socket.Write(wire.AppendMethod(nil, 0, closeMethod(e))); err == nil {
			c.linger(lingerTime)
		}
	} else if errors.Is(err, errRefused) {
		c.linger(lingerTime)
	}
	c.socket.Close()
	level := slog.LevelInfo
	if errors.Is(err, io.EOF) {
		level = slog.LevelDebug
	}
	c.server.unknown.log(c, level, "handshake failed", slog.Any("error", err))
}

// fail ends the connection with connection.close, unless it is ending already.
// It does not block.
func (c *conn) fail(e *wire.Error) {
	if c.end.begin(e) {
		c.out.pushEnd(closeMethod(e))
		c.reader.source.endBy(time.Now().Add(c.closeWait()))
	}
}

// forceClose is fail, or abort during the handshake.
func (c *conn) forceClose(e *wire.Error) {
	if c.end.isRunning() {
		c.fail(e)
	} else {
		c.abort(e)
	}
}

// abort ends the connection without connection.close. It does not block.
func (c *conn) abort(err error) {
	c.end.begin(err)
	c.cancel()
	transport(c.socket).Close()
}

// closeWait bounds the client's part of a close.
func (c *conn) closeWait() time.Duration {
	if c.heartbeat == 0 {
		return maxCloseWait
	}
	return min(c.heartbeat, maxCloseWait)
}

// finish takes the connection down after the reader has stopped with err.
func (c *conn) finish(err error, written <-chan struct{}) {
	linger := lingerTime
	switch protocol := new(wire.Error); {
	case errors.Is(err, errClientClosed):
		c.end.begin(err)
		c.teardown(true)
		c.out.pushEnd(&wire.ConnectionCloseOK{})
		linger = c.closeWait()
	case errors.As(err, &protocol):
		c.fail(protocol)
		c.tellClose()
	case errors.Is(err, errEnding), c.end.isDone():
		c.tellClose()
	default:
		c.abort(c.explain(err))
		c.teardown(false)
	}
	// A client that does not read must not delay the end forever.
	timer := time.AfterFunc(c.closeWait(), func() { transport(c.socket).Close() })
	defer timer.Stop()
	c.out.end()
	<-written
	c.linger(linger)
}

// explain translates a timeout of the socket into its cause.
func (c *conn) explain(err error) error {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case c.reader.source.frameExpired():
		return fmt.Errorf("frame was not complete after %v", frameTime)
	}
	return fmt.Errorf("missed heartbeats from client, timeout: %v", c.heartbeat)
}

// tellClose waits until the client has answered connection.close, while
// everything behind the connection is taken down.
func (c *conn) tellClose() {
	torn := make(chan struct{})
	go func() {
		defer close(torn)
		c.teardown(false)
	}()
	for {
		f, err := c.reader.in.ReadFrame()
		if err != nil {
			break
		}
		c.reader.source.frameDone()
		if f.Channel != 0 || f.Type != wire.FrameMethod {
			continue
		}
		id := wire.PeekID(f.Payload)
		if id == wire.IDConnectionClose {
			c.out.push(0, &wire.ConnectionCloseOK{})
		}
		if id == wire.IDConnectionCloseOK {
			break
		}
	}
	<-torn
}

// linger lets the client read what was written before the socket is closed: a
// socket closed with unread input is reset, and the last frames are lost.
func (c *conn) linger(limit time.Duration) {
	half, ok := c.socket.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	end := time.Now().Add(min(limit, c.closeWait()))
	if c.socket.SetReadDeadline(end) != nil {
		return
	}
	// Reads to the end, a timeout or a reset: each is the end.
	_, _ = io.Copy(io.Discard, c.socket)
}

// teardown releases everything behind the connection. The reader has stopped.
// orderly: wait for methods in progress.
func (c *conn) teardown(orderly bool) {
	c.leaves.Store(true)
	if orderly {
		c.tasks.wait()
	} else {
		c.cancel()
	}
	for _, ch := range c.reader.channels {
		ch.shut()
	}
	c.tasks.wait()
	ctx, cancel := context.WithTimeout(c.server.ctx, c.server.cfg.OperationTimeout)
	defer cancel()
	var work errgroup.Group
	work.SetLimit(closeWorkers)
	for _, ch := range c.reader.channels {
		if !ch.beginClose() {
			continue
		}
		work.Go(func() error {
			ch.session.Close(ctx)
			return nil
		})
	}
	_ = work.Wait() // a session ends without errors
	c.broker.Close(ctx)
}

// vacate gives back what the connection holds. Nothing works for it any more.
func (c *conn) vacate() {
	clean := !errors.Is(c.end.reason(), errPanic)
	for _, ch := range c.reader.channels {
		ch.content.reset()
		ch.gate.Lock()
		ch.queue.clear()
		ch.tx.end()
		ch.gate.Unlock()
		ch.memory.close(clean)
	}
	c.out.drop()
	c.flow.memory.close(clean)
	c.out.memory.close(clean)
	c.server.users.leave(c.user, &c.memory, clean)
}

// tasks counts goroutines that wait for the broker.
type tasks struct {
	mu   sync.Mutex
	n    int
	zero *sync.Cond
}

func newTasks() *tasks {
	t := &tasks{}
	t.zero = sync.NewCond(&t.mu)
	return t
}

func (t *tasks) start() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tasks) done() {
	t.mu.Lock()
	if t.n--; t.n == 0 {
		t.zero.Broadcast()
	}
	t.mu.Unlock()
}

// wait returns once there are none.
func (t *tasks) wait() {
	t.mu.Lock()
	for t.n > 0 {
		t.zero.Wait()
	}
	t.mu.Unlock()
}

// Refusal is what a client that has logged in was refused, or lost, for want of a
// right.
type Refusal struct {
	User, VHost string
	Connection  string // its name
	Peer        netip.AddrPort
	Method      string // empty: none, the right was taken away
	Text        string
}

// refused reports an error about rights that is sent to the client.
func (c *conn) refused(e *wire.Error) {
	report := c.server.cfg.Refused
	if report == nil {
		return
	}
	peer, host := addrPort(c.socket.RemoteAddr().String()), addrPort(c.socket.LocalAddr().String())
	report(Refusal{
		User: c.user, VHost: c.vhost, Connection: peer.String() + " -> " + host.String(), Peer: peer,
		Method: wire.MethodName(methodOf(e)), Text: wire.ReplyText(e.Code, e.Text),
	})
}

// methodOf is the id of the method that an error is about; 0: none.
func methodOf(e *wire.Error) uint32 { return uint32(e.ClassID)<<16 | uint32(e.MethodID) }

// renew checks what the client may do now, on behalf of the method with this id.
// An error is what the connection is to end with.
func (c *conn) renew(id uint32) *wire.Error {
	err := c.broker.Renew()
	if err == nil {
		return nil
	}
	e := protocolError(err, id)
	c.refused(e)
	return e
}
