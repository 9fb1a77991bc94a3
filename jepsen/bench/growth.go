package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
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

const (
	soakQueues = 5
	// soakPart is the part of the highest rate that is held.
	soakPart = 0.7
)

// mark is a set of measurements at one moment.
type mark struct {
	rate float64 // messages a second since the previous mark
	p99  float64 // of confirms since then, ms
	rss  float64 // MiB, all servers
	disk float64 // MiB, all servers
}

// soakVerb holds a rate for a long time, and fails if something grows.
func soakVerb(f flags) func(context.Context) error {
	duration := f.Duration("duration", 30*time.Minute, "how `long` the rate is held, at least 8 times -every")
	every, size := f.Duration("every", 30*time.Second, "how `often` a line is printed, at least every second"), f.size(1024)
	var marks []mark
	run := onCluster(func(flags, *lab) func(*bench) {
		return func(b *bench) {
			b.warmUp(warmTime)
			s := defaultShape
			s.queues, s.size = soakQueues, *size
			limit := b.throughput(s)
			rate := limit.PerSecond * soakPart
			fmt.Printf("at most %.0f msg/s; %.0f msg/s for %v\n", limit.PerSecond, rate, *duration)
			b.keep(limit)
			s.duration = *duration
			b.keep(b.soak(s, rate, *every, &marks))
		}
	})(f)
	return func(ctx context.Context) error {
		if *every < time.Second || *duration < 8**every {
			return errors.New("-every must be at least 1s, -duration 8 times that")
		}
		if err := run(ctx); err != nil {
			return err
		}
		return verdict(marks)
	}
}

func (b *bench) soak(s shape, rate float64, every time.Duration, marks *[]mark) report.Result {
	r := report.Result{Name: fmt.Sprintf("soak, %d queues, %d bytes, %.0f/s", s.queues, s.size, rate)}
	queues := numbered("bench-soak-", s.queues)
	l, confirms := s.load(b.target, queues), &samples{}
	for _, p := range l.publishers {
		p.window, p.rate, p.taken = 5000, int(rate)/s.queues, confirms
	}
	b.declare(queues...)
	watching, stop := context.WithCancel(b.ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		watched <- try(func() {
			for began, before, last := clock(), clock(), uint64(0); pause(watching, every) == nil; {
				_, n := l.ledger.sums()
				now := clock()
				m := mark{rate: float64(n-last) / (now - before).Seconds(), rss: get(residentBytes(b.pids)) / (1 << 20), disk: float64(get(cluster.DiskBytes(b.data))) / (1 << 20)}
				if q := confirms.quantiles(); q != nil {
					m.p99 = q.P99
				}
				before, last, *marks = now, n, append(*marks, m)
				fmt.Printf("%8s  %7.0f msg/s  confirm p99 %7.2f ms  RSS %6.0f MiB  disk %7.0f MiB\n",
					(now - began).Truncate(time.Second), m.rate, m.p99, m.rss, m.disk)
			}
		})
	}()
	err := try(func() { b.run(l, &r) })
	stop()
	must(errors.Join(err, <-watched))
	b.remove(queues...)
	return r
}

// How much the last quarter may exceed the first, as a factor and in units.
const (
	flatFactor = 1.3
	flatRSS    = 64 // MiB
	flatDisk   = 256
	flatP99    = 5 // ms
)

// verdict compares the medians of the last quarter with those of the first. It returns an error if
// something grows.
func verdict(marks []mark) error {
	quarter := len(marks) / 4
	if quarter == 0 {
		return errors.New("too few lines for a verdict")
	}
	var errs []error
	for _, c := range []struct {
		name  string
		of    func(mark) float64
		slack float64
	}{
		{"RSS, MiB", func(m mark) float64 { return m.rss }, flatRSS},
		{"disk, MiB", func(m mark) float64 { return m.disk }, flatDisk},
		{"confirm p99, ms", func(m mark) float64 { return m.p99 }, flatP99},
	} {
		var first, last []float64
		for i := range quarter {
			first = append(first, c.of(marks[i]))
			last = append(last, c.of(marks[len(marks)-1-i]))
		}
		from, to := report.Median(first), report.Median(last)
		flat := to <= from*flatFactor+c.slack
		fmt.Printf("%s: first quarter %.1f, last quarter %.1f: flat %t\n", c.name, from, to, flat)
		if !flat {
			errs = append(errs, fmt.Errorf("%s grows from %.1f to %.1f", c.name, from, to))
		}
	}
	return errors.Join(errs...)
}
