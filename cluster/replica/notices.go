package replica

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	noticePause = 2 * time.Millisecond // after a first notice that came too early
	noticeTries = 7                    // each pause is twice as long
)

// Notices tell the followers of the catalog at once what is committed, and those of a queue whose new leader
// has nothing to propose. With nothing else to send, raft says it after CommitTimeout.
type Notices struct {
	replica *Replica

	mu        sync.Mutex
	followers map[string]*follower
}

// NewNotices returns notices for the followers of a replica.
func NewNotices(r *Replica) *Notices {
	return &Notices{replica: r, followers: map[string]*follower{}}
}

// Notice is what one follower is to know.
type Notice struct {
	Index, Term uint64 // of the newest entry that is committed
	Leads       uint64 // term in which this node leads
}

// follower is what one of them is told.
type follower struct {
	newest Notice
	busy   bool // somebody sends it
}

// Send tells all members of the group that are up.
func (c *Notices) Send(n Notice) {
	members := c.replica.Configuration()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.followers, func(node string, _ *follower) bool {
		return !slices.ContainsFunc(members, func(m Member) bool { return m.Node == node })
	})
	for _, m := range members {
		if m.Node == c.replica.config.Node || !c.replica.config.Mesh.Alive(m.Node) {
			continue
		}
		f := c.followers[m.Node]
		if f == nil {
			f = &follower{}
			c.followers[m.Node] = f
		}
		if was := f.newest; n.Leads < was.Leads || n.Leads == was.Leads && n.Index < was.Index {
			continue // a newer one has overtaken this
		}
		f.newest = n
		if !f.busy {
			f.busy = true
			c.replica.config.Spawn(func() { c.deliver(m.Node, f) })
		}
	}
}

// deliver sends notices to a follower until it has the newest.
func (c *Notices) deliver(node string, f *follower) {
	last, pause := uint64(0), noticePause
	for tries := 0; ; {
		c.mu.Lock()
		now := f.newest
		if f.busy = now.Index > last && tries < noticeTries; !f.busy {
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if c.sendOne(node, now) {
			last, tries, pause = now.Index, 0, noticePause
			continue
		}
		select {
		case <-c.replica.ending:
			tries = noticeTries
		case <-time.After(pause):
			tries, pause = tries+1, 2*pause
		}
	}
}

// sendOne sends what raft itself would send later: no entries, the place of
// one that the follower should have, and that this one is committed. It returns
// false if the follower does not have it.
func (c *Notices) sendOne(node string, n Notice) bool {
	var answer raft.AppendEntriesResponse
	request := c.replica.reminder(n.Leads, Position{n.Term, n.Index})
	err := c.replica.transport.AppendEntries(raft.ServerID(node), raft.ServerAddress(node), request, &answer)
	return err == nil && (answer.Success || answer.Term > n.Leads)
}
