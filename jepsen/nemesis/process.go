package nemesis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
)

// successor bounds how long a killed leader stays away until another one leads: there is
// none while another fault keeps a second node down.
const successor = 15 * time.Second

// KillLeader kills the node that leads the queue with SIGKILL, waits until
// another one leads it, and starts the node again.
func KillLeader(queue string) Fault {
	return Fault{Name: "kill leader of " + queue, Kind: Kill, Run: toOne(Kill, takeLeader(queue), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Kill(ctx); err != nil {
			return err
		}
		waiting, cancel := context.WithTimeout(ctx, successor)
		defer cancel()
		if _, err := AwaitLeader(waiting, c, queue, n); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return restart(ctx, n)
	})}
}

// KillOne kills any node and starts it again at once.
func KillOne(number func(nodes int) int) Fault {
	return Fault{Name: "kill one", Kind: Kill, Run: toOne(Kill, takeOne(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Kill(ctx); err != nil {
			return err
		}
		return restart(ctx, n)
	})}
}

// StopOne stops a node in order and starts it again.
func StopOne(number func(nodes int) int) Fault {
	return Fault{Name: "stop one", Kind: Stop, Run: toOne(Stop, takeOne(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Shutdown(ctx); err != nil {
			return err
		}
		return restart(ctx, n)
	})}
}

// PauseLeader freezes the node that leads the queue for a while.
func PauseLeader(queue string, long time.Duration) Fault {
	return Fault{Name: fmt.Sprintf("pause leader of %s for %v", queue, long), Kind: Pause, Run: toOne(Pause, takeLeader(queue), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := n.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		pause(ctx, long)
		if err := n.Signal(syscall.SIGCONT); err != nil {
			return err
		}
		return n.AwaitReady(ctx)
	})}
}

// KillAll kills every node and starts them all again.
func KillAll() Fault {
	return killSeveral("kill all", func(c *cluster.Cluster) []*cluster.Node { return c.Nodes })
}

// KillTwo kills any two nodes and starts them again: of three, no majority is left.
func KillTwo(number func(nodes int) int) Fault {
	return killSeveral("kill two", func(c *cluster.Cluster) []*cluster.Node {
		first := number(len(c.Nodes))
		two := []*cluster.Node{c.Nodes[first], c.Nodes[(first+1)%len(c.Nodes)]}
		slices.SortFunc(two, func(a, b *cluster.Node) int { return cmp.Compare(a.Number, b.Number) })
		return two
	})
}

// killSeveral kills nodes, which are in the order of the cluster, and starts them again.
func killSeveral(name string, which func(c *cluster.Cluster) []*cluster.Node) Fault {
	return Fault{Name: name, Kind: Kill, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		nodes := which(c)
		release, err := takeAll(ctx, nodes)
		if err != nil {
			return err
		}
		defer release()
		for _, n := range nodes {
			defer h.Fault(Kill, n.Number)()
		}
		return onEach(nodes,
			func(n *cluster.Node) error { return n.Kill(ctx) },
			func(n *cluster.Node) error { return n.Restart() },
			func(n *cluster.Node) error { return n.AwaitReady(ctx) },
		)
	}}
}

// PowerLossOf makes nodes lose their power: those that which returns, in the order of the
// cluster. They are stopped at the same time, their disks lose what was not synced, and each
// starts again on its disk.
func PowerLossOf(name string, which func(ctx context.Context, c *cluster.Cluster) ([]*cluster.Node, error)) Fault {
	return Fault{Name: name, Kind: Power, Available: hasDisks, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		nodes, err := which(ctx, c)
		if err != nil {
			return err
		}
		release, err := takeAll(ctx, nodes)
		if err != nil {
			return err
		}
		defer release()
		for _, n := range nodes {
			defer h.Fault(Power, n.Number)()
		}
		return onEach(nodes,
			func(n *cluster.Node) error { return n.Freeze(ctx) },
			func(n *cluster.Node) error { return c.Disks[n.Number].LosePower() },
			func(n *cluster.Node) error { return n.Kill(ctx) },
			func(n *cluster.Node) error { return c.Disks[n.Number].Reboot() },
			func(n *cluster.Node) error { return n.Restart() },
			func(n *cluster.Node) error { return n.AwaitReady(ctx) },
		)
	}}
}

// PowerLoss takes the power from all nodes at once.
func PowerLoss() Fault {
	return PowerLossOf("power loss of all", func(_ context.Context, c *cluster.Cluster) ([]*cluster.Node, error) { return c.Nodes, nil })
}

// PowerLossOfOne takes the power from any node.
func PowerLossOfOne(number func(nodes int) int) Fault {
	return PowerLossOf("power loss of one", func(_ context.Context, c *cluster.Cluster) ([]*cluster.Node, error) {
		k := number(len(c.Nodes))
		return c.Nodes[k : k+1], nil
	})
}

// RollingRestart drains, stops and starts each node in turn, when no queue needs it.
func RollingRestart() Fault {
	return Fault{Name: "rolling restart", Kind: Roll, Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		for _, n := range c.Nodes {
			if err := rollOne(ctx, c, h, n); err != nil {
				return fmt.Errorf("node %d: %w", n.Number, err)
			}
		}
		return c.AwaitQuorumPlusOne(ctx)
	}}
}

func rollOne(ctx context.Context, c *cluster.Cluster, h *history.History, n *cluster.Node) error {
	release, err := takeAll(ctx, []*cluster.Node{n})
	if err != nil {
		return err
	}
	defer release()
	if err := c.AwaitQuorumPlusOne(ctx); err != nil {
		return err
	}
	defer h.Fault(Roll, n.Number)()
	return n.Cycle(ctx, false)
}

// onEach takes each step on all nodes before the next one. It ends with the first step
// that fails.
func onEach(nodes []*cluster.Node, steps ...func(*cluster.Node) error) error {
	for _, step := range steps {
		for _, n := range nodes {
			if err := step(n); err != nil {
				return fmt.Errorf("node %d: %w", n.Number, err)
			}
		}
	}
	return nil
}

// hasClocks is the Available of faults that make clocks wrong.
func hasClocks(c *cluster.Cluster) error {
	if !c.Clocks {
		return errors.New("the cluster was started without clocks that can be wrong")
	}
	return nil
}

// Offset makes the clock of a node step, and step back after a while.
func Offset(number func(nodes int) int, ahead, lasts time.Duration) Fault {
	return onClock(fmt.Sprintf("clock %v ahead", ahead), ClockStep, number, lasts, func(ctx context.Context, n *cluster.Node) error { return n.SetClock(ctx, ahead) })
}

// Drift makes the clock of a node run so many seconds in each, and step to the right time
// after a while.
func Drift(number func(nodes int) int, rate float64, lasts time.Duration) Fault {
	return onClock(fmt.Sprintf("clock runs %v seconds in one", rate), ClockDrift, number, lasts, func(_ context.Context, n *cluster.Node) error { return n.SetDrift(rate) })
}

func onClock(name, kind string, number func(nodes int) int, lasts time.Duration, do func(ctx context.Context, n *cluster.Node) error) Fault {
	return Fault{Name: name, Kind: kind, Available: hasClocks, Run: toOne(kind, takeOne(number), func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error {
		if err := do(ctx, n); err != nil {
			return err
		}
		pause(ctx, lasts)
		return n.SetClock(ctx, 0)
	})}
}
