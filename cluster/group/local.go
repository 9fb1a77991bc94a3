package group

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// LocalTerm is the term of a local queue: its one member leads from the
// beginning to the end.
const LocalTerm = 1

// memoryLog is the log of a local queue. It keeps the payloads of entries that
// hold live messages, and nothing else: there is nobody to read an entry again.
type memoryLog struct {
	mu       sync.Mutex
	index    uint64 // of the last entry
	payloads map[uint64][]byte
	bytes    int64
	closed   bool
}

var errReleased = errors.New("the payload has been released")

// append takes an entry's payloads and returns its index, and by how much the
// log has grown.
func (l *memoryLog) append(payloads []byte) (index uint64, grown int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	if len(payloads) > 0 && !l.closed {
		if l.payloads == nil {
			l.payloads = map[uint64][]byte{}
		}
		l.payloads[l.index] = payloads
		grown = int64(len(payloads))
		l.bytes += grown
	}
	return l.index, grown
}

// last is the index of the last entry.
func (l *memoryLog) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index
}

func (l *memoryLog) payload(ref fsm.Ref) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, end := l.payloads[ref.Index], int(ref.Offset)+int(ref.Size)
	if end > len(p) {
		return nil, errReleased
	}
	return p[ref.Offset:end:end], nil
}

// release forgets the payloads of entries and returns how much that was.
func (l *memoryLog) release(indexes []uint64) (freed int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range indexes {
		freed += int64(len(l.payloads[i]))
		delete(l.payloads, i)
	}
	if len(l.payloads) == 0 {
		l.payloads = nil // a map that was large once stays large
	}
	l.bytes -= freed
	return freed
}

// close forgets all payloads, of entries to come as well.
func (l *memoryLog) close() (freed int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	freed = l.bytes
	l.payloads, l.bytes, l.closed = nil, 0, true
	return freed
}

// IsLocal reports whether the group is a local queue's.
func (g *Group) IsLocal() bool {
	_, is := g.order.(*local)
	return is
}

// local is the order of a local queue: there is nobody to agree with.
type local struct {
	replica  *replica
	bytes    *atomic.Int64 // of the payloads of all local queues of the node
	applier  *applier
	proposer *proposer
	lead     *leadership
	announce func(term uint64)
	log      memoryLog
}

func (o *local) commit(l *raft.Log) raft.ApplyFuture {
	var grown int64
	l.Type, l.Term = raft.LogCommand, LocalTerm
	l.Index, grown = o.log.append(l.Extensions)
	o.bytes.Add(grown)
	o.applier.apply([]*raft.Log{l})
	return nil
}

// barrier returns when a tick that has been asked for is applied.
func (o *local) barrier(time.Duration) error {
	o.proposer.nextApplied()
	return nil
}

func (o *local) payload(ref fsm.Ref) ([]byte, error) { return o.log.payload(ref) }

func (o *local) release(indexes []uint64) { o.bytes.Add(-o.log.release(indexes)) }

func (o *local) opened() bool { return true }

func (o *local) term() uint64 { return LocalTerm }

func (o *local) leader() string { return o.replica.node }

func (o *local) applied() (index uint64) {
	o.applier.view(func(m *queue.Machine) { index = m.Index() })
	return index
}

func (o *local) position() (term, index uint64) { return LocalTerm, o.log.last() }

func (o *local) progress() Progress {
	at := o.applied()
	return Progress{Role: "leader", Term: LocalTerm, Last: at, Commit: at, Applied: at, Voter: true, Voters: []string{o.replica.node}}
}

func (o *local) snapshot() int64 { return -1 }

func (o *local) leads() bool { return true }

func (o *local) takeOver() uint64 { return LocalTerm }

func (o *local) led() {}

func (o *local) leaderless() {}

func (o *local) tellCommitted(uint64) {}

// end makes a local queue take nothing more and forgets its payloads. What
// goes on in its goroutines comes to nothing.
func (o *local) end() {
	if !o.replica.end() {
		return
	}
	o.lead.term.Store(0)
	o.applier.timer.stop()
	o.bytes.Add(-o.log.close())
	o.announce(0)
}
