package group

import (
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

const (
	// takeoverBatch is how many groups a candidate asks for at a time, and takeoversPerSecond how many in a second.
	takeoverBatch      = 200
	takeoversPerSecond = 2000
	// A candidate asks again and again, so long after one another, since others may hear of the death later. When that was
	// in vain so many times, the groups are woken, to elect as others do.
	takeoverAttempts = 4
	takeoverWait     = 250 * time.Millisecond
)

// voter gives groups that sleep another leader without waking them: all replicas of a group end at the same entry, so
// whichever stands gets all votes. What is asked, answered and stored is what raft would for each of the groups, in one
// message for many. Whoever wins sleeps as the leader of the new term, and is resumed in it.
type voter struct {
	host *Host

	mu    sync.Mutex
	polls map[fsm.GroupID]*poll // for which this node stands
}

// poll is who has voted for this node in a term; itself once that is durable.
type poll struct {
	term     uint64
	votes    []string
	takeover *takeover // the newest one that has the poll
}

// takeover is one after the death of a node: it ends when the node has come back, although another one may follow.
type takeover struct{ dead string }

func newVoter(h *Host) *voter { return &voter{host: h, polls: map[fsm.GroupID]*poll{}} }

// orphaned reports whether the group sleeps without a leader, after this one has died.
func (g *Group) orphaned(dead string) bool {
	r := g.asleep.Load()
	return r != nil && !r.leads && (r.leader == dead || r.leader == "")
}

// takeOver stands for the leadership of those groups whose leader's node has died that are this node's to take, as long
// as it is gone, and waits until all of them have leaders. Those that are orphaned all the same have to be woken.
func (v *voter) takeOver(orphans []*Group, dead string, gone func() bool) {
	h, of := v.host, &takeover{dead}
	if h.withdrawn.Load() {
		return
	}
	var items []election.Item
	for _, g := range orphans {
		if r := g.asleep.Load(); r != nil && g.orphaned(dead) && v.candidate(g.spec.Group, r, dead) == h.config.Node {
			items = append(items, election.Item{Kind: election.ItemVote, Group: g.spec.Group, Term: r.at.raft + 1, Position: r.at.Position})
		}
	}
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for _, it := range items {
			if p := v.polls[it.Group]; p != nil && p.takeover == of {
				delete(v.polls, it.Group)
			}
		}
	}()
	count := func() (n int) {
		for _, g := range orphans {
			if g.orphaned(dead) {
				n++
			}
		}
		return n
	}
	before := len(orphans)
	for inVain := 0; inVain < takeoverAttempts; inVain++ {
		for some := range slices.Chunk(items, takeoverBatch) {
			if !gone() {
				return
			}
			v.stand(some, of)
			if !h.sleepers.pause(time.Duration(len(some)) * time.Second / takeoversPerSecond) {
				return
			}
		}
		items = v.undecided(items)
		if !h.sleepers.pause(takeoverWait) {
			return
		}
		switch now := count(); {
		case now == 0:
			return
		case now < before:
			before, inVain = now, 0
		}
	}
}

// undecided returns those items for which too few votes have come.
func (v *voter) undecided(items []election.Item) []election.Item {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.DeleteFunc(items, func(it election.Item) bool { return v.polls[it.Group] == nil })
}

// candidate is which of the members stands after the death of a node. All that see the same nodes agree, and each gets
// its share.
func (v *voter) candidate(id fsm.GroupID, r *record, dead string) (chosen string) {
	if dead == v.host.config.Node { // it led before it was restarted
		return dead
	}
	best := uint64(0)
	for _, m := range r.members {
		if !m.Voter || m.Node == dead || !v.alive(m.Node) || v.host.elections.Draining(m.Node) {
			continue
		}
		hash := fnv.New64a()
		_, _ = hash.Write([]byte(strconv.FormatUint(uint64(id), 10) + " " + dead + " " + m.Node)) // never fails
		if sum := hash.Sum64(); chosen == "" || sum > best {
			chosen, best = m.Node, sum
		}
	}
	return chosen
}

func (v *voter) alive(node string) bool {
	return node == v.host.config.Node || v.host.config.Mesh.Alive(node)
}

// stand asks the other members for their votes while this node's own become durable.
func (v *voter) stand(items []election.Item, of *takeover) {
	h := v.host
	ask := map[string][]byte{}
	v.mu.Lock()
	for _, it := range items {
		if p := v.polls[it.Group]; p == nil || p.term != it.Term {
			v.polls[it.Group] = &poll{term: it.Term}
		}
		v.polls[it.Group].takeover = of
		if g := h.groups.sleeper(it.Group); g != nil {
			for _, m := range g.Configuration() {
				if m.Voter && m.Node != h.config.Node && v.alive(m.Node) {
					ask[m.Node] = election.AppendItem(ask[m.Node], it)
				}
			}
		}
	}
	v.mu.Unlock()
	for node, list := range ask {
		h.elections.Send(node, list)
	}
	v.voted(h.config.Node, v.vote(h.config.Node, items))
}

// requested gives a candidate the votes of groups that sleep here. Those that do not are elected as others are: the candidate
// wakes its replica.
func (v *voter) requested(from string, items []election.Item) {
	v.host.tasks.Go(func() {
		var answer []byte
		for _, it := range v.vote(from, items) {
			it.Kind = election.ItemVoted
			answer = election.AppendItem(answer, it)
		}
		for _, it := range items {
			if g := v.host.groups.sleeper(it.Group); g != nil {
				answer = v.host.sleepers.appendLed(answer, g)
			}
		}
		if len(answer) > 0 {
			v.host.elections.Send(from, answer)
		}
	})
}

// vote has groups that sleep vote for a candidate, durably, and returns for which of the items they have. None of them
// wakes meanwhile.
func (v *voter) vote(candidate string, items []election.Item) (given []election.Item) {
	var groups []*Group
	var requests []election.Item
	var ballots []raftlog.Ballot
	for _, it := range items {
		g := v.host.groups.sleeper(it.Group)
		if g == nil || !g.changing.TryLock() {
			continue
		}
		defer g.changing.Unlock()
		if r := g.asleep.Load(); r == nil || g.ended.Load() || !v.mayVote(r, candidate, it) {
			continue
		}
		groups, requests = append(groups, g), append(requests, it)
		b := raftlog.Ballot{Group: it.Group, Term: it.Term, Index: it.Position.Index, IndexTerm: it.Position.Term}
		if g.asleep.Load().isUnborn() {
			f := founding(&g.spec)
			b.Founding = &f
		}
		ballots = append(ballots, b)
	}
	for n, yes := range v.host.config.Store.Vote(candidate, ballots) {
		if yes {
			g := groups[n]
			r := g.asleep.Load().in(requests[n].Term, "")
			r.unborn.Store(false)
			g.put(r)
			given = append(given, requests[n])
		}
	}
	return given
}

// mayVote reports what of raft's conditions for a vote is not on disk: no leader is known, the term is one, and the candidate is a voter.
// A replica that has more than the candidate does not vote, nor does it take the term.
func (v *voter) mayVote(r *record, candidate string, it election.Item) bool {
	led := r.leads || r.leader != "" && r.leader != candidate && v.alive(r.leader) && !v.host.sleepers.restarted(r)
	votes := func(node string) bool { return slices.Contains(r.members, replica.Member{Node: node, Voter: true}) }
	return r.level && !r.failed && !led && it.Term >= r.at.raft && votes(candidate) && votes(v.host.config.Node) && !it.Position.Less(r.at.Position)
}

// voted takes votes for this node.
func (v *voter) voted(from string, items []election.Item) {
	var won []election.Item
	v.mu.Lock()
	for _, it := range items {
		p, g := v.polls[it.Group], v.host.groups.sleeper(it.Group)
		if p == nil || p.term != it.Term || g == nil || slices.Contains(p.votes, from) {
			continue
		}
		if p.votes = append(p.votes, from); slices.Contains(p.votes, v.host.config.Node) && 2*len(p.votes) > len(g.Voters()) {
			delete(v.polls, it.Group)
			won = append(won, it)
		}
	}
	v.mu.Unlock()
	if len(won) > 0 {
		v.host.tasks.Go(func() { v.lead(won) })
	}
}

// lead makes this node the leader of groups that have elected it, and says so.
func (v *voter) lead(won []election.Item) {
	h, tell := v.host, map[string][]byte{}
	for _, it := range won {
		g := h.groups.sleeper(it.Group)
		if g == nil || !g.won(it.Term) {
			continue
		}
		it.Kind = election.ItemWon
		for _, m := range g.Configuration() {
			if m.Node != h.config.Node && v.alive(m.Node) {
				tell[m.Node] = election.AppendItem(tell[m.Node], it)
			}
		}
		h.config.Outside.Led(g, it.Term)
		g.reconfigure() // nobody did without a leader
	}
	for node, list := range tell {
		h.elections.Send(node, list)
	}
}

// heard takes up who leads groups that sleep here. It does not wait for those that wake.
func (v *voter) heard(from string, items []election.Item) {
	v.host.tasks.Go(func() {
		var answer []byte
		for _, it := range items {
			if g := v.host.groups.sleeper(it.Group); g != nil && g.lost(from, it) {
				it.Kind = election.ItemRests
				answer = election.AppendItem(answer, it)
			}
		}
		if len(answer) > 0 {
			v.host.elections.Send(from, answer)
		}
	})
}

// lost takes up that another member has won, and reports whether this one has all that it has. Who leads in an earlier
// term has missed the vote, and finds out by leading.
func (g *Group) lost(from string, it election.Item) (level bool) {
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	switch {
	case r == nil || g.ended.Load():
	case r.leads && r.at.raft < it.Term:
		g.call()
	case !r.leads && r.at.Position == it.Position && r.at.raft <= it.Term:
		if it.Term > r.at.raft && !hear(g.host, g.spec.Group, it.Term) {
			return false
		}
		n := r.in(it.Term, from)
		g.host.sleepers.sign(n)
		g.put(n)
		return true
	}
	return false
}

// won makes a replica that sleeps the leader of the term in which it has been elected.
func (g *Group) won(term uint64) bool {
	h := g.host
	g.changing.Lock()
	defer g.changing.Unlock()
	r := g.asleep.Load()
	if r == nil || r.leads || r.at.raft != term || g.ended.Load() || h.withdrawn.Load() {
		return false
	}
	w := r.in(term, h.config.Node)
	w.leads, w.elected = true, true
	if slices.ContainsFunc(w.lacking(), h.config.Mesh.Alive) {
		g.call() // nobody has seen to it since
	}
	if w.at.Index > foundedAt.Index { // which every member has
		w.setLacking(append(h.sleepers.voter.unreachable(w.members), w.lacking()...))
	}
	w.stamper.Begin(h.config.Clock, w.stats.Clock)
	g.put(w)
	h.applying.roleChanged(&g.spec, true)
	h.applying.boots.set(g.spec.Group, w.sessions, w.suspected)
	g.arm(w)
	g.checkArmed(w)
	return true
}

// in is the record of the same replica in another term, or with another leader. It takes over the machine.
func (r *record) in(term uint64, leader string) *record {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &record{
		at: recordedAt{r.at.Position, term}, leader: leader, members: r.members, config: r.config, configAt: r.configAt,
		snapshot: r.snapshot, stats: r.stats, settings: r.settings, since: r.since, level: r.level, failed: r.failed,
		replay: r.replay, origin: r.origin, live: r.live, machine: r.machine, state: r.state, woken: r.woken, noted: time.Now(),
		stored: r.stored, sessions: r.sessions, suspected: r.suspected,
	}
	n.missed.Store(r.missed.Load())
	n.unborn.Store(r.unborn.Load())
	n.lacks.Store(r.lacks.Load())
	r.machine, r.state, r.woken = nil, nil, true
	return n
}

// hear stores a term that another member leads in, as raft would (R3).
func hear(h *Host, id fsm.GroupID, term uint64) bool {
	store := h.config.Store
	log, err := store.Group(id)
	if err != nil {
		return false
	}
	defer store.Unload(id)
	return log.SetUint64([]byte(raftlog.TermKey), term) == nil
}

// unreachable returns those members whose nodes are down.
func (v *voter) unreachable(members []replica.Member) (nodes []string) {
	for _, m := range members {
		if m.Node != v.host.config.Node && !v.host.config.Mesh.Alive(m.Node) {
			nodes = append(nodes, m.Node)
		}
	}
	return nodes
}
