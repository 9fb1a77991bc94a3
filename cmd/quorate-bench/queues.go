package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// crowdSize is the size of the bodies sent to many queues.
	crowdSize = 100
	// crowdWorkers is how many channels per node work on the queues at a time.
	crowdWorkers = 3
	// crowdCalm is the pause before idle processor time is measured for crowdIdle.
	crowdCalm = 30 * time.Second
	crowdIdle = 20 * time.Second
	// crowdKilled is the number, counted from 0, of the node that is killed.
	crowdKilled = 1
	// crowdTimeout bounds each round through all queues.
	crowdTimeout = 3 * time.Minute
)

func runQueues(ctx context.Context, fs *flag.FlagSet, args []string) error {
	l := labFlags(fs)
	n := fs.Int("queues", 10_000, "`number` of queues")
	only := fs.Bool("pages", false, "measure nothing but the HTTP API and the metrics")
	if err := parse(fs, args); err != nil {
		return err
	}
	return manyQueues(ctx, l, *n, *only)
}

// manyQueues measures a cluster with n queues. onlyPages: how it is looked at, and nothing else.
func manyQueues(ctx context.Context, l *lab, n int, onlyPages bool) error {
	if n < 1 || n > 1_000_000 {
		return errors.New("-queues must be between 1 and 1000000")
	}
	c := &crowd{lab: l, n: n, onlyPages: onlyPages, ledger: newLedger(4, crowdSize)}
	err := l.with(ctx, func() error { return c.run(ctx) })
	return errors.Join(err, publishResults(c.results, l.json))
}

// crowd is a large number of queues, each of which gets one message per round.
type crowd struct {
	*lab
	n         int
	onlyPages bool
	ledger    *ledger // a round is a publisher, a queue its message
	rounds    uint32
	base      int64 // resident memory of all nodes before there were queues
	results   []result
}

func (c *crowd) name(i int) string { return fmt.Sprintf("bench-crowd-%d", i+1) }

func (c *crowd) run(ctx context.Context) error {
	steps := []func(context.Context) error{c.declare, c.idle, c.warm, c.readPages, c.killOne, c.restartOne, c.last}
	if c.onlyPages {
		steps = []func(context.Context) error{c.declare, c.warm, c.readPages}
	}
	for _, do := range steps {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// declare creates the queues and records the memory that they take.
func (c *crowd) declare(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("declare %d queues", c.n)}
	var err error
	if c.base, err = residentBytes(c.target.pids); err != nil {
		return err
	}
	m, err := startMeter(c.target.pids)
	if err != nil {
		return err
	}
	err = c.spread(ctx, c.target, func(ch *amqp.Channel, i int) error {
		_, err := ch.QueueDeclare(c.name(i), true, false, false, false, amqp.Table{"x-queue-type": c.target.queueType})
		return err
	})
	return c.keep(&r, errors.Join(err, m.end(&r, c.n)))
}

// keep adds a result and reports progress.
func (c *crowd) keep(r *result, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	c.results = append(c.results, *r)
	progress("%s: %.1f s", r.Name, r.Seconds)
	return nil
}

// spread does something to each queue, on several channels to each node.
func (c *crowd) spread(ctx context.Context, t *target, do func(ch *amqp.Channel, i int) error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*crowdTimeout)
	defer cancel()
	workers := crowdWorkers * len(t.uris)
	errs := make([]error, workers)
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			conn, ch, err := connect(t.uri(w), false)
			if err != nil {
				errs[w] = err
				return
			}
			defer conn.Close()
			// A call that is never answered ends with the connection.
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			for i := w; i < c.n && ctx.Err() == nil; i += workers {
				if err := do(ch, i); err != nil {
					errs[w] = fmt.Errorf("%s: %w", c.name(i), err)
					cancel()
					return
				}
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// idle measures the cost of unused queues.
func (c *crowd) idle(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("idle with %d queues", c.n)}
	if err := pause(ctx, crowdCalm); err != nil {
		return err
	}
	before, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	if err := pause(ctx, crowdIdle); err != nil {
		return err
	}
	after, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	resident, err := residentBytes(c.target.pids)
	if err != nil {
		return err
	}
	nodes := float64(len(c.target.pids))
	r.Seconds, r.PeakRSS = crowdIdle.Seconds(), resident
	r.note("processor time of all nodes", (after-before)/crowdIdle.Seconds()*100, "% of one core")
	r.note("resident memory per queue and node", float64(resident-c.base)/float64(c.n)/nodes/1024, "KiB")
	return c.keep(&r, nil)
}

// round publishes one message to each queue, a publisher per node of t, and returns when each was
// confirmed, in ascending order.
func (c *crowd) round(ctx context.Context, t *target) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdTimeout)
	defer cancel()
	at := make([]time.Duration, c.n)
	errs := make([]error, len(t.uris))
	var all sync.WaitGroup
	for k := range t.uris {
		all.Go(func() { errs[k] = c.publish(ctx, t.uris[k], k, len(t.uris), at) })
	}
	all.Wait()
	c.rounds++
	slices.Sort(at)
	return at, errors.Join(errs...)
}

// publish sends one message to every queue of this publisher. The confirm of one queue does not
// wait for that of another.
func (c *crowd) publish(ctx context.Context, uri string, first, step int, at []time.Duration) error {
	conn, ch, err := connect(uri, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	refused := make([]error, c.n)
	var waiting sync.WaitGroup
	body := make([]byte, crowdSize)
	for i := first; i < c.n; i += step {
		call := clock()
		stamp(body, c.rounds, uint64(i), call, call)
		confirm, err := ch.PublishWithDeferredConfirm("", c.name(i), false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
		if err != nil {
			refused[i] = err
			break
		}
		waiting.Go(func() {
			ok, err := confirm.WaitContext(ctx)
			if at[i] = clock(); err == nil && !ok {
				err = errNacked
			}
			refused[i] = err
		})
	}
	waiting.Wait()
	for i, err := range refused {
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", c.name(i), err), reason(closed))
		}
	}
	return nil
}

// measured records how long after began the queues confirmed.
func (c *crowd) measured(r *result, began time.Duration, at []time.Duration) {
	for i := range at {
		at[i] -= began
	}
	r.Messages, r.Seconds, r.Times = c.n, at[c.n-1].Seconds(), quantilesOf(at)
	r.PerSecond = float64(c.n) / r.Seconds
}

// warm is a round that the next one is compared with.
func (c *crowd) warm(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("one message to each of %d queues", c.n)}
	began := clock()
	at, err := c.round(ctx, c.target)
	c.measured(&r, began, at)
	return c.keep(&r, err)
}

// killOne kills a node and measures when each queue confirms again, counted from that moment, and
// how many elections that took.
func (c *crowd) killOne(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("the same from the moment a node is killed, %d queues", c.n)}
	before, err := c.terms(ctx)
	if err != nil {
		return err
	}
	began := clock()
	if err := c.kill(ctx, crowdKilled); err != nil {
		return err
	}
	at, err := c.round(ctx, c.target.without(crowdKilled))
	if err != nil {
		return c.keep(&r, err)
	}
	c.measured(&r, began, at)
	r.note("99 % of the queues confirm after", r.Times.P99/1e3, "s")
	r.note("all queues confirm after", r.Times.Max/1e3, "s")
	after, err := c.terms(ctx)
	noteGrowth(&r, before, after)
	return c.keep(&r, err)
}

// terms asks the running nodes for the raft term of each queue: the highest one known by any of its
// replicas.
func (c *crowd) terms(ctx context.Context) (map[string]uint64, error) {
	terms := map[string]uint64{}
	for _, n := range c.cluster.Nodes {
		if !n.Alive() {
			continue
		}
		all, err := n.Replicas(ctx)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			terms[r.Name] = max(terms[r.Name], r.Term)
		}
	}
	return terms, nil
}

// noteGrowth records how many queues' terms grew by how much. Without a failure a term stays; an
// election that succeeds at once makes it grow by one.
func noteGrowth(r *result, before, after map[string]uint64) {
	queues := map[uint64]int{}
	for name, term := range after {
		queues[max(term, before[name])-before[name]]++
	}
	for _, by := range slices.Sorted(maps.Keys(queues)) {
		r.note(fmt.Sprintf("raft terms grew by %d in", by), float64(queues[by]), "queues")
	}
}

func (c *crowd) restartOne(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("restart of a node with %d queues", c.n)}
	began := clock()
	err := c.rejoin(ctx, crowdKilled)
	r.Seconds = (clock() - began).Seconds()
	r.note("serves again after", r.Seconds, "s")
	return c.keep(&r, err)
}

// last sends one more message to each queue, then takes all messages in them.
func (c *crowd) last(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("one message through each of %d queues", c.n)}
	m, err := startMeter(c.target.pids)
	if err != nil {
		return err
	}
	if _, err = c.round(ctx, c.target); err != nil {
		return err
	}
	rounds := int(c.rounds)
	err = c.spread(ctx, c.target, func(ch *amqp.Channel, i int) error {
		for n := 0; n <= rounds; n++ {
			d, ok, err := ch.Get(c.name(i), true)
			if err != nil || !ok {
				return err
			}
			if _, ours := c.ledger.take(d.Body); !ours {
				return errForeign
			}
		}
		return fmt.Errorf("more than %d messages", rounds)
	})
	published := make([]uint64, len(c.ledger.entries))
	for i := range rounds {
		published[i] = uint64(c.n)
	}
	return c.keep(&r, errors.Join(err, m.end(&r, c.n), c.ledger.check(published)))
}
