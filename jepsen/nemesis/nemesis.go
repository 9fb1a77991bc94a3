// Package nemesis injects faults into a running cluster and repairs them.
package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// Fault is one way of breaking a cluster.
type Fault struct {
	Name string
	// Run injects the fault, lets it last for a while, and repairs it: when it
	// returns without an error, every node serves clients again.
	Run func(ctx context.Context, c *cluster.Cluster, h *history.History) error
}

// KillLeader kills the node that leads the queue with SIGKILL, waits until
// another one leads it, and starts the node again.
func KillLeader(queue string) Fault {
	return Fault{Name: "kill leader", Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		n, err := AwaitLeader(ctx, c, queue, nil)
		if err != nil {
			return err
		}
		healed := h.Fault("kill leader of "+queue, n.Number)
		defer healed()
		if err := n.Kill(ctx); err != nil {
			return err
		}
		if _, err := AwaitLeader(ctx, c, queue, n); err != nil {
			return err
		}
		return restart(ctx, n)
	}}
}

// KillOne kills any node and starts it again at once.
func KillOne(number func(nodes int) int) Fault {
	return Fault{Name: "kill one", Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		n := c.Nodes[number(len(c.Nodes))]
		defer h.Fault("kill", n.Number)()
		if err := n.Kill(ctx); err != nil {
			return err
		}
		return restart(ctx, n)
	}}
}

// StopOne stops a node in order and starts it again.
func StopOne(number func(nodes int) int) Fault {
	return Fault{Name: "stop one", Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		n := c.Nodes[number(len(c.Nodes))]
		defer h.Fault("stop", n.Number)()
		if err := n.Shutdown(ctx); err != nil {
			return err
		}
		return restart(ctx, n)
	}}
}

// PauseLeader freezes the node that leads the queue for a while.
func PauseLeader(queue string, long time.Duration) Fault {
	return Fault{Name: "pause leader", Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		n, err := AwaitLeader(ctx, c, queue, nil)
		if err != nil {
			return err
		}
		defer h.Fault("pause leader of "+queue, n.Number)()
		if err := n.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause := time.NewTimer(long)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		if err := n.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		return n.AwaitReady(ctx)
	}}
}

// KillAll kills every node and starts them all again.
func KillAll() Fault {
	return Fault{Name: "kill all", Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		defer h.Fault("kill all", 0)()
		for _, n := range c.Nodes {
			if err := n.Kill(ctx); err != nil {
				return err
			}
		}
		for _, n := range c.Nodes {
			if err := n.Restart(); err != nil {
				return err
			}
		}
		for _, n := range c.Nodes {
			if err := n.AwaitReady(ctx); err != nil {
				return err
			}
		}
		return nil
	}}
}

// Random draws positions of nodes from a seed.
func Random(seed uint64) func(nodes int) int {
	return rand.New(rand.NewPCG(seed, 1)).IntN
}

func restart(ctx context.Context, n *cluster.Node) error {
	if err := n.Restart(); err != nil {
		return err
	}
	return n.AwaitReady(ctx)
}

// AwaitLeader waits until a node other than not leads the queue.
func AwaitLeader(ctx context.Context, c *cluster.Cluster, queue string, not *cluster.Node) (*cluster.Node, error) {
	var leader *cluster.Node
	err := await.Until(ctx, 50*time.Millisecond, "a leader of "+queue, func() (bool, error) {
		n, err := c.Leader(ctx, queue)
		if err != nil {
			return false, err
		}
		if n == not {
			return false, fmt.Errorf("still node %d", n.Number)
		}
		leader = n
		return true, nil
	})
	return leader, err
}
