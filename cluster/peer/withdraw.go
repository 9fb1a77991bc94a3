package peer

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errWithdrawn ends the links of a node that has withdrawn.
var errWithdrawn = errors.New("peer: the node has withdrawn")

// statusWithdrawn is what the other nodes are told then. No other answer has
// this code.
var statusWithdrawn = status.Error(codes.Aborted, errWithdrawn.Error())

// hasWithdrawn reports whether a link ended, or was refused, because the other
// node has withdrawn.
func hasWithdrawn(err error) bool { return status.Code(err) == codes.Aborted }

// Withdraw takes the node out of the company of the others, as a partition
// does, until Return: links are broken and refused, and both sides take each
// other for down. The others are told, so that they need not wait for silence.
// It needs nothing but the network.
func (m *Mesh) Withdraw() {
	m.mu.Lock()
	if m.withdrawn.Load() {
		m.mu.Unlock()
		return
	}
	back := make(chan struct{})
	m.back.Store(&back)
	m.withdrawn.Store(true)
	m.mu.Unlock()
	for _, p := range m.sortedPeers() {
		p.withdraw()
	}
}

// Return ends what Withdraw has begun. It does nothing if the node is there.
func (m *Mesh) Return() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.withdrawn.Swap(false) {
		close(*m.back.Load())
	}
}

// Refuse closes the listener, for good: whoever dials is refused from now on,
// as by a host on which no process listens. For a node that is about to end and
// may hang while it does.
func (m *Mesh) Refuse() { m.cfg.Listener.Close() }

// awaitBack returns once the node is not withdrawn, or stop is closed. It
// reports whether it had to wait.
func (m *Mesh) awaitBack(stop <-chan struct{}) (waited bool) {
	for m.withdrawn.Load() {
		waited = true
		select {
		case <-*m.back.Load():
		case <-stop:
			return true
		}
	}
	return waited
}

// withdraw breaks the links with the peer.
func (p *peer) withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in != nil {
		p.in.cancel(errWithdrawn)
		p.in = nil
	}
	if l := p.link.Load(); l != nil {
		l.cancel(errWithdrawn)
	}
	if p.alive {
		p.alive = false
		p.m.events.emit(p.event(false, Withdrawn))
	}
}
