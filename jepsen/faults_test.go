package jepsen

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/nemesis"
)

// faultFor is how long a fault lasts that only time ends.
const faultFor = 2 * time.Second

// faultLimit bounds how long a fault of TestFaults may take until all is as before.
const faultLimit = 90 * time.Second

// faults are all faults that this run's cluster can have. Those that it cannot have are
// named with their reasons in the log and in the history. The queues orders, waiting and
// dead must exist.
func (r *run) faults(draw *rand.Rand) []nemesis.Fault {
	return r.usable(allFaults(draw, faultFor)...)
}

// usable returns the faults that this run's cluster can have.
func (r *run) usable(faults ...nemesis.Fault) []nemesis.Fault {
	before := len(r.Skipped)
	usable := nemesis.Usable(r.Cluster, r.History, faults...)
	for _, s := range r.Skipped[before:] {
		r.Logf("skipped: %s (%s): %s", s.Name, s.Kind, s.Reason)
	}
	return usable
}

// allFaults are all there are.
func allFaults(draw *rand.Rand, lasts time.Duration) []nemesis.Fault {
	return append(nodeFaults(draw, lasts), nemesis.Splits("orders", lasts)...)
}

// apart returns a source of its own for each fault: two of a pair draw at the same time.
func apart(draw *rand.Rand) *rand.Rand { return rand.New(rand.NewPCG(draw.Uint64(), 0)) }

// nodeFaults are those of nodes, clocks, disks, members and operators.
func nodeFaults(draw *rand.Rand, lasts time.Duration) []nemesis.Fault {
	own := func() *rand.Rand { return apart(draw) }
	return []nemesis.Fault{
		// First what a member misses must be sent again from the beginning, while that is little.
		nemesis.Wiped(own().IntN), nemesis.Forgotten(own().IntN), nemesis.LostParts(own().IntN, "queues"), nemesis.LostParts(own().IntN, "catalog"),
		nemesis.LostParts(own().IntN, "ledger-queues", "ledger-catalog"), nemesis.FlippedBit(own(), lasts),
		nemesis.ChangedMembers("orders", own().IntN, lasts), nemesis.ChangedMembers("dead", own().IntN, lasts),
		nemesis.KillLeader("orders"), nemesis.KillLeader("waiting"), nemesis.KillLeader("dead"),
		nemesis.KillOne(own().IntN), nemesis.StopOne(own().IntN), nemesis.KillAll(), nemesis.RollingRestart(),
		nemesis.PauseLeader("orders", lasts+time.Second), nemesis.PauseLeader("waiting", 300*time.Millisecond),
		nemesis.Offset(own().IntN, time.Hour, lasts), nemesis.Offset(own().IntN, -time.Hour, lasts),
		nemesis.Drift(own().IntN, 1.05, lasts), nemesis.Drift(own().IntN, 0.95, lasts),
		nemesis.PowerLoss(), nemesis.PowerLossOfOne(own().IntN),
		nemesis.FullDisk(own().IntN, lasts), nemesis.ReadOnlyDisk(own().IntN, lasts), nemesis.SlowDisk(own().IntN, lasts), nemesis.HungDisk(own().IntN, lasts),
		nemesis.PolicyStorm("^(orders|waiting|dead)$", lasts), nemesis.Redeclared(lasts),
	}
}

var onlyFaults = flag.String("jepsen.faults", "", "which faults TestFaults injects: those whose names match the expression")

// Each fault of nodes, clocks, disks, members and operators hits one cluster once, for a short
// time, and then some pairs do; TestPartitions has those of links. Nothing confirmed is lost,
// nothing comes twice without a mark, nothing expires early.
func TestFaults(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 5*time.Minute, cluster.Options{Links: true, Disks: true, Clocks: true})
	const lasts = 300 * time.Millisecond
	draw := rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 0))
	all := nodeFaults(draw, lasts)
	split := nemesis.Splits("orders", lasts)
	all = append(all, nemesis.Pair(nemesis.ChangedMembers("orders", apart(draw).IntN, lasts), nemesis.KillOne(apart(draw).IntN)),
		nemesis.Pair(split[draw.IntN(len(split))], nemesis.KillLeader("waiting")),
		nemesis.Pair(nemesis.SlowDisk(apart(draw).IntN, lasts), nemesis.Offset(apart(draw).IntN, time.Minute, lasts)))
	only, err := regexp.Compile(*onlyFaults)
	r.must(err)
	all = slices.DeleteFunc(all, func(f nemesis.Fault) bool { return !only.MatchString(f.Name) })
	r.mustFlowWhile(300, 512, func(ctx context.Context) error {
		for _, f := range r.usable(all...) {
			if err := r.awaitConfirms(ctx, 20); err != nil {
				return err
			}
			began := time.Now()
			limited, cancel := context.WithTimeout(ctx, faultLimit)
			err := f.Run(limited, r.Cluster, r.History)
			if cancel(); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			r.Logf("%s (%s): %v", f.Name, f.Kind, time.Since(began).Round(time.Millisecond))
		}
		return r.awaitConfirms(ctx, 20)
	})
	for _, n := range r.Nodes { // no fault leaves a wrong clock behind
		r.must(n.AwaitOffset(r.ctx, -checker.ClockError, checker.ClockError))
	}
	r.must(r.Nodes[0].SetDrift(2)) // it bites
	r.must(r.Nodes[0].AwaitOffset(r.ctx, 500*time.Millisecond, time.Minute))
	r.must(r.Nodes[0].SetClock(r.ctx, 0))
}

// lossy are the networks of TestLossyNetwork. What is lost is of each direction.
var lossy = []struct {
	name  string
	shape cluster.Shape
}{
	{"5 % of packets are lost", cluster.Shape{Loss: 0.05}},
	{"20 % of packets are lost", cluster.Shape{Loss: 0.2}},
	{"20 % of packets overtake others", cluster.Shape{Delay: 5 * time.Millisecond, Reorder: 0.2}},
	{"jitter of 30 ms", cluster.Shape{Delay: 2 * time.Millisecond, Jitter: 30 * time.Millisecond}},
	{"512 KB a second", cluster.Shape{Rate: 512 << 10}},
	{"all of it", cluster.Shape{Loss: 0.05, Delay: 5 * time.Millisecond, Jitter: 5 * time.Millisecond, Reorder: 0.05, Rate: 1 << 20}},
}

// The network between the nodes, and to clients, loses packets, delivers them out of order,
// late, or slowly; nothing confirmed is lost, nothing comes twice without a mark, and service
// resumes after each change for the better.
func TestLossyNetwork(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 3*time.Minute, cluster.Options{Packets: true}) // or it is skipped
	r.mustFlowWhile(300, 512, func(ctx context.Context) error {
		for _, l := range lossy {
			if err := r.awaitConfirms(ctx, 20); err != nil {
				return err
			}
			healed, before := r.Fault(nemesis.Loss, 0), r.Confirmed()
			for from := range len(r.Nodes) + 1 {
				for to := range len(r.Nodes) + 1 {
					if from != to {
						r.Links.Set(from, to, l.shape)
					}
				}
			}
			err := pauseFor(ctx, *splitFor)
			began := time.Now()
			if err := errors.Join(err, r.Links.Heal()); err != nil {
				return err
			}
			healed()
			meanwhile := r.Confirmed() - before
			if err := r.awaitConfirms(ctx, 1); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			took, allowed := time.Since(began), confirmsAgain+stall.Tolerance(machine.Longest(began))
			if r.Logf("%s: %d confirmed meanwhile, confirms again after %v", l.name, meanwhile, took.Round(time.Millisecond)); took > allowed {
				r.Errorf("%s: confirms again %v after the heal, allowed are %v", l.name, took, allowed)
			}
		}
		return nil
	})
}
