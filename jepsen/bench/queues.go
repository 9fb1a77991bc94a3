package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// crowdSize is the size of the bodies sent to many queues.
	crowdSize = 100
	// crowdWorkers is how many channels per node work on the queues at a time.
	crowdWorkers = 3
	// crowdRest is the pause before idle processor time is measured for crowdIdle: members of a group are told
	// once what is committed when it has rested for half a minute.
	crowdRest = 75 * time.Second
	// crowdCalm is the pause before a node is killed.
	crowdCalm = 30 * time.Second
	crowdIdle = 20 * time.Second
	// crowdKilled are the numbers, counted from 0, of the nodes that are killed: one that has been leads nothing.
	crowdKilled, crowdKilledNext = 1, 2
	// crowdTimeout bounds each round through all queues.
	crowdTimeout = 3 * time.Minute
	// crowdRate is how many messages a second go to the queues in turn when a node is killed, for at
	// least crowdPaced, crowdBefore of it before.
	crowdRate   = 1000
	crowdPaced  = 20 * time.Second
	crowdBefore = 5 * time.Second
	// crowdFrozen is how long a node is frozen, which the others notice, and crowdThaw when they have
	// found out that it lives.
	crowdFrozen = 1500 * time.Millisecond
	crowdThaw   = 10 * time.Second
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
	c := &crowd{lab: l, n: n, onlyPages: onlyPages, laps: max(1, crowdRate*int(crowdPaced.Seconds())/n)}
	c.ledger = newLedger(4+c.laps, crowdSize)
	err := l.with(ctx, func() error { return c.run(ctx) })
	return errors.Join(err, publishResults(c.results, l.json))
}

// crowd is a large number of queues, each of which gets one message per round.
type crowd struct {
	*lab
	n         int
	onlyPages bool
	laps      int     // rounds at a pace
	ledger    *ledger // a round is a publisher, a queue its message
	rounds    int
	burst     float64 // processor time of a round, per queue, in seconds
	base      int64   // resident memory of all nodes before there were queues
	results   []result
}

func (c *crowd) name(i int) string { return fmt.Sprintf("bench-crowd-%d", i+1) }

func (c *crowd) run(ctx context.Context) error {
	steps := []func(context.Context) error{c.declare, c.idle, c.freezeOne, c.warm, c.readPages, c.killPaced, c.restart(crowdKilled), c.killOne, c.restart(crowdKilledNext), c.last}
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
	if err := pause(ctx, crowdRest); err != nil {
		return err
	}
	cpu, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	wakes, err := contextSwitches(c.target.pids)
	if err != nil {
		return err
	}
	if err := pause(ctx, crowdIdle); err != nil {
		return err
	}
	cpuNow, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	wakesNow, err := contextSwitches(c.target.pids)
	if err != nil {
		return err
	}
	resident, err := residentBytes(c.target.pids)
	if err != nil {
		return err
	}
	nodes := float64(len(c.target.pids))
	r.Seconds, r.PeakRSS = crowdIdle.Seconds(), resident
	r.note("processor time of all nodes", (cpuNow-cpu)/crowdIdle.Seconds()*100, "% of one core")
	r.note("threads of a node wake up", float64(wakesNow-wakes)/crowdIdle.Seconds()/nodes, "times a second")
	r.note("resident memory per queue and node", float64(resident-c.base)/float64(c.n)/nodes/1024, "KiB")
	return c.keep(&r, nil)
}

// freezeOne stops a node for a moment while nothing happens, and measures what elections that causes: a
// false alarm.
func (c *crowd) freezeOne(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("a node is frozen for %v, %d queues without load", crowdFrozen, c.n)}
	before, err := c.terms(ctx)
	if err != nil {
		return err
	}
	cpu, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	pid, began := c.target.pids[crowdKilled], clock()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	if err := errors.Join(pause(ctx, crowdFrozen), syscall.Kill(pid, syscall.SIGCONT), pause(ctx, crowdThaw)); err != nil {
		return err
	}
	r.Seconds = (clock() - began).Seconds()
	after, err := c.terms(ctx)
	noteGrowth(&r, before, after)
	return c.keep(&r, errors.Join(err, noteProcessor(&r, c.target, cpu)))
}

// noteProcessor records the processor time of the nodes since they had used before.
func noteProcessor(r *result, t *target, before float64) error {
	now, err := cpuSeconds(t.pids)
	r.note("processor time of all nodes", now-before, "s")
	return err
}

// flow is what became of messages to all queues in turn, in rounds.
type flow struct{ published, confirmed []time.Duration }

// waits returns how long each queue waited for a confirm, at most.
func (f *flow) waits(queues int) []time.Duration {
	longest := make([]time.Duration, queues)
	for m, at := range f.confirmed {
		longest[m%queues] = max(longest[m%queues], at-f.published[m])
	}
	return longest
}

// send publishes a message to each queue in so many rounds, a publisher per node of t, and returns when all
// are confirmed. rate is that of all publishers together, in messages a second; 0: as fast as they can.
func (c *crowd) send(ctx context.Context, t *target, rounds, rate int) (flow, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdTimeout)
	defer cancel()
	f := flow{make([]time.Duration, rounds*c.n), make([]time.Duration, rounds*c.n)}
	errs := make([]error, len(t.uris))
	var all sync.WaitGroup
	for k := range t.uris {
		all.Go(func() { errs[k] = c.publish(ctx, t.uris[k], k, len(t.uris), rate, &f) })
	}
	all.Wait()
	c.rounds += rounds
	return f, errors.Join(errs...)
}

// publish sends the messages of one publisher. The confirm of one queue does not wait for that of another.
func (c *crowd) publish(ctx context.Context, uri string, first, step, rate int, f *flow) error {
	conn, ch, err := connect(uri, true)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	refused := make([]error, len(f.confirmed))
	var waiting sync.WaitGroup
	body, began := make([]byte, crowdSize), clock()
	for m := first; m < len(refused); m += step {
		if rate > 0 {
			if refused[m] = pause(ctx, began+time.Duration(m)*time.Second/time.Duration(rate)-clock()); refused[m] != nil {
				break
			}
		}
		f.published[m] = clock()
		stamp(body, uint32(c.rounds+m/c.n), uint64(m%c.n), f.published[m], f.published[m])
		confirm, err := ch.PublishWithDeferredConfirm("", c.name(m%c.n), false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body})
		if err != nil {
			refused[m] = err
			break
		}
		waiting.Go(func() {
			ok, err := confirm.WaitContext(ctx)
			if f.confirmed[m] = clock(); err == nil && !ok {
				err = errNacked
			}
			refused[m] = err
		})
	}
	waiting.Wait()
	for m, err := range refused {
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", c.name(m%c.n), err), reason(closed))
		}
	}
	return nil
}

// measured records how long after began the queues confirmed.
func (c *crowd) measured(r *result, began time.Duration, f flow) {
	slices.Sort(f.confirmed)
	for i := range f.confirmed {
		f.confirmed[i] -= began
	}
	r.Messages, r.Seconds, r.Times = c.n, f.confirmed[c.n-1].Seconds(), quantilesOf(f.confirmed)
	r.PerSecond = float64(c.n) / r.Seconds
}

// warm is a round that the next one is compared with.
func (c *crowd) warm(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("one message to each of %d queues", c.n)}
	cpu, err := cpuSeconds(c.target.pids)
	if err != nil {
		return err
	}
	began := clock()
	f, err := c.send(ctx, c.target, 1, 0)
	c.measured(&r, began, f)
	err = errors.Join(err, noteProcessor(&r, c.target, cpu))
	c.burst = r.Notes[len(r.Notes)-1].Value / float64(c.n)
	return c.keep(&r, err)
}

// killPaced kills a node that has rested with its queues while messages go to all queues in turn, and
// measures how long each queue waited for a confirm.
func (c *crowd) killPaced(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("a node is killed at %d msg/s to all of %d queues in turn", crowdRate, c.n)}
	if err := pause(ctx, crowdCalm); err != nil {
		return err
	}
	before, err := c.terms(ctx)
	if err != nil {
		return err
	}
	others := c.target.without(crowdKilled)
	cpu, err := cpuSeconds(others.pids)
	if err != nil {
		return err
	}
	began := clock()
	var killing sync.WaitGroup
	var killed error
	killing.Go(func() { killed = errors.Join(pause(ctx, crowdBefore), c.kill(ctx, crowdKilled)) })
	f, err := c.send(ctx, others, c.laps, crowdRate)
	killing.Wait()
	if err = errors.Join(err, killed, noteProcessor(&r, others, cpu)); err != nil {
		return c.keep(&r, err)
	}
	r.Messages, r.Seconds, r.Times = c.laps*c.n, (clock() - began).Seconds(), quantilesOf(f.waits(c.n))
	r.note("99 % of the queues waited at most", r.Times.P99/1e3, "s")
	r.note("all queues waited at most", r.Times.Max/1e3, "s")
	after, err := c.terms(ctx)
	noteGrowth(&r, before, after)
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
	others := c.target.without(crowdKilledNext)
	cpu, err := cpuSeconds(others.pids)
	if err != nil {
		return err
	}
	began := clock()
	if err := c.kill(ctx, crowdKilledNext); err != nil {
		return err
	}
	f, err := c.send(ctx, others, 1, 0)
	if err = errors.Join(err, noteProcessor(&r, others, cpu)); err != nil {
		return c.keep(&r, err)
	}
	used := r.Notes[0].Value
	c.measured(&r, began, f)
	r.note("99 % of the queues confirm after", r.Times.P99/1e3, "s")
	r.note("all queues confirm after", r.Times.Max/1e3, "s")
	after, err := c.terms(ctx)
	if grown := noteGrowth(&r, before, after); grown > 0 {
		r.note("processor time beyond that of the round without a failure, per queue that has elected", (used-c.burst*float64(c.n))/float64(grown)*1e3, "ms")
	}
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
// election that succeeds at once makes it grow by one. It returns how many have grown.
func noteGrowth(r *result, before, after map[string]uint64) (grown int) {
	queues := map[uint64]int{}
	for name, term := range after {
		queues[max(term, before[name])-before[name]]++
	}
	for _, by := range slices.Sorted(maps.Keys(queues)) {
		r.note(fmt.Sprintf("raft terms grew by %d in", by), float64(queues[by]), "queues")
	}
	return len(after) - queues[0]
}

func (c *crowd) restart(node int) func(context.Context) error {
	return func(ctx context.Context) error {
		r := result{Name: fmt.Sprintf("restart of a node with %d queues", c.n)}
		began := clock()
		err := c.rejoin(ctx, node)
		r.Seconds = (clock() - began).Seconds()
		r.note("serves again after", r.Seconds, "s")
		return c.keep(&r, err)
	}
}

// last sends one more message to each queue, then takes all messages in them.
func (c *crowd) last(ctx context.Context) error {
	r := result{Name: fmt.Sprintf("one message through each of %d queues", c.n)}
	m, err := startMeter(c.target.pids)
	if err != nil {
		return err
	}
	if _, err = c.send(ctx, c.target, 1, 0); err != nil {
		return err
	}
	rounds := c.rounds
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
