package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// stall is how long a run may make no progress before it is given up.
	stall = 30 * time.Second
	// settlePoll is how often it is checked whether everything has arrived.
	settlePoll = 5 * time.Millisecond
)

var errStalled = errors.New("nothing has come for " + stall.String())

// load is publishers and consumers at work at the same time.
type load struct {
	publishers []*publisher
	consumers  []*consumer
	ledger     *ledger
	// published is how many messages of each publisher were in the queues before; used without
	// publishers.
	published []uint64
}

// run publishes and consumes until everything confirmed has arrived, checks that each message
// arrived once, and adds the cost to r.
func (l *load) run(ctx context.Context, pids []int, r *result) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	var consumers sync.WaitGroup
	for i, c := range l.consumers {
		if err := c.subscribe(); err != nil {
			return fmt.Errorf("consumer %d: %w", i, err)
		}
		consumers.Go(func() {
			if err := c.run(consuming); err != nil {
				fail(fmt.Errorf("consumer %d: %w", i, err))
			}
		})
	}
	m, err := startMeter(pids)
	if err != nil {
		return err
	}
	published := l.published
	if len(l.publishers) > 0 {
		published = l.publish(ctx, fail)
	}
	var total uint64
	for _, n := range published {
		total += n
	}
	err = l.await(ctx, total)
	if costErr := m.end(r, int(total)); err == nil {
		err = costErr
	}
	stop()
	consumers.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	// What was lost or doubled explains a stall better than the stall does.
	if wrong := l.ledger.check(published); wrong != nil && (err == nil || errors.Is(err, errStalled)) {
		return errors.Join(wrong, err)
	}
	return err
}

// publish runs the publishers to their end and returns how many messages of each were confirmed.
func (l *load) publish(ctx context.Context, fail context.CancelCauseFunc) []uint64 {
	published := make([]uint64, len(l.publishers))
	var all sync.WaitGroup
	for i, p := range l.publishers {
		all.Go(func() {
			var err error
			if published[i], err = p.run(ctx); err != nil {
				fail(fmt.Errorf("publisher %d: %w", i, err))
			}
		})
	}
	all.Wait()
	return published
}

// await waits until total distinct messages have arrived.
func (l *load) await(ctx context.Context, total uint64) error {
	poll := time.NewTicker(settlePoll)
	defer poll.Stop()
	last, since := uint64(0), time.Now()
	for {
		n := l.ledger.received()
		if n >= total {
			return nil
		}
		if n != last {
			last, since = n, time.Now()
		} else if time.Since(since) > stall {
			return errStalled
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
}

// queue is a queue to be declared for a run.
type queue struct {
	name string
	args amqp.Table
}

// declare deletes the queues and declares them again, empty.
func (t *target) declare(queues ...queue) error {
	if isNATS(t.uris[0]) {
		return declareStreams(t.uris[0], queues)
	}
	return t.onChannel(func(ch *amqp.Channel) error {
		for _, q := range queues {
			if err := t.declareQueue(ch, q); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *target) declareQueue(ch *amqp.Channel, q queue) error {
	if _, err := ch.QueueDelete(q.name, false, false, false); err != nil {
		return fmt.Errorf("delete %s: %w", q.name, err)
	}
	args := amqp.Table{}
	maps.Copy(args, q.args)
	if t.queueType != "" {
		args["x-queue-type"] = t.queueType
	}
	if _, err := ch.QueueDeclare(q.name, true, false, false, false, args); err != nil {
		return fmt.Errorf("declare %s: %w", q.name, err)
	}
	return nil
}

// remove deletes the queues with all they hold.
func (t *target) remove(queues ...queue) error {
	if isNATS(t.uris[0]) {
		return removeStreams(t.uris[0], queues)
	}
	return t.onChannel(func(ch *amqp.Channel) error {
		for _, q := range queues {
			if _, err := ch.QueueDelete(q.name, false, false, false); err != nil {
				return fmt.Errorf("delete %s: %w", q.name, err)
			}
		}
		return nil
	})
}

// ready counts the messages waiting in a queue.
func (t *target) ready(name string) (n int, err error) {
	return n, t.onChannel(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		n = q.Messages
		return err
	})
}

func (t *target) onChannel(do func(*amqp.Channel) error) error {
	conn, ch, err := connect(t.uris[0], false)
	if err != nil {
		return err
	}
	return errors.Join(do(ch), conn.Close())
}

// uri spreads clients over the nodes.
func (t *target) uri(n int) string { return t.uris[n%len(t.uris)] }

// without is the cluster as seen by clients that do not connect to a given node.
func (t *target) without(node int) *target {
	rest := *t
	rest.uris = slices.Delete(slices.Clone(t.uris), node, node+1)
	rest.pids = slices.Delete(slices.Clone(t.pids), node, node+1)
	return &rest
}

// drain consumes what waits in the queues and checks that this, with what the ledger has already
// seen, is what was published.
func (t *target) drain(ctx context.Context, seen *ledger, published []uint64, queues ...queue) error {
	l := &load{ledger: seen, published: published}
	for i, q := range queues {
		l.consumers = append(l.consumers, &consumer{
			uri: t.uri(i), queue: q.name, prefetch: 500, ackEvery: 50, ledger: seen,
		})
	}
	var cost result
	return l.run(ctx, nil, &cost)
}

// upTo returns a function that reports true n times.
func upTo(n int) func(uint64) bool {
	return func(i uint64) bool { return i < uint64(n) }
}

// during returns a function that reports true until d is over, counted from its first call.
func during(d time.Duration) func(uint64) bool {
	var end time.Duration
	return func(uint64) bool {
		if end == 0 {
			end = clock() + d
		}
		return clock() < end
	}
}
