package jepsen

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

// A queue with a single active consumer loses its active consumer again and
// again: its node dies, the leader dies, it takes too long, somebody with a
// higher priority comes and goes. The queue never stands still: in the end all
// that was confirmed has been handed out, and settled.
func TestSingleActiveConsumer(t *testing.T) {
	t.Parallel()
	w := &alone{run: mustStart(t, 2*time.Minute)}
	w.draw = rand.New(rand.NewPCG(w.draws("jepsen.seed", *chaosSeed), 1))
	w.must(workload.Declare(w.ctx, w.Nodes[0].URI(), workload.Queue{Name: aloneQueue, Arguments: amqp.Table{
		"x-single-active-consumer": true, "x-consumer-timeout": aloneTimeout.Milliseconds(), "x-delivery-limit": -1,
	}}))
	w.mustRun()

	h := w.History
	t.Logf("%d faults, %d timeouts, %d visits; %d confirmed, %d delivered", len(h.Faults), w.stalls.Load(), w.visits, h.Confirmed(), len(h.Deliveries))
	w.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	if len(h.Faults) == 0 || w.stalls.Load() == 0 || w.visits == 0 {
		t.Error("not everything was tried")
	}
	w.mustConverge()
}

const (
	aloneQueue   = "alone"
	aloneTimeout = 800 * time.Millisecond
	aloneFor     = 7 * time.Second
	emptyWithin  = 40 * time.Second
)

// alone is the run of a queue with a single active consumer.
type alone struct {
	*run
	draw   *rand.Rand
	stall  atomic.Bool // the next delivery is held for too long
	stalls atomic.Int32
	visits int
}

func (w *alone) mustRun() {
	w.Helper()
	var tasks sync.WaitGroup
	errs := make(chan error, 8)
	do := func(task func() error) { tasks.Go(func() { errs <- task() }) }

	consuming, stopConsumers := context.WithCancel(w.ctx)
	defer stopConsumers()
	for i := range w.Nodes {
		do(func() error { return w.worker(fmt.Sprintf("worker-%d", i+1), i).Run(consuming, w.History) })
	}
	stop := make(chan struct{})
	published := make(chan error, 1)
	go func() {
		p := client.Publisher{Name: "publisher", URIs: w.URIs(), Rate: 200, Window: 64}
		published <- p.Run(w.ctx, w.History, workload.Until(stop, plain(aloneQueue, 128)))
	}()
	do(func() error { return w.visit(stop) })

	broken := w.breakThings()
	close(stop)
	w.stall.Store(false)
	w.must(broken)
	w.must(<-published)
	w.mustEmpty()
	stopConsumers()
	tasks.Wait()
	close(errs)
	for err := range errs {
		w.must(err)
	}
}

// worker is a consumer that now and then holds a message for too long. It has
// one at a time: what waited in its buffer would seem to come too late.
func (w *alone) worker(name string, first int) *client.Consumer {
	return &client.Consumer{
		Name: name, URIs: w.URIs(), First: first, Queue: aloneQueue, Prefetch: 1,
		Each: func(amqp.Delivery) {
			if !w.stall.CompareAndSwap(true, false) {
				return
			}
			w.stalls.Add(1)
			select {
			case <-time.After(2 * aloneTimeout):
			case <-w.ctx.Done():
			}
		},
	}
}

// visit comes and goes with a consumer of a higher priority, which is never too
// late: what it has acked when it leaves is settled.
func (w *alone) visit(stop <-chan struct{}) error {
	for {
		ctx, cancel := context.WithTimeout(w.ctx, 500*time.Millisecond)
		visitor := client.Consumer{
			Name: "visitor", URIs: w.URIs(), First: w.visits, Queue: aloneQueue, Prefetch: 10,
			Arguments: amqp.Table{"x-priority": 5, "x-consumer-timeout": time.Hour.Milliseconds()},
		}
		err := visitor.Run(ctx, w.History)
		cancel()
		if err == nil {
			w.visits++
		} // else a node had died
		select {
		case <-stop:
			return nil
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// breakThings applies one fault after the other until the time is over.
func (w *alone) breakThings() error {
	end := time.Now().Add(aloneFor * time.Duration(*scale))
	for i := 0; time.Now().Before(end) || i < 4; i++ {
		if err := w.awaitConfirms(w.ctx, 30+w.draw.IntN(150)); err != nil {
			return err
		}
		f := nemesis.KillOne(w.draw.IntN)
		switch i % 4 {
		case 0, 2:
			w.stall.Store(true)
			continue
		case 3:
			f = nemesis.KillLeader(aloneQueue)
		}
		if err := f.Run(w.ctx, w.Cluster, w.History); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// mustEmpty waits until the queue has handed out everything, and everything
// is settled. It may take as long as it goes on: but what is left must not stay the same for emptyWithin.
func (w *alone) mustEmpty() {
	w.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	standing := time.AfterFunc(emptyWithin, cancel)
	least := math.MaxInt
	w.must(await.Until(ctx, 20*time.Millisecond, "an empty queue", func() (bool, error) {
		q, err := w.Nodes[0].Queue(ctx, aloneQueue)
		if err != nil {
			return false, err
		}
		left := q.Messages + w.Missing()
		if left < least {
			least = left
			standing.Reset(emptyWithin)
		}
		if left > 0 {
			err = fmt.Errorf("%d ready, %d unacknowledged, %d never seen", q.Ready, q.Unacknowledged, w.Missing())
		}
		return err == nil, err
	}))
}
