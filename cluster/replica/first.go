package replica

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// firstWait bounds how long a leader that resumes its term waits for its group's first entry.
const firstWait = 50 * time.Millisecond

// first is the entry with which a leader goes on that resumes its term. Raft begins with one without content, which is
// there so that one of the term is committed: any other does as well. So what the group has to propose takes its place,
// and costs no more than an entry always does.
//
//	the log has what the leader begins with, or it begins otherwise or not at all ⇒ stored is closed
type first struct {
	index, term uint64 // of the entry; nobody but this leader makes one of this term
	over        <-chan struct{}
	ending      <-chan struct{}

	begun   bool          // raft has asked with what; used by its main loop only
	stored  chan struct{} // closed when the log has what raft stores first: with that the leader begins, or it does not
	applied chan struct{} // closed when the machine has the group's
	waits   atomic.Bool   // somebody waits for that

	mu      sync.Mutex
	settled bool          // it is known with what the leader begins
	given   *raft.Log     // the group's; nil: it has none, or none yet, or begins otherwise
	known   chan struct{} // closed when settled
}

func newFirst(of *Resumption, r *Replica) *first {
	return &first{
		index: of.At.Index + 1, term: of.Term, over: r.tenure.over(), ending: r.ending,
		stored: make(chan struct{}), applied: make(chan struct{}), known: make(chan struct{}),
	}
}

// Begin makes an entry the first one of a leader that resumes its term; nil: its group has nothing to propose. The result
// is nil if there is none, or the leader has begun.
func (r *Replica) Begin(l *raft.Log) raft.ApplyFuture {
	if f := r.first; f != nil && f.settle(l) && l != nil {
		return f
	}
	return nil
}

// settle decides with what the leader begins, and reports whether that was open.
func (f *first) settle(l *raft.Log) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settled {
		return false
	}
	f.settled, f.given = true, l
	f.waits.Store(l != nil)
	close(f.known)
	return true
}

// fill puts the group's entry in the place of raft's, if that is what is about to be stored. It reports whether nothing has
// been stored before: then keep follows.
func (f *first) fill(logs []*raft.Log) bool {
	if f.begun {
		return false
	}
	f.begun = true
	l := logs[0]
	if l.Index != f.index || l.Term != f.term || l.Type != raft.LogNoop {
		f.settle(nil)
		f.given = nil
		return true
	}
	select {
	case <-f.known:
	default:
		limit := time.NewTimer(firstWait)
		defer limit.Stop()
		select {
		case <-f.known:
		case <-f.ending:
		case <-limit.C:
		}
		f.settle(nil)
	}
	if g := f.given; g != nil {
		l.Type, l.Data, l.Extensions = raft.LogCommand, g.Data, g.Extensions
		*g = *l
	}
	return true
}

// keep has requests go on that wait for the first entry, also if it could not be stored: then nothing is sent of it.
func (f *first) keep(err error) {
	if err != nil {
		f.given = nil
	}
	close(f.stored)
}

// join has a request wait that raft sends before the log has the first entry, and take that along.
func (f *first) join(args *raft.AppendEntriesRequest) {
	select {
	case <-f.stored:
	case <-f.ending:
		return
	}
	if g := f.given; g != nil && len(args.Entries) == 0 && args.Term == f.term && args.PrevLogEntry == f.index-1 {
		args.Entries = []*raft.Log{g}
	}
}

// firstPipeline is what raft uses when a member has the first entry. Raft was triggered twice by then, once to begin and once
// for the entry: so it begins with a request that has none.
type firstPipeline struct {
	raft.AppendPipeline
	first *first
	past  bool // that request
}

// AppendEntries implements raft.AppendPipeline. Raft takes answers from Consumer, and misses none.
func (p *firstPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	if !p.past && len(args.Entries) == 0 && args.Term == p.first.term && args.PrevLogEntry == p.first.index {
		p.past = true
		return nil, nil
	}
	return p.AppendPipeline.AppendEntries(args, resp)
}

// Error implements raft.Future: it waits until the machine has the entry, or that may never be.
func (f *first) Error() error {
	select {
	case <-f.applied:
		return nil
	case <-f.over:
		return raft.ErrLeadershipLost
	case <-f.ending:
		return raft.ErrRaftShutdown
	}
}

// Index implements raft.IndexFuture.
func (f *first) Index() uint64 { return f.index }

// Response implements raft.ApplyFuture.
func (f *first) Response() any { return nil }

// firstMachine is the machine of a leader that resumes its term.
type firstMachine struct {
	raft.BatchingFSM
	first *first
}

// ApplyBatch implements raft.BatchingFSM.
func (m firstMachine) ApplyBatch(logs []*raft.Log) []any {
	answers := m.BatchingFSM.ApplyBatch(logs)
	if f := m.first; f.waits.Load() {
		for _, l := range logs {
			if l.Index == f.index && l.Term == f.term {
				f.waits.Store(false)
				close(f.applied)
			}
		}
	}
	return answers
}
