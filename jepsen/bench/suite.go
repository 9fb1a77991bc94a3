package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
)

// commonSteps are those that any broker can run.
func (b *bench) commonSteps(duration time.Duration) (all []step) {
	for _, size := range []int{1024, 100, 10 << 10} {
		for _, queues := range []int{1, 10} {
			s := defaultShape
			s.queues, s.size, s.duration = queues, size, duration
			all = append(all, step{fmt.Sprintf("throughput, %d queues, %d bytes", queues, size), func() { b.keep(b.throughput(s)) }})
		}
	}
	all = append(all, step{"latency", func() { b.keep(b.latency(during(duration), 1024)) }})
	for _, rate := range []int{200, 2000, 10_000} {
		all = append(all, step{fmt.Sprintf("rate %d", rate), func() { b.keep(b.fixedRate(during(duration), 1024, rate)) }})
	}
	return all
}

// ttlSteps let n messages expire: with one TTL, and with TTLs drawn from a range.
func (b *bench) ttlSteps(n int, one, from, to time.Duration) []step {
	return []step{
		{"ttl one", func() { b.keep(b.lateness(n, one, one)) }},
		{"ttl mixed", func() { b.keep(b.lateness(n, from, to)) }},
	}
}

func (b *bench) failoverSteps(all ...failover) (steps []step) {
	for _, f := range all {
		steps = append(steps, step{f.name(), func() { b.keep(b.failover(f)) }})
	}
	return steps
}

// suiteFlags adds the flags of the whole set of measurements on a cluster.
func suiteFlags(f flags, l *lab) func(*bench) {
	f.nodes(l)
	duration := f.Duration("duration", 10*time.Second, "how `long` each throughput run publishes")
	rounds, only := f.rounds(), f.only()
	number := func(name string, n, limit int, usage string) *int { return f.number(name, n, 0, limit, usage) }
	waiting := number("backlog", 1_000_000, unbounded, "`messages` left waiting in the backlog run; 0: no such run")
	passed := number("pinned", 1_000_000, unbounded, "`messages` passed through behind the pinned one; 0: no such run")
	expiring := number("mortal", 1_000_000, unbounded, "`messages` that die at once in the runs expiry; 0: no such runs")
	slow := number("timeouts", 10_000, maxSlow, "`consumers` that time out at once in the run timeouts; 0: no such run")
	queues := f.number("queues", 10_000, 1, 1_000_000, "`number` of queues in the run queues, which -only asks for")
	away := f.Duration("away", time.Minute, "how `long` a follower is away in the run follower away; 0: no such run")
	behind := number("away-backlog", 1_000_000, unbounded, "`messages` that wait meanwhile")
	restarts := number("restart-queues", 300, unbounded, "`number` of queues in the run restart of all; 0: no such run")
	later := number("scheduled", 1_000_000, unbounded, "`messages` that wait until much later in the run scheduled; 0: no such run")
	locks := number("locks", 100_000, unbounded, "`locks` held at the same time in the runs locks; 0: no such runs")
	groups := number("groups", 100_000, unbounded, "`groups` in the run groups; 0: no such run")
	onward := number("forward", 100_000, unbounded, "`messages` of each of the runs forward; 0: no such runs")
	return func(b *bench) {
		if *only == "queues" {
			crowd := defaultCrowd
			crowd.queues = *queues
			b.manyQueues(crowd)
			return
		}
		s := defaultShape
		s.duration = *duration
		all := slices.Concat(b.commonSteps(*duration), b.protocolSteps(*duration, true), b.serviceBusSteps(*duration), b.ttlSteps(10_000, 5*time.Second, time.Second, 30*time.Second),
			b.failoverSteps(failover{queues: 1}, failover{queues: 10}, failover{queues: 1, freeze: true}, failover{queues: 10, freeze: true}))
		for _, st := range []struct {
			n int // 0: no such run
			step
		}{
			{1, step{"wrong logins", func() { b.keep(b.wrongLogins(3 * *duration)) }}},
			{1, step{hungDisk, func() { b.hang(1) }}},
			{1, step{"hold", func() { b.heldThroughKill(10_000, 100*time.Millisecond, 20*time.Second) }}},
			{*expiring, step{"expiry", func() { b.keep(b.expireAll(*expiring, false)) }}},
			{*expiring, step{"expiry", func() { b.keep(b.expireAll(*expiring, true)) }}},
			{*slow, step{"timeouts", func() { b.keep(b.timeouts(*slow)) }}},
			{*later, step{"scheduled", func() { b.keep(b.scheduled(*later, soonMessages)) }}},
			{*locks / lockQueues, step{"locks", func() { b.renewedLocks(*locks, 3) }}},
			{*locks, step{"with locks", func() { b.lockedThroughput(s) }}},
			{*groups, step{"groups", func() { b.keep(b.groups(*groups)) }}},
			{*onward, step{"forward", func() { b.forwarded(*onward) }}},
			{int(*away), step{"follower away", func() { b.keep(b.followerAway(*behind, *away)) }}},
			{*restarts, step{"restart of all", func() { b.keep(b.restartOfAll(*restarts)) }}},
			{*passed, step{"pinned", func() { b.keep(b.pinned(*passed, s.size, b.data)) }}},
			{*waiting, step{"backlog", func() {
				b.backlog(*waiting, s.size, func(queue string, r *report.Result) {
					b.restart(queue, *waiting, b.own.Nodes[:1], "one node serves again after", r)
					b.restart(queue, *waiting, b.own.Nodes, "the whole cluster serves again after", r)
				})
			}}},
		} {
			if st.n > 0 {
				all = append(all, st.step)
			}
		}
		b.warmUp(warmTime)
		b.rounds(*rounds, func() { b.steps(*only, calmTimeout, all) })
	}
}

// lockedThroughput measures the same throughput without locks and with them.
func (b *bench) lockedThroughput(s shape) {
	without := b.throughput(s)
	s.consume = amqp.Table{"x-lock-duration": time.Minute.Milliseconds()}
	with := b.throughput(s)
	without.Name, with.Name = "throughput without locks", "throughput with locks"
	for _, r := range []*report.Result{&without, &with} {
		r.Name += fmt.Sprintf(", %d queues, %d bytes", s.queues, s.size)
	}
	with.Note("of that without", 100*with.PerSecond/without.PerSecond, "%")
	b.keep(without, with)
}

// restart kills nodes, starts them again, and measures the time from the start until each answers
// for the queue with its n messages.
func (b *bench) restart(queue string, n int, nodes []*cluster.Node, name string, r *report.Result) {
	for _, node := range nodes {
		must(node.Kill(b.ctx))
	}
	began := clock()
	for _, node := range nodes {
		must(node.Restart())
	}
	defer b.own.findProcesses()
	ctx, cancel := context.WithTimeout(b.ctx, cluster.StartTimeout)
	defer cancel()
	for _, node := range nodes {
		must(node.AwaitReady(ctx))
		must(await.Until(ctx, 20*time.Millisecond, fmt.Sprintf("the %d messages at node %d", n, node.Number), func() (all bool, err error) {
			err = try(func() { all = b.readyAt(node.URI(), queue) == n })
			return all, err
		}))
	}
	r.Note(name, (clock() - began).Seconds(), "s")
}
