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

	"github.com/quorate/quorate/cluster/worker"
)

// handshakeTrips is how many round trips a link takes to come up: TCP, TLS, HTTP/2 and the hello.
const handshakeTrips = 4

var errNoAddress = errors.New("peer: no address is known")

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
	// What is known of the last link to it, see pulse.
	roundTrip, slack atomic.Int64
	sent             atomic.Uint64 // frames, on all streams so far

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
		m: m, name: name, nameBytes: []byte(name), logged: map[string]string{},
		up: make(chan struct{}),
	}
	p.addresses.set(addrs)
	p.ctx, p.cancel = context.WithCancel(m.ctx)
	return p
}

func (p *peer) setAddresses(addrs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses.set(addrs)
}

// address waits until an address is due, and returns it and how often it has been slow; nil: none is
// known, and it has waited for one.
func (p *peer) address() (a *address, slow int) {
	for wait := redialMax; ; {
		p.mu.Lock()
		if a = p.addresses.next(); a != nil {
			slow, wait = a.slow, time.Until(a.due)
		}
		p.mu.Unlock()
		if wait <= 0 {
			return a, slow
		}
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
			return a, slow
		}
		if a == nil {
			return nil, 0
		}
	}
}

// run dials, serves the link, and dials again, until the mesh or the peer ends.
func (p *peer) run() {
	for p.ctx.Err() == nil {
		if p.m.withdrawal.await(p.ctx.Done()) {
			p.dialAfresh()
		}
		a, slow := p.address()
		began := time.Now()
		l, err := p.dial(a, slow)
		if err == nil {
			p.opened(l, a)
			cause := l.serve()
			p.lost(cause)
			continue
		}
		p.notReached(a, err, time.Since(began))
	}
}

// dialAfresh has all addresses tried at once.
func (p *peer) dialAfresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.addresses.all {
		a.delay, a.due = 0, time.Time{}
	}
}

// dial opens a link. After slow attempts that took too long, the next may take longer, up to eight
// times as long: otherwise nodes short of processor time would never get through, and each attempt costs
// them more of it. To a node that is known to be far, and where this process's timers were late, it may take
// longer at once.
func (p *peer) dial(a *address, slow int) (*link, error) {
	if a == nil {
		return nil, errNoAddress
	}
	limit := max(p.m.cfg.SuspectAfter/2, redialMax)<<slow + handshakeTrips*time.Duration(p.roundTrip.Load()) + time.Duration(p.slack.Load())
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	return openLink(ctx, p, a.name)
}

func (p *peer) opened(l *link, a *address) {
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
	p.addresses.reached(a)
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
	p.live.lostAt = time.Now()
	p.addresses.lost()
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

// notReached draws conclusions from a failed attempt to dial an address, which has taken so long; nil: none
// is known.
func (p *peer) notReached(a *address, err error, took time.Duration) {
	if p.ctx.Err() != nil {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if a != nil {
		if text := err.Error(); text != p.logged[a.name] {
			p.logged[a.name] = text
			p.m.log.Info("cannot reach node", slog.String("node", p.name), slog.String("address", a.name), slog.Any("error", err))
		}
		p.addresses.failed(a, errors.Is(err, syscall.ECONNREFUSED), p.live.alive, took, now, rand.N)
	}
	if hasWithdrawn(err) {
		p.dead(Withdrawn)
	} else if reason := p.live.evidence(now, p.addresses.refusedFor(), time.Duration(p.slack.Load()), &p.m.cfg.Timing); reason != "" {
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
	return p.addresses.refusedFor()
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

// send sends a batch on one of the node's streams, and counts its frames first: it is gRPC's afterwards.
func (p *peer) send(stream interface{ SendMsg(any) error }, b *batch) error {
	p.sent.Add(uint64(b.frames))
	return stream.SendMsg(b)
}

func (p *peer) status() PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStatus{Node: p.name, Alive: p.live.alive, Incarnation: p.live.incarnation, Epoch: p.live.epoch, Sent: p.sent.Load()}
	if a := p.addresses.next(); a != nil {
		s.Address = a.name
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

const (
	// redialMin … redialMax: the growing pause between attempts to dial an address.
	redialMin = 30 * time.Millisecond
	redialMax = 250 * time.Millisecond
	// maxSlow is how often an attempt to dial an address is given twice the time of the one before.
	maxSlow = 3
)

// addresses is where a node may be. The one that is due first is tried, those that are due at once in
// order. What is known of one says nothing about another.
//
//	linked is empty: there has been no link, or not at one of those that are known now
type addresses struct {
	all    []*address
	linked string // the one of the last link
}

// address is one of them.
//
//	slow ≤ maxSlow
//	refusedFor > 0 only if all attempts since the last link were refused, or do
//	not count; then refusedAt is when the last one was
type address struct {
	name       string
	slow       int           // attempts that took too long since the last link there
	delay      time.Duration // before the next attempt; 0: none has failed
	due        time.Time     // when it is tried next; zero: at once
	refusedAt  time.Time
	refusedFor time.Duration // leaves out what does not count
}

// set replaces them, and forgets nothing about those that remain. Those that are new are tried at once.
func (a *addresses) set(names []string) {
	if slices.EqualFunc(a.all, names, func(one *address, name string) bool { return one.name == name }) {
		return
	}
	was := a.all
	a.all = nil
	for _, name := range names {
		one := &address{name: name}
		if i := slices.IndexFunc(was, func(x *address) bool { return x.name == name }); i >= 0 {
			one = was[i]
		}
		a.all = append(a.all, one)
	}
	if !slices.Contains(names, a.linked) {
		a.linked = ""
	}
}

// next is the one to be tried; nil: there is none.
func (a *addresses) next() *address {
	if len(a.all) == 0 {
		return nil
	}
	return slices.MinFunc(a.all, func(x, y *address) int { return x.due.Compare(y.due) })
}

// reached notes that there is a link to one. It is the first to be tried when that breaks.
func (a *addresses) reached(one *address) {
	a.linked = one.name
	one.slow, one.delay, one.due = 0, 0, time.Time{}
	for _, x := range a.all {
		x.refusedFor = 0
	}
}

// lost notes that the link broke: what was refused before counts no more.
func (a *addresses) lost() {
	for _, x := range a.all {
		x.refusedAt = time.Time{}
	}
}

// counts reports whether who refuses connections at this address says something about the node. Once
// the node has been at another one, it may be anybody's host.
func (a *addresses) counts(one *address) bool { return a.linked == "" || one.name == a.linked }

// refusedFor is for how long every attempt to dial the node has been refused.
func (a *addresses) refusedFor() (shortest time.Duration) {
	first := true
	for _, x := range a.all {
		if a.counts(x) && (first || x.refusedFor < shortest) {
			shortest, first = x.refusedFor, false
		}
	}
	return shortest
}

// refused notes that the host at this address has refused a connection.
func (x *address) refused(now time.Time) {
	if !x.refusedAt.IsZero() {
		// Of a pause in which this process was stopped little counts.
		x.refusedFor += min(now.Sub(x.refusedAt), 2*redialMax)
	}
	x.refusedAt = now
}

// failed notes that an attempt to dial one has taken so long and failed, and when the next is due, spread
// by chance. alive: the node has had a link until a moment ago, and a pause is the shortest there is. An
// address at which nobody answers, and where the node has not been, takes a fifth of the time.
func (a *addresses) failed(x *address, refused, alive bool, took time.Duration, now time.Time, spread func(time.Duration) time.Duration) {
	if refused {
		x.refused(now)
	} else {
		x.refusedAt, x.refusedFor = time.Time{}, 0
	}
	if !refused && !alive {
		x.slow = min(x.slow+1, maxSlow)
	}
	if x.delay = min(x.delay*5/4, redialMax); alive || x.delay == 0 {
		x.delay = redialMin
	}
	pause := x.delay/2 + spread(x.delay/2)
	if !a.counts(x) {
		pause = max(pause, 4*took)
	}
	x.due = now.Add(pause)
}

// liveness concludes from a node's links, and from attempts to dial it, whether
// it is alive. It rests on the links that are dialled here alone: what cannot be
// reached cannot be used. A node is alive from a link on until there is evidence
// of its death, so that a link that breaks and comes back ends nothing.
//
//	epoch never falls, and rises with each announcement that the node is up
//	incarnation is that of the last link
type liveness struct {
	alive       bool
	incarnation [16]byte
	epoch       uint64
	lostAt      time.Time // when the last link broke
}

// replaced reports whether the process that is alive cannot be, because another
// one of the node gives signs of life.
func (l *liveness) replaced(by [16]byte) bool { return l.alive && by != l.incarnation }

// linked notes a link to a process of the node.
func (l *liveness) linked(incarnation [16]byte) { l.alive, l.incarnation = true, incarnation }

// evidence says why the node is not alive, by what is known of attempts to dial
// it, which have been refused for so long; empty: it may be. slack is that of the
// last link: where it is long, so are the attempts, and a node that is declared dead
// loses the link that it has got meanwhile.
func (l *liveness) evidence(now time.Time, refusedFor, slack time.Duration, t *Timing) (reason string) {
	switch {
	case refusedFor >= t.RefusedAfter:
		return Refused
	case now.Sub(l.lostAt) >= t.SuspectAfter+slack:
		return Suspected
	}
	return ""
}

// youngPings is how many pings a link sends before it rests between them: by then the clock of the
// other node is known well.
const youngPings = 8

// lateWeight is how often the lateness of this process's timers is added to SuspectAfter. More than that
// makes twice SuspectAfter is not remembered: it would count long after.
const lateWeight = 8

// maxRoundTrip bounds the round trip that is allowed for: a node farther away has no more time than that.
const maxRoundTrip = 1300 * time.Millisecond

// pulse paces the pings of a link, and counts for how long nothing has arrived. That time is counted by
// the pauses between pings, so that a process that stalls does not suspect its peers. A link that rests
// is pinged faster once a ping is not answered, and found unheard as soon as any other.
//
// A peer that is far is given the round trip beside SuspectAfter: what it has sent since is under way.
// Where this process gets a processor late, its peers may as well: they are given more time, up to
// SuspectAfter once more.
//
//	unheard < limit()
//	far ≤ maxRoundTrip
//	late ≤ SuspectAfter / lateWeight
type pulse struct {
	t       *Timing
	pings   int
	heard   time.Duration // when a byte last arrived, as far as is known here
	unheard time.Duration
	woke    time.Duration // when the last pause ended, or the first began
	far     time.Duration // the round trip
	late    time.Duration // by how much pauses have been longer than asked for, of late
}

func newPulse(t *Timing, now, roundTrip time.Duration) pulse {
	return pulse{t: t, woke: now, far: min(roundTrip, maxRoundTrip)}
}

// pause returns the time until the next ping; answered: the ping before this one has been.
func (p *pulse) pause(answered bool) time.Duration {
	pause := p.t.PingInterval
	if p.pings++; answered && p.pings > youngPings && p.t.RestInterval > pause {
		pause = worker.Next(p.t.RestInterval)
	}
	return min(pause, p.limit()-p.unheard)
}

// slack is by how much a bound on what the peer does is longer than that for a near one, if this process
// gets a processor at once.
func (p *pulse) slack() time.Duration { return p.far + lateWeight*p.late }

// limit is after how long without a sign of life the peer is suspected.
func (p *pulse) limit() time.Duration { return p.t.SuspectAfter + p.slack() }

// passed takes a pause that is over, the round trip, and when a byte has last arrived, which is not before
// what has shown the round trip. It reports whether nothing has arrived for too long.
func (p *pulse) passed(pause, roundTrip, heard, now time.Duration) (unheard bool) {
	p.far = min(roundTrip, maxRoundTrip)
	p.late = min(max(now-p.woke-pause, p.late*7/8), p.t.SuspectAfter/lateWeight)
	p.woke = now
	if heard != p.heard {
		p.heard, p.unheard = heard, min(pause, now-heard)
	} else {
		p.unheard += pause
	}
	return p.unheard >= p.limit()
}
