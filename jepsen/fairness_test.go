package jepsen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Whoever asks for much does not keep others from what they ask for: what is
// light gets through while the heavy load goes on.
func TestFairness(t *testing.T) {
	r := mustStart(t, 2*time.Minute)
	t.Run("HotQueue", func(t *testing.T) { r.sub(t).hotQueue() })
	t.Run("HotChannel", func(t *testing.T) { r.sub(t).hotChannel() })
	t.Run("LazyConsumer", func(t *testing.T) { r.sub(t).lazyConsumer() })
	t.Run("ManyQueues", func(t *testing.T) { r.sub(t).manyQueues() })
	if !t.Failed() {
		r.mustConverge()
	}
}

// One queue is flooded through all nodes and drained through one. Queues with
// the same leader and with others get every message through, by clients of the
// same node and of others.
func (r *run) hotQueue() {
	r.mustDeclare(0, "hot", "near-1", "near-2", "near-3")
	r.mustDeclare(1, "far-1", "far-2")
	f := newFlood(r.ctx)
	for _, at := range []int{0, 0, 1, 2} {
		r.mustPour(f, r.mustConnect(at), "hot", 1024, 2000)
	}
	r.mustSwallow(r.mustChannel(r.mustConnect(0)), "hot")
	r.mustRunBeside(f, 2000,
		r.mustErrand("near-1", 0, 0, 40), r.mustErrand("near-2", 1, 2, 40), r.mustErrand("near-3", 0, 1, 40),
		r.mustErrand("far-1", 0, 0, 40), r.mustErrand("far-2", 1, 0, 40))
	r.must(f.stop())
	r.mustDelete("hot", "near-1", "near-2", "near-3", "far-1", "far-2")
}

// mustSwallow has a channel consume a queue without acknowledgements.
func (r *run) mustSwallow(ch *amqp.Channel, queue string) {
	r.Helper()
	from, err := ch.Consume(queue, "", true, false, false, false, nil)
	r.must(err)
	go func() {
		for range from {
		}
	}()
}

// One channel publishes as much as its connection may have unconfirmed, and
// another one consumes that. Further channels of the same connection get their
// confirms and deliveries.
func (r *run) hotChannel() {
	r.mustDeclare(0, "hot", "near")
	r.mustDeclare(1, "far")
	conn := r.mustConnect(0)
	f := newFlood(r.ctx)
	r.mustPour(f, conn, "hot", 1024, 10_000)
	r.mustSwallow(r.mustChannel(conn), "hot")
	r.mustRunBeside(f, 2000,
		&errand{queue: "near", count: 10, size: 256, publish: r.mustChannel(conn), consume: r.mustChannel(conn)},
		&errand{queue: "far", count: 10, size: 256, publish: r.mustChannel(conn), consume: r.mustChannel(conn)})
	r.must(f.stop())
	r.must(conn.Close())
	r.mustDelete("hot", "near", "far")
}

// A consumer that holds the one message it may have, and reads its socket, is
// in nobody's way: neither on its connection nor at its queue.
func (r *run) lazyConsumer() {
	const backlog = 200
	r.mustDeclare(0, "jobs", "others")
	r.mustFill("jobs", backlog, 256)
	conn := r.mustConnect(1)
	lazy := r.mustChannel(conn)
	r.must(lazy.Qos(1, 0, false))
	from, err := lazy.Consume("jobs", "lazy", false, false, false, false, nil)
	r.must(err)
	held := <-from
	e := &errand{queue: "others", count: 100, size: 256, publish: r.mustChannel(conn), consume: r.mustChannel(conn)}
	r.must(e.run(r.ctx))
	busy := r.mustChannel(r.mustConnect(1))
	got, err := busy.Consume("jobs", "busy", false, false, false, false, nil)
	r.must(err)
	seen := map[uint64]bool{}
	r.must(r.takeUntil(got, true, seen, backlog-1))
	r.must(held.Ack(false))
	key, _ := client.Key(held.Body)
	if seen[key] {
		r.Errorf("message %d was held and delivered to another", key)
	}
	r.mustDelete("jobs", "others")
}

// mustFill publishes count messages with the keys 1 … count and waits for
// their confirms.
func (r *run) mustFill(queue string, count, size int) {
	r.Helper()
	ch := r.mustChannel(r.mustConnect(0))
	r.must(ch.Confirm(false))
	var last []*amqp.DeferredConfirmation
	for i := range count {
		c, err := ch.PublishWithDeferredConfirmWithContext(r.ctx, "", queue, false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: client.Body(uint64(i)+1, size)})
		r.must(err)
		last = append(last, c)
	}
	for _, c := range last {
		if ok, err := c.WaitContext(r.ctx); err != nil || !ok {
			r.Fatalf("fill %s: confirmed=%t, %v", queue, ok, err)
		}
	}
	r.must(ch.Close())
}

// takeUntil takes deliveries until seen holds so many keys.
func (r *run) takeUntil(from <-chan amqp.Delivery, ack bool, seen map[uint64]bool, count int) error {
	for len(seen) < count {
		select {
		case <-r.ctx.Done():
			return fmt.Errorf("%d of %d messages: %w", len(seen), count, r.ctx.Err())
		case d, ok := <-from:
			if !ok {
				return errors.New("consumer ended")
			}
			key, whole := client.Key(d.Body)
			if !whole {
				return errors.New("a damaged message")
			}
			seen[key] = true
			if ack {
				if err := d.Ack(false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// One of many queues is flooded; through each of the others goes a message.
func (r *run) manyQueues() {
	const queues = 200
	names := make([][]string, len(r.Nodes))
	for i := range queues {
		at := i % len(names)
		names[at] = append(names[at], fmt.Sprintf("one-%d", i))
	}
	r.must(all([]int{0, 1, 2}, func(at int) error { r.mustDeclare(at, names[at]...); return nil }))
	r.mustDeclare(0, "hot")
	f := newFlood(r.ctx)
	for at := range r.Nodes {
		r.mustPour(f, r.mustConnect(at), "hot", 1024, 2000)
	}
	r.must(f.more(2000))
	before, began := f.confirmed.Load(), time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, errandBound)
	defer cancel()
	r.must(all([]int{0, 1, 2}, func(at int) error {
		conn, err := client.Connect(ctx, r.Nodes[at].URI())
		if err != nil {
			return err
		}
		defer conn.Close()
		return passOneEach(ctx, conn, slices.Concat(names...)[at*queues/3:(at+1)*queues/3])
	}))
	r.Logf("a message through each of %d queues in %v beside %d confirms of the flood",
		queues, time.Since(began).Round(time.Millisecond), f.confirmed.Load()-before)
	r.must(f.more(2000))
	r.must(f.stop())
	r.mustDelete("hot")
}

// passOneEach publishes a message to each queue, all on one channel, and
// consumes them on another.
func passOneEach(ctx context.Context, conn *amqp.Connection, queues []string) error {
	in, err := conn.Channel()
	if err != nil {
		return err
	}
	out, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := in.Confirm(false); err != nil {
		return err
	}
	var confirms []*amqp.DeferredConfirmation
	for _, q := range queues {
		c, err := in.PublishWithDeferredConfirmWithContext(ctx, "", q, false, false, amqp.Publishing{Body: []byte(q)})
		if err != nil {
			return err
		}
		confirms = append(confirms, c)
	}
	for i, q := range queues {
		if ok, err := confirms[i].WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("%s: confirmed=%t, %w", q, ok, err)
		}
		from, err := out.ConsumeWithContext(ctx, q, "", false, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
		select {
		case d := <-from:
			if string(d.Body) != q {
				return fmt.Errorf("%s: got %q", q, d.Body)
			}
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: no delivery: %w", q, ctx.Err())
		}
	}
	return nil
}
