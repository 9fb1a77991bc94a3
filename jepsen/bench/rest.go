package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/report"
)

const (
	// crowdFrozen is how long a node is frozen, which the others notice.
	crowdFrozen = 1500 * time.Millisecond
	// wakeBatch is how many queues get a first message before they get a second one: few enough that none
	// rests again in between.
	wakeBatch = 200
)

// memory measures what queues hold in memory at rest, and when each has just had a message.
func (c *crowd) memory() {
	c.settle()
	nodes := len(c.pids)
	r := c.result("memory of %d queues at rest", c.queues)
	unused := c.footprint()
	unused.note(&r, c.empty, c.queues, nodes)
	if c.used == c.queues {
		unused = c.empty // all that a queue in use takes
	}
	c.keep(r)
	r = c.result("memory of %d queues after a message to each", c.used)
	began := clock()
	c.send(c.target, c.used, c.used, 0)
	r.Messages, r.Seconds = float64(c.used), (clock() - began).Seconds()
	c.footprint().note(&r, unused, c.used, nodes)
	c.keep(r)
}

// idleness is what nodes use while nothing happens: of a core, all of them, and how often threads of a node wake
// up in a second.
type idleness struct{ processor, wakes float64 }

func (c *crowd) idleness() idleness {
	c.calm(calmTimeout)
	cpu, wakes := get(cpuSeconds(c.pids)), get(contextSwitches(c.pids))
	c.pause(c.idleFor)
	cpu, wakes = get(cpuSeconds(c.pids))-cpu, get(contextSwitches(c.pids))-wakes
	return idleness{cpu / c.idleFor.Seconds(), wakes / c.idleFor.Seconds() / float64(len(c.pids))}
}

// unused measures the cost of queues that nobody uses.
func (c *crowd) unused() {
	r := c.result("idle with %d queues", c.queues)
	c.pause(c.restFor)
	i := c.idleness()
	r.Seconds, r.PeakRSS = c.idleFor.Seconds(), get(residentBytes(c.pids))
	r.Note("processor time of all nodes", i.processor*100, "% of one core")
	r.Note("processor time of all nodes without queues", c.emptyIdle.processor*100, "% of one core")
	r.Note("threads of a node wake up", i.wakes, "times a second")
	r.Note("threads of a node wake up without queues", c.emptyIdle.wakes, "times a second")
	r.Note("goroutines per node", c.counts()[goroutines]/float64(len(c.pids)), "")
	c.keep(r)
}

// freezeOne stops a node for a moment while nothing happens, and measures what elections that causes: a
// false alarm.
func (c *crowd) freezeOne() {
	c.settle()
	r := c.result("a node is frozen for %v, %d queues without load", crowdFrozen, c.queues)
	before, led, cpu := c.terms(), c.led(c.own.Nodes[crowdKilled]), get(cpuSeconds(c.pids))
	pid, began := c.pids[crowdKilled], clock()
	must(syscall.Kill(pid, syscall.SIGSTOP))
	must(errors.Join(pause(c.ctx, crowdFrozen), syscall.Kill(pid, syscall.SIGCONT), pause(c.ctx, c.thaw)))
	r.Seconds = (clock() - began).Seconds()
	noteProcessor(&r, c.target, cpu)
	r.Note("queues that the node led", float64(len(led)), "")
	noteGrowth(&r, "queues", before, c.terms())
	c.keep(r)
}

// noteProcessor records the processor time of the nodes since they had used before.
func noteProcessor(r *report.Result, t *target, before float64) (used float64) {
	used = get(cpuSeconds(t.pids)) - before
	r.Note("processor time of all nodes", used, "s")
	return used
}

// noteGrowth records how many queues' terms grew by how much. Without a failure a term stays; an
// election that succeeds at once makes it grow by one. It returns how many have grown.
func noteGrowth(r *report.Result, what string, before, after map[string]uint64) (grown int) {
	queues := map[uint64]int{}
	for name, term := range after {
		queues[max(term, before[name])-before[name]]++
	}
	for _, by := range slices.Sorted(maps.Keys(queues)) {
		r.Note(fmt.Sprintf("raft terms grew by %d in", by), float64(queues[by]), what)
	}
	return len(after) - queues[0]
}

// wake publishes to queues at rest, one message at a time, and another one while they are awake. The difference
// is what waking costs.
func (c *crowd) wake() {
	c.settle()
	n := min(c.lone, c.queues)
	for i := range n {
		c.has[i] = true
	}
	asleep, awake := c.result("first message to each of %d queues at rest", n), c.result("second message to each of %d queues", n)
	before := c.terms()
	asleep.Note("goroutines per node", c.counts()[goroutines]/float64(len(c.pids)), "")
	conn, ch, err := open(c.ctx, nil, c.uri(0))
	must(err)
	defer conn.Close()
	must(ch.Confirm(false))
	rows := []*report.Result{&asleep, &awake}
	times, cpu, rounds := make([][]time.Duration, 2), make([]float64, 2), []int{c.round(n), c.round(n)}
	spent := []map[string]float64{{}, {}}
	for from := 0; from < n; from += wakeBatch {
		for k := range rows {
			counts, used, began := c.counts(), get(cpuSeconds(c.pids)), clock()
			for i := from; i < min(n, from+wakeBatch); i++ {
				times[k] = append(times[k], get(c.lonely(ch, rounds[k], i)))
			}
			rows[k].Seconds += (clock() - began).Seconds()
			cpu[k] += get(cpuSeconds(c.pids)) - used
			for name, v := range c.counts() {
				spent[k][name] += v - counts[name]
			}
		}
	}
	for k, r := range rows {
		r.Messages, r.Times = float64(n), report.QuantilesOf(times[k])
		r.PerSecond, r.ServerCPU = r.Messages/r.Seconds, cpu[k]/float64(n)*1e6
		c.noteCounts(r, "message", nil, spent[k])
	}
	asleep.Note("processor time of all nodes beyond that of the second message", (cpu[0]-cpu[1])/float64(n)*1e3, "ms")
	asleep.Note("later than the second message, p50", asleep.Times.P50-awake.Times.P50, "ms")
	noteGrowth(&asleep, "queues", before, c.terms())
	c.keep(asleep, awake)
}

// lonely publishes one message and returns how long its confirm took.
func (c *crowd) lonely(ch *amqp.Channel, round, queue int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(c.ctx, crowdTimeout)
	defer cancel()
	began := clock()
	confirm, err := ch.PublishWithDeferredConfirm("", c.name(queue), false, false, c.message(round, queue))
	if err == nil {
		err = confirmed(ctx, confirm)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name(queue), err)
	}
	return clock() - began, nil
}
