package jepsen

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

// sub is the run as a subtest sees it: the cluster is shared, the verdict is
// the subtest's.
func (r *run) sub(t *testing.T) *run {
	s := *r
	s.T = t
	return &s
}

// mustDeclare declares queues at the node in this position, which then leads
// them.
func (r *run) mustDeclare(node int, names ...string) {
	r.Helper()
	queues := make([]workload.Queue, len(names))
	for i, name := range names {
		queues[i].Name = name
	}
	r.must(workload.Declare(r.ctx, r.Nodes[node].URI(), queues...))
}

// mustDelete deletes queues with all that is in them.
func (r *run) mustDelete(names ...string) {
	r.Helper()
	ch := r.mustChannel(r.mustConnect(0))
	for _, name := range names {
		_, err := ch.QueueDelete(name, false, false, false)
		r.must(err)
	}
}

func (r *run) mustConnect(node int) *amqp.Connection {
	r.Helper()
	conn, err := client.Connect(r.ctx, r.Nodes[node].URI())
	r.must(err)
	r.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	return conn
}

func (r *run) mustChannel(conn *amqp.Connection) *amqp.Channel {
	r.Helper()
	ch, err := conn.Channel()
	r.must(err)
	return ch
}

// flood is a load of confirmed publishes to one queue that does not let up
// until it is stopped.
type flood struct {
	ctx       context.Context
	published atomic.Int64 // handed to the client library
	confirmed atomic.Int64
	bytes     atomic.Int64 // published and not confirmed
	refused   atomic.Int64
	stopping  chan struct{}
	tasks     sync.WaitGroup
}

func newFlood(ctx context.Context) *flood {
	return &flood{ctx: ctx, stopping: make(chan struct{})}
}

// mustPour adds a publisher on a channel of its own: at most window messages of
// size bytes are without a confirm.
func (r *run) mustPour(f *flood, conn *amqp.Connection, queue string, size, window int) {
	r.Helper()
	ch := r.mustChannel(conn)
	r.must(ch.Confirm(false))
	answers := ch.NotifyPublish(make(chan amqp.Confirmation, window))
	places := make(chan struct{}, window)
	body := client.Body(1, size)
	f.tasks.Go(func() {
		for a := range answers {
			f.bytes.Add(int64(-size))
			if a.Ack {
				f.confirmed.Add(1)
			} else {
				f.refused.Add(1)
			}
			<-places
		}
	})
	f.tasks.Go(func() {
		defer ch.Close()
		for f.place(places) {
			f.bytes.Add(int64(size))
			if ch.PublishWithContext(f.ctx, "", queue, false, false, amqp.Publishing{Body: body}) != nil {
				return
			}
			f.published.Add(1)
		}
		for range window { // every place is free: everything is answered
			select {
			case places <- struct{}{}:
			case <-f.ctx.Done():
			}
		}
	})
}

// place waits for room in the window. It returns false when the flood ends.
func (f *flood) place(places chan<- struct{}) bool {
	select {
	case <-f.stopping:
		return false
	default:
	}
	select {
	case places <- struct{}{}:
		return true
	case <-f.stopping:
	case <-f.ctx.Done():
	}
	return false
}

// more waits until so many more publishes are confirmed.
func (f *flood) more(n int64) error {
	from := f.confirmed.Load()
	return await.Until(f.ctx, 5*time.Millisecond, "the flood to go on", func() (bool, error) {
		return f.confirmed.Load() >= from+n, nil
	})
}

// stop ends the flood once everything is answered, and reports what is not.
func (f *flood) stop() error {
	close(f.stopping)
	f.tasks.Wait()
	if p, c := f.published.Load(), f.confirmed.Load(); p != c {
		return fmt.Errorf("flood: %d published, %d confirmed, %d refused", p, c, f.refused.Load())
	}
	return nil
}

// errand is a light load that must get through: count messages, each published
// once the one before it is confirmed, and all of them consumed.
type errand struct {
	queue       string
	publish     *amqp.Channel
	consume     *amqp.Channel
	count, size int
	confirmed   atomic.Int64
	delivered   atomic.Int64
}

// run does the errand.
func (e *errand) run(ctx context.Context) error {
	if err := e.publish.Confirm(false); err != nil {
		return fmt.Errorf("errand %s: %w", e.queue, err)
	}
	from, err := e.consume.ConsumeWithContext(ctx, e.queue, "errand-"+e.queue, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("errand %s: %w", e.queue, err)
	}
	var published, consumed error
	var tasks sync.WaitGroup
	tasks.Go(func() { published = e.send(ctx) })
	tasks.Go(func() { consumed = e.receive(ctx, from) })
	tasks.Wait()
	if err := errors.Join(published, consumed); err != nil {
		return fmt.Errorf("errand %s: %d confirmed, %d delivered of %d: %w",
			e.queue, e.confirmed.Load(), e.delivered.Load(), e.count, err)
	}
	return nil
}

func (e *errand) send(ctx context.Context) error {
	for i := range e.count {
		c, err := e.publish.PublishWithDeferredConfirmWithContext(ctx, "", e.queue, false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: client.Body(uint64(i)+1, e.size)})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(fmt.Errorf("message %d: confirmed=%t", i+1, ok), err)
		}
		e.confirmed.Add(1)
	}
	return nil
}

func (e *errand) receive(ctx context.Context, from <-chan amqp.Delivery) error {
	for i := range e.count {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d, ok := <-from:
			if !ok {
				return errors.New("consumer ended")
			}
			if key, whole := client.Key(d.Body); !whole || key != uint64(i)+1 {
				return fmt.Errorf("delivery %d is message %d (whole: %t)", i+1, key, whole)
			}
			if err := d.Ack(false); err != nil {
				return err
			}
			e.delivered.Add(1)
		}
	}
	return nil
}

// mustErrand prepares an errand with a connection for each of its ends.
func (r *run) mustErrand(queue string, publishAt, consumeAt, count int) *errand {
	r.Helper()
	return &errand{
		queue: queue, count: count, size: 256,
		publish: r.mustChannel(r.mustConnect(publishAt)), consume: r.mustChannel(r.mustConnect(consumeAt)),
	}
}

// mustRunBeside runs errands, which must all get through while f goes on: it
// has moved before the first and moves after the last.
func (r *run) mustRunBeside(f *flood, step int64, errands ...*errand) {
	r.Helper()
	r.must(f.more(step))
	before, began := f.confirmed.Load(), time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, errandBound)
	defer cancel()
	err := all(errands, func(e *errand) error { return e.run(ctx) })
	var slow []string
	if err != nil {
		slow = append(slow, err.Error())
	}
	r.found("slow", slow...)
	r.must(err)
	r.Logf("%d errands in %v beside %d confirms of the flood",
		len(errands), time.Since(began).Round(time.Millisecond), f.confirmed.Load()-before)
	r.must(f.more(step))
}

// errandBound is how long errands may take beside a flood. It tells slow from
// starved: without a flood they take well under a second.
const errandBound = time.Minute

// all calls f for each item, at the same time.
func all[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	var tasks sync.WaitGroup
	for i, item := range items {
		tasks.Go(func() { errs[i] = f(item) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// publishInTurn publishes to queues in turn, through the first node, until what
// it returns is called.
func (r *run) publishInTurn(queues []string, rate, size int) (stopped func() error) {
	stop, done, next := make(chan struct{}), make(chan error, 1), 0
	p := client.Publisher{Name: "publisher", URIs: r.URIs()[:1], Rate: rate}
	go func() {
		done <- p.Run(r.ctx, r.History, workload.Until(stop, func() client.Message {
			next++
			q := queues[next%len(queues)]
			return client.Message{RoutingKey: q, Queue: q, Size: size}
		}))
	}()
	return func() error {
		close(stop)
		return <-done
	}
}
