package peer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// window and windowBytes bound the unanswered requests of a pipeline; one
	// request is always allowed.
	window      = 64
	windowBytes = 8 << 20
)

// pipeline sends AppendEntries of one group to one node without waiting for
// the answers. It belongs to no link: if one breaks with requests under way,
// the pipeline is over; if none was, it goes on over the next link.
type pipeline struct {
	t        *transport
	p        *peer
	f        *follower
	done     chan raft.AppendFuture
	closed   chan struct{}
	answered chan struct{} // buffer 1: signalled when something was answered

	mu       sync.Mutex
	requests int // unanswered
	bytes    int
	commit   uint64 // highest commit index that the follower has acknowledged
	broken   bool   // a request failed or was not successful
	shut     bool
	overflow []raft.AppendFuture // answered, while done is full
}

func newPipeline(t *transport, p *peer) *pipeline {
	return &pipeline{
		t: t, p: p, f: t.followers.of(p.name),
		done:     make(chan raft.AppendFuture, window),
		closed:   make(chan struct{}),
		answered: make(chan struct{}, 1),
	}
}

// appendFuture is a request of a pipeline: what raft waits for, what the link
// completes, and what is written into the batch.
type appendFuture struct {
	pipe  *pipeline
	link  *link // that it was sent over
	args  *raft.AppendEntriesRequest
	resp  *raft.AppendEntriesResponse
	start time.Time
	log   uint64 // number of the leader's last write that it may carry
	bytes int
	lazy  bool
	err   error
	ready sync.WaitGroup
}

// Error waits for the answer.
func (f *appendFuture) Error() error {
	f.ready.Wait()
	return f.err
}

func (f *appendFuture) Start() time.Time                      { return f.start }
func (f *appendFuture) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *appendFuture) Response() *raft.AppendEntriesResponse { return f.resp }

func (f *appendFuture) size() int      { return f.bytes }
func (f *appendFuture) write(b *batch) { appendBody{f.args, f.lazy}.write(b) }

// AppendEntries implements raft.AppendPipeline. It waits for the
// window and for the link's backlog, not for a link.
func (pl *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	f := &appendFuture{pipe: pl, args: args, resp: resp, start: time.Now(), log: pl.t.log().written(), bytes: appendSize(args)}
	f.ready.Add(1)
	if err := pl.admit(f); err != nil {
		return nil, err
	}
	l := pl.p.link.Load()
	if l == nil {
		pl.withdraw(f)
		return nil, ErrDown
	}
	f.link = l
	number, err := l.register(f, true)
	if err != nil {
		pl.withdraw(f)
		return nil, err
	}
	h := header{kind: kindAppend, arg: uint32(pl.t.group), number: number}
	if err := l.out.pushWait(pl.t.shutdown, h, f, urgency(!f.lazy)); err != nil {
		// Unless the link has failed it already, nobody else knows of it.
		if l.unregister(number) != nil {
			pl.withdraw(f)
			return nil, shutError(err)
		}
		return f, nil
	}
	pl.f.given(l, args)
	return f, nil
}

// admit waits until f fits into the window.
func (pl *pipeline) admit(f *appendFuture) error {
	for {
		pl.mu.Lock()
		if pl.broken || pl.shut {
			pl.mu.Unlock()
			return raft.ErrPipelineShutdown
		}
		if pl.requests == 0 || pl.requests < window && pl.bytes+f.bytes <= windowBytes {
			pl.requests++
			pl.bytes += f.bytes
			pl.f.busy.Add(1)
			f.lazy = len(f.args.Entries) == 0 && f.args.LeaderCommitIndex <= pl.commit
			pl.mu.Unlock()
			return nil
		}
		pl.mu.Unlock()
		select {
		case <-pl.answered:
		case <-pl.t.shutdown:
			return raft.ErrPipelineShutdown
		}
	}
}

// withdraw takes back f, which was not sent.
func (pl *pipeline) withdraw(f *appendFuture) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.requests--
	pl.bytes -= f.bytes
	pl.f.busy.Add(-1)
}

// complete is called by the link with the answer. Raft gets it when what the
// follower acknowledges is durable here as well.
func (f *appendFuture) complete(fr frame, err error) {
	if err == nil {
		err = f.link.answered(fr, f.resp, f.args.Term)
	}
	if err == nil && f.resp.Success {
		f.pipe.t.log().whenDurable(f.log, func() { f.end(nil) })
		return
	}
	f.end(err)
}

// end hands the answer to raft. Raft does not look at the error of a future: an
// answer that is not successful makes it start over.
func (f *appendFuture) end(err error) {
	pl := f.pipe
	f.err = err
	f.ready.Done()
	pl.mu.Lock()
	defer pl.mu.Unlock()
	pl.requests--
	pl.bytes -= f.bytes
	pl.f.busy.Add(-1)
	switch {
	case err != nil || !f.resp.Success:
		pl.broken = true
	case !pl.broken && !pl.shut: // else raft does not look at it any more, and will send the entries again
		pl.f.acknowledged(f.args.Term, lastOf(f.args))
		pl.commit = max(pl.commit, f.args.LeaderCommitIndex)
	}
	select {
	case pl.answered <- struct{}{}:
	default:
	}
	pl.hand(f)
}

// hand puts f where raft takes it. Raft may lag behind by more than a window;
// only then a goroutine brings it the rest. pl.mu is held.
func (pl *pipeline) hand(f *appendFuture) {
	if len(pl.overflow) == 0 {
		select {
		case pl.done <- f:
			return
		default:
		}
	}
	if pl.shut {
		return
	}
	pl.overflow = append(pl.overflow, f)
	if len(pl.overflow) == 1 {
		pl.t.m.done.Go(pl.drain)
	}
}

// drain moves overflow to done in order.
func (pl *pipeline) drain() {
	for {
		pl.mu.Lock()
		if len(pl.overflow) == 0 {
			pl.mu.Unlock()
			return
		}
		f := pl.overflow[0]
		pl.mu.Unlock()
		select {
		case pl.done <- f:
		case <-pl.closed:
			return
		case <-pl.t.m.ctx.Done():
			return
		}
		pl.mu.Lock()
		pl.overflow = pl.overflow[1:]
		pl.mu.Unlock()
	}
}

// Consumer implements raft.AppendPipeline.
func (pl *pipeline) Consumer() <-chan raft.AppendFuture { return pl.done }

// Close implements raft.AppendPipeline. Answers to what is under way are
// dropped.
func (pl *pipeline) Close() error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if !pl.shut {
		pl.shut = true
		close(pl.closed)
	}
	return nil
}

// Pauses before a request that a node was too busy for, or had no group for, is repeated.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// Reached is how far a member of a group is, by its answers to this leader.
type Reached struct {
	// Index is the last entry that it has acknowledged in the term asked
	// about; 0: it has not answered in that term.
	Index uint64
	// Installing is the last entry of a snapshot that is on its way to it; 0:
	// there is none.
	Installing uint64
	// Busy: a request or a snapshot is on its way to it, or will be sent again.
	Busy bool
}

// follower is what a group's transport knows of another member.
type follower struct {
	busy       atomic.Int32  // requests and snapshots on their way
	installing atomic.Uint64 // the last entry of a snapshot among them

	mu    sync.Mutex
	term  uint64 // of the requests below
	index uint64 // the last entry acknowledged in it
	sent  sent
	alive beats
}

// sent is the last entry of a pipeline that a link was given.
type sent struct {
	over        *link
	term, index uint64 // of the leader; of the entry
}

// given notes that a link was given a request.
func (f *follower) given(l *link, a *raft.AppendEntriesRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = sent{l, a.Term, lastOf(a)}
}

// lastSent returns the last entry that a leader of a term has given to a link.
func (f *follower) lastSent(l *link, term uint64) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent.over != l || f.sent.term != term {
		return 0
	}
	return f.sent.index
}

// acknowledged notes that everything up to index is there.
func (f *follower) acknowledged(term, index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case term > f.term:
		f.term, f.index = term, index
	case term == f.term:
		f.index = max(f.index, index)
	}
}

// lacks notes that the member's log ends at index, whatever it acknowledged.
func (f *follower) lacks(term, index uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if term == f.term {
		f.index = min(f.index, index)
	}
}

// lastOf is the last entry that whoever takes a request has. A heartbeat says
// nothing about entries.
func lastOf(a *raft.AppendEntriesRequest) uint64 {
	if n := len(a.Entries); n > 0 {
		return a.Entries[n-1].Index
	}
	return a.PrevLogEntry
}

// followers is what a group's transport knows of the other members, by their
// nodes.
type followers struct {
	mu     sync.Mutex
	byNode map[string]*follower
}

// of returns what is known of a member, always the same.
func (all *followers) of(node string) *follower {
	all.mu.Lock()
	defer all.mu.Unlock()
	f := all.byNode[node]
	if f == nil {
		f = new(follower)
		if all.byNode == nil {
			all.byNode = make(map[string]*follower)
		}
		all.byNode[node] = f
	}
	return f
}

// forget drops what is known of a node that has left the cluster.
func (all *followers) forget(node string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	delete(all.byNode, node)
}

// reached says how far the member is in a term of this leader.
func (f *follower) reached(term uint64) Reached {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := Reached{Busy: f.busy.Load() > 0, Installing: f.installing.Load()}
	if f.term == term {
		r.Index = f.index
	}
	return r
}

// Reached says how far a member is, if this node leads in term.
func (t *transport) Reached(node string, term uint64) Reached {
	return t.followers.of(node).reached(term)
}

// Sent returns the last entry that arrives at a member before whatever is sent to its node from now on,
// if this node leads in term; 0: none is known.
func (t *transport) Sent(node string, term uint64) uint64 {
	l, err := t.m.link(node)
	if err != nil {
		return 0
	}
	// In this order: what the link is given meanwhile is not counted.
	index := t.followers.of(node).lastSent(l, term)
	if index == 0 || l.out.backlogOf(classRaft) > 0 {
		return 0
	}
	return index
}

// Lacks is called when a member says that its log ends at index: it may have less
// than it acknowledged in term.
func (t *transport) Lacks(node string, term, index uint64) { t.followers.of(node).lacks(term, index) }

// insist repeats a request that a node refused because it was too busy,
// or has not opened the group yet. Raft would pause, longer with each failure,
// and then wait for its next trigger. An empty request asks first, for it costs
// nothing where it is refused again, and waits in the group's queue where that
// is long. It commits no more than what it names.
func (t *transport) insist(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse, send func(*raft.AppendEntriesRequest) error) error {
	timer := time.NewTimer(firstPause)
	defer timer.Stop()
	until := time.Now().Add(t.m.cfg.ReconnectWait)
	for pause := firstPause; ; {
		select {
		case <-timer.C:
		case <-t.shutdown:
			return ErrClosed
		}
		ask := *args
		ask.Entries, ask.LeaderCommitIndex = nil, min(args.LeaderCommitIndex, args.PrevLogEntry)
		err := send(&ask)
		if err == nil && !resp.Success {
			return nil // so would the request itself be answered
		}
		if err == nil {
			err = send(args)
		}
		if !notReady(err) || time.Now().After(until) {
			return err
		}
		pause = min(2*pause, lastPause)
		timer.Reset(pause)
	}
}

// notReady reports whether a refusal will not last.
func notReady(err error) bool { return errors.Is(err, ErrBusy) || errors.Is(err, ErrUnknownGroup) }
