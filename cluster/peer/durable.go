package peer

import (
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
)

// Durability is what acknowledgements wait for: a log whose writes become durable after
// raft has been told that they are done.
type Durability interface {
	// Written numbers the writes so far.
	Written() uint64
	// WhenDurable calls f once the writes up to a number are durable, which may be at
	// once. f does not block. Calls for numbers that grow are made in order.
	WhenDurable(seq uint64, f func())
	// WhenVoted is the same for the vote of a term, or of a later one, which may not be written yet.
	WhenVoted(term uint64, f func())
}

// Await makes acknowledgements of entries, and votes, wait for the group's log: those of this node
// leave when its own writes are durable, and those of others reach raft, which counts
// this node among those that have an entry, or vote for it, when that is true. The group's transport
// must exist, and raft not run yet.
func (m *Mesh) Await(group fsm.GroupID, log Durability) {
	if t := m.groups.find(group); t != nil {
		t.log().set(log)
	}
}

// awaitedLog is a log that is waited for. The zero value is one in which all is durable.
type awaitedLog struct {
	d atomic.Pointer[Durability] // nil: all is durable
}

func (l *awaitedLog) set(d Durability) { l.d.Store(&d) }

// written numbers the last write of the log.
func (l *awaitedLog) written() uint64 {
	if d := l.d.Load(); d != nil {
		return (*d).Written()
	}
	return 0
}

// whenDurable calls f once the writes up to a number are durable.
func (l *awaitedLog) whenDurable(seq uint64, f func()) {
	if d := l.d.Load(); d != nil {
		(*d).WhenDurable(seq, f)
	} else {
		f()
	}
}

// await returns when the writes up to a number are durable, or with an error when stop
// is closed.
func (l *awaitedLog) await(seq uint64, stop <-chan struct{}) error {
	return l.wait(func(d Durability, f func()) { d.WhenDurable(seq, f) }, stop)
}

// awaitVote is await for the vote of a term.
func (l *awaitedLog) awaitVote(term uint64, stop <-chan struct{}) error {
	return l.wait(func(d Durability, f func()) { d.WhenVoted(term, f) }, stop)
}

func (l *awaitedLog) wait(when func(d Durability, f func()), stop <-chan struct{}) error {
	d := l.d.Load()
	if d == nil {
		return nil
	}
	done := make(chan struct{})
	when(*d, func() { close(done) })
	select {
	case <-done:
		return nil
	case <-stop:
		return ErrClosed
	}
}
