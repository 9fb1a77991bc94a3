package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/proto/peerpb"
)

// link is the stream this node dialled to a peer: requests and messages go out, answers come back.
// A link is used until it breaks, and never again.
type link struct {
	p           *peer
	conn        net.Conn
	cc          *grpc.ClientConn
	client      peerpb.PeerClient
	stream      grpc.ClientStream
	incarnation [16]byte // of the peer
	readsStored bool     // the peer's program does, see Mesh.ReadsStored
	ctx         context.Context
	cancel      context.CancelCauseFunc
	out         *outbox
	opened      time.Time
	heard       atomic.Int64 // when a byte last arrived, by age
	ponged      atomic.Int64 // when the last ping was sent that has been answered, by age
	roundTrip   atomic.Int64 // of the last ping that has been answered; before, of the hello

	mu      sync.Mutex
	pending map[uint64]pending
	next    uint64
	passed  time.Duration // of the pauses between pings
	checked time.Duration // what of it had passed when overdue requests were last failed
	broken  bool
}

// completer waits for an answer. complete is called exactly once, with an error or with the
// answer; it must not block.
type completer interface {
	complete(f frame, err error)
}

type pending struct {
	c     completer
	at    time.Duration // link.passed when it was registered
	timed bool          // fails after Timing.RequestTimeout
}

// heardConn records every sign of life. It counts bytes, not frames: while a long message is on
// its way out no pong comes, but HTTP/2 keeps granting window.
type heardConn struct {
	net.Conn
	l *link
}

func (c *heardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.l.heard.Store(int64(c.l.age()))
	}
	return n, err
}

// openLink dials and performs the handshake. Both end with ctx.
func openLink(ctx context.Context, p *peer, addr string) (*link, error) {
	l := &link{
		p: p, out: newOutbox(p.m.cfg.LazyDelay), opened: time.Now(),
		pending: make(map[uint64]pending),
	}
	var err error
	l.conn, _, err = p.m.cfg.Security.connect(ctx, func() (net.Conn, error) {
		conn, err := p.m.cfg.Dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return &heardConn{Conn: conn, l: l}, nil
	}, destination{node: p.name})
	if err != nil {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancelCause(p.ctx)
	stop := context.AfterFunc(ctx, func() { l.cancel(context.Cause(ctx)) })
	err = l.handshake()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) handshake() error {
	var err error
	if l.cc, err = newClientConn(l.conn); err != nil {
		return err
	}
	l.client = peerpb.NewPeerClient(l.cc)
	if l.stream, err = l.client.Link(l.ctx); err != nil {
		return err
	}
	hello, err := l.p.m.cfg.hello()
	if err != nil {
		return err
	}
	// If this fails, receiving returns the reason.
	sent := l.age()
	_ = l.stream.SendMsg(hello)
	var in inMessage
	if err := l.stream.RecvMsg(&in); err != nil {
		return err
	}
	l.roundTrip.Store(int64(l.age() - sent))
	h, err := l.p.m.cfg.checkHello(in.data)
	if err != nil {
		return err
	}
	if h.Node != l.p.name {
		return fmt.Errorf("peer: node %q answers at the address of %q", h.Node, l.p.name)
	}
	if err := l.p.m.cfg.admits(h); err != nil {
		return err
	}
	copy(l.incarnation[:], h.Incarnation)
	l.readsStored = h.ReadsStored
	return nil
}

// close releases what openLink acquired and fails everything that is waiting. serve must have
// ended.
func (l *link) close() {
	l.cancel(ErrBroken)
	l.conn.Close()
	if l.cc != nil {
		l.cc.Close()
	}
	l.out.close()
	l.failAll(ErrBroken)
}

// errSuspected ends a link on which nothing arrives any more.
var errSuspected = errors.New("peer: node does not respond")

// serve runs the link until it breaks, and returns the reason. Everything pending has failed by
// then.
func (l *link) serve() error {
	var wg sync.WaitGroup
	wg.Go(func() {
		err := l.out.run(l.ctx.Done(), func(b *batch) error { return l.p.send(l.stream, b) })
		l.cancel(err)
	})
	wg.Go(func() { l.cancel(l.receive()) })
	l.watch()
	cause := context.Cause(l.ctx)
	// Nobody should have to wait for the goroutines' end to learn that the link broke.
	l.p.unlink(l)
	l.out.close()
	l.failAll(ErrBroken)
	l.conn.Close() // first: gRPC waits seconds for a farewell to pass a full socket
	l.cc.Close()
	wg.Wait()
	return cause
}

// watch sends pings, fails overdue requests, and ends the link when nothing has arrived for too
// long.
func (l *link) watch() {
	pulse := newPulse(&l.p.m.cfg.Timing, l.age(), time.Duration(l.roundTrip.Load())) // the handshake before may have taken long
	next := time.NewTimer(time.Hour)
	defer next.Stop()
	last := time.Duration(0) // when a ping was sent
	for {
		answered := l.ponged.Load() >= int64(last)
		last = l.ping()
		pause := pulse.pause(answered)
		l.p.roundTrip.Store(int64(pulse.far))
		l.p.slack.Store(int64(pulse.slack()))
		next.Reset(pause)
		select {
		case <-l.ctx.Done():
			return
		case <-next.C:
		}
		if pulse.passed(pause, time.Duration(l.roundTrip.Load()), time.Duration(l.heard.Load()), l.age()) {
			l.cancel(errSuspected)
			return
		}
		l.failOverdue(pause)
	}
}

// age is the time since the link was opened.
func (l *link) age() time.Duration { return time.Since(l.opened) }

func (l *link) ping() (sent time.Duration) {
	sent = l.age()
	// The only error is that of a closed outbox, whose link is ending.
	_ = l.out.push(header{kind: kindPing, number: uint64(sent)}, noBody{}, classOwn, urgent)
	return sent
}

// receive handles the peer's answers until the stream ends.
func (l *link) receive() error {
	a := assembler{limits: &l.p.m.limits}
	defer a.end()
	in := inMessage{assembler: &a}
	for {
		if err := l.stream.RecvMsg(&in); err != nil {
			return err
		}
		if err := a.message(&in, l.handle); err != nil {
			return err
		}
	}
}

func (l *link) handle(f frame) error {
	switch f.kind {
	case kindPong:
		return l.pong(f)
	case kindReply:
		if c := l.unregister(f.number); c != nil {
			c.complete(f, nil)
		}
	case kindFailure:
		if len(f.body) > maxText {
			return fmt.Errorf("%w: a refusal of %d bytes", errTooMuch, len(f.body))
		}
		if c := l.unregister(f.number); c != nil {
			text := string(bytes.ToValidUTF8(f.body, nil))
			c.complete(frame{}, &RemoteError{Node: l.p.name, Text: text, code: f.arg})
		}
	default:
		return fmt.Errorf("%w: kind %d in an answer", errProtocol, f.kind)
	}
	return nil
}

// pong handles the answer to a ping.
func (l *link) pong(f frame) error {
	roundTrip := l.age() - time.Duration(f.number)
	if f.number >= maxIndex || roundTrip < 0 || len(f.body) > maxPing {
		return fmt.Errorf("%w: the answer to a ping that was not sent", errProtocol)
	}
	l.roundTrip.Store(int64(roundTrip))
	l.ponged.Store(int64(f.number))
	wall, given, err := decodeClock(f.body)
	if heard := l.p.m.cfg.HeardClock; given && heard != nil {
		heard(l.p.name, wall, l.opened.Add(time.Duration(f.number)))
	}
	return err
}

// register assigns a number to c's request.
func (l *link) register(c completer, timed bool) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		return 0, ErrDown
	}
	l.next++
	l.pending[l.next] = pending{c, l.passed, timed}
	return l.next, nil
}

// unregister returns the completer that waits for the answer, or nil if there is none any more.
// Its caller, and nobody else, completes it.
func (l *link) unregister(number uint64) completer {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.pending[number]
	delete(l.pending, number)
	return w.c
}

func (l *link) failAll(err error) {
	l.mu.Lock()
	l.broken = true
	all := l.pending
	l.pending = nil
	l.mu.Unlock()
	for _, w := range all {
		w.c.complete(frame{}, err)
	}
}

// failOverdue runs once per ping, after a pause.
func (l *link) failOverdue(pause time.Duration) {
	cfg := &l.p.m.cfg.Timing
	var overdue []completer
	l.mu.Lock()
	l.passed += pause
	if l.passed-l.checked >= 8*cfg.PingInterval { // the map may be large; precision is not worth walking it each time
		l.checked = l.passed
		for number, w := range l.pending {
			if w.timed && l.passed-w.at > cfg.RequestTimeout {
				overdue = append(overdue, w.c)
				delete(l.pending, number)
			}
		}
	}
	l.mu.Unlock()
	for _, c := range overdue {
		c.complete(frame{}, ErrTimeout)
	}
}

// waiter is a completer for one goroutine.
type waiter chan answer

type answer struct {
	f   frame
	err error
}

func (w waiter) complete(f frame, err error) { w <- answer{f, err} }

// answered decodes raft's answer to a request of a term. An invalid answer ends the link.
func (l *link) answered(f frame, resp any, requestTerm uint64) error {
	err := decodeAnswer(f.body, l.p.nameBytes, resp)
	if err == nil {
		err = vetAnswer(resp, requestTerm)
	}
	if err != nil {
		l.p.m.Complain(l.p.name, "malformed answer from a node", err)
		l.cancel(err)
	}
	return err
}

// exchange sends a request and waits for its answer or for stop.
func (l *link) exchange(stop <-chan struct{}, h header, b body, c class, u urgency) (frame, error) {
	w := make(waiter, 1)
	number, err := l.register(w, c != classApp)
	if err != nil {
		return frame{}, err
	}
	h.number = number
	if c == classRaft {
		err = l.out.pushWait(stop, h, b, u)
	} else {
		err = l.out.push(h, b, c, u)
	}
	if err != nil {
		l.unregister(number)
		return frame{}, err
	}
	select {
	case a := <-w:
		return a.f, a.err
	case <-stop:
		l.unregister(number)
		return frame{}, errAbandoned
	}
}

// hello returns this node's hello as a batch.
func (c *Config) hello() (*batch, error) {
	h := &peerpb.Hello{
		Cluster: c.Cluster, Node: c.Node,
		Incarnation: c.Incarnation[:], Version: Version, Identity: c.Identity, ReadsStored: true,
	}
	data, err := proto.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encoding hello: %w", err)
	}
	b := new(batch)
	header{kind: kindHello}.put(b.reserve(headerSize), len(data))
	b.add(data)
	return b, nil
}

// checkHello parses the first message of the other side and refuses one that
// does not fit.
func (c *Config) checkHello(msg []byte) (*peerpb.Hello, error) {
	f, rest, err := nextFrame(msg)
	if err != nil {
		return nil, err
	}
	if f.kind != kindHello || len(rest) > 0 {
		return nil, fmt.Errorf("%w: no hello", errProtocol)
	}
	h := new(peerpb.Hello)
	if err := proto.Unmarshal(f.body, h); err != nil {
		return nil, fmt.Errorf("%w: hello: %w", errProtocol, err)
	}
	switch {
	case h.Version != Version:
		return nil, fmt.Errorf("%w: node %q speaks version %d, this one %d", errStranger, h.Node, h.Version, Version)
	case h.Cluster != c.Cluster:
		return nil, fmt.Errorf("%w: node %q belongs to cluster %q, this one to %q", errStranger, h.Node, h.Cluster, c.Cluster)
	case len(h.Incarnation) != 16:
		return nil, fmt.Errorf("%w: incarnation of %d bytes", errProtocol, len(h.Incarnation))
	}
	return h, nil
}

// admits says why the node that says hello may have no link.
func (c *Config) admits(h *peerpb.Hello) error {
	if c.Admit == nil {
		return nil
	}
	return c.Admit(h.Node, h.Identity)
}
