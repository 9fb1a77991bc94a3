package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	// crowdKilled is the number, counted from 0, of the node that is killed.
	crowdKilled = 1
	// crowdQuiet is how long after a node was killed only those queues that somebody uses should have had an
	// election.
	crowdQuiet = 4 * time.Second
	// replicas is how many a queue has.
	replicas = 3
	// crowdLevel is how often it is checked whether a node that is back has what it missed.
	crowdLevel = 100 * time.Millisecond
)

// coldKill kills a node while all queues rest but those that messages at a fixed rate have come to.
func (c *crowd) coldKill() {
	c.outage("a node is killed at %d msg/s to all of %d queues in turn", c.used, c.rate)
}

// hotKill kills a node while some queues are busy, each with a message a second at least, and the others rest.
func (c *crowd) hotKill() {
	n := min(c.busy, c.queues)
	c.outage(fmt.Sprintf("a node is killed at %%d msg/s to %%d of %d queues in turn", c.queues), n, max(c.rate, n))
}

// outage kills a node that has rested with its queues while messages go to some queues in turn,
// measures how long each of them waited for a confirm, and starts the node again.
func (c *crowd) outage(name string, queues, rate int) {
	r := c.result(name, rate, queues)
	c.settle()
	before, led, others := c.terms(), c.led(c.own.Nodes[crowdKilled]), c.without(crowdKilled)
	sum := c.counts()[termSum] - c.countsOf(c.own.Nodes[crowdKilled])[termSum]
	cpu, began := get(cpuSeconds(others.pids)), clock()
	var killed time.Duration
	var early float64
	var killing errgroup.Group
	killing.Go(func() error {
		return try(func() {
			must(errors.Join(pause(c.ctx, c.before), c.on.kill(c.ctx, crowdKilled)))
			killed = clock()
			c.pause(crowdQuiet)
			early = c.counts()[termSum] - sum
		})
	})
	s := c.send(others, queues, max(queues, rate*int(c.paced/time.Second)), rate)
	must(killing.Wait())
	noteProcessor(&r, others, cpu)
	r.Messages, r.Seconds = float64(len(s.confirmed)), (clock() - began).Seconds()
	waits, orphans := s.waits(queues), map[int]bool{}
	for m, at := range s.published {
		if q := m % queues; at > killed && at < killed+crowdQuiet && led[c.name(c.spaced(q, queues))] {
			orphans[q] = true
		}
	}
	r.Note("queues that the node led", float64(len(led)), "")
	r.Note(fmt.Sprintf("… of which got a message within %v", crowdQuiet), float64(len(orphans)), "")
	r.Note(fmt.Sprintf("raft terms grew within %v, on average of the other nodes, by", crowdQuiet), early/float64(len(others.pids)), "in all queues together")
	r.Times = report.QuantilesOf(waits)
	r.Note("99 % of the queues waited at most", r.Times.P99/1e3, "s")
	r.Note("all queues waited at most", r.Times.Max/1e3, "s")
	c.noteTerms(&r, queues, before)
	c.keep(r)
	c.back("a node is back that has missed what %d queues did", queues)
}

// noteTerms records how raft terms grew in so many queues, which had messages, and in the others.
func (c *crowd) noteTerms(r *report.Result, used int, before map[string]uint64) (grown int) {
	with, without := map[string]uint64{}, c.terms()
	for i := range used {
		name := c.name(c.spaced(i, used))
		with[name] = without[name]
		delete(without, name)
	}
	grown = noteGrowth(r, "queues", before, with)
	if len(without) > 0 {
		grown += noteGrowth(r, "queues without messages", before, without)
	}
	return grown
}

// back starts the killed node again, and measures when it serves clients and, if every node has a replica of every
// queue, when its logs are as long as those of the others were. Then leaders are spread over the nodes as before.
func (c *crowd) back(format string, args ...any) {
	r := c.result(format, args...)
	goal := 0.0
	for _, n := range c.running() {
		goal = max(goal, c.countsOf(n)[logSum])
	}
	ctx, cancel := context.WithTimeout(c.ctx, rejoinTimeout)
	defer cancel()
	began := clock()
	must(c.on.rejoin(ctx, crowdKilled))
	r.Seconds = (clock() - began).Seconds()
	r.Note("serves again after", r.Seconds, "s")
	if len(c.own.Nodes) == replicas {
		must(await.Until(ctx, crowdLevel, "what the node has missed", func() (level bool, err error) {
			err = try(func() { level = c.countsOf(c.own.Nodes[crowdKilled])[logSum] >= goal })
			return level, err
		}))
		r.Note("has all entries of the others after", (clock() - began).Seconds(), "s")
	}
	c.keep(r)
	get(fetch(c.ctx, http.MethodPost, "http://"+c.own.Nodes[0].HTTP+"/api/rebalance/queues"))
}

// burst publishes a message to every queue at once, without a failure and from the moment a node is killed.
func (c *crowd) burst() {
	others := c.without(crowdKilled)
	c.settle()
	calm := c.result("one message to each of %d queues at once", c.used)
	usedCalm := c.roundOf(&calm, others, func() {})
	c.keep(calm)
	c.settle()
	r := c.result("the same from the moment a node is killed, %d queues", c.queues)
	before, led := c.terms(), c.led(c.own.Nodes[crowdKilled])
	used := c.roundOf(&r, others, func() { must(c.on.kill(c.ctx, crowdKilled)) })
	r.Note("99 % of the queues confirm after", r.Times.P99/1e3, "s")
	r.Note("all queues confirm after", r.Times.Max/1e3, "s")
	r.Note("99 % later than without a failure", (r.Times.P99-calm.Times.P99)/1e3, "s")
	r.Note("all later than without a failure", (r.Times.Max-calm.Times.Max)/1e3, "s")
	r.Note("queues that the node led", float64(len(led)), "")
	if grown := c.noteTerms(&r, c.used, before); grown > 0 {
		r.Note("processor time beyond that of the round without a failure, per queue that has elected", (used-usedCalm)/float64(grown)*1e3, "ms")
	}
	c.keep(r)
	c.back("a node is back that has missed what %d queues did at once", c.queues)
}

// roundOf measures one message to each queue, counted from when first is about to happen, and returns the
// processor time of the nodes.
func (c *crowd) roundOf(r *report.Result, t *target, first func()) (used float64) {
	cpu, began := get(cpuSeconds(t.pids)), clock()
	first()
	s := c.send(t, c.used, c.used, 0)
	used = noteProcessor(r, t, cpu)
	for i := range s.confirmed {
		s.confirmed[i] -= began
	}
	r.Times = report.QuantilesOf(s.confirmed)
	r.Messages, r.Seconds = float64(c.used), r.Times.Max/1e3
	r.PerSecond = r.Messages / r.Seconds
	return used
}

// restart kills a node while nothing happens, and starts it again at once.
func (c *crowd) restart() {
	c.settle()
	must(c.on.kill(c.ctx, crowdKilled))
	c.back("restart of a node with %d queues at rest", c.queues)
}
