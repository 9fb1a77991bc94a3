package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

const (
	// failAfter is how long messages flow before a node fails.
	failAfter = 3 * time.Second
	// frozen is how long a node that is not killed stands still.
	frozen = 10 * time.Second
	// flowAfter is how long messages flow on afterwards.
	flowAfter = 5 * time.Second
	// failRate is how many messages a second flow through all queues together.
	failRate = 2000
)

// failover is a run in which the node that leads a queue fails.
type failover struct {
	queues int
	freeze bool // with SIGSTOP, for a time; otherwise it is killed
}

func (f failover) name() string {
	if f.freeze {
		return fmt.Sprintf("failover, leader frozen, %d queues", f.queues)
	}
	return fmt.Sprintf("failover, leader killed, %d queues", f.queues)
}

// run measures the longest time that a publisher connected to another node
// waits for a confirm. What was confirmed is consumed when all nodes are back.
func (f failover) run(ctx context.Context, lab *lab) (result, error) {
	r := result{Name: f.name()}
	const size = 1024
	var queues []queue
	for i := range f.queues {
		queues = append(queues, queue{name: fmt.Sprintf("bench-failover-%d", i+1)})
	}
	if err := lab.target.declare(queues...); err != nil {
		return r, err
	}
	node, err := lab.cluster.Leader(ctx, queues[0].name)
	if err != nil {
		return r, err
	}
	others := lab.without(node)
	length := failAfter + flowAfter
	if f.freeze {
		length += frozen
	}
	l := &load{ledger: newLedger(f.queues, size)}
	for i, q := range queues {
		l.publishers = append(l.publishers, &publisher{
			id: uint32(i), uri: others.uri(i), queues: []string{q.name}, size: size,
			window: failRate * 20, more: during(length), pace: time.Second * time.Duration(f.queues) / failRate,
		})
	}
	published, took, err := f.publish(ctx, l, func() error {
		if f.freeze {
			if err := node.Signal(syscall.SIGSTOP); err != nil {
				return err
			}
			return errors.Join(pause(ctx, frozen), node.Signal(syscall.SIGCONT))
		}
		return node.Kill(ctx)
	})
	if !f.freeze {
		err = errors.Join(err, lab.rejoin(ctx, node))
	}
	if err == nil {
		err = lab.target.drain(ctx, l.ledger, published, queues...)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	var gaps []time.Duration
	for i, p := range l.publishers {
		gaps = append(gaps, p.gap)
		r.Messages += int(published[i])
	}
	r.Times, r.Seconds = quantilesOf(gaps), took.Seconds()
	r.note("longest confirm gap of any queue", r.Times.Max/1e3, "s")
	return r, lab.target.remove(queues...)
}

// publish runs the publishers and, in their midst, fail.
func (f failover) publish(ctx context.Context, l *load, fail func() error) (published []uint64, took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var failing sync.WaitGroup
	var failErr error
	failing.Go(func() {
		if failErr = pause(ctx, failAfter); failErr == nil {
			failErr = fail()
		}
	})
	began := clock()
	published = l.publish(ctx, cancel)
	took = clock() - began
	failing.Wait()
	return published, took, errors.Join(context.Cause(ctx), failErr)
}
