package raftlog

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

const (
	// maxUnsynced is how many bytes of all groups together StoreLogs leaves to be synced. Beyond it
	// StoreLogs waits, so that a disk that hangs fills no memory.
	maxUnsynced = 64 << 20
	// maxSyncing is how many writes these may be.
	maxSyncing = 1024
)

// overlap is how far a group's log and its votes are durable, and who waits for it. Only these are followed
// by anything before they are durable, and only in a group for which Overlap was called.
//
//	durable ≤ written
//	written counts a write when the store has it, durable when it is synced and in the ledger
type overlap struct {
	on      atomic.Bool
	written atomic.Uint64

	mu       sync.Mutex
	durable  uint64
	waiting  []durableWaiter
	calling  bool // waiters are being called
	vote     vote // the last one of this process
	voteless []vote
}

// vote is a vote that is written: its term, and the number of the write. Of one that is not written yet it has who
// waits for it.
type vote struct {
	term, seq uint64
	f         func()
}

type durableWaiter struct {
	seq uint64
	f   func()
}

// Overlap lets StoreLogs, and Set with a vote, return before what they have written is durable, as long as more
// than one member votes. Who calls it must see to it that no member acts upon what raft says of its log, or upon
// its vote, before that is durable: neither this one, when others acknowledge entries or vote for it, nor others,
// when this one does. See WhenDurable, WhenVoted, and DESIGN.md.
func (g *Group) Overlap() { g.overlap.on.Store(true) }

// Written numbers the writes of the log, and the votes, so far. Raft's indexes are no such number: truncation gives
// them to other entries.
func (g *Group) Written() uint64 { return g.overlap.written.Load() }

// WhenDurable calls f once the writes up to this number are durable: at once, or later on a goroutine
// of the store, which f must not block. Calls for numbers that grow are made in order.
func (g *Group) WhenDurable(seq uint64, f func()) { g.overlap.whenDurable(seq, f) }

func (o *overlap) whenDurable(seq uint64, f func()) {
	o.mu.Lock()
	if seq > o.durable || o.calling {
		o.waiting = append(o.waiting, durableWaiter{seq, f})
		o.mu.Unlock()
		return
	}
	o.mu.Unlock()
	f()
}

// WhenVoted is WhenDurable for the vote of a term, or of a later one. It may not be written yet: raft asks others for
// theirs while it stores its own.
func (g *Group) WhenVoted(term uint64, f func()) { g.overlap.whenVoted(term, f) }

func (o *overlap) whenVoted(term uint64, f func()) {
	o.mu.Lock()
	last := o.vote
	if last.term < term {
		o.voteless = append(o.voteless, vote{term: term, f: f})
	}
	o.mu.Unlock()
	if last.term >= term {
		o.whenDurable(last.seq, f)
	}
}

// voted notes that the vote of a term is the write of this number.
func (o *overlap) voted(term, seq uint64) {
	o.mu.Lock()
	o.vote = vote{term: term, seq: seq}
	waiting := o.voteless
	o.voteless = nil
	o.mu.Unlock()
	for _, w := range waiting {
		o.whenVoted(w.term, w.f)
	}
}

// settled reports whether all that was written is durable.
func (o *overlap) settled() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.durable == o.written.Load()
}

// advance notes that the writes up to seq are durable.
func (o *overlap) advance(seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.durable = seq
	o.calling = true
	for ready := o.ready(); len(ready) > 0; ready = o.ready() {
		o.mu.Unlock()
		for i := range ready {
			ready[i].f()
		}
		o.mu.Lock()
	}
	o.calling = false
}

// ready removes those that wait no longer. The caller holds mu.
func (o *overlap) ready() []durableWaiter {
	var ready []durableWaiter
	rest := o.waiting[:0]
	for _, w := range o.waiting {
		if w.seq <= o.durable {
			ready = append(ready, w)
		} else {
			rest = append(rest, w)
		}
	}
	clear(o.waiting[len(rest):])
	o.waiting = rest
	return ready
}

// awaitDurable returns when all that was written is durable. What it is followed by relies on that: the log
// becomes shorter, another record of the group is written to the ledger, or a doubt ends.
func (g *Group) awaitDurable() {
	done := make(chan struct{})
	g.WhenDurable(g.Written(), func() { close(done) })
	<-done
}

// overlaps reports whether entries may be written without waiting for the disk. A configuration
// never is: with the one that leaves a group a single voter, raft counts its copy, and all before it.
func (g *Group) overlaps(logs []*raft.Log) bool {
	if !g.overlap.on.Load() || g.s.syncer.bytes.Load() > maxUnsynced {
		return false
	}
	for _, l := range logs {
		if !isCommon(l.Type) {
			return false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.voters.count > 1
}

// isCommon reports whether an entry of this type leaves the members as they are.
func isCommon(t raft.LogType) bool {
	return t == raft.LogCommand || t == raft.LogNoop || t == raft.LogBarrier
}

// logEnd is what a log ends with.
type logEnd struct{ index, term uint64 }

// unsynced is a write that is not durable yet.
type unsynced struct {
	g    *Group
	b    *pebble.Batch
	seq  uint64
	size int
	// number of the write to Pebble, and how much of the segments belongs to it or to writes before.
	number   uint64
	segments int64
	ledger   *sync.WaitGroup // what has to be durable as well; nil: nothing
	end      logEnd          // after it; zero: it is no entry
	began    time.Time       // when it was written
}

// cover has the payload sections of entries synced with a write.
func (w *unsynced) cover(s *segments, infos []info) {
	for _, i := range infos {
		if i.segment != 0 {
			w.size += int(i.payload)
			w.segments = s.appended.Load()
		}
	}
}

// syncer waits until what groups have written is durable, in the order of the writes of each, and notes
// it in the ledger.
type syncer struct {
	fatal    func(why string, attrs ...any)
	segments *segments
	queue    chan unsynced
	bytes    atomic.Int64
	took     syncTime
	done     sync.WaitGroup
}

func newSyncer(fatal func(why string, attrs ...any), segments *segments) *syncer {
	return &syncer{fatal: fatal, segments: segments, queue: make(chan unsynced, maxSyncing)}
}

// start lets it wait until close.
func (s *syncer) start() { s.done.Go(s.run) }

func (s *syncer) run() {
	for w := range s.queue {
		s.sync(&w)
		s.took.observe(w.began)
		s.bytes.Add(-int64(w.size))
		if w.end != (logEnd{}) {
			w.g.place.acknowledge(w.end.index, w.end.term)
		}
		w.g.overlap.advance(w.seq)
	}
}

// sync waits until a write is durable, and releases its batch.
func (s *syncer) sync(w *unsynced) {
	s.segments.syncTo(w.segments)
	if err := w.b.SyncWait(); err != nil {
		s.fatal("durable write failed", "error", err)
	}
	s.segments.writes.end(w.number)
	if err := w.b.Close(); err != nil {
		s.fatal("durable write failed", "error", err)
	}
	if w.ledger != nil {
		w.ledger.Wait()
	}
}

// await has it noted when a write is durable, and returns its number.
func (s *syncer) await(w unsynced) (seq uint64) {
	w.seq, w.began = w.g.overlap.written.Add(1), time.Now()
	w.size += w.b.Len()
	s.bytes.Add(int64(w.size))
	s.queue <- w
	return w.seq
}

// close returns when nothing is left to wait for.
func (s *syncer) close() {
	close(s.queue)
	s.done.Wait()
}

// voters is how many members vote, by the newest configuration in log or snapshot.
type voters struct {
	count int // 0: not known
	since uint64
}

// configured takes up an entry. The caller holds Group.mu.
func (v *voters) configured(index uint64, typ raft.LogType, data []byte) {
	switch {
	case isCommon(typ):
	case typ == raft.LogConfiguration:
		*v = voters{votersIn(data), index}
	default:
		*v = voters{0, index}
	}
}

// truncated takes back what the entries from first on have said: it is not known any more, until
// the next configuration. The caller holds Group.mu.
func (v *voters) truncated(first uint64) {
	if v.since >= first {
		*v = voters{}
	}
}

// votersIn counts the voters of an encoded configuration; 0: it cannot be decoded.
func votersIn(config []byte) (n int) {
	defer func() {
		if recover() != nil {
			n = 0
		}
	}()
	for _, s := range raft.DecodeConfiguration(config).Servers {
		if s.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}
