package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// expirySize is the size of messages that are published to expire.
	expirySize = 100
	// expiryFillers publish them, at expiryFillRate at least in total.
	expiryFillers  = 4
	expiryFillRate = 30_000
	// expirySpan is the time within which all of them expire.
	expirySpan = time.Second
	// expiryPoll is how often the number of remaining messages is read.
	expiryPoll = 20 * time.Millisecond
)

var errFillTooSlow = errors.New("the messages died before all of them were published")

func runExpiry(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 1_000_000, "`messages` to publish")
	dead := fs.Bool("dead-letter", false, "the messages go to another queue when they die")
	if err := parse(fs, args); err != nil {
		return err
	}
	r, err := expireAll(ctx, t, *n, *dead)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// expireAll fills a queue with messages whose deadlines are drawn from one second, and measures how
// fast they leave it, for another queue or for good, and how long a publish and a get at that queue
// take meanwhile.
func expireAll(ctx context.Context, t *target, n int, deadLetter bool) (result, error) {
	r := result{Name: fmt.Sprintf("%d messages die within %v, dropped", n, expirySpan)}
	dead := queue{name: "bench-mortal-dead"}
	source := queue{name: "bench-mortal"}
	if deadLetter {
		r.Name = fmt.Sprintf("%d messages die within %v, dead-lettered", n, expirySpan)
		source.args = amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
	}
	if err := t.declare(dead, source); err != nil {
		return r, err
	}
	due, err := fillExpiring(ctx, t, source.name, n)
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	if err := pause(ctx, due-clock()); err != nil {
		return r, err
	}
	m, err := startMeter(t.pids)
	if err != nil {
		return r, err
	}
	gone := func() (bool, error) {
		if deadLetter {
			have, err := t.ready(dead.name)
			return have == n, err
		}
		have, err := t.ready(source.name)
		return have < n/1000, err
	}
	both, err := useUntil(ctx, t, source.name, gone)
	if costErr := m.end(&r, n); err == nil {
		err = costErr
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Times = quantilesOf(both)
	r.note("publishes and gets at that queue meanwhile", float64(len(both)), "")
	return r, t.remove(source, dead)
}

// fillExpiring publishes messages that expire within a span from the instant it returns.
func fillExpiring(ctx context.Context, t *target, name string, n int) (due time.Duration, err error) {
	due = clock() + time.Duration(n)*time.Second/expiryFillRate + 3*time.Second
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	l := &load{}
	for i := range expiryFillers {
		l.publishers = append(l.publishers, &publisher{
			id: uint32(i), uri: t.uri(i), queues: []string{name}, size: expirySize, window: 2000,
			more: upTo(n*(i+1)/expiryFillers - n*i/expiryFillers),
			ttl: func() time.Duration {
				return max(due-clock()+rand.N(expirySpan), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
			},
		})
	}
	l.publish(ctx, fail)
	if err := context.Cause(ctx); err != nil {
		return due, err
	}
	if clock() > due {
		return due, errFillTooSlow
	}
	return due, nil
}

// useUntil repeatedly publishes a message with high priority to a queue and gets it back, until
// done returns true; it returns how long each pair took.
func useUntil(ctx context.Context, t *target, name string, done func() (bool, error)) ([]time.Duration, error) {
	ctx, stop := context.WithTimeoutCause(ctx, stall+2*time.Minute, errStalled)
	defer stop()
	var taken samples
	var useErr error
	var using sync.WaitGroup
	over := make(chan struct{})
	using.Go(func() { useErr = use(ctx, t, name, &taken, over) })
	poll := time.NewTicker(expiryPoll)
	defer poll.Stop()
	err := func() error {
		for {
			if ok, err := done(); ok || err != nil {
				return err
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}()
	close(over)
	using.Wait()
	return taken.take(), errors.Join(err, useErr)
}

func use(ctx context.Context, t *target, name string, taken *samples, over <-chan struct{}) error {
	conn, ch, err := connect(t.uri(0), false)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for {
		began := clock()
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", name, false, false, amqp.Publishing{Priority: 9})
		if err != nil {
			return err
		}
		if _, err := c.WaitContext(ctx); err != nil {
			return err
		}
		d, ok, err := ch.Get(name, false)
		if err != nil {
			return err
		}
		taken.add(clock() - began)
		if ok {
			if err := d.Ack(false); err != nil {
				return err
			}
		}
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// How a hold queue's leader is killed: when, and for how long arriving messages count as during the
// kill.
const (
	holdBefore = 8 * time.Second
	holdDuring = 5 * time.Second
)

// heldThroughKill measures how late messages leave a hold queue before, during
// and after its leader is killed.
func heldThroughKill(ctx context.Context, on faulty, n int, from, to time.Duration) ([]result, error) {
	const size = 256
	dead := queue{name: "bench-held"}
	source := queue{name: "bench-hold", args: amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}}
	if err := on.clients().declare(dead, source); err != nil {
		return nil, err
	}
	node, err := on.leader(ctx, source.name)
	if err != nil {
		return nil, err
	}
	others := on.clients().without(node)
	var late samples
	l := &load{ledger: newLedger(1, size)}
	l.publishers = []*publisher{{
		uri: others.uri(0), queues: []string{source.name}, size: size, window: 1000, more: upTo(n), interval: time.Second / ttlRate,
		ttl: func() time.Duration { return (from + rand.N(to-from+1)).Truncate(time.Millisecond) },
	}}
	l.consumers = []*consumer{{uri: others.uri(1), queue: dead.name, prefetch: 1000, ackEvery: 1, ledger: l.ledger, late: &late}}
	var phases [3][]time.Duration
	var killing sync.WaitGroup
	var killErr error
	killing.Go(func() {
		if killErr = pause(ctx, holdBefore); killErr != nil {
			return
		}
		phases[0] = late.take()
		if killErr = on.kill(ctx, node); killErr != nil {
			return
		}
		killErr = pause(ctx, holdDuring)
		phases[1] = late.take()
	})
	var whole result
	err = l.run(ctx, nil, &whole)
	killing.Wait()
	phases[2] = late.take()
	if err = errors.Join(err, killErr, on.rejoin(ctx, node)); err != nil {
		return nil, fmt.Errorf("hold queue: %w", err)
	}
	var all []result
	for i, phase := range []string{"before", "during", "after"} {
		all = append(all, result{
			Name: fmt.Sprintf("hold queue, lateness %s its leader's kill", phase), Messages: len(phases[i]), Times: quantilesOf(phases[i]),
		})
	}
	return all, on.clients().remove(source, dead)
}
