package peer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// redialMin … redialMax: pause between attempts to dial, growing.
	redialMin = 30 * time.Millisecond
	redialMax = 250 * time.Millisecond
)

// peer is another node: the link to it, the stream from it, and the verdict on
// whether it lives.
//
// The verdict rests on the dialled link alone: what it cannot reach it cannot
// use. alive begins with a link and ends with evidence of death, so that a link
// that breaks and comes back does not end it.
type peer struct {
	m         *Mesh
	name      string
	nameBytes []byte // name, shared by decoded raft requests
	ctx       context.Context
	cancel    context.CancelFunc
	link      atomic.Pointer[link] // nil: none

	// What the peer makes this node hold.
	links     tokens
	snapshots tokens
	calls     callRoom

	mu          sync.Mutex
	addrs       []string      // where it may be
	at          int           // index of the one that is dialled
	was         string        // address of the last link; empty: there was none
	up          chan struct{} // closed when link is set, and replaced when it is unset
	alive       bool
	removed     bool
	incarnation [16]byte // of the last link
	epoch       uint64
	in          *inbound          // the stream it dialled; nil: none
	lastIn      [16]byte          // incarnation that dialled last
	received    chan struct{}     // closed when the stream before has been received
	complaints  map[string]string // the last dial error logged, by address
	refused     time.Duration     // for how long every attempt to dial was refused
}

func newPeer(m *Mesh, name string, addrs []string) *peer {
	p := &peer{
		m: m, name: name, nameBytes: []byte(name), addrs: addrs, complaints: map[string]string{},
		up: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(m.ctx)
	return p
}

func (p *peer) setAddresses(addrs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(p.addrs, addrs) {
		p.addrs, p.at = addrs, 0
		if !slices.Contains(addrs, p.was) {
			p.was = ""
		}
	}
}

func (p *peer) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addressNow()
}

// addressNow is the one that is dialled. p.mu is held.
func (p *peer) addressNow() string {
	if len(p.addrs) == 0 {
		return ""
	}
	return p.addrs[p.at%len(p.addrs)]
}

// evidence is what failed attempts to dial say about a peer that was alive.
type evidence struct {
	lost      time.Time // when the link broke
	refusedAt time.Time // the last attempt, if it was refused; else zero
}

// run dials, serves the link, and dials again, until the mesh or the peer ends.
func (p *peer) run() {
	var ev evidence
	delay, slow := redialMin, 0
	for p.ctx.Err() == nil {
		if p.m.awaitBack(p.ctx.Done()) {
			delay = redialMin
		}
		addr := p.address()
		l, err := p.dial(addr, slow)
		if err == nil {
			p.opened(l, addr)
			cause := l.serve()
			p.lost(cause)
			ev = evidence{lost: time.Now()}
			delay, slow = redialMin, 0
			continue
		}
		p.judge(&ev, addr, err)
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

// dial opens a link. After slow attempts in vain the next may take longer, up to
// four times as long: nodes that are short of processor time would never get
// through, and each attempt costs them more of it.
func (p *peer) dial(addr string, slow int) (*link, error) {
	limit := max(p.m.cfg.SilentAfter/2, redialMax) << min(slow, 2)
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
	if p.m.withdrawn.Load() {
		l.cancel(errWithdrawn)
		return
	}
	if p.alive && l.incarnation != p.incarnation {
		p.down(Restarted)
	}
	p.alive = true
	p.incarnation = l.incarnation
	p.refused, p.was = 0, addr
	clear(p.complaints)
	p.link.Store(l)
	close(p.up)
	p.announce()
	p.m.log.Info("link to node is up", slog.String("node", p.name), slog.Uint64("epoch", p.epoch))
}

// announce emits Up with a new epoch. p.mu is held.
func (p *peer) announce() {
	p.epoch++
	p.m.events.emit(p.event(true, ""))
}

// down emits Down; p.mu is held and p.alive true.
func (p *peer) down(reason string) {
	p.alive = false
	p.m.events.emit(p.event(false, reason))
	p.m.log.Warn("node is down", slog.String("node", p.name), slog.String("reason", reason))
}

func (p *peer) event(up bool, reason string) Event {
	return Event{Node: p.name, Up: up, Incarnation: p.incarnation, Epoch: p.epoch, Reason: reason}
}

// unlink takes l out of use.
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
	switch {
	case errors.Is(cause, errSilent):
		p.dead(Silent)
	case hasWithdrawn(cause):
		p.dead(Withdrawn)
	}
}

// dead declares the peer dead if it is alive. p.mu is held.
func (p *peer) dead(reason string) {
	if !p.alive {
		return
	}
	p.down(reason)
	if p.in != nil {
		p.in.cancel(ErrBroken)
		p.in = nil
	}
}

// judge concludes from a failed attempt to dial an address. Where the node has
// never been it may be refused by anybody's host: that proves nothing.
func (p *peer) judge(ev *evidence, addr string, err error) {
	if p.ctx.Err() != nil {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := err.Error(); text != p.complaints[addr] {
		p.complaints[addr] = text
		p.m.log.Info("cannot reach node", slog.String("node", p.name), slog.String("address", addr), slog.Any("error", err))
	}
	if addr == p.addressNow() {
		p.at = (p.at + 1) % max(len(p.addrs), 1)
	}
	switch {
	case p.was != "" && addr != p.was:
	case !errors.Is(err, syscall.ECONNREFUSED):
		ev.refusedAt, p.refused = time.Time{}, 0
	case ev.refusedAt.IsZero():
		ev.refusedAt = now
	default:
		// Of a pause in which this process was stopped little counts.
		p.refused += min(now.Sub(ev.refusedAt), 2*redialMax)
		ev.refusedAt = now
	}
	switch {
	case hasWithdrawn(err):
		p.dead(Withdrawn)
	case p.refused >= p.m.cfg.RefusedAfter:
		p.dead(Refused)
	case now.Sub(ev.lost) >= p.m.cfg.SilentAfter:
		p.dead(Silent)
	}
}

// accept makes in the stream from the peer. It replaces an earlier one: a node
// dials again only when it has given that up.
func (p *peer) accept(in *inbound) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed {
		return ErrUnknownNode
	}
	if p.in != nil {
		p.in.cancel(ErrBroken)
	}
	p.in = in
	in.previous, p.received = p.received, in.received
	again := in.incarnation == p.lastIn
	p.lastIn = in.incarnation
	l := p.link.Load()
	switch {
	case !p.alive:
	case in.incarnation != p.incarnation:
		// It restarted and is quicker than our link's end.
		p.down(Restarted)
		if l != nil {
			l.cancel(ErrBroken)
		}
	case again && l != nil:
		p.announce()
	}
	return nil
}

// left handles the end of the stream from the peer.
func (p *peer) left(in *inbound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in == in {
		p.in = nil
	}
}

// streamFrom returns the current stream from the peer; nil: none.
func (p *peer) streamFrom() *inbound {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.in
}

func (p *peer) remove() {
	p.mu.Lock()
	p.dead(Removed)
	p.removed = true
	if p.in != nil {
		p.in.cancel(ErrClosed)
	}
	p.mu.Unlock()
	p.cancel()
}

// refusedFor is for how long the peer's host has refused every attempt to dial.
func (p *peer) refusedFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// hears reports whether the process with this incarnation gives signs of life:
// by the link to it, or by the stream that it has dialled.
func (p *peer) hears(incarnation []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive && bytes.Equal(p.incarnation[:], incarnation) || p.in != nil && bytes.Equal(p.in.incarnation[:], incarnation)
}

func (p *peer) isAlive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alive
}

func (p *peer) upEvent() (Event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.event(true, ""), p.alive
}

func (p *peer) status() PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStatus{
		Node: p.name, Address: p.addressNow(), Alive: p.alive,
		Incarnation: p.incarnation, Epoch: p.epoch,
	}
	if l := p.link.Load(); l != nil {
		s.Linked = true
		s.Backlog = int(l.out.backlog.Load())
		s.RoundTrip = time.Duration(l.roundTrip.Load())
	}
	return s
}

// waitLink returns the link, waiting for it up to Config.ReconnectWait or until
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
