package cluster

import (
	"context"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/replica"
)

// starting has room for those whose nodes start: what more of them need of the processors
// would let all find no leader.
var starting = make(chan struct{}, 3)

// mustOpen starts nodes, for the first time or again.
func (c *nodes) mustOpen(names ...string) {
	c.t.Helper()
	starting <- struct{}{}
	defer func() { <-starting }()
	for _, name := range names {
		n, err := Open(c.config(name))
		if err != nil {
			c.t.Fatal(err)
		}
		c.all[name] = n
	}
	var wait sync.WaitGroup
	for _, name := range names {
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := c.all[name].Join(ctx); err != nil {
				c.t.Errorf("%s does not join: %v", name, err)
			}
		})
	}
	wait.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// allVote reports whether the nodes that have founded the cluster vote on its catalog: one that was
// admitted late has no vote at first, and without one more of the others there is no majority.
func (c *nodes) allVote() bool {
	for _, name := range c.first {
		voters := slices.DeleteFunc(c.all[name].catalog.Configuration(), func(m replica.Member) bool { return !m.Voter })
		if len(voters) < len(c.first) {
			return false
		}
	}
	return true
}
