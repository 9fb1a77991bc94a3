package replica

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// Errors of HashAt.
var (
	ErrPassed     = errors.New("the replica has already applied later entries")
	ErrNotReached = errors.New("the replica did not reach that entry in time")
)

// probe waits for the state of a machine once it has applied an entry.
type probe struct {
	at    uint64                 // index of an entry; the first one from there on counts
	index uint64                 // of the entry that it was
	hash  func() (string, error) // of the state then
	done  chan struct{}
}

// Probes wait for entries of one machine.
type Probes struct {
	Lock   sync.Locker                   // no entry is applied, and no probe answered, while it is held
	Index  func() (uint64, error)        // of the last entry that was applied; the lock is held
	Freeze func() func() (string, error) // returns what hashes the state as it is; the lock is held

	waiting []*probe
}

// HashAt implements HashAt of a group and of the catalog.
func (ps *Probes) HashAt(at uint64, wait time.Duration, ending <-chan struct{}) (index uint64, hash string, err error) {
	p := &probe{at: at, done: make(chan struct{})}
	if err := ps.await(p); err != nil {
		return 0, "", err
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		ps.abandon(p)
		return 0, "", ErrNotReached
	case <-ending:
		return 0, "", ErrNotReached
	}
	hash, err = p.hash()
	return p.index, hash, err
}

// SomeWait reports whether there are any. The caller holds the lock.
func (ps *Probes) SomeWait() bool { return len(ps.waiting) > 0 }

// await makes p wait, or ends it at once.
func (ps *Probes) await(p *probe) error {
	ps.Lock.Lock()
	defer ps.Lock.Unlock()
	index, err := ps.Index()
	switch {
	case err != nil:
		return err
	case p.at != 0 && p.at < index:
		return ErrPassed
	case p.at == 0 || p.at == index:
		ps.end(p, index)
	default:
		ps.waiting = append(ps.waiting, p)
	}
	return nil
}

func (ps *Probes) end(p *probe, index uint64) {
	p.index, p.hash = index, ps.Freeze()
	close(p.done)
}

// abandon removes p. The caller must not wait for it any more.
func (ps *Probes) abandon(p *probe) {
	ps.Lock.Lock()
	defer ps.Lock.Unlock()
	ps.waiting = slices.DeleteFunc(ps.waiting, func(x *probe) bool { return x == p })
}

// Answer ends the probes that wait for an entry up to the one that was applied last, whose index it
// is. The caller holds the lock.
func (ps *Probes) Answer(index uint64) {
	ps.waiting = slices.DeleteFunc(ps.waiting, func(p *probe) bool {
		if p.at > index {
			return false
		}
		ps.end(p, index)
		return true
	})
}
