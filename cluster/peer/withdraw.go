package peer

import (
	"errors"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errWithdrawn ends the links of a node that has withdrawn.
var errWithdrawn = errors.New("peer: the node has withdrawn")

// statusWithdrawn is what the other nodes get then. No other answer has
// this code.
var statusWithdrawn = status.Error(codes.Aborted, errWithdrawn.Error())

// hasWithdrawn reports whether a link ended, or was refused, because the other
// node has withdrawn.
func hasWithdrawn(err error) bool { return status.Code(err) == codes.Aborted }

// withdrawal is whether the node has withdrawn.
type withdrawal struct {
	mu     sync.Mutex // held while it changes
	active atomic.Bool
	over   atomic.Pointer[chan struct{}] // closed when the one that began last ends
}

// begin reports whether it was not active before.
func (w *withdrawal) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active.Load() {
		return false
	}
	over := make(chan struct{})
	w.over.Store(&over)
	w.active.Store(true)
	return true
}

func (w *withdrawal) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active.Swap(false) {
		close(*w.over.Load())
	}
}

// await returns once it is not active, or stop is closed. It reports whether it
// had to wait.
func (w *withdrawal) await(stop <-chan struct{}) (waited bool) {
	for w.active.Load() {
		waited = true
		select {
		case <-*w.over.Load():
		case <-stop:
			return true
		}
	}
	return waited
}

// Withdraw takes the node out of the company of the others, as a partition
// does, until Return: links are broken and refused, and both sides take each
// other for down. The others learn why, and need not wait until they suspect it.
// It needs nothing but the network.
func (m *Mesh) Withdraw() {
	if !m.withdrawal.begin() {
		return
	}
	for _, p := range m.sortedPeers() {
		p.withdraw()
	}
}

// Return ends what Withdraw has begun. It does nothing if the node is there.
func (m *Mesh) Return() { m.withdrawal.end() }

// Refuse closes the listener, for good: whoever dials is refused from now on,
// as by a host on which no process listens. For a node that is about to end and
// may hang while it does.
func (m *Mesh) Refuse() {
	m.refuses.Store(true)
	m.cfg.Listener.Close()
}

// withdraw breaks the links with the peer.
func (p *peer) withdraw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in.end(errWithdrawn)
	if l := p.link.Load(); l != nil {
		l.cancel(errWithdrawn)
	}
	if p.live.alive {
		p.live.alive = false
		p.m.events.emit(p.event(false, Withdrawn))
	}
}
