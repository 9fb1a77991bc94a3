package peer

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

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
