package jepsen

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

var faultPeriod = flag.Duration("jepsen.period", 20*time.Second, "from the beginning of one fault of TestSaturation to that of the next, unless it takes longer; two faults at least hit a run")

const (
	// saturatedQueues are the queues of TestSaturation, saturatingPublishers its publishers,
	// each of which publishes to all queues in turn.
	saturatedQueues      = 4
	saturatingPublishers = 3
	// saturatedLarge: one of so many messages is large.
	saturatedLarge = 201
	// unconfirmed is how many messages each publisher may have without a confirm.
	unconfirmed = 500
	// enoughConfirms make a run.
	enoughConfirms = 10 * unconfirmed
	// backlog is how many confirmed messages may wait for a consumer before publishers do.
	backlog = 20_000
	// acksUntilRenewal is after how many acks a consumer proves that they hold.
	acksUntilRenewal = 5_000
)

// Publishers at full speed, with many messages in flight, and consumers that keep up: faults
// drawn from a seed hit them at regular intervals. The checker keeps a few bits of each
// message, so that a long run has tens of millions. In the end everything is drained and all
// replicas are equal.
func TestSaturation(t *testing.T) {
	t.Parallel()
	lasts := *chaosTime
	if short() {
		lasts = 4 * time.Second
	}
	r := mustStartWith(t, lasts+6*time.Minute, cluster.Options{Links: true, Disks: true})
	draw := rand.New(rand.NewPCG(r.draws("jepsen.seed", *chaosSeed), 0))
	plays := []*play{r.saturationPlay()}
	t.Cleanup(r.printSums)
	r.mustPlayWhile(plays, func(ctx context.Context) error {
		if err := r.breakRegularly(ctx, draw, plays, lasts); err != nil {
			return err
		}
		return await.Until(ctx, 50*time.Millisecond, "enough confirms", func() (bool, error) { // on a slow machine there are few
			return plays[0].Answers() >= enoughConfirms, nil
		})
	})
}

// breakRegularly applies a fault in each period: in turn one of processes and one of links.
func (r *run) breakRegularly(ctx context.Context, draw *rand.Rand, plays []*play, lasts time.Duration) error {
	period := min(*faultPeriod, lasts/2)
	split := min(faultFor, period/4)
	faults := [][]nemesis.Fault{r.usable(processFaults(draw, "saturated-1", split)...), r.usable(nemesis.Splits("saturated-2", split)...)}
	began := time.Now()
	for next, turn := period/4, 0; next < lasts; next, turn = max(next+period, time.Since(began)), turn+1 {
		if err := pauseFor(ctx, next-time.Since(began)); err != nil {
			return err
		}
		if err := r.breakOne(ctx, draw, faults[turn%2], faults[(turn+1)%2], plays); err != nil {
			return err
		}
	}
	return pauseFor(ctx, lasts-time.Since(began))
}

// processFaults are those that end or freeze the processes of nodes.
func processFaults(draw *rand.Rand, queue string, lasts time.Duration) []nemesis.Fault {
	own := func() func(int) int { return apart(draw).IntN }
	faults := []nemesis.Fault{
		nemesis.KillLeader(queue), nemesis.KillOne(own()), nemesis.KillTwo(own()), nemesis.KillAll(), nemesis.StopOne(own()),
		nemesis.PauseLeader(queue, lasts+time.Second), nemesis.PowerLoss(), nemesis.PowerLossOfOne(own()),
	}
	if !short() {
		faults = append(faults, nemesis.RollingRestart(), nemesis.PauseLeader(queue, 300*time.Millisecond))
	}
	return faults
}

// saturationPlay has publishers and consumers that are as fast as they can be. Half of the
// queues have one consumer, the others two; they are at all nodes in turn.
func (r *run) saturationPlay() *play {
	p := &play{History: r.beside("saturated"), name: "saturated"}
	o := checker.NewOnline(p.History)
	for i := range saturatedQueues {
		name := fmt.Sprint("saturated-", i+1)
		p.queues, p.serves = append(p.queues, workload.Queue{Name: name}), append(p.serves, name)
		for k := range 1 + i%2 {
			c := client.Consumer{
				Name: fmt.Sprint("consumer ", i+1, ".", k+1), URIs: r.URIs(), First: i + k, Queue: name,
				Prefetch: 500, Batch: 100, Renew: acksUntilRenewal, Subscribes: o.Subscribes,
			}
			p.consume = append(p.consume, func(ctx context.Context) error { return c.Run(ctx, o) })
		}
	}
	for i := range saturatingPublishers {
		p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
			turn := i
			c := client.Publisher{
				Name: fmt.Sprint("publisher ", i+1), URIs: r.URIs(), First: i, Window: unconfirmed,
				Hold: func() bool { return o.Missing() > backlog },
			}
			return c.Run(ctx, o, workload.Until(enough, func() client.Message {
				turn++
				return plain(p.serves[turn%saturatedQueues], sizeOf(turn, 24, saturatedLarge))()
			}))
		})
	}
	p.over = func() bool { return o.Missing() == 0 }
	p.last = func(ctx context.Context) error { return r.drainOnline(ctx, o, p.serves) }
	p.checks = onlineChecks(o)
	p.tried = func() error {
		if len(r.Faults) == 0 || p.Past.Confirmed < enoughConfirms {
			return fmt.Errorf("%d faults, %d confirmed", len(r.Faults), p.Past.Confirmed)
		}
		return nil
	}
	return p
}

// drainOnline takes, through every node, what consumers have left: what was settled is not
// among it.
func (r *run) drainOnline(ctx context.Context, o *checker.Online, queues []string) error {
	for i, uri := range r.URIs() {
		name := fmt.Sprint("drain ", i+1)
		o.Subscribes(name, 1)
		for _, q := range queues {
			if err := workload.Drain(ctx, uri, q, name, o); err != nil {
				return fmt.Errorf("drain %s through node %d: %w", q, i+1, err)
			}
		}
	}
	return nil
}

// onlineChecks are the verdicts of a checker that has seen everything.
func onlineChecks(o *checker.Online) (checks []check) {
	verdicts := sync.OnceValue(o.Verdicts)
	for i := range checker.OnlineVerdicts {
		checks = append(checks, func(*history.History) checker.Verdict { return verdicts()[i] })
	}
	return checks
}
