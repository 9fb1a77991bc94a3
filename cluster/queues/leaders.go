package queues

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// LeaderWait bounds how long a request waits for the leader of a queue that may be a new one.
const LeaderWait = 15 * time.Second

// Leaders says whether queues have a leader that can commit. It waits for that, and gives up as soon
// as it is known that no answer will come.
type Leaders struct {
	node   *self.Node
	routes *stream.Table
}

// HasMajority reports whether enough members of a queue are alive to commit.
func (x *Leaders) HasMajority(q *catalog.Queue) bool {
	if q.Local {
		return true
	}
	return x.node.Mesh.HasMajority(x.node.NodeNames(x.node.View().Members(q)))
}

// Leaderless is the error for a client that waited for a queue without a leader.
func Leaderless(q *catalog.Queue) error {
	return fsm.Refuse(fsm.Unavailable, fmt.Sprintf("queue '%s' in vhost '%s' has no leader", q.Name, q.VHost))
}

// NoQueue is the error for a client that names a queue which is gone.
func NoQueue(q *catalog.Queue) error { return fsm.Refuse(fsm.NotFoundKind, "no "+q.String()) }

// leaderRetry is the pause before a leader that did not answer is asked again.
const leaderRetry = 50 * time.Millisecond

// Ask asks the leader of a queue until one answers as its leader, but no longer than the
// grace. gone: the queue has ended.
func (x *Leaders) Ask(ctx context.Context, q *catalog.Queue, ask func(leader string) (leads bool)) (gone bool, err error) {
	to := x.routes.Route(q)
	wait, cancel := context.WithTimeout(ctx, x.node.Grace)
	defer cancel()
	for {
		leader, _, led := to.Leader()
		if leader != "" && ask(leader) {
			return false, nil
		}
		to.Want()
		if stream.IsOver(x.node.View(), q.ID) {
			return true, nil
		}
		select {
		case <-wait.Done():
			return false, Leaderless(q)
		case <-led:
		case <-time.After(leaderRetry):
		}
	}
}

// Await returns when a queue serves.
func (x *Leaders) Await(ctx context.Context, q *catalog.Queue) error {
	to := x.routes.Route(q)
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			return nil
		}
		if stream.IsOver(x.node.View(), q.ID) {
			return NoQueue(q)
		}
		select {
		case <-led:
		case <-time.After(leaderRetry):
			to.Want()
		case <-ctx.Done():
			return Leaderless(q)
		}
	}
}

// AwaitGone returns when a queue that has ended is gone from the catalog.
func (x *Leaders) AwaitGone(ctx context.Context, q *catalog.Queue) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, ok := x.node.View().QueueByID(q.ID); !ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Leaderless(q)
		}
	}
}

// Here reports whether this node leads a queue.
func (x *Leaders) Here(q *catalog.Queue) bool { return x.routes.Route(q).IsLeader(x.node.Name()) }
