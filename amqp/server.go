package amqp

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
)

// ErrServerClosed is returned by Serve once Shutdown has been called.
var ErrServerClosed = errors.New("amqp: server closed")

// Server accepts clients and serves them from a Broker, in its protocols.
type Server struct {
	cfg Config
	log *slog.Logger
	// ctx ends when the server stops waiting for clients.
	ctx  context.Context
	stop context.CancelFunc

	alarm   atomic.Pointer[Alarm] // nil: none; set under mu
	blocked atomic.Int64          // connections

	mu        sync.Mutex
	shutdown  bool
	suspended bool
	listeners map[net.Listener]struct{}
	conns     map[*Conn]struct{}
	delayed   map[net.Conn]*time.Timer // refused logins
	work      sync.WaitGroup           // conns and delayed

	users    users
	others   atomic.Int64 // bytes: see Hold
	timeouts TimeoutCounts
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

// TimeoutAction is a consequence of a consumer timeout; see Timeouts.
type TimeoutAction uint8

// The consequences.
const (
	TimeoutCancels TimeoutAction = iota
	TimeoutSuspends
	TimeoutCloses
	TimeoutOfGet
	TimeoutActions
)

// TimeoutCounts counts the consequences of consumer timeouts, by action.
type TimeoutCounts [TimeoutActions]atomic.Uint64

// Add counts one.
func (c *TimeoutCounts) Add(a TimeoutAction) { c[a].Add(1) }

// Timeouts returns the counts since the server began.
func (s *Server) Timeouts() Timeouts {
	n := func(a TimeoutAction) uint64 { return s.timeouts[a].Load() }
	return Timeouts{Cancelled: n(TimeoutCancels), Suspended: n(TimeoutSuspends), Closed: n(TimeoutCloses), Gets: n(TimeoutOfGet)}
}

// New returns a server. cfg must be valid.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.WithDefaults()
	ctx, stop := context.WithCancel(context.Background())
	return &Server{
		cfg: cfg, log: cfg.Logger, ctx: ctx, stop: stop, users: newUsers(cfg.HeldByUser, cfg.HeldByNode),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*Conn]struct{}{},
		delayed:   map[net.Conn]*time.Timer{},
	}, nil
}

// Serve accepts connections from l until Shutdown, then returns
// ErrServerClosed. It closes l. Its connections speak the server's protocols, or only those given.
func (s *Server) Serve(l net.Listener, only ...Protocol) error {
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
			s.accept(socket, only)
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
	if c := s.register(socket, nil); c != nil {
		s.serve(c)
	}
}

func (s *Server) accept(socket net.Conn, only []Protocol) {
	if c := s.register(socket, only); c != nil {
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

func (s *Server) register(socket net.Conn, only []Protocol) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shutdown || s.suspended {
		socket.Close()
		return nil
	}
	c := newConn(s, socket)
	if len(only) > 0 {
		c.protocols = only
	}
	s.conns[c] = struct{}{}
	s.work.Add(1)
	return c
}

func (s *Server) serve(c *Conn) {
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

// Suspend stops listening and ends all connections with a close that gives the
// reason (fsm.Forced). Serve returns ErrServerClosed. Suspend returns when the last
// client is gone; if ctx ends before that, their sockets are closed. No client
// is accepted until Resume.
func (s *Server) Suspend(ctx context.Context, reason string) {
	s.mu.Lock()
	s.suspended = true
	s.closeClients(reason)
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
func (s *Server) closeClients(why string) {
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
		c.Abort(err)
	}
}

// Shutdown stops listening, closes every connection and waits until the last
// one is gone. If ctx ends before that, it closes their sockets, abandons their
// calls of the broker, and then returns ctx.Err().
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.shutdown = true
	s.closeClients("broker forced connection closure with reason 'shutdown'")
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

// Config configures a Server. The zero value of a limit means its default.
type Config struct {
	// Broker performs what clients request. Required.
	Broker Broker
	// Protocols are what clients may speak, at each listener. At least one.
	Protocols []Protocol
	// Logger receives the logs of connections; nil: none.
	Logger *slog.Logger

	// FrameMax is the largest frame offered to clients, 4096 … 16 MiB.
	FrameMax uint32
	// InitialFrameMax is the largest frame accepted before its size is negotiated.
	InitialFrameMax uint32
	// Heartbeat is the interval offered to clients, in whole seconds. Negative:
	// none is offered. A client's own choice, including 0, always takes
	// precedence.
	Heartbeat time.Duration
	// HandshakeTimeout is the time from accept to the running connection.
	HandshakeTimeout time.Duration
	// OperationTimeout bounds the wait for the broker's answer to a request.
	OperationTimeout time.Duration
	// MaxMessageSize is the largest body in bytes, at most 512 MiB.
	MaxMessageSize int
	// HeldByConnection, HeldByUser and HeldByNode bound the bytes of memory that are held for a connection, for all
	// connections of a user, and for all clients of the node; see account. Defaults: 64 MiB; half of the node's; 1 GiB.
	HeldByConnection, HeldByUser, HeldByNode int64
	// CertificateUser returns the user of a verified client certificate. nil:
	// certificates cannot be used to log in.
	CertificateUser func(*x509.Certificate) string
	// AnonymousUser is the user of clients that log in without saying who they
	// are; empty: none may.
	AnonymousUser string
	// Refused is called with every request that is refused for lack of a right,
	// and with what a client loses. It must not block; it may be nil.
	Refused func(Refusal)
	// Version is announced in the server properties.
	Version string
	// ServerProperties replace or extend the properties that are announced to
	// clients.
	ServerProperties map[string]string
}

// Limits that are not configurable.
const (
	// MaxUnconfirmed and MaxUnconfirmedBytes bound the publishes of a connection
	// that have no outcome yet. At the bound the reader stops.
	MaxUnconfirmed      = fsm.MaxUnanswered
	MaxUnconfirmedBytes = 8 << 20

	// MaxRequested bounds the bytes that wait for a client because of its own
	// requests: replies, returns and gets. At the bound the reader stops.
	MaxRequested = 8 << 20

	// MaxBacklog is how many bytes may wait for a client that does not read;
	// stallTime is how long it counts as reading after the last write.
	MaxBacklog = 64 << 20
	stallTime  = 5 * time.Second

	// CrowdedBytes is what publishes without an outcome may hold instead of
	// MaxUnconfirmedBytes while the user or the node is at its bound, and the connection
	// holds more than its share. It is checked again every crowdedTime.
	CrowdedBytes = 256 << 10
	crowdedTime  = time.Second

	loginDelay      = 3 * time.Second  // until a refused login is dropped
	maxDelayed      = 100              // refused logins kept at a time
	frameTime       = 30 * time.Second // from the first to the last byte of a frame
	minWriteTimeout = 30 * time.Second
	maxCloseWait    = 30 * time.Second // for the client's part of a close
	lingerTime      = time.Second      // after the last write, for the client to read it
	keepAliveIdle   = 30 * time.Second
	keepAliveEvery  = 10 * time.Second
	keepAliveCount  = 3
	closeWorkers    = 16 // sessions of a connection that are closed at a time
)

// DefaultFrameMax is Config.FrameMax, if it is not set.
const DefaultFrameMax = 128 << 10

// Ranges of settings.
const (
	minFrameMax = 4096
	maxFrameMax = 16 << 20
	maxBodySize = 512 << 20
)

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	set(&c.Logger, slog.New(slog.DiscardHandler))
	set(&c.FrameMax, DefaultFrameMax)
	set(&c.InitialFrameMax, 8192)
	set(&c.Heartbeat, 60*time.Second)
	set(&c.HandshakeTimeout, 10*time.Second)
	set(&c.OperationTimeout, 15*time.Second)
	set(&c.MaxMessageSize, 16<<20)
	set(&c.HeldByConnection, 64<<20)
	set(&c.HeldByNode, 1<<30)
	set(&c.HeldByUser, c.HeldByNode/2)
	set(&c.Version, "0.0.0")
	c.Heartbeat = max(c.Heartbeat, 0)
	return c
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns an error that names the first setting out of range.
func (c Config) Validate() error {
	c = c.WithDefaults()
	for _, s := range []struct {
		name             string
		value, low, high int64
	}{
		{"frame_max", int64(c.FrameMax), minFrameMax, maxFrameMax},
		{"initial_frame_max", int64(c.InitialFrameMax), minFrameMax, maxFrameMax},
		{"heartbeat (s)", int64(c.Heartbeat / time.Second), 0, 65535},
		{"handshake_timeout (ms)", c.HandshakeTimeout.Milliseconds(), 1, 10 * 60 * 1000},
		{"operation_timeout (ms)", c.OperationTimeout.Milliseconds(), 1, 10 * 60 * 1000},
		{"max_message_size", int64(c.MaxMessageSize), 1, maxBodySize},
		{boundConnection, c.HeldByConnection, 1 << 20, 1 << 40},
		{boundUser, c.HeldByUser, 1 << 20, 1 << 40},
		{boundNode, c.HeldByNode, 1 << 20, 1 << 40},
	} {
		if s.value < s.low || s.value > s.high {
			return fmt.Errorf("%s is %d, must be between %d and %d", s.name, s.value, s.low, s.high)
		}
	}
	switch {
	case c.Broker == nil:
		return fmt.Errorf("broker is missing")
	case len(c.Protocols) == 0:
		return fmt.Errorf("protocols are missing")
	}
	for _, p := range c.Protocols {
		if err := p.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Alarm is a resource alarm, during which nobody may publish. When its reason
// changes, another one takes its place, with the same Over.
type Alarm struct {
	Reason string        // as clients are told
	Over   chan struct{} // closed when there is no alarm any more
}

// Alarm returns the alarm that is in effect; nil: there is none.
func (c *Conn) Alarm() *Alarm { return c.server.alarm.Load() }

// SetBlocked says that the connection is blocked by an alarm, or is no longer. Its
// reader calls it.
func (c *Conn) SetBlocked(blocked bool) {
	if c.stats.blocked.Swap(blocked) == blocked {
		return
	}
	if blocked {
		c.server.blocked.Add(1)
	} else {
		c.server.blocked.Add(-1)
	}
}

// SetAlarm raises a resource alarm, with the reason that clients are
// to be told, or clears it; empty: clear. During an alarm connections that have
// published are not read any more. It does not block.
func (s *Server) SetAlarm(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.alarm.Load()
	switch {
	case reason == "" && old == nil, old != nil && old.Reason == reason:
		return
	case reason == "":
		s.alarm.Store(nil)
		close(old.Over)
		return
	case old != nil:
		s.alarm.Store(&Alarm{reason, old.Over})
		return
	}
	s.alarm.Store(&Alarm{reason, make(chan struct{})})
	for c := range s.conns {
		if !c.end.isDone() {
			c.Source.interrupt()
		}
	}
}

// Blocked is how many connections are blocked by an alarm.
func (s *Server) Blocked() int64 { return s.blocked.Load() }

// logLimiter bounds how often the log speaks of clients that have not logged in:
// they may come as often as they like.
type logLimiter struct {
	mu      sync.Mutex
	since   time.Time // begin of the second
	written int       // lines in it, ≤ logLinesPerSecond
	dropped uint64    // lines since the last one that was written
}

// logLinesPerSecond is how many lines there may be in a second.
const logLinesPerSecond = 20

// log writes a line, or counts it for the next one that is written.
func (l *logLimiter) log(c *Conn, level slog.Level, message string, attrs ...any) {
	if !c.Log.Enabled(c.ctx, level) {
		return
	}
	if write, dropped := l.admit(); write {
		c.Log.Log(c.ctx, level, message, append(attrs, slog.Uint64("unlogged", dropped))...)
	}
}

// admit reports whether a line may be written, and how many were not before it.
func (l *logLimiter) admit() (write bool, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.since) >= time.Second {
		l.since, l.written = now, 0
	}
	if l.written == logLinesPerSecond {
		l.dropped++
		return false, 0
	}
	dropped, l.dropped = l.dropped, 0
	l.written++
	return true, dropped
}
