package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
)

// hungDisk is the prefix of the names of the runs in which a disk hangs.
const hungDisk = "failover, disk of the leader hung"

const (
	// failAfter is how long messages flow before a node fails.
	failAfter = 2 * time.Second
	// frozen is how long a node that is not killed is suspended.
	frozen = 10 * time.Second
	// flowAfter is how long messages flow on afterwards.
	flowAfter = 3 * time.Second
	// failTimeout bounds the run up to the last confirm.
	failTimeout = 2 * time.Minute
	// failRate is how many messages a second flow through all queues together.
	failRate = 2000
)

var errNoFailover = errors.New("not everything is confirmed " + failTimeout.String() + " after the start")

// faulty is a cluster of which a node can be made to fail.
type faulty interface {
	// clients is how all nodes are reached; its process ids follow restarts.
	clients() *target
	// leader is the number, from 0, of the node that leads a queue.
	leader(ctx context.Context, queue string) (int, error)
	kill(ctx context.Context, node int) error
	// rejoin starts a killed node and waits until it serves clients.
	rejoin(ctx context.Context, node int) error
}

// failover is a run in which the node that leads a queue fails.
type failover struct {
	queues int
	freeze bool // with SIGSTOP, for a time; otherwise it is killed
	// disks, by node: that of the leader hangs for a time, instead. nil: none does.
	disks []*cluster.Disk
}

// lives says that the node continues by itself.
func (f failover) lives() bool { return f.freeze || f.disks != nil }

func (f failover) name() string {
	if f.disks != nil {
		return fmt.Sprintf("%s, %d queues", hungDisk, f.queues)
	}
	if f.freeze {
		return fmt.Sprintf("failover, leader frozen, %d queues", f.queues)
	}
	return fmt.Sprintf("failover, leader killed, %d queues", f.queues)
}

// run measures the longest time that a publisher connected to another node
// waits for a confirm. What was confirmed is consumed when all nodes are back.
func (f failover) run(ctx context.Context, on faulty) (result, error) {
	r := result{Name: f.name()}
	var queues []queue
	for i := range f.queues {
		queues = append(queues, queue{name: fmt.Sprintf("bench-failover-%d", i+1)})
	}
	if err := on.clients().declare(queues...); err != nil {
		return r, err
	}
	node, err := on.leader(ctx, queues[0].name)
	if err != nil {
		return r, err
	}
	l := f.load(on.clients().without(node), queues)
	published, took, err := f.publish(ctx, l, func() error { return f.fail(ctx, on, node) })
	if !f.lives() {
		err = errors.Join(err, on.rejoin(ctx, node))
	}
	if err == nil {
		err = on.clients().drain(ctx, l.ledger, published, queues...)
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
	return r, on.clients().remove(queues...)
}

// load is a publisher for each queue, which share the rate.
func (f failover) load(others *target, queues []queue) *load {
	const size = 1024
	length := failAfter + flowAfter
	if f.lives() {
		length += frozen
	}
	l := &load{ledger: newLedger(f.queues, size)}
	for i, q := range queues {
		l.publishers = append(l.publishers, &publisher{
			id: uint32(i), uri: others.uri(i), queues: []string{q.name}, size: size,
			window: failRate * 20, more: during(length), interval: time.Second * time.Duration(f.queues) / failRate,
		})
	}
	return l
}

func (f failover) fail(ctx context.Context, on faulty, node int) error {
	if f.disks != nil {
		if err := f.disks[node].Hang(); err != nil {
			return err
		}
		return errors.Join(pause(ctx, frozen), f.disks[node].Go())
	}
	if !f.freeze {
		return on.kill(ctx, node)
	}
	pid := on.clients().pids[node]
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(pause(ctx, frozen), syscall.Kill(pid, syscall.SIGCONT))
}

// publish runs the publishers and, in the middle, fail.
func (f failover) publish(ctx context.Context, l *load, fail func() error) (published []uint64, took time.Duration, err error) {
	ctx, stop := context.WithTimeoutCause(ctx, failTimeout, errNoFailover)
	defer stop()
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
