package session

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// availability says whether queues can answer, that is, whether they have a leader that can commit.
// It waits for that, and gives up as soon as it is known that no answer will come.
type availability struct {
	*node
	routes  *stream.Table
	answers *answers
	grace   time.Duration // how long a request waits for a queue without a leader
}

// await waits for the answer to a call, which may be a refusal. It gives up early if for longer
// than the grace the queue has had no leader, or only one that may still believe that it leads but
// has lost its majority. The command stays in its stream.
func (x *availability) await(ctx context.Context, q *catalog.Queue, to *stream.Route, k *stream.Call) error {
	grace := time.NewTicker(x.grace / 5)
	defer grace.Stop()
	alone := int64(0) // since when too few members are alive; 0: enough are
	for {
		select {
		case <-k.Done():
			if k.Result.Code == fsm.NoSession {
				return errLost
			}
			k.Refused = x.answers.refusal(k.Kind, q, k.Result.Code)
			return nil
		case <-ctx.Done():
			return leaderless(q)
		case <-grace.C:
			leader, since, _ := to.Leader()
			if x.hasMajority(q) {
				alone = 0
			} else if alone == 0 {
				alone = x.now()
			}
			without := leader == ""
			if alone != 0 && (!without || alone < since) {
				without, since = true, alone
			}
			if without && x.now()-since > x.grace.Milliseconds() {
				return leaderless(q)
			}
		}
	}
}

// hasMajority reports whether enough members of a queue are alive to commit.
func (x *availability) hasMajority(q *catalog.Queue) bool {
	if q.Local {
		return true
	}
	return x.mesh.HasMajority(x.namesOf(x.view().Members(q)))
}

// leaderless is the error for a client that waited for a queue without a leader.
func leaderless(q *catalog.Queue) error {
	return fsm.Refuse(fsm.Unavailable, fmt.Sprintf("queue '%s' in vhost '%s' has no leader", q.Name, q.VHost))
}

// leaderRetry is the pause before a leader that did not answer is asked again.
const leaderRetry = 50 * time.Millisecond

// askLeader asks the leader of a queue until one answers as its leader, but no longer than the
// grace. gone: the queue has ended.
func (x *availability) askLeader(ctx context.Context, q *catalog.Queue, ask func(leader string) (leads bool)) (gone bool, err error) {
	to := x.routes.Route(q)
	wait, cancel := context.WithTimeout(ctx, x.grace)
	defer cancel()
	for {
		leader, _, led := to.Leader()
		if leader != "" && ask(leader) {
			return false, nil
		}
		to.Want()
		if stream.IsOver(x.view(), q.ID) {
			return true, nil
		}
		select {
		case <-wait.Done():
			return false, leaderless(q)
		case <-led:
		case <-time.After(leaderRetry):
		}
	}
}

// awaitLeader returns when a queue serves.
func (x *availability) awaitLeader(ctx context.Context, q *catalog.Queue) error {
	to := x.routes.Route(q)
	for {
		leader, _, led := to.Leader()
		if leader != "" {
			return nil
		}
		if stream.IsOver(x.view(), q.ID) {
			return noQueue(q)
		}
		select {
		case <-led:
		case <-time.After(leaderRetry):
			to.Want()
		case <-ctx.Done():
			return leaderless(q)
		}
	}
}

// awaitGone returns when a queue that has ended is gone from the catalog.
func (x *availability) awaitGone(ctx context.Context, q *catalog.Queue) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, ok := x.view().QueueByID(q.ID); !ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return leaderless(q)
		}
	}
}
