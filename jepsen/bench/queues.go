package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

const (
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

// manyQueues measures a cluster with n queues. onlyPages: how it is looked at, and nothing else.
func (b *bench) manyQueues(n int, onlyPages bool) {
	c := &crowd{bench: b, n: n, laps: max(1, crowdRate*int(crowdPaced.Seconds())/n), base: get(residentBytes(b.pids))}
	c.ledger = newLedger(4 + c.laps)
	c.declareAll()
	if onlyPages {
		c.warm()
		c.readPages()
		return
	}
	c.rest()
	c.freezeOne()
	c.warm()
	c.readPages()
	c.killPaced()
	c.restart(crowdKilled)
	c.killOne()
	c.restart(crowdKilledNext)
	c.last()
}

// crowd is a large number of queues, each of which gets one message per round.
type crowd struct {
	*bench
	n      int
	laps   int     // rounds at a rate
	ledger *ledger // a round is a publisher, a queue its message
	rounds int
	burst  float64 // processor time of a round, per queue, in seconds
	base   float64 // resident memory of all nodes before there were queues
}

func (c *crowd) name(i int) string { return fmt.Sprintf("bench-crowd-%d", i+1) }

func (c *crowd) result(format string) report.Result {
	return report.Result{Name: fmt.Sprintf(format, c.n)}
}

// declareAll creates the queues.
func (c *crowd) declareAll() {
	r := c.result("declare %d queues")
	c.cost(&r, func() int {
		c.spread(func(ch *amqp.Channel, i int) error {
			_, err := ch.QueueDeclare(c.name(i), true, false, false, false, amqp.Table{"x-queue-type": c.queueType})
			return err
		})
		return c.n
	})
	c.keep(r)
}

// spread does something to each queue, on several channels to each node.
func (c *crowd) spread(do func(ch *amqp.Channel, i int) error) {
	ctx, cancel := context.WithTimeout(c.ctx, 5*crowdTimeout)
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	workers := crowdWorkers * len(c.uris)
	for w := range workers {
		all.Go(func() error {
			conn, ch, err := open(ctx, nil, c.uri(w))
			if err != nil {
				return err
			}
			defer conn.Close()
			// A call that is never answered ends with the connection.
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			for i := w; i < c.n && ctx.Err() == nil; i += workers {
				if err := do(ch, i); err != nil {
					return fmt.Errorf("%s: %w", c.name(i), err)
				}
			}
			return nil
		})
	}
	must(all.Wait())
}

// rest measures the cost of unused queues.
func (c *crowd) rest() {
	r := c.result("idle with %d queues")
	c.pause(crowdRest)
	cpu, wakes := get(cpuSeconds(c.pids)), get(contextSwitches(c.pids))
	c.pause(crowdIdle)
	cpu, wakes = get(cpuSeconds(c.pids))-cpu, get(contextSwitches(c.pids))-wakes
	nodes := float64(len(c.pids))
	r.Seconds, r.PeakRSS = crowdIdle.Seconds(), get(residentBytes(c.pids))
	r.Note("processor time of all nodes", cpu/crowdIdle.Seconds()*100, "% of one core")
	r.Note("threads of a node wake up", wakes/crowdIdle.Seconds()/nodes, "times a second")
	r.Note("resident memory per queue and node", (r.PeakRSS-c.base)/float64(c.n)/nodes/1024, "KiB")
	c.keep(r)
}

// freezeOne stops a node for a moment while nothing happens, and measures what elections that causes: a
// false alarm.
func (c *crowd) freezeOne() {
	r := report.Result{Name: fmt.Sprintf("a node is frozen for %v, %d queues without load", crowdFrozen, c.n)}
	before, cpu := c.terms(), get(cpuSeconds(c.pids))
	pid, began := c.pids[crowdKilled], clock()
	must(syscall.Kill(pid, syscall.SIGSTOP))
	must(errors.Join(pause(c.ctx, crowdFrozen), syscall.Kill(pid, syscall.SIGCONT), pause(c.ctx, crowdThaw)))
	r.Seconds = (clock() - began).Seconds()
	noteGrowth(&r, before, c.terms())
	noteProcessor(&r, c.target, cpu)
	c.keep(r)
}

// noteProcessor records the processor time of the nodes since they had used before.
func noteProcessor(r *report.Result, t *target, before float64) (used float64) {
	used = get(cpuSeconds(t.pids)) - before
	r.Note("processor time of all nodes", used, "s")
	return used
}

// sent is what became of messages to all queues in turn, in rounds.
type sent struct{ published, confirmed []time.Duration }

// waits returns how long each queue waited for a confirm, at most.
func (s *sent) waits(queues int) []time.Duration {
	longest := make([]time.Duration, queues)
	for m, at := range s.confirmed {
		longest[m%queues] = max(longest[m%queues], at-s.published[m])
	}
	return longest
}

// send publishes a message to each queue in so many rounds, a publisher per node of t, and returns when all
// are confirmed. rate is that of all publishers together, in messages a second; 0: as fast as they can.
func (c *crowd) send(t *target, rounds, rate int) sent {
	ctx, cancel := context.WithTimeout(c.ctx, crowdTimeout)
	defer cancel()
	s := sent{make([]time.Duration, rounds*c.n), make([]time.Duration, rounds*c.n)}
	errs := make([]error, len(t.uris))
	var all sync.WaitGroup
	for k := range t.uris {
		all.Go(func() { errs[k] = c.publish(ctx, t.uris[k], k, len(t.uris), rate, &s) })
	}
	all.Wait()
	must(errors.Join(errs...))
	for range rounds {
		c.ledger.entries[c.rounds].confirmed = uint64(c.n)
		c.rounds++
	}
	return s
}

// publish sends the messages of one publisher. The confirm of one queue does not wait for that of another, as a
// client's do.
func (c *crowd) publish(ctx context.Context, uri string, first, step, rate int, s *sent) error {
	conn, ch, err := open(ctx, client.Gather, uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	refused := make([]error, len(s.confirmed))
	var waiting sync.WaitGroup
	began := clock()
	for m := first; m < len(refused); m += step {
		if rate > 0 {
			if refused[m] = pause(ctx, began+time.Duration(m)*time.Second/time.Duration(rate)-clock()); refused[m] != nil {
				break
			}
		}
		s.published[m] = clock()
		confirm, err := ch.PublishWithDeferredConfirm("", c.name(m%c.n), false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: client.Brief(nil, keyOf(c.rounds+m/c.n, uint64(m%c.n)), smallSize)})
		if err != nil {
			refused[m] = err
			break
		}
		waiting.Go(func() {
			ok, err := confirm.WaitContext(ctx)
			if s.confirmed[m] = clock(); err == nil && !ok {
				err = errNacked
			}
			refused[m] = err
		})
	}
	waiting.Wait()
	for m, err := range refused {
		if err != nil {
			_ = conn.Close() // so that the reason is known
			return errors.Join(fmt.Errorf("%s: %w", c.name(m%c.n), err), fmt.Errorf("closed: %v", <-closed))
		}
	}
	return nil
}

// measured records how long after began the queues confirmed.
func (c *crowd) measured(r *report.Result, began time.Duration, s sent) {
	for i := range s.confirmed {
		s.confirmed[i] -= began
	}
	r.Times = report.QuantilesOf(s.confirmed)
	r.Messages, r.Seconds = float64(c.n), r.Times.Max/1e3
	r.PerSecond = r.Messages / r.Seconds
}

// warm is a round that the next one is compared with.
func (c *crowd) warm() {
	r := c.result("one message to each of %d queues")
	cpu, began := get(cpuSeconds(c.pids)), clock()
	c.measured(&r, began, c.send(c.target, 1, 0))
	c.burst = noteProcessor(&r, c.target, cpu) / float64(c.n)
	c.keep(r)
}

// killPaced kills a node that has rested with its queues while messages go to all queues in turn, and
// measures how long each queue waited for a confirm.
func (c *crowd) killPaced() {
	r := report.Result{Name: fmt.Sprintf("a node is killed at %d msg/s to all of %d queues in turn", crowdRate, c.n)}
	c.pause(crowdCalm)
	before, others := c.terms(), c.without(crowdKilled)
	cpu, began := get(cpuSeconds(others.pids)), clock()
	var killing errgroup.Group
	killing.Go(func() error { return errors.Join(pause(c.ctx, crowdBefore), c.on.kill(c.ctx, crowdKilled)) })
	s := c.send(others, c.laps, crowdRate)
	must(killing.Wait())
	noteProcessor(&r, others, cpu)
	r.Messages, r.Seconds, r.Times = float64(c.laps*c.n), (clock() - began).Seconds(), report.QuantilesOf(s.waits(c.n))
	r.Note("99 % of the queues waited at most", r.Times.P99/1e3, "s")
	r.Note("all queues waited at most", r.Times.Max/1e3, "s")
	noteGrowth(&r, before, c.terms())
	c.keep(r)
}

// killOne kills a node and measures when each queue confirms again, counted from that moment, and
// how many elections that took.
func (c *crowd) killOne() {
	r := c.result("the same from the moment a node is killed, %d queues")
	before, others := c.terms(), c.without(crowdKilledNext)
	cpu, began := get(cpuSeconds(others.pids)), clock()
	must(c.on.kill(c.ctx, crowdKilledNext))
	s := c.send(others, 1, 0)
	used := noteProcessor(&r, others, cpu)
	c.measured(&r, began, s)
	r.Note("99 % of the queues confirm after", r.Times.P99/1e3, "s")
	r.Note("all queues confirm after", r.Times.Max/1e3, "s")
	if grown := noteGrowth(&r, before, c.terms()); grown > 0 {
		r.Note("processor time beyond that of the round without a failure, per queue that has elected", (used-c.burst*float64(c.n))/float64(grown)*1e3, "ms")
	}
	c.keep(r)
}

// terms asks the running nodes for the raft term of each queue: the highest one known by any of its
// replicas.
func (c *crowd) terms() map[string]uint64 {
	terms := map[string]uint64{}
	for _, n := range c.own.Nodes {
		if !n.Alive() {
			continue
		}
		for _, r := range get(n.Replicas(c.ctx)) {
			terms[r.Name] = max(terms[r.Name], r.Term)
		}
	}
	return terms
}

// noteGrowth records how many queues' terms grew by how much. Without a failure a term stays; an
// election that succeeds at once makes it grow by one. It returns how many have grown.
func noteGrowth(r *report.Result, before, after map[string]uint64) (grown int) {
	queues := map[uint64]int{}
	for name, term := range after {
		queues[max(term, before[name])-before[name]]++
	}
	for _, by := range slices.Sorted(maps.Keys(queues)) {
		r.Note(fmt.Sprintf("raft terms grew by %d in", by), float64(queues[by]), "queues")
	}
	return len(after) - queues[0]
}

func (c *crowd) restart(node int) {
	r := c.result("restart of a node with %d queues")
	began := clock()
	must(c.on.rejoin(c.ctx, node))
	r.Seconds = (clock() - began).Seconds()
	r.Note("serves again after", r.Seconds, "s")
	c.keep(r)
}

// last sends one more message to each queue, then takes all messages in them.
func (c *crowd) last() {
	r := c.result("one message through each of %d queues")
	c.cost(&r, func() int {
		c.send(c.target, 1, 0)
		c.spread(func(ch *amqp.Channel, i int) error {
			for range c.rounds + 1 {
				d, ok, err := ch.Get(c.name(i), true)
				if err != nil || !ok {
					return err
				}
				key, _ := client.Key(d.Body)
				c.ledger.take(key)
			}
			return fmt.Errorf("more than %d messages", c.rounds)
		})
		return c.n
	})
	must(c.ledger.check())
	c.keep(r)
}

// pageTries is how often each page is read. The first reading is left out: it opens the connection.
const pageTries = 9

// tabled are the columns of the console's list of queues.
const tabled = "vhost,name,state,leader,online,members,messages_ready,messages_unacknowledged,messages_scheduled,messages_delayed_retry,messages_locked," +
	"next_expiry_at,lease_expires_at,consumers,consumers_timed_out,messages_expired_total,message_stats.publish_details,message_stats.deliver_get_details,policy,operator_policy"

// pages are read with many queues. What they cost depends on what is asked of whom. Those of the metrics listener
// are the last two.
var pages = []struct{ name, path string }{
	{"page of queues, as the console asks, by name", "/api/queues?page=1&page_size=50&sort=name&columns=" + tabled},
	{"page of queues, as the console asks, by ready messages", "/api/queues?page=1&page_size=50&sort=messages_ready&sort_reverse=true&columns=" + tabled},
	{"page of queues, as the console asks, by rate", "/api/queues?page=1&page_size=50&sort=message_stats.publish_details.rate&sort_reverse=true&columns=" + tabled},
	{"page of 500 queues, all columns", "/api/queues?page=1&page_size=500"},
	{"page of 100 queues, filtered by a pattern", "/api/queues?page=1&page_size=100&name=9$&use_regex=true&sort=name"},
	{"one queue", "/api/queues/%2F/bench-crowd-1"},
	{"all queues without stats", "/api/queues?disable_stats=true&enable_queue_totals=true"},
	{"all queues, all columns", "/api/queues"},
	{"overview", "/api/overview"},
	{"vhosts", "/api/vhosts"},
	{"page of bindings", "/api/bindings?page=1&page_size=100"},
	{"page of consumers", "/api/consumers?page=1&page_size=100"},
	{"/metrics", "/metrics"},
	{"/metrics/per-object", "/metrics/per-object"},
}

// readPages measures how long pages of the HTTP API and scrapes take.
func (c *crowd) readPages() {
	r := c.result("HTTP with %d queues")
	scraped, began := get(c.own.Nodes[0].Metrics()), clock()
	for _, p := range pages {
		url := "http://" + c.own.Nodes[0].HTTP + p.path
		if strings.HasPrefix(p.path, "/metrics") {
			url = "http://" + scraped + p.path
		}
		var took []time.Duration
		var body []byte
		for i := range pageTries + 1 {
			began := clock()
			if body = get(fetch(c.ctx, url)); i > 0 {
				took = append(took, clock()-began)
			}
		}
		q := report.QuantilesOf(took)
		r.Note(p.name+": median", q.P50, "ms")
		r.Note(p.name+": longest", q.Max, "ms")
		r.Note(p.name+": size", float64(len(body))/1024, "KiB")
	}
	r.Seconds = (clock() - began).Seconds()
	c.keep(r)
}

func fetch(ctx context.Context, url string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth("guest", "guest")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", url, answer.Status, strings.TrimSpace(string(body[:min(len(body), 200)])))
	}
	return body, err
}
