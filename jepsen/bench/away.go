package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

const (
	// awaySize is the size of each message of the run follower away, awayBefore how long the load
	// is measured before the follower goes, and awayLimit how long it may take to catch up.
	awaySize   = 1024
	awayBefore = 10 * time.Second
	awayLimit  = 5 * time.Minute
	// restartLimit bounds the time until all queues confirm again.
	restartLimit = 2 * time.Minute
)

// followerAway leaves messages waiting in a queue, keeps up a full load on it, takes a follower
// away for a while, and measures how long it takes to catch up, and the load meanwhile.
func followerAway(ctx context.Context, l *lab, waiting int, away time.Duration) (result, error) {
	r := result{Name: fmt.Sprintf("follower away for %v, %d MB waiting", away, waiting*awaySize>>20)}
	q := queue{name: "bench-away"}
	if err := l.target.declare(q); err != nil {
		return r, err
	}
	leader, err := l.leader(ctx, q.name)
	if err != nil {
		return r, err
	}
	follower := (leader + 1) % len(l.cluster.Nodes)
	s := defaultShape
	s.size, s.messages = awaySize, waiting
	clients := l.target.without(follower)
	fill := s.load(clients, []queue{q})
	if _, err := fill.publishers[0].run(ctx); err != nil {
		return r, fmt.Errorf("%s: fill: %w", r.Name, err)
	}
	if err := l.passThrough(ctx, clients, q, follower, away, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	return r, l.target.remove(q)
}

// passThrough is the load, and what is measured under it.
func (l *lab) passThrough(ctx context.Context, clients *target, q queue, follower int, away time.Duration, r *result) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var sent atomic.Uint64
	stop := make(chan struct{})
	p := &publisher{id: 1, uri: clients.uri(0), queues: []string{q.name}, size: awaySize, window: 500, more: func(n uint64) bool {
		sent.Store(n)
		select {
		case <-stop:
			return false
		default:
			return true
		}
	}}
	c := &consumer{uri: clients.uri(1), queue: q.name, prefetch: 500, ackEvery: 50, ledger: newLedger(2, awaySize)}
	if err := c.subscribe(); err != nil {
		return err
	}
	var tasks sync.WaitGroup
	consuming, done := context.WithCancel(ctx)
	tasks.Go(func() {
		if _, err := p.run(ctx); err != nil {
			cancel(err)
		}
	})
	tasks.Go(func() {
		if err := c.run(consuming); err != nil && consuming.Err() == nil {
			cancel(err)
		}
	})
	err := l.awayAndBack(ctx, q.name, follower, away, &sent, r)
	close(stop)
	done()
	if err != nil {
		cancel(err)
	}
	tasks.Wait()
	r.Messages = int(sent.Load())
	return errors.Join(err, context.Cause(ctx))
}

// awayAndBack kills a follower for a while and records rates and times.
func (l *lab) awayAndBack(ctx context.Context, queue string, follower int, away time.Duration, sent *atomic.Uint64, r *result) error {
	rate := func(during func() error) (float64, error) {
		began, from := clock(), sent.Load()
		err := during()
		return float64(sent.Load()-from) / (clock() - began).Seconds(), err
	}
	before, err := rate(func() error { return pause(ctx, awayBefore) })
	if err != nil {
		return err
	}
	if err := l.kill(ctx, follower); err != nil {
		return err
	}
	without, err := rate(func() error { return pause(ctx, away) })
	if err != nil {
		return err
	}
	began := clock()
	during, err := rate(func() error {
		if err := l.rejoin(ctx, follower); err != nil {
			return err
		}
		return l.awaitCaughtUp(ctx, queue, l.cluster.Nodes[follower])
	})
	if err != nil {
		return err
	}
	r.note("caught up after", (clock() - began).Seconds(), "s")
	r.note("rate before", before, "msg/s")
	r.note("rate while the follower is away", without, "msg/s")
	r.note("rate while it catches up", during, "msg/s")
	r.note("part of the rate before", 100*during/before, "%")
	return nil
}

// closeBy is the maximum lag, in entries, of a caught-up replica under load.
const closeBy = 200

// awaitCaughtUp waits until a node's replica of a queue is as far as its leader's, which keeps
// advancing.
func (l *lab) awaitCaughtUp(ctx context.Context, queue string, n *cluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, awayLimit)
	defer cancel()
	for {
		leader, err := l.cluster.Leader(ctx, queue)
		if err == nil {
			goal, err1 := leader.ReplicasOf(ctx, queue)
			got, err2 := n.ReplicasOf(ctx, queue)
			if err = errors.Join(err1, err2); err == nil && len(got) == 1 && len(goal) == 1 && got[0].AppliedIndex+closeBy >= goal[0].AppliedIndex {
				return nil
			}
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return errors.Join(errors.New("the follower has not caught up"), err, ctx.Err())
		}
	}
}

// restartOfAll kills all nodes while messages go to many queues, starts them
// again, and measures when each queue confirms again.
func restartOfAll(ctx context.Context, l *lab, queues int) (result, error) {
	r := result{Name: fmt.Sprintf("restart of all after power loss, %d queues", queues)}
	list := make([]queue, queues)
	for i := range list {
		list[i].name = fmt.Sprintf("bench-restart-%d", i+1)
	}
	if err := l.target.declare(list...); err != nil {
		return r, err
	}
	confirm := func(ctx context.Context, i int) error {
		p := &publisher{id: uint32(i), uri: l.target.uri(i), queues: []string{list[i].name}, size: awaySize, window: 10, more: upTo(10)}
		_, err := p.run(ctx)
		return err
	}
	if err := eachOf(queues, func(i int) error { return confirm(ctx, i) }); err != nil {
		return r, err
	}
	for i := range l.cluster.Nodes {
		if err := l.kill(ctx, i); err != nil {
			return r, err
		}
	}
	began := clock()
	for _, n := range l.cluster.Nodes {
		if err := n.Restart(); err != nil {
			return r, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, restartLimit)
	defer cancel()
	taken := make([]time.Duration, queues)
	err := eachOf(queues, func(i int) error {
		for {
			if err := confirm(ctx, i); err == nil {
				taken[i] = clock() - began
				return nil
			} else if pause(ctx, 20*time.Millisecond) != nil {
				return err
			}
		}
	})
	l.findProcesses()
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Messages, r.Times = queues, quantilesOf(taken)
	r.note("last queue confirms after", r.Times.Max/1e3, "s")
	return r, l.target.remove(list...)
}

// eachOf calls f for the numbers below n, concurrently.
func eachOf(n int, f func(i int) error) error {
	errs := make([]error, n)
	var tasks sync.WaitGroup
	for i := range n {
		tasks.Go(func() { errs[i] = f(i) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}
