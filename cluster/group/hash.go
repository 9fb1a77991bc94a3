package group

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/fsm/queue"
)

// Errors of HashAt.
var (
	ErrPassed     = errors.New("the replica has already applied later entries")
	ErrNotReached = errors.New("the replica did not reach that entry in time")
)

// probe waits for the state of a machine once it has applied an entry.
type probe struct {
	at    uint64 // index of an entry; the first one from there on counts
	index uint64 // of the entry that it was
	state *queue.Snapshot
	done  chan struct{}
}

// hashAt implements Group.HashAt.
func (a *applier) hashAt(at uint64, wait time.Duration, ending <-chan struct{}) (index uint64, hash string, err error) {
	p := &probe{at: at, done: make(chan struct{})}
	if err := a.await(p); err != nil {
		return 0, "", err
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		a.abandon(p)
		return 0, "", ErrNotReached
	case <-ending:
		return 0, "", ErrNotReached
	}
	h := sha256.New()
	if _, err := p.state.WriteTo(h); err != nil {
		return 0, "", err
	}
	return p.index, fmt.Sprintf("%x", h.Sum(nil)), nil
}

// await makes p wait, or ends it at once.
func (a *applier) await(p *probe) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	index := a.machine.Index()
	switch {
	case a.stopped:
		return ErrStopped
	case p.at != 0 && p.at < index:
		return ErrPassed
	case p.at == 0 || p.at == index:
		p.freeze(a.machine)
	default:
		a.probes = append(a.probes, p)
	}
	return nil
}

func (p *probe) freeze(m *queue.Machine) {
	p.index, p.state = m.Index(), m.Snapshot()
	close(p.done)
}

// abandon removes p. The caller must not wait for it any more.
func (a *applier) abandon(p *probe) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probes = slices.DeleteFunc(a.probes, func(x *probe) bool { return x == p })
}

// answerProbes ends the probes that wait for an entry up to the one that was
// applied last. The caller holds mu.
func (a *applier) answerProbes() {
	index := a.machine.Index()
	a.probes = slices.DeleteFunc(a.probes, func(p *probe) bool {
		if p.at > index {
			return false
		}
		p.freeze(a.machine)
		return true
	})
}
