package group

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

// commitNotices tell the followers of the catalog at once what is committed, and those of a queue whose new leader
// has nothing to propose. With nothing else to send, raft says it after CommitTimeout.
type commitNotices struct {
	replica *replica

	mu        sync.Mutex
	followers map[string]*commitNotice
}

// commitNotice is what one follower is to know.
type commitNotice struct {
	index, term uint64 // of the newest entry that is committed
	leads       uint64 // term in which this node leads
	busy        bool   // somebody sends it
}

// send tells all members of the group that are up.
func (c *commitNotices) send(n commitNotice) {
	members := c.replica.Configuration()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.followers, func(node string, _ *commitNotice) bool {
		return !slices.ContainsFunc(members, func(m Member) bool { return m.Node == node })
	})
	for _, m := range members {
		if m.Node == c.replica.node || !c.replica.mesh.Alive(m.Node) {
			continue
		}
		f := c.followers[m.Node]
		if f == nil {
			f = &commitNotice{}
			c.followers[m.Node] = f
		}
		if n.leads < f.leads || n.leads == f.leads && n.index < f.index {
			continue // a newer one has overtaken this
		}
		f.index, f.term, f.leads = n.index, n.term, n.leads
		if !f.busy {
			f.busy = true
			c.replica.spawn(func() { c.deliver(m.Node, f) })
		}
	}
}

// deliver sends notices to a follower until it has the newest.
func (c *commitNotices) deliver(node string, f *commitNotice) {
	last, pause := uint64(0), noticePause
	for tries := 0; ; {
		c.mu.Lock()
		now := *f
		if f.busy = now.index > last && tries < noticeTries; !f.busy {
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if c.sendOne(node, &now) {
			last, tries, pause = now.index, 0, noticePause
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
func (c *commitNotices) sendOne(node string, n *commitNotice) bool {
	var answer raft.AppendEntriesResponse
	request := c.replica.reminder(n.leads, logPosition{n.term, n.index})
	err := c.replica.transport.AppendEntries(raft.ServerID(node), raft.ServerAddress(node), request, &answer)
	return err == nil && (answer.Success || answer.Term > n.leads)
}
