package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// growth measures what a message costs as queues and backlogs grow: always the same number of
// messages a second, through more queues or past more waiting messages.
type growth struct {
	*lab
	rate     int // messages a second over all queues
	size     int
	duration time.Duration
	rounds   int
	queues   []int
	backlogs []int
}

const (
	// growthCalm is how long the servers may take to become idle before a row: after ten million
	// messages they have much to delete.
	growthCalm = 90 * time.Second
	// growthFillers publish the waiting messages, each with fillWindow unconfirmed.
	growthFillers = 4
	fillWindow    = 2000
)

func runGrowth(ctx context.Context, fs *flag.FlagSet, args []string) error {
	g := &growth{lab: labFlags(fs), queues: []int{1, 10, 100, 1000}, backlogs: []int{0, 100_000, 1_000_000, 10_000_000}}
	fs.IntVar(&g.rate, "rate", 5000, "`messages` a second over all queues")
	fs.IntVar(&g.size, "size", 100, "`bytes` per body")
	fs.DurationVar(&g.duration, "duration", 10*time.Second, "how `long` each row takes")
	fs.IntVar(&g.rounds, "runs", 1, "`rounds`, of which the table shows the medians")
	fs.Func("queues", "comma-separated `numbers` of active queues; empty: no such row (default 1,10,100,1000)", numbers(&g.queues, 1, 10_000))
	fs.Func("backlogs", "comma-separated `numbers` of messages waiting; empty: no such row (default 0,100000,1000000,10000000)", numbers(&g.backlogs, 0, 100_000_000))
	if err := parse(fs, args); err != nil {
		return err
	}
	if g.rate < 10 || g.rate > 1_000_000 || g.size < bodyHead {
		return fmt.Errorf("-rate must be between 10 and 1000000, -size at least %d", bodyHead)
	}
	if g.rounds < 1 || g.rounds > 100 {
		return errors.New("-runs must be between 1 and 100")
	}
	var all collection
	err := g.with(ctx, func() error {
		if err := warmUp(ctx, g.target, warmTime); err != nil {
			return err
		}
		for round := range g.rounds {
			if err := g.round(ctx, fmt.Sprintf("round %d of %d", round+1, g.rounds), &all); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, publishResults(all.medians(), g.json))
}

// round measures each row once.
func (g *growth) round(ctx context.Context, label string, all *collection) error {
	for _, n := range g.queues {
		r, err := g.active(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		all.add(label, r)
	}
	for _, n := range g.backlogs {
		r, err := g.waiting(ctx, n)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		all.add(label, r)
	}
	return nil
}

// numbers parses a comma-separated list of numbers within bounds.
func numbers(to *[]int, low, high int) func(string) error {
	return func(s string) error {
		*to = nil
		if s == "" {
			return nil
		}
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(f))
			if err != nil || n < low || n > high {
				return fmt.Errorf("%q is no number between %d and %d", f, low, high)
			}
			*to = append(*to, n)
		}
		return nil
	}
}

// row waits until the servers are idle, measures run, and adds how many log entries of the queues a
// message took.
func (g *growth) row(ctx context.Context, r *result, queues []queue, run func() (uint64, error)) (uint64, error) {
	before, err := g.applied(ctx, queues)
	if err != nil {
		return 0, err
	}
	idle, err := calm(ctx, g.target.pids, growthCalm)
	if err != nil {
		return 0, err
	}
	n, err := run()
	if err != nil {
		return 0, err
	}
	after, err := g.applied(ctx, queues)
	if err != nil {
		return 0, err
	}
	r.note("log entries per message", float64(after-before)/float64(r.Messages), "")
	r.note("processor time of all nodes at rest before", idle*100, "% of one core")
	return n, nil
}

// applied is the number of entries in the logs of the queues so far.
func (g *growth) applied(ctx context.Context, queues []queue) (uint64, error) {
	index := map[string]uint64{}
	for _, n := range g.cluster.Nodes {
		all, err := n.Replicas(ctx)
		if err != nil {
			return 0, err
		}
		for _, r := range all {
			index[r.Name] = max(index[r.Name], r.AppliedIndex)
		}
	}
	var sum uint64
	for _, q := range queues {
		sum += index[q.name]
	}
	return sum, nil
}

// active spreads the messages over n queues: a publisher and a connection with consumers per node,
// each with its part of the queues.
func (g *growth) active(ctx context.Context, n int) (result, error) {
	r := result{Name: fmt.Sprintf("%d active queues", n)}
	var queues []queue
	for i := range n {
		queues = append(queues, queue{name: fmt.Sprintf("bench-growth-%d", i+1)})
	}
	if err := g.target.declare(queues...); err != nil {
		return r, err
	}
	clients := min(n, len(g.target.uris))
	l := &load{ledger: newLedger(clients, g.size)}
	for k := range clients {
		var part []string
		for i := k; i < n; i += clients {
			part = append(part, queues[i].name)
		}
		l.publishers = append(l.publishers, &publisher{
			id: uint32(k), uri: g.target.uri(k), queues: part, size: g.size, window: 5000,
			more: upTo(g.count() / clients), interval: time.Second * time.Duration(clients) / time.Duration(g.rate),
		})
		conn, _, err := connect(g.target.uri(k+1), true)
		if err != nil {
			return r, err
		}
		defer conn.Close()
		for _, q := range part {
			l.consumers = append(l.consumers, &consumer{shared: conn, queue: q, prefetch: 500, ackEvery: 50, ledger: l.ledger})
		}
	}
	_, err := g.row(ctx, &r, queues, func() (uint64, error) { return 0, l.run(ctx, g.target.pids, &r) })
	if err != nil {
		return r, err
	}
	return r, g.target.remove(queues...)
}

func (g *growth) count() int { return int(g.duration.Seconds() * float64(g.rate)) }

// waiting passes messages through a queue in which n others wait all the time: as many are consumed
// as are published.
func (g *growth) waiting(ctx context.Context, n int) (result, error) {
	r := result{Name: fmt.Sprintf("%d messages waiting", n)}
	q := queue{name: "bench-growth"}
	if err := g.target.declare(q); err != nil {
		return r, err
	}
	l := &load{ledger: newLedger(1+growthFillers, g.size)}
	began := clock()
	filled, err := g.fill(ctx, q, n)
	if err != nil {
		return r, fmt.Errorf("fill: %w", err)
	}
	if n > 0 {
		progress("%d messages wait after %.0f s", n, (clock() - began).Seconds())
	}
	interval := time.Second / time.Duration(g.rate)
	flow := publisher{id: 0, uri: g.target.uri(0), queues: []string{q.name}, size: g.size, window: 5000, more: upTo(g.count()), interval: interval}
	c := consumer{uri: g.target.uri(1), queue: q.name, prefetch: 500, ackEvery: 50, ledger: l.ledger, interval: interval}
	flowed, err := g.row(ctx, &r, []queue{q}, func() (uint64, error) { return g.pass(ctx, &flow, &c, &r) })
	if err == nil {
		err = g.target.drain(ctx, l.ledger, append([]uint64{flowed}, filled...), q)
	}
	if err != nil {
		return r, err
	}
	return r, g.target.remove(q)
}

// fill publishes n messages as publishers 1 and up, and returns how many of each were confirmed.
func (g *growth) fill(ctx context.Context, q queue, n int) ([]uint64, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	l := &load{}
	for k := range growthFillers {
		part := n*(k+1)/growthFillers - n*k/growthFillers
		l.publishers = append(l.publishers, &publisher{
			id: uint32(1 + k), uri: g.target.uri(k), queues: []string{q.name}, size: g.size, window: fillWindow, more: upTo(part),
		})
	}
	return l.publish(ctx, fail), context.Cause(ctx)
}

// pass publishes and consumes at the same interval and ends both together.
func (g *growth) pass(ctx context.Context, p *publisher, c *consumer, r *result) (uint64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.subscribe(); err != nil {
		return 0, err
	}
	consumed := make(chan error, 1)
	go func() { consumed <- c.run(ctx) }()
	m, err := startMeter(g.target.pids)
	if err != nil {
		return 0, err
	}
	published, err := p.run(ctx)
	err = errors.Join(err, m.end(r, int(published)))
	cancel()
	return published, errors.Join(err, <-consumed)
}
