// Package nemesis injects faults into a running cluster and repairs them.
package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
)

// Fault is one way of breaking a cluster.
type Fault struct {
	Name string
	// Kind is what the history and reports call it; several faults can have one kind.
	Kind string
	// Available returns why the cluster cannot have the fault; nil: it always can.
	Available func(c *cluster.Cluster) error
	// Run injects the fault, lets it last for a while, and repairs it: when it
	// returns without an error, every node serves clients again.
	Run func(ctx context.Context, c *cluster.Cluster, h *history.History) error

	// alone is a part of the cluster that only one fault at a time may disturb.
	alone part
}

// part is a part of a cluster that faults do not share.
type part string

const (
	theLinks part = "links" // who heals them heals all
	theData  part = "data"  // a second loss would be more than a minority
)

// Kinds of faults.
const (
	Kill       = "kill"
	Stop       = "stop"
	Pause      = "pause"
	Power      = "power loss"
	Roll       = "rolling restart"
	Partition  = "partition"
	OneWay     = "one-way partition"
	Refusal    = "links refused"
	Delay      = "delay"
	Bandwidth  = "bandwidth"
	Stall      = "stall"
	HalfOpen   = "half-open"
	Reset      = "reset"
	Loss       = "loss"
	Reorder    = "reorder"
	Unreached  = "clients cut off"
	ClockStep  = "clock offset"
	ClockDrift = "clock drift"
	DiskFull   = "disk full"
	DiskRead   = "disk read-only"
	DiskSlow   = "disk slow"
	DiskHung   = "disk hung"
	BitFlip    = "bit flip"
	Wipe       = "node wiped"
	WipePart   = "part of a node wiped"
	Members    = "membership change"
	Forget     = "node forgotten"
	Policies   = "policy storm"
	Redeclare  = "delete and redeclare"
)

// Usable returns the faults that the cluster can have. It notes all others in the history,
// with their reasons.
func Usable(c *cluster.Cluster, h *history.History, faults ...Fault) (usable []Fault) {
	for _, f := range faults {
		if err := f.possible(c); err != nil {
			h.Skip(f.Name, f.Kind, err.Error())
			continue
		}
		usable = append(usable, f)
	}
	return usable
}

func (f Fault) possible(c *cluster.Cluster) error {
	if f.Available == nil {
		return nil
	}
	return f.Available(c)
}

// Pair runs two faults at the same time: the second begins while the first lasts. Each must draw
// from a source of its own.
func Pair(a, b Fault) Fault {
	return Fault{
		Name: a.Name + " and " + b.Name, Kind: a.Kind + " and " + b.Kind,
		Available: func(c *cluster.Cluster) error {
			if a.alone != "" && a.alone == b.alone {
				return fmt.Errorf("both concern the %s of the cluster", a.alone)
			}
			return errors.Join(a.possible(c), b.possible(c))
		},
		Run: func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
			began, ended := h.Injected(), make(chan error, 1)
			go func() { ended <- a.Run(ctx, c, h) }()
			var first error
			over := false
			err := await.Until(ctx, 10*time.Millisecond, a.Name, func() (bool, error) {
				select {
				case first = <-ended:
					over = true
				default:
				}
				return over || h.Injected() > began, nil
			})
			if err == nil {
				err = b.Run(ctx, c, h)
			}
			if !over {
				first = <-ended
			}
			return errors.Join(first, err)
		},
	}
}

// Random draws positions of nodes from a seed.
func Random(seed uint64) func(nodes int) int {
	return rand.New(rand.NewPCG(seed, 1)).IntN
}

// pause waits, or returns when the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// taker waits for a node that no other fault has taken, and takes it.
type taker func(ctx context.Context, c *cluster.Cluster) (*cluster.Node, error)

// toOne is the Run of a fault that happens to one node, which no other fault has meanwhile.
func toOne(kind string, take taker, do func(ctx context.Context, c *cluster.Cluster, n *cluster.Node) error) func(context.Context, *cluster.Cluster, *history.History) error {
	return func(ctx context.Context, c *cluster.Cluster, h *history.History) error {
		n, err := take(ctx, c)
		if err != nil {
			return err
		}
		defer n.Release()
		defer h.Fault(kind, n.Number)()
		return do(ctx, c, n)
	}
}

// takeLeader takes the node that leads the queue.
func takeLeader(queue string) taker {
	return func(ctx context.Context, c *cluster.Cluster) (leader *cluster.Node, err error) {
		err = await.Until(ctx, 50*time.Millisecond, "a leader of "+queue+" to take", func() (bool, error) {
			n, err := c.Leader(ctx, queue)
			if err != nil || !n.TryTake() {
				return false, err
			}
			leader = n
			return true, nil
		})
		return leader, err
	}
}

// takeOne takes the node that is drawn, or else another one.
func takeOne(number func(nodes int) int) taker {
	return func(ctx context.Context, c *cluster.Cluster) (taken *cluster.Node, err error) {
		first := number(len(c.Nodes))
		err = await.Until(ctx, 50*time.Millisecond, "a node to take", func() (bool, error) {
			for i := range c.Nodes {
				if n := c.Nodes[(first+i)%len(c.Nodes)]; n.TryTake() {
					taken = n
					return true, nil
				}
			}
			return false, nil
		})
		return taken, err
	}
}

// takeOfWhole is takeOne once no node lacks anything.
func takeOfWhole(number func(nodes int) int) taker {
	return func(ctx context.Context, c *cluster.Cluster) (*cluster.Node, error) {
		if err := c.AwaitWhole(ctx); err != nil {
			return nil, err
		}
		return takeOne(number)(ctx, c)
	}
}

// takeAll waits until no other fault has taken any of the nodes, which are in the order
// of the cluster.
func takeAll(ctx context.Context, nodes []*cluster.Node) (release func(), err error) {
	var taken []*cluster.Node
	release = func() {
		for _, n := range taken {
			n.Release()
		}
	}
	for _, n := range nodes {
		err := await.Until(ctx, 50*time.Millisecond, fmt.Sprintf("node %d to take", n.Number), func() (bool, error) { return n.TryTake(), nil })
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, n)
	}
	return release, nil
}

// awaitAll waits until all nodes serve clients.
func awaitAll(ctx context.Context, c *cluster.Cluster) error {
	for _, n := range c.Nodes {
		if err := n.AwaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// revive starts a node again if it has ended, as often as it ends, and waits until it serves
// clients.
func revive(ctx context.Context, n *cluster.Node) error {
	const mostEnds = 5
	ends := 0
	err := await.Until(ctx, 50*time.Millisecond, fmt.Sprintf("node %d to serve clients", n.Number), func() (bool, error) {
		if !n.Alive() {
			if ends++; ends > mostEnds {
				return true, nil
			}
			return false, n.Restart()
		}
		err := n.Ready(ctx)
		return err == nil, err
	})
	if ends > mostEnds {
		return fmt.Errorf("node %d ends at each start, %d times by now", n.Number, ends)
	}
	return err
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
