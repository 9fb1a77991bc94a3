package host

import (
	"hash/fnv"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
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

// takeOver stands for the leadership of those groups whose leader's node has died that are this node's to take, as long
// as it is gone, and waits until all of them have leaders. Those that are orphaned all the same have to be woken.
func (v *voter) takeOver(orphans []*group.Group, dead string, gone func() bool) {
	h, of := v.host, &takeover{dead}
	if h.node.Withdrawn() {
		return
	}
	var items []election.Item
	for _, g := range orphans {
		if r := g.Record(); r.IsOrphan(dead) && v.candidate(g.ID(), r, dead) == h.config.Node {
			items = append(items, election.Item{Kind: election.ItemVote, Group: g.ID(), Term: r.At().Raft + 1, Position: r.At().Position})
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
			if g.Record().IsOrphan(dead) {
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
func (v *voter) candidate(id fsm.GroupID, r *group.Record, dead string) (chosen string) {
	if dead == v.host.config.Node { // it led before it was restarted
		return dead
	}
	best := uint64(0)
	for _, m := range r.Members() {
		if !m.Voter || m.Node == dead || !v.host.node.Alive(m.Node) || v.host.elections.Draining(m.Node) {
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

// stand asks the other members for their votes. This node's own come last, when they are enough with those: where a leader
// is known to others, the node must not get into a term in which it would not hear of it.
func (v *voter) stand(items []election.Item, of *takeover) {
	h := v.host
	ask := map[string][]byte{}
	var alone []election.Item
	v.mu.Lock()
	for _, it := range items {
		if p := v.polls[it.Group]; p == nil || p.term != it.Term {
			v.polls[it.Group] = &poll{term: it.Term}
		}
		v.polls[it.Group].takeover = of
		if g := h.groups.sleeper(it.Group); g != nil {
			if len(g.Voters()) == 1 {
				alone = append(alone, it)
			}
			for _, m := range g.Configuration() {
				if m.Voter && m.Node != h.config.Node && h.node.Alive(m.Node) {
					ask[m.Node] = election.AppendItem(ask[m.Node], it)
				}
			}
		}
	}
	v.mu.Unlock()
	for node, list := range ask {
		h.elections.Send(node, list)
	}
	v.voted(h.config.Node, v.vote(h.config.Node, alone))
}

// requested gives a candidate the votes of groups that sleep here. Those that do not are elected as others are: the candidate
// wakes its replica. A leader whose term is so early that the candidate would not believe its word is woken, and finds out.
func (v *voter) requested(from string, items []election.Item) {
	v.host.tasks.Go(func() {
		var answer []byte
		for _, it := range v.vote(from, items) {
			it.Kind = election.ItemVoted
			answer = election.AppendItem(answer, it)
		}
		var missed []*group.Group
		for _, it := range items {
			g := v.host.groups.sleeper(it.Group)
			if g == nil {
				continue
			}
			answer = v.host.sleepers.appendLed(answer, g)
			if r := g.Record(); r != nil && r.Leads() && it.Term > r.At().Raft+1 {
				missed = append(missed, g)
			}
		}
		if len(answer) > 0 {
			v.host.elections.Send(from, answer)
		}
		v.host.sleepers.wakeAll(missed, func() bool { return v.host.config.Mesh.Alive(from) })
	})
}

// vote has groups that sleep vote for a candidate, durably, and returns for which of the items they have. None of them
// wakes meanwhile.
func (v *voter) vote(candidate string, items []election.Item) (given []election.Item) {
	var votes []group.Voting
	var requests []election.Item
	var ballots []raftlog.Ballot
	for _, it := range items {
		g := v.host.groups.sleeper(it.Group)
		if g == nil {
			continue
		}
		voting, ok := g.Vote(candidate, it)
		if !ok {
			continue
		}
		defer voting.End()
		votes, requests, ballots = append(votes, voting), append(requests, it), append(ballots, voting.Ballot)
	}
	for n, yes := range v.host.config.Store.Vote(candidate, ballots) {
		if yes {
			votes[n].Given()
			given = append(given, requests[n])
		}
	}
	return given
}

// voted takes votes for this node, which has its own replicas vote where that makes a majority.
func (v *voter) voted(from string, items []election.Item) {
	self := v.host.config.Node
	var won, own []election.Item
	v.mu.Lock()
	for _, it := range items {
		p, g := v.polls[it.Group], v.host.groups.sleeper(it.Group)
		if p == nil || p.term != it.Term || g == nil {
			continue
		}
		if !slices.Contains(p.votes, from) {
			p.votes = append(p.votes, from)
		}
		if mine := slices.Contains(p.votes, self); !mine && 2*(len(p.votes)+1) > len(g.Voters()) {
			own = append(own, it)
		} else if mine && 2*len(p.votes) > len(g.Voters()) {
			delete(v.polls, it.Group)
			won = append(won, it)
		}
	}
	v.mu.Unlock()
	if len(won)+len(own) > 0 {
		v.host.tasks.Go(func() {
			v.lead(won)
			v.voted(self, v.vote(self, own))
		})
	}
}

// lead makes this node the leader of groups that have elected it, and says so.
func (v *voter) lead(won []election.Item) {
	h, tell := v.host, map[string][]byte{}
	for _, it := range won {
		g := h.groups.sleeper(it.Group)
		if g == nil || !g.Won(it.Term) {
			continue
		}
		it.Kind = election.ItemWon
		for _, m := range g.Configuration() {
			if m.Node != h.config.Node && h.node.Alive(m.Node) {
				tell[m.Node] = election.AppendItem(tell[m.Node], it)
			}
		}
		h.config.Outside.Led(g, it.Term)
		g.Reconfigure() // nobody did without a leader
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
			if g := v.host.groups.sleeper(it.Group); g != nil && g.Lost(from, it) {
				it.Kind = election.ItemRests
				answer = election.AppendItem(answer, it)
			}
		}
		if len(answer) > 0 {
			v.host.elections.Send(from, answer)
		}
	})
}
