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

func (t *trust) unproven() bool { return t.doubt.Load() != nil }

// refuses is why the replica should not stand for election.
func (t *trust) refuses() error {
	if t.unproven() {
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

// ballots is the store of a replica's term and vote. A learner cannot store a
// vote, not even one for itself: so raft grants none, and wins no election,
// whatever its configuration. A vote of the past that it is asked for again is
// granted again: it was given by a replica that could prove itself.
type ballots struct {
	raft.StableStore
	trust *trust
}

// Set implements raft.StableStore.
func (b ballots) Set(key, value []byte) error {
	if string(key) == raftlog.VotedForKey && b.trust.unproven() {
		return ErrLearner
	}
	return b.StableStore.Set(key, value)
}

// SetUint64 implements raft.StableStore. Raft stores the term of a vote first.
func (b ballots) SetUint64(key []byte, value uint64) error {
	if string(key) == raftlog.VoteTermKey && b.trust.unproven() {
		return ErrLearner
	}
	return b.StableStore.SetUint64(key, value)
}

// modest is a transport over which a replica asks for no votes that should not
// stand. A learner could not take them, and those it asks would go on to another
// term.
type modest struct {
	transport
	refuses func() error // why it should not; nil: it may
}

// RequestVote implements raft.Transport.
func (m modest) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := m.refuses(); err != nil {
		return err
	}
	return m.transport.RequestVote(id, target, args, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (m modest) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := m.refuses(); err != nil {
		return err
	}
	return m.transport.RequestPreVote(id, target, args, resp)
}

// Doubt says why the replica does not vote on this node; nil: it does.
func (g *Group) Doubt() *Doubt { return g.trust.doubt.Load() }

// Learners returns the groups whose replicas on this node do not vote, in order
// of their numbers.
func (h *Host) Learners() (list []*Group) {
	for _, g := range h.Groups() {
		if g.trust.unproven() {
			list = append(list, g)
		}
	}
	return list
}

func (g *Group) unproven() bool { return g.trust.unproven() }

func (g *Group) trusted() *trust { return &g.trust }

func (g *Group) founders() []string { return g.spec.Members }

func (g *Group) lastIndex() uint64 { return g.raft.LastIndex() }

// proven is told that the replica votes from now on.
func (g *Group) proven() {
	g.slog.Info("replica has been brought up to date, and votes again")
	g.repace()
	if g.Leader() == "" {
		g.host.elections.vacant(g)
	}
}

// Doubt says why this node does not vote on the catalog; nil: it does.
func (k *Catalog) Doubt() *Doubt { return k.trust.doubt.Load() }

func (k *Catalog) trusted() *trust { return &k.trust }

func (k *Catalog) founders() []string {
	names := []string{k.config.Node}
	for _, p := range k.config.Mesh.Peers() {
		names = append(names, p.Node)
	}
	return names
}

func (k *Catalog) lastIndex() uint64 { return k.raft.Load().LastIndex() }

func (k *Catalog) standing() standing {
	return standingOf(k.raft.Load(), k.config.Store, k.config.Store.Snapshots())
}

func (k *Catalog) role() (raft.RaftState, uint64) {
	r := k.raft.Load()
	return r.State(), r.CurrentTerm()
}

func (k *Catalog) isClosed() bool { return k.life.Err() != nil }

func (k *Catalog) barrier() error {
	return endingWith(k.raft.Load().Barrier(changeWait), k.ending).Error()
}

func (k *Catalog) proven() {
	k.config.Logger.Info("this node's catalog has been brought up to date, and it votes again")
	c := k.raft.Load().ReloadableConfig()
	c.HeartbeatTimeout, c.ElectionTimeout = catalogHeartbeat, catalogHeartbeat
	if err := k.raft.Load().ReloadConfig(c); err != nil {
		k.config.Logger.Warn("raft timers of the catalog not set", "error", err)
	}
}
