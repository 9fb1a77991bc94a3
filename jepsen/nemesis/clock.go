package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

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
