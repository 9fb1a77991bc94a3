package jepsen

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/nemesis"
)

// splitFor is how long each split lasts. A node that is silent for 3 s is taken for dead.
var splitFor = flag.Duration("jepsen.split", 1500*time.Millisecond, "how long each split of TestPartitions lasts")

// confirmsAgain bounds the time from the heal of a split to confirms of a queue.
const confirmsAgain = 10 * time.Second

// The links between the nodes are cut in one way after the other, while all nodes stay
// up and serve clients. Nothing confirmed is lost, nothing comes twice without a mark,
// nothing expires early; after each heal everybody publishes again soon.
func TestPartitions(t *testing.T) {
	t.Parallel()
	r := mustStartWith(t, 4*time.Minute, cluster.Options{Links: true})
	r.mustFlowWhile(500, 512, func(ctx context.Context) error {
		for _, f := range r.usable(nemesis.Splits("orders", *splitFor)...) {
			if err := r.awaitConfirms(ctx, 100); err != nil {
				return err
			}
			began := time.Now()
			if err := f.Run(ctx, r.Cluster, r.History); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			if err := r.awaitConfirms(ctx, 1); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			took, allowed := time.Since(began)-*splitFor, confirmsAgain+stall.Tolerance(machine.Longest(began))
			if t.Logf("%s: confirms again %v after the heal", f.Name, took.Round(time.Millisecond)); took > allowed {
				t.Errorf("%s: confirms again %v after the heal, allowed are %v", f.Name, took, allowed)
			}
		}
		return nil
	})
}
