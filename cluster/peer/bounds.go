package peer

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"
)

// What another node can make this one keep. A node that has proven its name is
// believed to be that node, and nothing else: DESIGN.md has the table.
//
//	connections                 ≤ maxConnections
//	streams of a connection     ≤ maxStreams, each with ≤ streamWindow unread
//	streams without a hello     ≤ maxStrangers, for ≤ helloWait
//	links from a node           ≤ linksPerPeer, snapshots ≤ snapshotsPerPeer
//	one gRPC message            ≤ maxReceive
//	pieces of long messages     ≤ 2 × MaxMessage for a stream, ≤ assemblyBudget
//	calls of a node             ≤ callsPerPeer, with ≤ callBytes of requests and
//	                            one request more
//	requests of raft            ≤ 2 × inboundBudget, and ≤ maxHeldBytes for
//	                            groups that there are not
//	answers that are not taken  ≤ 2 × maxBacklog, ≤ maxOwnAnswers of them pongs
const (
	maxConnections   = 1024
	maxStreams       = 16
	maxStrangers     = 32
	linksPerPeer     = 3 // one that is served, one that replaces it, one more
	snapshotsPerPeer = maxStreams
	maxHello         = 4 << 10
	helloWait        = 5 * time.Second
	assemblyBudget   = 512 << 20
	callsPerPeer     = 256
	callBytes        = 16 << 20
	maxOwnAnswers    = 1 << 20
	// maxPing bounds what a ping or a pong carries: more may follow the clock.
	maxPing = 64
	// maxText bounds the text of a refusal.
	maxText = copyLimit
)

var (
	errCrowded = errors.New("peer: the limit of memory held for other nodes is reached")
	errLate    = errors.New("peer: timed out waiting for the first message")
)

// inboundLimits bound what a mesh keeps for other nodes.
type inboundLimits struct {
	strangers  chan struct{} // a token per stream that has not said who it is
	patience   time.Duration // with them
	assembling atomic.Int64  // bytes of pieces
	limit      int64         // of assembling
}

func (l *inboundLimits) init() {
	l.strangers, l.patience = make(chan struct{}, maxStrangers), helloWait
	l.limit = assemblyBudget
}

// take counts so many bytes more that are being put together, if that may be; put takes them back.
func (l *inboundLimits) take(bytes int) error {
	if l != nil && l.assembling.Add(int64(bytes)) > l.limit {
		l.assembling.Add(int64(-bytes))
		return errCrowded
	}
	return nil
}

func (l *inboundLimits) put(bytes int) {
	if l != nil {
		l.assembling.Add(int64(-bytes))
	}
}

// tokens bounds how many of something there are.
type tokens struct{ taken atomic.Int32 }

// take reports whether there may be one more, and counts it; put takes it back.
func (t *tokens) take(limit int32) bool {
	if t.taken.Add(1) > limit {
		t.taken.Add(-1)
		return false
	}
	return true
}

func (t *tokens) put() { t.taken.Add(-1) }

// callLimit bounds the calls of one node that run at a time.
type callLimit struct {
	mu    sync.Mutex
	calls int
	bytes int
}

// take reports whether a call with a request of this size may run.
func (c *callLimit) take(size int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls >= callsPerPeer || c.bytes >= callBytes {
		return false
	}
	c.calls++
	c.bytes += size
	return true
}

func (c *callLimit) put(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	c.bytes -= size
}

// first receives the first message of a stream, which says who it is. It must be
// short, and come soon; few may be waited for.
func (l *inboundLimits) first(stream grpc.ServerStream, spawn func(func())) ([]byte, error) {
	select {
	case l.strangers <- struct{}{}:
		defer func() { <-l.strangers }()
	default:
		return nil, errCrowded
	}
	msg, err := receiveWithin(stream, l.patience, spawn)
	if err == nil && len(msg) > maxHello {
		err = errTooMuch
	}
	return msg, err
}

// errTooMuch: the other side sent more than there can be of such a kind.
var errTooMuch = errors.New("peer: too much for a message of this kind")

// receiveWithin receives a message that must come soon. If it does not, the
// stream is of no use any more: it is ended by returning from its handler.
func receiveWithin(stream grpc.ServerStream, wait time.Duration, spawn func(func())) ([]byte, error) {
	type received struct {
		data []byte
		err  error
	}
	come := make(chan received, 1)
	spawn(func() {
		var in inMessage
		err := stream.RecvMsg(&in)
		come <- received{in.data, err}
	})
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case r := <-come:
		return r.data, r.err
	case <-timer.C:
		return nil, errLate
	}
}

// limitedListener closes connections above a number at once.
type limitedListener struct {
	net.Listener
	open tokens
	log  func(what string, err error)
	stop <-chan struct{}
}

// The first and the longest pause after connections cannot be accepted.
const (
	firstAcceptPause   = 5 * time.Millisecond
	longestAcceptPause = time.Second
)

// Accept implements net.Listener. It fails only when the listener is closed: otherwise the system is short of
// something, or tells of a connection that is gone already, and gRPC would give up.
func (l *limitedListener) Accept() (net.Conn, error) {
	for pause := firstAcceptPause; ; {
		conn, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			l.log("connections are not accepted", err)
			select {
			case <-time.After(pause):
			case <-l.stop:
				return nil, net.ErrClosed
			}
			pause = min(2*pause, longestAcceptPause)
			continue
		case l.open.take(maxConnections):
			return &limitedConn{Conn: conn, l: l}, nil
		}
		conn.Close()
		l.log("refused a connection", errCrowded)
		pause = firstAcceptPause
	}
}

type limitedConn struct {
	net.Conn
	l    *limitedListener
	once sync.Once
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.once.Do(c.l.open.put)
	return c.Conn.Close()
}

const (
	// complainEvery is how often it is logged that a node did the same wrong thing
	// again.
	complainEvery = time.Minute
	// maxComplaints bounds how many things are remembered.
	maxComplaints = 1024
)

// complaints remembers what was logged about other nodes: who is refused dials
// again several times a second, and the log needs to say so once a minute.
type complaints struct {
	mu    sync.Mutex
	said  map[complaint]time.Time
	swept time.Time // what is a minute old was last forgotten
}

// complaint is what a node, or an address that has not said who it is, did wrong.
type complaint struct{ who, cause string }

// first reports whether that is to be logged. With too much to remember nothing
// new is, until a minute has passed: names cost nothing.
func (r *complaints) first(who, cause string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, key := time.Now(), complaint{who, cause}
	if at, said := r.said[key]; said && now.Sub(at) < complainEvery {
		return false
	}
	if len(r.said) >= maxComplaints && now.Sub(r.swept) >= complainEvery/10 {
		r.swept = now
		for k, at := range r.said {
			if now.Sub(at) >= complainEvery {
				delete(r.said, k)
			}
		}
	}
	if len(r.said) >= maxComplaints {
		return false
	}
	if r.said == nil {
		r.said = map[complaint]time.Time{}
	}
	r.said[key] = now
	return true
}

// causes tell errors apart where they are counted together. The
// text of an error may be the other node's.
var causes = []error{
	errCrowd, errHandshake, errUnproven, errProtocol, errShort, errTooMuch, errCrowded, errLate, errFar, errEntry, ErrUnknownNode, ErrUnknownGroup, ErrBacklog, ErrBusy,
	errStranger, ErrBroken, ErrClosed, errPanic, context.Canceled,
}

func causeOf(err error) string {
	for _, c := range causes {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	return "other"
}

// Complain logs what another node has done wrong, once a minute for each node
// and cause: what is a constant text.
func (m *Mesh) Complain(node, what string, err error) {
	if m.complaints.first(node, what+": "+causeOf(err)) {
		m.log.Warn(what, slog.String("node", node), slog.Any("error", err))
	}
}

// distrust breaks the link to a node that gives answers which make no sense.
func (m *Mesh) distrust(node string, err error) {
	m.Complain(node, "malformed answer from a node", err)
	if p := m.peer(node); p != nil {
		if l := p.link.Load(); l != nil {
			l.cancel(err)
		}
	}
}

// host is where a stream comes from, for what has not said who it is.
func host(ctx context.Context) string {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return ""
	}
	h, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return h
}
