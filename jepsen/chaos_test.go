package jepsen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
)

// recovering is how long a cluster may be late after a fault of TestChaos, all
// nodes killed among them.
const recovering = 5 * time.Second

// calmFor bounds the time between two faults of TestChaos.
const calmFor = 3 * time.Second

// Faults drawn from a seed hit a cluster on which all workloads run at the same time,
// each at queues of its own. Whatever happens, the promises hold; after each heal every
// queue confirms soon, and in the end everything is drained and all replicas are equal.
func TestChaos(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, *chaosTime+6*time.Minute, cluster.Options{Links: true, Disks: true, Clocks: true})
	draw := rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 0))
	plays := r.chaosPlays(draw)
	t.Cleanup(r.printSums)
	r.mustPlayWhile(plays, func(ctx context.Context) error { return r.breakThings(ctx, draw, plays) })
}

// breakThings applies one fault after the other until the time is over.
func (r *run) breakThings(ctx context.Context, draw *rand.Rand, plays []*play) error {
	faults := r.faults(draw)
	for end := time.Now().Add(*chaosTime); time.Now().Before(end); {
		calm, cancel := context.WithTimeout(ctx, calmFor)
		_ = r.awaitConfirms(calm, 100+draw.IntN(900)) // on a slow machine there are fewer
		cancel()
		if err := r.breakOne(ctx, draw, faults, faults, plays); err != nil {
			return err
		}
	}
	return nil
}

// breakOne applies a fault, or at the same time another one of more, and waits until every
// queue confirms.
func (r *run) breakOne(ctx context.Context, draw *rand.Rand, faults, more []nemesis.Fault, plays []*play) error {
	f := faults[draw.IntN(len(faults))]
	if draw.IntN(4) == 0 {
		other := more[draw.IntN(len(more))]
		if both := r.usable(nemesis.Pair(f, other)); other.Name != f.Name && len(both) > 0 {
			f = both[0]
		}
	}
	r.Logf("%v %s", r.Now().Round(time.Millisecond), f.Name)
	if err := f.Run(ctx, r.Cluster, r.History); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return r.confirmsSoon(ctx, plays, f.Name)
}
