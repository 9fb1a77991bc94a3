package peer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// redialMin … redialMax: the growing pause between attempts to dial.
	redialMin = 30 * time.Millisecond
	redialMax = 250 * time.Millisecond
)

// peer is another node: the link to it, the stream from it, and whether it is
// alive.
type peer struct {
	m         *Mesh
	name      string
	nameBytes []byte // name, shared by decoded raft requests
	ctx       context.Context
	cancel    context.CancelFunc
	link      atomic.Pointer[link] // changes under mu; nil: none
	use       usage

	// mu guards the fields below. Events are emitted while it is held, so that they are in the
	// order of the changes.
	//
	//	up is closed, if link is set
	//	removed is final; not live.alive then
	mu        sync.Mutex
	up        chan struct{}
	addresses addresses
	live      liveness
	in        incoming
	logged    map[string]string // the last dial error that was logged, by address
	removed   bool
}

// usage counts what a peer makes this node hold.
type usage struct {
	links     tokens
	snapshots tokens
	calls     callLimit
}

// incoming is the stream that a peer has dialled. A later one replaces it: a node dials again only
// when it has given up the previous one.
type incoming struct {
	stream      *inbound // nil: none
	incarnation [16]byte // of the process that dialled last
	// received is closed when everything on the last stream, whether or not that stream has ended,
	// has been received; nil: there was none.
	received chan struct{}
}

// replace replaces the present stream, which ends, by in. It reports whether the same process of
// the node has dialled again.
func (i *incoming) replace(in *inbound) (again bool) {
	i.end(ErrBroken)
	again = in.incarnation == i.incarnation
	in.previous = i.received
	i.stream, i.incarnation, i.received = in, in.incarnation, in.received
	return again
}

// end ends the stream, if there is one.
func (i *incoming) end(cause error) {
	if i.stream != nil {
		i.stream.cancel(cause)
		i.stream = nil
	}
}

// from reports whether there is a stream that this process of the node has dialled.
func (i *incoming) from(incarnation []byte) bool {
	return i.stream != nil && bytes.Equal(i.stream.incarnation[:], incarnation)
}

func newPeer(m *Mesh, name string, addrs []string) *peer {
	p := &peer{
		m: m, name: name, nameBytes: []byte(name), addresses: addresses{all: addrs}, logged: map[string]string{},
		up: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(m.ctx)
	return p
}

func (p *peer) setAddresses(addrs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses.set(addrs)
}

func (p *peer) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addresses.next()
}

// run dials, serves the link, and dials again, until the mesh or the peer ends.
func (p *peer) run() {
	delay, slow := redialMin, 0
	for p.ctx.Err() == nil {
		if p.m.withdrawal.await(p.ctx.Done()) {
			delay = redialMin
		}
		addr := p.address()
		l, err := p.dial(addr, slow)
		if err == nil {
			p.opened(l, addr)
			cause := l.serve()
			p.lost(cause)
			delay, slow = redialMin, 0
			continue
		}
		p.notReached(addr, err)
		if slow++; p.isAlive() || errors.Is(err, syscall.ECONNREFUSED) {
			slow = 0
		}
		select {
		case <-time.After(delay/2 + rand.N(delay/2)):
		case <-p.ctx.Done():
		}
		delay = min(delay*5/4, redialMax)
		if p.isAlive() {
			delay = redialMin
		}
	}
}

// dial opens a link. After slow attempts that failed, the next may take longer, up to eight
// times as long: otherwise nodes short of processor time would never get through, and each attempt costs
// them more of it.
func (p *peer) dial(addr string, slow int) (*link, error) {
	limit := max(p.m.cfg.SuspectAfter/2, redialMax) << min(slow, 3)
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	return openLink(ctx, p, addr)
}

func (p *peer) opened(l *link, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed {
		l.cancel(ErrClosed)
		return
	}
	if p.m.withdrawal.active.Load() {
		l.cancel(errWithdrawn)
		return
	}
	if p.live.replaced(l.incarnation) {
		p.down(Restarted)
	}
	p.live.linked(l.incarnation)
	p.addresses.reached(addr)
	clear(p.logged)
	p.link.Store(l)
	close(p.up)
	p.announce()
	p.m.log.Info("link to node is up", slog.String("node", p.name), slog.Uint64("epoch", p.live.epoch))
}

// announce emits Up with a new epoch. p.mu is held.
func (p *peer) announce() {
	p.live.epoch++
	p.m.events.emit(p.event(true, ""))
}

// down emits Down; p.mu is held and the peer alive.
func (p *peer) down(reason string) {
	p.live.alive = false
	p.m.events.emit(p.event(false, reason))
	p.m.log.Warn("node is down", slog.String("node", p.name), slog.String("reason", reason))
}

func (p *peer) event(up bool, reason string) Event {
	return Event{Node: p.name, Up: up, Incarnation: p.live.incarnation, Epoch: p.live.epoch, Reason: reason}
}

// unlink takes l out of service.
func (p *peer) unlink(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link.Load() == l {
		p.link.Store(nil)
		p.up = make(chan struct{})
	}
}

// lost handles the end of a link.
func (p *peer) lost(cause error) {
	if p.m.ctx.Err() == nil {
		p.m.log.Info("link to node broke", slog.String("node", p.name), slog.Any("cause", cause))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live.lost(time.Now())
	switch {
	case errors.Is(cause, errSuspected):
		p.dead(Suspected)
	case hasWithdrawn(cause):
		p.dead(Withdrawn)
	}
}

// dead declares the peer dead if it is alive. p.mu is held.
func (p *peer) dead(reason string) {
	if p.live.alive {
		p.down(reason)
		p.in.end(ErrBroken)
	}
}

// notReached draws conclusions from a failed attempt to dial an address.
func (p *peer) notReached(addr string, err error) {
	if p.ctx.Err() != nil {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := err.Error(); text != p.logged[addr] {
		p.logged[addr] = text
		p.m.log.Info("cannot reach node", slog.String("node", p.name), slog.String("address", addr), slog.Any("error", err))
	}
	switch {
	case p.addresses.isElsewhere(addr):
	case errors.Is(err, syscall.ECONNREFUSED):
		p.live.refused(now)
	default:
		p.live.failed()
	}
	p.addresses.failed(addr)
	if hasWithdrawn(err) {
		p.dead(Withdrawn)
	} else if reason := p.live.evidence(now, &p.m.cfg.Timing); reason != "" {
		p.dead(reason)
	}
}

// accept takes over a stream from the peer.
func (p *peer) accept(in *inbound) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed {
		return ErrUnknownNode
	}
	again := p.in.replace(in)
	l := p.link.Load()
	switch {
	case p.live.replaced(in.incarnation):
		// It restarted, faster than our link broke.
		p.down(Restarted)
		if l != nil {
			l.cancel(ErrBroken)
		}
	case p.live.alive && again && l != nil:
		p.announce()
	}
	return nil
}

// left handles the end of the stream from the peer.
func (p *peer) left(in *inbound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in.stream == in {
		p.in.stream = nil
	}
}

// streamFrom returns the current stream from the peer, or nil.
func (p *peer) streamFrom() *inbound {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in.stream
}

func (p *peer) remove() {
	p.mu.Lock()
	p.dead(Removed)
	p.removed = true
	p.in.end(ErrClosed)
	p.mu.Unlock()
	p.cancel()
}

// refusedFor returns for how long the peer's host has refused every attempt to dial.
func (p *peer) refusedFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.refusedFor
}

// hears reports whether the process with this incarnation gives signs of life, on the link to it
// or on the stream that it has dialled.
func (p *peer) hears(incarnation []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.alive && bytes.Equal(p.live.incarnation[:], incarnation) || p.in.from(incarnation)
}

func (p *peer) isAlive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.alive
}

func (p *peer) upEvent() (Event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.event(true, ""), p.live.alive
}

func (p *peer) status() PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStatus{
		Node: p.name, Address: p.addresses.next(), Alive: p.live.alive,
		Incarnation: p.live.incarnation, Epoch: p.live.epoch,
	}
	if l := p.link.Load(); l != nil {
		s.Linked = true
		s.Backlog = int(l.out.backlog.Load())
		s.RoundTrip = time.Duration(l.roundTrip.Load())
	}
	return s
}

// waitLink returns the link, waiting for it up to Timing.ReconnectWait or until
// stop is closed.
func (p *peer) waitLink(stop <-chan struct{}) (*link, error) {
	if l := p.link.Load(); l != nil {
		return l, nil
	}
	timer := time.NewTimer(p.m.cfg.ReconnectWait)
	defer timer.Stop()
	for {
		p.mu.Lock()
		l, up := p.link.Load(), p.up
		p.mu.Unlock()
		if l != nil {
			return l, nil
		}
		select {
		case <-up:
		case <-timer.C:
			return nil, ErrDown
		case <-stop:
			return nil, errAbandoned
		case <-p.ctx.Done():
			return nil, ErrDown
		}
	}
}
