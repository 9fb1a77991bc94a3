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

// growth sees what a message costs as queues and backlogs grow: always the
// same messages a second, through more queues or past more waiting messages.
type growth struct {
	*lab
	rate     int // messages a second over all queues
	size     int
	duration time.Duration
	queues   []int
	backlogs []int
}

func runGrowth(ctx context.Context, fs *flag.FlagSet, args []string) error {
	g := &growth{lab: labFlags(fs), queues: []int{1, 10, 100, 1000}, backlogs: []int{0, 100_000, 1_000_000}}
	fs.IntVar(&g.rate, "rate", 5000, "`messages` a second over all queues")
	fs.IntVar(&g.size, "size", 100, "`bytes` per body")
	fs.DurationVar(&g.duration, "duration", 15*time.Second, "how `long` each row takes")
	fs.Func("queues", "comma-separated `numbers` of active queues (default 1,10,100,1000)", numbers(&g.queues, 1, 10_000))
	fs.Func("backlogs", "comma-separated `numbers` of messages waiting (default 0,100000,1000000)", numbers(&g.backlogs, 0, 100_000_000))
	if err := parse(fs, args); err != nil {
		return err
	}
	if g.rate < 10 || g.rate > 1_000_000 || g.size < bodyHead {
		return fmt.Errorf("-rate must be between 10 and 1000000, -size at least %d", bodyHead)
	}
	var all collection
	err := g.with(ctx, func() error {
		if err := warmUp(ctx, g.target, warmTime); err != nil {
			return err
		}
		for _, n := range g.queues {
			if err := g.active(ctx, n, &all); err != nil {
				return err
			}
		}
		for _, n := range g.backlogs {
			if err := g.waiting(ctx, n, &all); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, publishResults(all.medians(), g.json))
}

// numbers parses a comma-separated list within bounds.
func numbers(to *[]int, low, high int) func(string) error {
	return func(s string) error {
		*to = nil
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

// active spreads the messages over n queues: a publisher and a connection
// with consumers per node, each with its part of the queues.
func (g *growth) active(ctx context.Context, n int, all *collection) error {
	r := result{Name: fmt.Sprintf("%d active queues", n)}
	var queues []queue
	for i := range n {
		queues = append(queues, queue{name: fmt.Sprintf("bench-growth-%d", i+1)})
	}
	if err := g.target.declare(queues...); err != nil {
		return err
	}
	if _, err := calm(ctx, g.target.pids, calmTimeout); err != nil {
		return err
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
			more: upTo(g.count() / clients), pace: time.Second * time.Duration(clients) / time.Duration(g.rate),
		})
		conn, _, err := connect(g.target.uri(k+1), true)
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, q := range part {
			l.consumers = append(l.consumers, &consumer{shared: conn, queue: q, prefetch: 500, ackEvery: 50, ledger: l.ledger})
		}
	}
	if err := l.run(ctx, g.target.pids, &r); err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	all.add("", r)
	return g.target.remove(queues...)
}

func (g *growth) count() int { return int(g.duration.Seconds() * float64(g.rate)) }

// waiting passes messages through a queue in which n others wait all the time:
// what is consumed is as much as what is published.
func (g *growth) waiting(ctx context.Context, n int, all *collection) error {
	r := result{Name: fmt.Sprintf("%d messages waiting", n)}
	q := queue{name: "bench-growth"}
	if err := g.target.declare(q); err != nil {
		return err
	}
	pace, names := time.Second/time.Duration(g.rate), []string{q.name}
	l := &load{ledger: newLedger(2, g.size)}
	fill := publisher{id: 1, uri: g.target.uri(0), queues: names, size: g.size, window: 500, more: upTo(n)}
	filled, err := fill.run(ctx)
	if err != nil {
		return fmt.Errorf("%s: fill: %w", r.Name, err)
	}
	if _, err := calm(ctx, g.target.pids, calmTimeout); err != nil {
		return err
	}
	flow := publisher{id: 0, uri: g.target.uri(0), queues: names, size: g.size, window: 5000, more: upTo(g.count()), pace: pace}
	c := consumer{uri: g.target.uri(1), queue: q.name, prefetch: 500, ackEvery: 50, ledger: l.ledger, pace: pace}
	flowed, err := g.pass(ctx, &flow, &c, &r)
	if err == nil {
		err = g.target.drain(ctx, l.ledger, []uint64{flowed, filled}, q)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	all.add("", r)
	return g.target.remove(q)
}

// pass publishes and consumes at the same pace and ends both together.
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
