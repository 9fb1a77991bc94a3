package amqp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/amqp/wire"
)

// ErrServerClosed is returned by Serve once Shutdown has been called.
var ErrServerClosed = errors.New("amqp: server closed")

// Server accepts AMQP 0-9-1 clients and serves them from a Broker.
type Server struct {
	cfg Config
	log *slog.Logger
	// ctx ends when the server stops waiting for clients.
	ctx  context.Context
	stop context.CancelFunc

	alarm   atomic.Pointer[alarm] // nil: none; set under mu
	blocked atomic.Int64          // connections

	mu        sync.Mutex
	shutdown  bool
	suspended bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	delayed   map[net.Conn]*time.Timer // refused logins
	work      sync.WaitGroup           // conns and delayed

	users    users
	others   atomic.Int64 // bytes: see Hold
	timeouts timeoutCounts
	panics   atomic.Uint64
	unknown  logLimiter // lines about clients that have not logged in
}

// Panics counts the connections that a panic has ended, or would have ended.
func (s *Server) Panics() uint64 { return s.panics.Load() }

// Timeouts counts the consequences of consumer timeouts.
type Timeouts struct {
	Cancelled uint64 // consumers
	Suspended uint64 // consumers, each time
	Closed    uint64 // channels, for consumers that cannot be cancelled
	Gets      uint64 // channels, for messages taken with basic.get
}

type timeoutAction uint8

const (
	timeoutCancels timeoutAction = iota
	timeoutSuspends
	timeoutCloses
	timeoutOfGet
	timeoutActions
)

// timeoutCounts counts the consequences of consumer timeouts, by action.
type timeoutCounts [timeoutActions]atomic.Uint64

func (c *timeoutCounts) add(a timeoutAction) { c[a].Add(1) }

// Timeouts returns the counts since the server began.
func (s *Server) Timeouts() Timeouts {
	n := func(a timeoutAction) uint64 { return s.timeouts[a].Load() }
	return Timeouts{Cancelled: n(timeoutCancels), Suspended: n(timeoutSuspends), Closed: n(timeoutCloses), Gets: n(timeoutOfGet)}
}

// New returns a server. cfg must be valid.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ctx, stop := context.WithCancel(context.Background())
	return &Server{
		cfg: cfg, log: cfg.Logger, ctx: ctx, stop: stop, users: newUsers(cfg.HeldByUser, cfg.HeldByNode),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
		delayed:   map[net.Conn]*time.Timer{},
	}, nil
}

// Serve accepts connections from l until Shutdown, then returns
// ErrServerClosed. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.shutdown || s.suspended {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	pause := time.Duration(0)
	for {
		socket, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			setKeepAlive(socket)
			s.accept(socket)
		case s.isClosed():
			return ErrServerClosed
		case errors.Is(err, net.ErrClosed):
			return err
		default: // no file descriptors left, most likely
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("accept failed", slog.Any("error", err), slog.Duration("pause", pause))
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
	}
}

func setKeepAlive(socket net.Conn) {
	if tcp, ok := transport(socket).(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		// Best effort: the heartbeat is what counts.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveEvery, Count: keepAliveCount,
		})
	}
}

// ServeConn serves one connection, closes it, and returns when it has ended.
func (s *Server) ServeConn(socket net.Conn) {
	if c := s.register(socket); c != nil {
		s.serve(c)
	}
}

func (s *Server) accept(socket net.Conn) {
	if c := s.register(socket); c != nil {
		go s.serve(c)
	}
}

// start does something on a goroutine that Shutdown waits for, unless that has begun.
func (s *Server) start(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shutdown {
		s.work.Go(f)
	}
}

func (s *Server) register(socket net.Conn) *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown || s.suspended {
		socket.Close()
		return nil
	}
	c := newConn(s, socket)
	s.conns[c] = struct{}{}
	s.work.Add(1)
	return c
}

func (s *Server) serve(c *conn) {
	defer s.work.Done()
	c.serve()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	close(c.end.gone)
}

// dropLater closes the socket of a refused login after a delay. This takes only
// a timer.
func (s *Server) dropLater(socket net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown || len(s.delayed) >= maxDelayed {
		socket.Close()
		return
	}
	s.work.Add(1)
	s.delayed[socket] = time.AfterFunc(loginDelay, func() {
		defer s.work.Done()
		socket.Close()
		s.mu.Lock()
		delete(s.delayed, socket)
		s.mu.Unlock()
	})
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shutdown || s.suspended
}

// Suspend stops listening and ends all connections with 320 CONNECTION_FORCED
// and the reason. Serve returns ErrServerClosed. Suspend returns when the last
// client is gone; if ctx ends before that, their sockets are closed. No client
// is accepted until Resume.
func (s *Server) Suspend(ctx context.Context, reason string) {
	s.mu.Lock()
	s.suspended = true
	s.closeClients(errForced(reason))
	var gone []<-chan struct{}
	for c := range s.conns {
		gone = append(gone, c.end.gone)
	}
	s.mu.Unlock()
	for _, g := range gone {
		select {
		case <-g:
		case <-ctx.Done():
			s.abortAll(ctx.Err())
			return
		}
	}
}

// Resume lets Serve be called again after Suspend.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.suspended = false
}

// closeClients closes the listeners and every connection, with a reason. The lock
// is held.
func (s *Server) closeClients(why *wire.Error) {
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.forceClose(why)
	}
}

func (s *Server) abortAll(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.abort(err)
	}
}

// Shutdown stops listening, closes every connection and waits until the last
// one is gone. If ctx ends before that, it closes their sockets, abandons their
// calls of the broker, and then returns ctx.Err().
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.shutdown = true
	s.closeClients(errForced("broker forced connection closure with reason 'shutdown'"))
	for socket, timer := range s.delayed {
		if timer.Stop() {
			socket.Close()
			delete(s.delayed, socket)
			s.work.Done()
		}
	}
	s.mu.Unlock()

	gone := make(chan struct{})
	go func() {
		s.work.Wait()
		close(gone)
	}()
	defer s.stop()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
	}
	s.stop()
	s.abortAll(ctx.Err())
	<-gone
	return ctx.Err()
}

// properties returns the server properties of connection.start.
func (s *Server) properties() wire.Table {
	var capabilities wire.Table
	for _, name := range []string{
		"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify",
		"connection.blocked", "consumer_priorities", "authentication_failure_close", "per_consumer_qos",
		"quorate_commands", "message_scheduling", "message_lock_renewal", "message_deferral",
	} {
		capabilities = append(capabilities, wire.Field{Name: name, Value: wire.Bool(true)})
	}
	capabilities = append(capabilities,
		wire.Field{Name: "direct_reply_to", Value: wire.Bool(true)},
		wire.Field{Name: "accept_consumer_cancel_ok", Value: wire.Bool(true)},
	)
	t := wire.Table{
		{Name: "capabilities", Value: wire.Nested(capabilities)},
		{Name: "cluster_name", Value: wire.String(s.cfg.Broker.ClusterName())},
		{Name: "copyright", Value: wire.String("The quorate authors")},
		{Name: "information", Value: wire.String("https://github.com/quorate/quorate")},
		{Name: "platform", Value: wire.String("Go")},
		{Name: "product", Value: wire.String("quorate")},
		{Name: "version", Value: wire.String(s.cfg.Version)},
	}
	for _, name := range sortedKeys(s.cfg.ServerProperties) {
		t = setField(t, name, s.cfg.ServerProperties[name])
	}
	return t
}

func setField(t wire.Table, name, value string) wire.Table {
	for i := range t {
		if t[i].Name == name {
			t[i].Value = wire.String(value)
			return t
		}
	}
	return append(t, wire.Field{Name: name, Value: wire.String(value)})
}
