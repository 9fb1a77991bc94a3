package jepsen

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/nemesis"
)

const (
	// farAway is how much later everything arrives at a distant follower, and from it.
	farAway = 500 * time.Millisecond
	// slowWrites is how often the disk of a slow follower writes in a second; an entry needs
	// one write at least.
	slowWrites = 2
)

// A follower of a queue is far away, and then its disk is slow. The other one makes a
// majority with the leader, so that confirms take as long as before.
func TestSlowFollower(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 2*time.Minute, cluster.Options{Links: true, Disks: true})
	p := r.plainPlay(300, 512)
	slows := []nemesis.Fault{{Name: "distant follower", Kind: nemesis.Delay, Run: r.farFollower}}
	if errors.Join(r.NoDisks(), cluster.NoSlowing()) == nil {
		slows = append(slows, nemesis.Fault{Name: "slow disk of a follower", Kind: nemesis.DiskSlow, Run: r.slowDisk})
	}
	r.mustPlayWhile([]*play{p}, func(ctx context.Context) error {
		for _, f := range slows {
			if err := r.awaitConfirms(ctx, 300); err != nil {
				return err
			}
			if err := f.Run(ctx, r.Cluster, r.History); err != nil {
				return err
			}
		}
		return r.awaitConfirms(ctx, 300)
	})
	r.notSlowed(p.History, nemesis.Delay, 2*farAway)
	r.notSlowed(p.History, nemesis.DiskSlow, time.Second/slowWrites)
}

// notSlowed checks that faults of a kind, which make a part so late, do not make publishing
// slow. On a machine that is too busy there is no verdict.
func (r *run) notSlowed(h *history.History, kind string, late time.Duration) {
	r.Helper()
	v, tried := checker.Slow(h, kind, late)
	if !tried {
		r.Logf("%s: nothing is proven: too few confirms, or a stall of %v", kind, h.Stall)
		return
	}
	r.check(v)
}

// spare returns a node that does not lead the queue orders, and that no client of it is
// connected to.
func (r *run) spare(ctx context.Context) (*cluster.Node, error) {
	leader, err := nemesis.AwaitLeader(ctx, r.Cluster, "orders", nil)
	if err == nil && leader.Number == len(r.Nodes) {
		err = errors.New("the last node leads a queue that was declared at the first")
	}
	return r.Nodes[len(r.Nodes)-1], err
}

// farFollower delays what flows between a follower and the others until so many messages
// are confirmed.
func (r *run) farFollower(ctx context.Context, c *cluster.Cluster, h *history.History) error {
	n, err := r.spare(ctx)
	if err != nil {
		return err
	}
	defer h.Fault(nemesis.Delay, n.Number)()
	for _, other := range c.Nodes {
		if other != n {
			c.Links.Delay(n.Number, other.Number, farAway)
			c.Links.Delay(other.Number, n.Number, farAway)
		}
	}
	return errors.Join(r.awaitConfirms(ctx, 300), c.Links.Heal())
}

// slowDisk makes the disk of a follower slow until so many messages are confirmed.
func (r *run) slowDisk(ctx context.Context, c *cluster.Cluster, h *history.History) error {
	n, err := r.spare(ctx)
	if err != nil {
		return err
	}
	defer h.Fault(nemesis.DiskSlow, n.Number)()
	d := c.Disks[n.Number]
	return errors.Join(d.Slow(n.PID, slowWrites), r.awaitConfirms(ctx, 300), d.Hurry())
}
