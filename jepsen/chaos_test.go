package jepsen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

// recovering is how long a cluster may be late after a fault of TestChaos, all
// nodes killed among them.
const recovering = 5 * time.Second

// Faults drawn from a seed hit a cluster that carries a plain queue and an
// expiring one at the same time. Whatever happens, nothing confirmed is lost,
// nothing comes twice without a mark, and nothing expires early.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-jepsen.seed %d", seed)
	r := mustStart(t, *chaosTime+2*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), append(expiring, workload.Queue{Name: "orders"})...))

	stop := make(chan struct{})
	plainFlow := workload.Flow{
		URIs: r.URIs(), PublishAt: 0, ConsumeAt: 1, Queue: "orders", Rate: 500,
		Next: workload.Until(stop, plain("orders", 1024)), Patience: time.Minute,
	}
	expiryFlow := workload.Flow{
		URIs: r.URIs(), PublishAt: 1, ConsumeAt: 2, Queue: "dead", Rate: 200,
		Next: workload.Until(stop, shortLived), Patience: time.Minute,
	}
	expired := r.History.Beside()
	other := make(chan error, 1)
	go func() { other <- expiryFlow.Run(r.ctx, expired, nil) }()
	r.must(plainFlow.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		return r.breakThings(ctx, seed)
	}))
	r.must(<-other)

	h := r.History
	t.Logf("%d faults; plain queue: %d confirmed, longest time without a confirm %v; expiring queue: %d confirmed, lateness %s",
		len(h.Faults), h.Confirmed(), h.LongestGap().Round(time.Millisecond),
		expired.Confirmed(), checker.Percentiles(checker.Lateness(expired)))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h), checker.Disorder(h))
	expired.Faults = h.Faults
	r.check(checker.Lost(expired), checker.Unanswered(expired), checker.Ghosts(expired), checker.Doubled(expired),
		checker.Early(expired), r.late(expired, recovering), checker.Deaths(expired, checker.Expired("waiting")))
	if len(h.Faults) == 0 || h.Confirmed() == 0 || expired.Confirmed() == 0 {
		t.Error("nothing was tried")
	}
	r.mustConverge()
}

// breakThings applies one fault after the other until the time is over.
func (r *run) breakThings(ctx context.Context, seed uint64) error {
	draw := rand.New(rand.NewPCG(seed, 0))
	faults := []nemesis.Fault{
		nemesis.KillLeader("orders"), nemesis.KillLeader("waiting"), nemesis.KillLeader("dead"),
		nemesis.KillOne(draw.IntN), nemesis.StopOne(draw.IntN), nemesis.KillAll(),
		nemesis.PauseLeader("orders", 3*time.Second), nemesis.PauseLeader("waiting", 300*time.Millisecond),
	}
	for end := time.Now().Add(*chaosTime); time.Now().Before(end); {
		if err := r.awaitConfirms(ctx, 100+draw.IntN(900)); err != nil {
			return err
		}
		f := faults[draw.IntN(len(faults))]
		r.Logf("%v %s", r.Now().Round(time.Millisecond), f.Name)
		if err := f.Run(ctx, r.Cluster, r.History); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}
