package cluster

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
)

// starting has room for those whose nodes start: what more of them need of the processors
// would let all find no leader.
var starting = make(chan struct{}, 3)

// catalogGroup is the catalog's number among a node's groups.
const catalogGroup = fsm.GroupID(0)

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
	var wait, founding sync.WaitGroup
	joined := make(chan struct{})
	if !c.founded {
		c.founded = true
		founding.Go(func() { c.found(joined) })
	}
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
	close(joined)
	founding.Wait()
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// found makes one of the founders stand for election as soon as it can win: their own timers,
// of one to two seconds, are for leaders that are lost.
func (c *nodes) found(joined <-chan struct{}) {
	for tick := time.Tick(5 * time.Millisecond); !c.linked(); {
		select {
		case <-joined:
			return
		case <-tick:
		}
	}
	c.all[c.first[rand.IntN(len(c.first))]].mesh.Campaign(catalogGroup)
}

// linked reports whether the founders' catalogs are open, and all reach each other.
func (c *nodes) linked() bool {
	for _, from := range c.first {
		for _, to := range c.first {
			if n := c.all[from]; !n.catalog.Started() || from != to && !n.Online(to) {
				return false
			}
		}
	}
	return true
}

// allVote reports whether the nodes that have founded the cluster vote on its catalog: one that was
// admitted late has no vote at first, and without one more of the others there is no majority.
func (c *nodes) allVote() bool {
	for _, name := range c.first {
		voters := slices.DeleteFunc(c.all[name].catalog.Configuration(), func(m group.Member) bool { return !m.Voter })
		if len(voters) < len(c.first) {
			return false
		}
	}
	return true
}
