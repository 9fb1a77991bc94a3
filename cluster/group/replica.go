package group

import (
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// changeWait bounds how long a change of a configuration waits for raft.
const changeWait = 10 * time.Second

// Member is a member of a raft group.
type Member struct {
	Node  string
	Voter bool
}

func membersOf(r *raft.Raft) []Member {
	if r == nil {
		return nil
	}
	f := r.GetConfiguration()
	if f.Error() != nil {
		return nil
	}
	servers := f.Configuration().Servers
	list := make([]Member, len(servers))
	for i, s := range servers {
		list[i] = Member{Node: string(s.ID), Voter: s.Suffrage == raft.Voter}
	}
	return list
}

// votersOf returns the voters, those in first before the others.
func votersOf(r *raft.Raft, first []string) []string {
	var names []string
	for _, m := range membersOf(r) {
		if m.Voter {
			names = append(names, m.Node)
		}
	}
	rank := func(n string) int {
		if i := slices.Index(first, n); i >= 0 {
			return i
		}
		return len(first)
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// Configuration returns the members of the group as this replica knows them. A
// replica that has just been added knows none.
func (g *Group) Configuration() []Member { return membersOf(g.raft) }

// Voters returns the names of the members that vote, the preferred leader
// first.
func (g *Group) Voters() []string { return votersOf(g.raft, g.spec.Members) }

// has reports whether a node is a member, voter or not.
func (g *Group) has(node string) bool {
	return slices.ContainsFunc(g.Configuration(), func(m Member) bool { return m.Node == node })
}

// Add makes a node a member that does not vote. Only the leader can.
func (g *Group) Add(node string) error {
	return endingWith(g.raft.AddNonvoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), g.ending).Error()
}

// Promote gives a member a vote. Only the leader can.
func (g *Group) Promote(node string) error {
	return endingWith(g.raft.AddVoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), g.ending).Error()
}

// Remove makes a node cease to be a member. Only the leader can, and not
// itself: it hands its office over first.
func (g *Group) Remove(node string) error {
	if node == g.host.config.Node {
		return errors.New("a leader does not remove itself")
	}
	return endingWith(g.raft.RemoveServer(raft.ServerID(node), 0, changeWait), g.ending).Error()
}

// Configuration returns the members of the catalog's group.
func (k *Catalog) Configuration() []Member { return membersOf(k.raft.Load()) }

// Voters returns the names of the catalog's members that vote.
func (k *Catalog) Voters() []string { return votersOf(k.raft.Load(), nil) }

// Leads reports whether this node leads the catalog and knows everything that
// was committed before.
func (k *Catalog) Leads() bool {
	r := k.raft.Load()
	return r != nil && r.State() == raft.Leader && k.ask(r.Barrier(changeWait)) == nil
}

// Add makes a node a member of the catalog's group that does not vote. Only
// the leader can.
func (k *Catalog) Add(node string) error {
	return endingWith(k.raft.Load().AddNonvoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), k.ending).Error()
}

// Promote gives a member of the catalog's group a vote. Only the leader can.
func (k *Catalog) Promote(node string) error {
	return endingWith(k.raft.Load().AddVoter(raft.ServerID(node), raft.ServerAddress(node), 0, changeWait), k.ending).Error()
}

// Remove removes a member of the catalog's group. Only the leader can.
func (k *Catalog) Remove(node string) error {
	return endingWith(k.raft.Load().RemoveServer(raft.ServerID(node), 0, changeWait), k.ending).Error()
}
