package group

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// order decides which entry of a queue comes next, and keeps what entries
// carry. In nothing else do a replica and a local queue differ.
type order interface {
	// commit gives an entry its place. nil: it has it, and is applied.
	commit(l *raft.Log) raft.ApplyFuture
	// barrier returns when what is committed has been applied on this node.
	barrier(timeout time.Duration) error
	// payload reads what an entry carried; release frees it.
	payload(ref fsm.Ref) ([]byte, error)
	release(indexes []uint64)

	// opened reports whether the methods below can be called.
	opened() bool
	term() uint64
	leader() string
	// applied is the index of the last entry that the machine has seen, and
	// position about the same and the term, whatever locks of the group are held.
	applied() uint64
	position() (term, index uint64)
	progress() replica.Progress
	// snapshot is the index of the newest snapshot; -1: there is none.
	snapshot() int64

	// leads reports whether this node may lead in the present term.
	leads() bool
	// takeOver returns when all of earlier terms is applied, and the term that
	// this is known for; 0: this node leads no more.
	takeOver() uint64
	// led and leaderless note that the queue has a leader, or is to get one.
	led()
	leaderless()
	// tellCommitted tells the other members what is committed, unless an entry is about to.
	tellCommitted(term uint64)

	// end has the group take nothing more. What goes on in its goroutines may
	// go on for a moment.
	end()
}

// replicated is the order that raft keeps.
type replicated struct{ g *Instance }

func (r replicated) commit(l *raft.Log) raft.ApplyFuture {
	if f := r.g.Begin(l); f != nil {
		return f
	}
	return replica.EndingWith(r.g.Replica, r.g.Raft().ApplyLog(*l, 0))
}

// barrier makes followers learn what is committed: it commits an entry without
// content.
func (r replicated) barrier(timeout time.Duration) error { return r.g.Replica.Barrier(timeout) }

func (r replicated) payload(ref fsm.Ref) ([]byte, error) { return r.g.store.Payload(ref) }

func (r replicated) release(indexes []uint64) {
	r.g.store.Release(indexes)
	r.g.usage.note()
}

func (r replicated) opened() bool {
	select {
	case <-r.g.applier.started:
		return true
	default:
		return false
	}
}

func (r replicated) term() uint64 { return r.g.Raft().CurrentTerm() }

// leader implements order. A follower that has slept remembers its leader until raft knows of another one.
func (r replicated) leader() string {
	leader, was := r.g.Replica.Leader(), r.g.resumes
	if leader == "" && was != nil && !was.leads && r.term() == was.at.Raft {
		return was.leader
	}
	return leader
}

func (r replicated) applied() uint64 { return r.g.Raft().AppliedIndex() }

func (r replicated) position() (term, index uint64) { return r.term(), r.applied() }

func (r replicated) progress() replica.Progress { return r.g.Replica.Progress() }

func (r replicated) snapshot() int64 {
	list, err := r.g.store.Snapshots().List()
	if err != nil || len(list) == 0 {
		return -1
	}
	return int64(list[0].Index)
}

func (r replicated) leads() bool { return r.g.IsLeader() }

func (r replicated) takeOver() uint64 {
	r.g.attendant.Works()
	if term, leads := r.g.LeadsIn(); leads && term == r.g.resumed.Load() {
		return term // R1
	}
	awaitClocks(r.g.node.config.Clock, r.g.Ending())
	return r.catchUp()
}

// A new leader checks after firstCheck whether its first entry is committed, and then again after a part of the time
// that this has taken, at most longestCheck.
const (
	firstCheck   = time.Millisecond
	checkPart    = 8
	longestCheck = 500 * time.Millisecond
)

// catchUp returns when everything committed by earlier leaders is applied. It returns the term for
// which that is known, or 0 if this replica no longer leads.
func (r replicated) catchUp() (term uint64) {
	check, began := time.NewTimer(0), time.Now()
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-r.g.Ending():
			return 0
		}
		term, leads := r.g.LeadsIn()
		if !leads || r.g.Barred() {
			return 0
		}
		if r.caughtUp(term) {
			return term
		}
		check.Reset(min(firstCheck+time.Since(began)/checkPart, longestCheck))
	}
}

// caughtUp reports whether an entry of a term is committed, and so all of earlier terms, and the machine
// has what is in them. Raft begins each term with an entry of its own, without content.
func (r replicated) caughtUp(term uint64) bool {
	committed := r.g.Raft().CommitIndex()
	return r.g.PositionOf(committed).Term == term && r.g.applier.hasUpTo(committed)
}

func (r replicated) led() { r.g.node.Elections.End(r.g.spec.Group) }

// tellCommitted implements order. Raft itself would tell them with the next entry, or after CommitTimeout.
func (r replicated) tellCommitted(term uint64) {
	g := r.g
	committed := g.Raft().CommitIndex()
	if g.proposer.busy() || g.LastIndex() > committed {
		return
	}
	replica.NewNotices(g.Replica).Send(replica.Notice{Index: committed, Term: g.PositionOf(committed).Term, Leads: term})
}

func (r replicated) leaderless() { r.g.node.Elections.Begin(r.g) }

func (r replicated) end() {
	g := r.g
	if !g.Replica.End() {
		return
	}
	f := g.Raft().Shutdown()
	g.node.config.Mesh.DropGroup(g.spec.Group) // requests under way to nodes that are gone end now
	g.leadership.end()
	g.timer.stop()
	if err := f.Error(); err != nil {
		g.slog.Warn("raft shutdown", "error", err)
	}
	g.usage.captured() // nothing is applied any more
}

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
func (g *Instance) IsLocal() bool {
	_, is := g.order.(*local)
	return is
}

// local is the order of a local queue: there is nobody to agree with.
type local struct {
	replica  *replica.Replica
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

func (o *local) leader() string { return o.replica.Node() }

func (o *local) applied() (index uint64) {
	o.applier.view(func(m *queue.Machine) { index = m.Index() })
	return index
}

func (o *local) position() (term, index uint64) { return LocalTerm, o.log.last() }

func (o *local) progress() replica.Progress {
	at := o.applied()
	return replica.Progress{Role: "leader", Term: LocalTerm, Last: at, Commit: at, Applied: at, Voter: true, Voters: []string{o.replica.Node()}}
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
	if !o.replica.End() {
		return
	}
	o.lead.term.Store(0)
	o.applier.timer.stop()
	o.bytes.Add(-o.log.close())
	o.announce(0)
}

// sharing says from which entry on other members have in memory what their leader has.
type sharing struct {
	mu     sync.Mutex
	missed map[string]uint64 // by node: the newest entry when it said that it had missed something
}

// since returns the last entry of which a node may lack something.
func (s *sharing) since(node string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missed[node]
}

// miss notes that a node may lack something of the entries up to index.
func (s *sharing) miss(node string, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed == nil {
		s.missed = map[string]uint64{}
	}
	s.missed[node] = max(s.missed[node], index)
}

// Shared is a payload that a leader need not send to a member, because it lies in an entry of that
// member's log. Entries of the same index and term are the same in all logs.
type Shared struct {
	fsm.Ref
	Term uint64
}
