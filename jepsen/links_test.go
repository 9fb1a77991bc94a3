package jepsen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/workload"
)

// waiter consumes from one queue at one node, and connects again to the same
// one whenever it has to: it only waits for messages.
type waiter struct {
	queue    string
	node     *cluster.Node
	prefetch int

	got    atomic.Int64 // messages
	closed func(code int, reason string)
}

// run consumes until ctx ends.
func (w *waiter) run(ctx context.Context) {
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for {
		w.ended(w.consume(ctx))
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// told passes on with which code a connection or a channel has ended.
func (w *waiter) ended(err error) {
	if e := new(amqp.Error); errors.As(err, &e) && e.Server {
		w.closed(e.Code, e.Reason)
	}
}

func (w *waiter) consume(ctx context.Context) error {
	conn, err := client.Connect(ctx, w.node.URI())
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(200 * time.Millisecond)) }()
	ended := conn.NotifyClose(make(chan *amqp.Error, 1))
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	lost := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(w.prefetch, 0, false); err != nil {
		return err
	}
	from, err := ch.Consume(w.queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-ended:
			return e
		case e := <-lost:
			return e
		case d, ok := <-from:
			if !ok {
				from = nil // one of the others says why, or the consumer is cancelled
			} else if d.Ack(false) == nil {
				w.got.Add(1)
			}
		}
	}
}

// waiters start consumers that are stopped with the test. None of their
// connections may end with an internal error.
func (r *run) waiters(prefetch int, queues []string, nodes ...*cluster.Node) []*waiter {
	ctx, cancel := context.WithCancel(r.ctx)
	var running sync.WaitGroup
	r.Cleanup(func() {
		cancel()
		running.Wait()
	})
	var all []*waiter
	for _, q := range queues {
		for _, n := range nodes {
			w := &waiter{queue: q, node: n, prefetch: prefetch, closed: func(code int, reason string) {
				if r.Logf("%v node %d ends a consumer of %s: %d %s", r.Now().Round(time.Millisecond), n.Number, q, code, reason); code == amqp.InternalError {
					r.Errorf("node %d ends a consumer of %s with an internal error: %s", n.Number, q, reason)
				}
			}}
			all = append(all, w)
			running.Go(func() { w.run(ctx) })
		}
	}
	return all
}

// published publishes one message through a connection of its own.
func published(ctx context.Context, n *cluster.Node, queue string) error {
	conn, err := client.Connect(ctx, n.URI())
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(200 * time.Millisecond)) }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
	if err != nil {
		return err
	}
	ok, err := c.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("the publish was refused, or its channel has ended")
	}
	return err
}

// lasts waits until a fault has lasted so long.
func (r *run) lasts(d time.Duration) {
	r.Helper()
	select {
	case <-time.After(d):
	case <-r.ctx.Done():
		r.Fatal(r.ctx.Err())
	}
}

// A node whose links are refused for a while, both ways, while its process
// lives, serves all its clients again soon after: those that publish, those that
// consume, and those that only wait. When it was taken for dead its clients had
// to connect again, and that is all they see of it.
func TestRefusedLinks(t *testing.T) {
	t.Parallel()
	meter := stall.Start()
	t.Cleanup(meter.Stop)
	r := mustStartWith(t, 2*time.Minute, cluster.Options{Links: true})
	apart := r.Nodes[2]
	var queues []string
	for _, n := range r.Nodes { // each leads one
		q := fmt.Sprintf("waits-%d", n.Number)
		r.must(workload.Declare(r.ctx, n.URI(), workload.Queue{Name: q}))
		queues = append(queues, q)
	}
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))
	idle := r.waiters(10, queues, apart)
	for _, w := range idle {
		r.mustServe(w, time.Now().Add(time.Minute))
	}

	stop := make(chan struct{})
	flow := workload.Flow{
		URIs: []string{apart.URI()}, Queue: "orders", Rate: 200, Next: workload.Until(stop, plain("orders", 256)), Patience: time.Minute,
	}
	r.must(flow.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		for _, lasts := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 4 * time.Second} {
			declared := r.Logged("node declared dead")
			refused := time.Now()
			r.Links.RefuseNode(apart.Number)
			r.lasts(lasts)
			r.must(r.Links.Heal())
			healed := time.Now()
			var serving sync.WaitGroup
			for _, w := range idle {
				serving.Go(func() { r.mustServe(w, healed.Add(time.Minute)) })
			}
			serving.Wait()
			if r.Failed() {
				return errors.New("not all queues serve")
			}
			took := time.Since(healed)
			r.Logf("refused for %v: all queues serve %v after", lasts, took.Round(time.Millisecond))
			tolerance := stall.Tolerance(meter.Longest(refused))
			if most := 5*time.Second + tolerance; took > most {
				r.Errorf("refused for %v: all queues serve %v after, not %v", lasts, took, most)
			}
			switch dead, lasted := r.Logged("node declared dead") > declared, healed.Sub(refused); {
			case dead && lasted < 2*time.Second:
				r.Errorf("taken for dead after %v", lasted)
			case !dead && lasted > 2*time.Second+tolerance: // a second on an idle machine
				r.Errorf("not taken for dead after %v", lasted)
			}
			if err := r.awaitConfirms(ctx, 100); err != nil {
				return err
			}
		}
		return nil
	}))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
}

// mustServe publishes to the queue of a consumer, through its node, until one
// message is confirmed, and waits until something has come.
func (r *run) mustServe(w *waiter, until time.Time) {
	r.Helper()
	ctx, cancel := context.WithDeadline(r.ctx, until)
	defer cancel()
	before, confirmed := w.got.Load(), false
	if err := await.Until(ctx, 50*time.Millisecond, "a message through "+w.queue, func() (bool, error) {
		if !confirmed {
			if err := published(ctx, w.node, w.queue); err != nil {
				w.ended(err)
				return false, err
			}
			confirmed = true
		}
		return w.got.Load() > before, nil
	}); err != nil {
		r.Errorf("node %d: %v", w.node.Number, err)
	}
}

// Two of three nodes stop for a while under load, or all are cut from each
// other: afterwards no node takes another one for silent any more, and every
// consumer at every node gets messages.
func TestNobodyHangsAfterHeal(t *testing.T) {
	t.Parallel()
	const rounds, lasts, prefetch = 4, 3 * time.Second, 5
	meter := stall.Start()
	t.Cleanup(meter.Stop)
	r := mustStartWith(t, 2*time.Minute, cluster.Options{Links: true})
	var queues []string
	for _, n := range r.Nodes {
		q := fmt.Sprintf("shared-%d", n.Number)
		r.must(workload.Declare(r.ctx, n.URI(), workload.Queue{Name: q}))
		queues = append(queues, q)
	}
	all := r.waiters(prefetch, queues, r.Nodes...)
	stop := r.load(queues)
	r.mustAllServe(all, prefetch, time.Minute)
	for round := range rounds {
		began := time.Now()
		if round%2 == 0 {
			r.must(errors.Join(r.Nodes[1].Signal(syscall.SIGSTOP), r.Nodes[2].Signal(syscall.SIGSTOP)))
		} else {
			for _, n := range r.Nodes {
				r.Links.Isolate(n.Number)
			}
		}
		r.lasts(lasts)
		r.must(errors.Join(r.Links.Heal(), r.Nodes[1].Signal(syscall.SIGCONT), r.Nodes[2].Signal(syscall.SIGCONT)))
		took := r.mustAllServe(all, prefetch, time.Minute)
		r.Logf("round %d: all consumers served %v after", round+1, took.Round(time.Millisecond))
		if most := 5*time.Second + stall.Tolerance(meter.Longest(began)); took > most {
			r.Errorf("round %d: all consumers served %v after, not %v", round+1, took, most)
		}
	}
	stop()
	r.mustConverge()
}

// load publishes to queues through all nodes until it is stopped.
func (r *run) load(queues []string) (stop func()) {
	ctx, cancel := context.WithCancel(r.ctx)
	var running sync.WaitGroup
	for _, q := range queues {
		for i := range r.Nodes {
			running.Go(func() {
				p := client.Publisher{Name: fmt.Sprintf("%s at %d", q, i+1), URIs: r.URIs()[i : i+1], Rate: 60}
				_ = p.Run(ctx, history.New(), workload.Until(ctx.Done(), plain(q, 64)))
			})
		}
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// mustAllServe waits until every consumer has got more than what may have been
// on its way, and none counts as silent.
func (r *run) mustAllServe(all []*waiter, prefetch int64, patience time.Duration) (took time.Duration) {
	r.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	before := make([]int64, len(all))
	for i, w := range all {
		before[i] = w.got.Load()
	}
	if err := await.Until(ctx, 50*time.Millisecond, "all consumers to be served", func() (bool, error) {
		for i, w := range all {
			if n := w.got.Load() - before[i]; n <= 2*prefetch {
				return false, fmt.Errorf("the consumer of %s at node %d got %d messages", w.queue, w.node.Number, n)
			}
		}
		return r.allAnswer(ctx)
	}); err != nil {
		r.Fatal(err)
	}
	return time.Since(began)
}

// allAnswer asks the first node whether a consumer counts as silent.
func (r *run) allAnswer(ctx context.Context) (bool, error) {
	var consumers []struct {
		Queue struct{ Name string }
		State string `json:"activity_status"`
	}
	if err := r.Nodes[0].Call(ctx, http.MethodGet, "/api/consumers", nil, &consumers); err != nil {
		return false, err
	}
	for _, c := range consumers {
		if c.State == "suspected_down" {
			return false, fmt.Errorf("a consumer of %s is suspected_down", c.Queue.Name)
		}
	}
	return true, nil
}
