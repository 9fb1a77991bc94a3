package group

import (
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// IsOrphan reports whether a group sleeps without a leader, after this one has died. Of one that is awake, nil, it is false.
func (r *Record) IsOrphan(dead string) bool {
	return r != nil && !r.leads && (r.leader == dead || r.leader == "")
}

// Lost takes up that another member has won, and reports whether this one has all that it has. Who leads in an earlier
// term has missed the vote, and finds out by leading.
func (g *Group) Lost(from string, it election.Item) (level bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	switch {
	case r == nil || g.ended.Load():
	case r.leads && r.at.Raft < it.Term:
		g.Call()
	case !r.leads && r.at.Position == it.Position && r.at.Raft <= it.Term:
		if it.Term > r.at.Raft && !hear(g.node, g.spec.Group, it.Term) {
			return false
		}
		n := r.in(it.Term, from)
		g.node.sign(n)
		g.put(n)
		return true
	}
	return false
}

// Won makes a replica that sleeps the leader of the term in which it has been elected.
func (g *Group) Won(term uint64) bool {
	n := g.node
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if r == nil || r.leads || r.at.Raft != term || g.ended.Load() || n.withdrawn.Load() {
		return false
	}
	w := r.in(term, n.config.Node)
	w.leads, w.elected = true, true
	if slices.ContainsFunc(w.lacking(), n.config.Mesh.Alive) {
		g.Call() // nobody has seen to it since
	}
	if w.at.Index > foundedAt.Index { // which every member has
		w.setLacking(append(n.unreachable(w.members), w.lacking()...))
	}
	w.stamper.Begin(n.config.Clock, w.stats.Clock)
	g.put(w)
	n.applying.roleChanged(&g.spec, true)
	n.Boots(g.spec.Group, w.sessions, w.suspected)
	w.arm(g)
	w.checkArmed(g)
	return true
}

// in is the record of the same replica in another term, or with another leader. It takes over the machine.
func (r *Record) in(term uint64, leader string) *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &Record{
		at: RecordedAt{r.at.Position, term}, leader: leader, members: r.members, config: r.config, configAt: r.configAt,
		snapshot: r.snapshot, stats: r.stats, settings: r.settings, since: r.since, level: r.level, failed: r.failed,
		replay: r.replay, origin: r.origin, live: r.live, machine: r.machine, state: r.state, woken: r.woken, noted: time.Now(),
		stored: r.stored, sessions: r.sessions, suspected: r.suspected,
	}
	n.missed.Store(r.missed.Load())
	n.unborn.Store(r.unborn.Load())
	if leader == "" {
		n.stands.Store(r.stands.Load())
	}
	n.lacks.Store(r.lacks.Load())
	r.machine, r.state, r.woken = nil, nil, true
	return n
}

// hear stores a term that another member leads in, as raft would (R3).
func hear(n *Node, id fsm.GroupID, term uint64) bool {
	store := n.config.Store
	log, err := store.Group(id)
	if err != nil {
		return false
	}
	defer store.Unload(id)
	return log.SetUint64([]byte(raftlog.TermKey), term) == nil
}

// Voting is a group that sleeps while it votes for a candidate: it does not wake until End.
type Voting struct {
	Ballot raftlog.Ballot // to be stored
	group  *Group
}

// Vote begins a vote for a candidate, unless raft's conditions for one do not hold. What of them is in the store is left to
// that.
func (g *Group) Vote(candidate string, it election.Item) (v Voting, ok bool) {
	if !g.changing.TryLock() {
		return v, false
	}
	r := g.asleep.Load()
	if r == nil || g.ended.Load() || !g.node.mayVote(r, candidate, it) {
		g.changing.Unlock()
		return v, false
	}
	v = Voting{group: g, Ballot: raftlog.Ballot{Group: it.Group, Term: it.Term, Index: it.Position.Index, IndexTerm: it.Position.Term}}
	if r.IsUnborn() {
		f := founding(&g.spec)
		v.Ballot.Founding = &f
	}
	return v, true
}

// Given takes up that the vote is durable.
func (v *Voting) Given() {
	r := v.group.asleep.Load().in(v.Ballot.Term, "")
	r.unborn.Store(false)
	v.group.put(r)
}

// End lets the group wake again.
func (v *Voting) End() { v.group.changing.Unlock() }

// mayVote reports what of raft's conditions for a vote is not on disk: no leader is known, the term is one, and the candidate is a voter.
// A replica that has more than the candidate does not vote, nor does it take the term.
func (n *Node) mayVote(r *Record, candidate string, it election.Item) bool {
	led := r.leads || r.leader != "" && r.leader != candidate && n.Alive(r.leader) && !n.Restarted(r)
	votes := func(node string) bool {
		return slices.Contains(r.members, replica.Member{Node: node, Voter: true})
	}
	return r.level && !r.failed && !led && it.Term >= r.at.Raft && votes(candidate) && votes(n.config.Node) && !it.Position.Less(r.at.Position)
}
