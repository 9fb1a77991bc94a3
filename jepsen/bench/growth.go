package main

import (
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

// growth measures what a message costs as queues and backlogs grow: always the same number of
// messages a second, through more queues or past more waiting messages.
type growth struct {
	*bench
	rate int // messages a second over all queues
	size int
	n    int // messages of a row
}

// growthCalm is how long the servers may take to become idle before a row: after ten million
// messages they have much to delete.
const growthCalm = 90 * time.Second

func growthFlags(f flags, _ *lab) func(*bench) {
	rate, size := f.number("rate", 5000, 10, 1_000_000, "`messages` a second over all queues"), f.size(smallSize)
	duration, rounds := f.Duration("duration", 10*time.Second, "how `long` each row takes"), f.rounds()
	queues := f.numbers("queues", []int{1, 10, 100, 1000}, 1, 10_000, "comma-separated `numbers` of active queues; empty: no such row")
	backlogs := f.numbers("backlogs", []int{0, 100_000, 1_000_000, 10_000_000}, 0, 100_000_000, "comma-separated `numbers` of messages waiting; empty: no such row")
	return func(b *bench) {
		g := &growth{b, *rate, *size, int(duration.Seconds() * float64(*rate))}
		b.warmUp(warmTime)
		round := 0
		b.rounds(*rounds, func() {
			round++
			b.label = fmt.Sprintf("round %d of %d: ", round, *rounds)
			for _, n := range *queues {
				b.keep(g.active(n))
			}
			for _, n := range *backlogs {
				b.keep(g.waiting(n))
			}
		})
	}
}

// row waits until the servers are idle, measures run, and adds how many log entries of the queues a
// message took.
func (g *growth) row(r *report.Result, queues []queue, run func()) {
	before, idle := g.applied(queues), g.calm(growthCalm)
	run()
	r.Note("log entries per message", float64(g.applied(queues)-before)/r.Messages, "")
	r.Note("processor time of all nodes at rest before", idle*100, "% of one core")
}

// applied is the number of entries in the logs of the queues so far.
func (g *growth) applied(queues []queue) (sum uint64) {
	index := map[string]uint64{}
	for _, n := range g.own.Nodes {
		for _, r := range get(n.Replicas(g.ctx)) {
			index[r.Name] = max(index[r.Name], r.AppliedIndex)
		}
	}
	for _, q := range queues {
		sum += index[q.name]
	}
	return sum
}

// active spreads the messages over n queues: a publisher and a connection with consumers per node,
// each with its part of the queues.
func (g *growth) active(n int) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d active queues", n)}
	queues := numbered("bench-growth-", n)
	g.declare(queues...)
	clients := min(n, len(g.uris))
	l := &load{ledger: newLedger(clients)}
	for k := range clients {
		p := &publisher{id: k, uri: g.uri(k), size: g.size, window: 5000, more: upTo(g.n / clients), rate: g.rate / clients}
		l.publishers = append(l.publishers, p)
		conn := get(client.ConnectBy(g.ctx, client.Gather, g.uri(k+1)))
		defer conn.Close()
		for i := k; i < n; i += clients {
			p.queues = append(p.queues, queues[i].name)
			l.consumers = append(l.consumers, &consumer{shared: conn, queue: queues[i].name, prefetch: 500, ackEvery: 50})
		}
	}
	g.row(&r, queues, func() { g.run(l, &r) })
	g.remove(queues...)
	return r
}

// waiting passes messages through a queue in which n others wait all the time: as many are consumed
// as are published.
func (g *growth) waiting(n int) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d messages waiting", n)}
	q := queue{name: "bench-growth"}
	g.declare(q)
	book, began := newLedger(1+fillers), clock()
	g.fill(g.filler(book, 1, n, g.size, q.name), nil)
	if n > 0 {
		progress("%d messages wait after %.0f s", n, (clock() - began).Seconds())
	}
	flow := &load{
		ledger:     book,
		publishers: []*publisher{{uri: g.uri(0), queues: []string{q.name}, size: g.size, window: 5000, more: upTo(g.n), rate: g.rate}},
		consumers:  []*consumer{{uri: g.uri(1), queue: q.name, prefetch: 500, ackEvery: 50, interval: time.Second / time.Duration(g.rate)}},
	}
	g.row(&r, []queue{q}, func() { g.fill(flow, &r) })
	g.drain(book, q)
	g.remove(q)
	return r
}
