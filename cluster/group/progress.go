package group

import (
	"strings"

	"github.com/hashicorp/raft"
)

// Progress is how far a replica is, as it knows itself.
type Progress struct {
	Role    string // leader, follower, candidate or shutdown
	Term    uint64
	Last    uint64 // index of the last entry in the log
	Commit  uint64
	Applied uint64
	Voter   bool // and no learner, see Doubt
}

// Progress says how far the replica is.
func (g *Group) Progress() Progress { return g.order.progress() }

// SnapshotIndex is the index of the newest snapshot; -1: there is none.
func (g *Group) SnapshotIndex() int64 { return g.order.snapshot() }

func progressOf(r *raft.Raft, node string) Progress {
	p := Progress{
		Role: strings.ToLower(r.State().String()), Term: r.CurrentTerm(),
		Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex(),
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(node) {
			p.Voter = s.Suffrage == raft.Voter
		}
	}
	return p
}
