package group

import (
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// ErrLearner is returned for a vote that a learner is asked for.
var ErrLearner = errors.New("the replica cannot prove what it has acknowledged, and does not vote until a leader has brought it up to date")

// proof is what a store knows of a replica's past.
type proof interface {
	// Doubt says why the replica cannot prove what it has acknowledged; empty:
	// it can.
	Doubt() string
	// Prove notes, durably, that a leader has brought it up to date.
	Prove() error
}

// trust is whether a replica may vote and lead. One that cannot prove what it
// has acknowledged is a learner: it stores and applies what a leader sends, and
// takes part in no election until it has been brought up to date. See DESIGN.md.
type trust struct {
	proof proof
	doubt atomic.Pointer[Doubt] // nil: it is a voter
}

// Doubt says why a replica does not vote on this node.
type Doubt struct {
	Since fsm.Time // when the replica was opened
	Why   string
	// Stuck: so many replicas of the group can prove nothing that those that
	// can have no majority. Nobody can bring them up to date.
	Stuck bool
}

// open takes up what the store says.
func (t *trust) open(p proof, now fsm.Time) {
	t.proof = p
	if why := p.Doubt(); why != "" {
		t.doubt.Store(&Doubt{Since: now, Why: why})
	}
}

// isLearner reports whether there is a doubt.
func (t *trust) isLearner() bool { return t.doubt.Load() != nil }

// refuses is why the replica should not stand for election.
func (t *trust) refuses() error {
	if t.isLearner() {
		return ErrLearner
	}
	return nil
}

// prove makes a voter of a learner that has been brought up to date.
func (t *trust) prove() error {
	if err := t.proof.Prove(); err != nil {
		return err
	}
	t.doubt.Store(nil)
	return nil
}

// setStuck reports whether that is news.
func (t *trust) setStuck(stuck bool) bool {
	d := t.doubt.Load()
	if d == nil || d.Stuck == stuck {
		return false
	}
	next := *d
	next.Stuck = stuck
	return t.doubt.CompareAndSwap(d, &next)
}

// voteStore is where a replica keeps its term and vote. A learner cannot store a
// vote, not even one for itself: so raft grants none, and wins no election,
// whatever its configuration. A vote of the past that it is asked for again is
// granted again: it was given by a replica that could prove itself.
type voteStore struct {
	raft.StableStore
	trust       *trust
	termChanged func() // nil: nobody looks at terms
}

// Set implements raft.StableStore.
func (v voteStore) Set(key, value []byte) error {
	if string(key) == raftlog.VotedForKey && v.trust.isLearner() {
		return ErrLearner
	}
	return v.StableStore.Set(key, value)
}

// SetUint64 implements raft.StableStore. Raft stores the term of a vote first.
func (v voteStore) SetUint64(key []byte, value uint64) error {
	if string(key) == raftlog.VoteTermKey && v.trust.isLearner() {
		return ErrLearner
	}
	err := v.StableStore.SetUint64(key, value)
	if v.termChanged != nil && string(key) == raftlog.TermKey {
		v.termChanged()
	}
	return err
}

// votedFor implements electable.
func (r *replica) votedFor(term uint64) string {
	if last, err := r.log.GetUint64([]byte(raftlog.VoteTermKey)); err != nil || last != term {
		return ""
	}
	candidate, _ := r.log.Get([]byte(raftlog.VotedForKey)) // none then
	return string(candidate)
}

// abstaining is a transport over which a replica asks for no votes that should not
// stand. A learner could not take them, and those it asks would go on to another
// term.
type abstaining struct {
	transport
	refuses func() error // why it should not; nil: it may
}

// RequestVote implements raft.Transport.
func (a abstaining) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := a.refuses(); err != nil {
		return err
	}
	return a.transport.RequestVote(id, addr, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (a abstaining) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := a.refuses(); err != nil {
		return err
	}
	return a.transport.RequestPreVote(id, addr, args, resp)
}
