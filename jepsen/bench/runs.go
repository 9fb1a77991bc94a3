package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	amqp "github.com/rabbitmq/amqp091-go"
)

// shape describes a throughput run.
type shape struct {
	queues     int
	publishers int // per queue
	consumers  int // per queue
	size       int
	window     int
	prefetch   int
	ackEvery   int
	messages   int           // per publisher; 0: for duration
	duration   time.Duration // counted from each publisher's first publish
	consume    amqp.Table    // arguments of the consumers
}

var defaultShape = shape{
	queues: 1, publishers: 1, consumers: 1, size: 1024, window: 500, prefetch: 500, ackEvery: 50,
	duration: 10 * time.Second,
}

func (s *shape) flags(fs *flag.FlagSet) {
	fs.IntVar(&s.queues, "queues", s.queues, "`number` of queues")
	fs.IntVar(&s.publishers, "publishers", s.publishers, "`number` of publishers per queue")
	fs.IntVar(&s.consumers, "consumers", s.consumers, "`number` of consumers per queue")
	fs.IntVar(&s.size, "size", s.size, "`bytes` per body")
	fs.IntVar(&s.window, "window", s.window, "unconfirmed `messages` per publisher")
	fs.IntVar(&s.prefetch, "prefetch", s.prefetch, "unacknowledged `messages` per consumer")
	fs.IntVar(&s.ackEvery, "ack-every", s.ackEvery, "`messages` per basic.ack")
	fs.IntVar(&s.messages, "messages", s.messages, "`messages` per publisher; 0: publish for -duration")
	fs.DurationVar(&s.duration, "duration", s.duration, "how `long` to publish, without -messages")
}

func (s *shape) validate() error {
	for name, n := range map[string]int{
		"queues": s.queues, "publishers": s.publishers, "consumers": s.consumers,
		"window": s.window, "prefetch": s.prefetch, "ack-every": s.ackEvery,
	} {
		if n < 1 {
			return fmt.Errorf("-%s must be at least 1", name)
		}
	}
	if s.size < bodyHead {
		return fmt.Errorf("-size must be at least %d", bodyHead)
	}
	if s.ackEvery > s.prefetch {
		return fmt.Errorf("-ack-every must not exceed -prefetch, %d", s.prefetch)
	}
	return nil
}

func runThroughput(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t, s := targetFlags(fs), defaultShape
	s.flags(fs)
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}
	r, err := throughput(ctx, t, s)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// throughput measures messages that were published, confirmed, delivered and acked. Its times are
// from the publish call to the consumer.
func throughput(ctx context.Context, t *target, s shape) (result, error) {
	r := result{Name: fmt.Sprintf("throughput, %d queues, %d bytes", s.queues, s.size)}
	queues := make([]queue, s.queues)
	for i := range queues {
		queues[i].name = fmt.Sprintf("bench-%d", i+1)
	}
	if err := t.declare(queues...); err != nil {
		return r, err
	}
	l := s.load(t, queues)
	for _, c := range l.consumers {
		c.late = &samples{}
	}
	if err := l.run(ctx, t.pids, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	var late []time.Duration
	for _, c := range l.consumers {
		late = append(late, c.late.take()...)
	}
	r.Times = quantilesOf(late)
	return r, t.remove(queues...)
}

// load spreads publishers and consumers over nodes so that those of a queue are not on the same
// one.
func (s shape) load(t *target, queues []queue) *load {
	l := &load{ledger: newLedger(len(queues)*s.publishers, s.size)}
	for i, q := range queues {
		for range s.publishers {
			more := during(s.duration)
			if s.messages > 0 {
				more = upTo(s.messages)
			}
			l.publishers = append(l.publishers, &publisher{
				id: uint32(len(l.publishers)), uri: t.uri(i + len(l.publishers)), queues: []string{q.name},
				size: s.size, window: s.window, more: more,
			})
		}
		for range s.consumers {
			l.consumers = append(l.consumers, &consumer{
				uri: t.uri(i + len(l.consumers) + 1), queue: q.name,
				prefetch: s.prefetch, ackEvery: s.ackEvery, ledger: l.ledger, args: s.consume,
			})
		}
	}
	return l
}

func runLatency(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 5000, "`messages` to publish")
	size := fs.Int("size", 1024, "`bytes` per body")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *size < bodyHead {
		return fmt.Errorf("-size must be at least %d", bodyHead)
	}
	r, err := latency(ctx, t, upTo(*n), *size)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// latency measures how long a confirm takes when nothing else is in progress.
func latency(ctx context.Context, t *target, more func(uint64) bool, size int) (result, error) {
	r := result{Name: "confirm latency, window 1"}
	q := queue{name: "bench-latency"}
	if err := t.declare(q); err != nil {
		return r, err
	}
	m, err := startMeter(t.pids)
	if err != nil {
		return r, err
	}
	var taken samples
	l := &load{ledger: newLedger(1, size)}
	p := publisher{uri: t.uri(0), queues: []string{q.name}, size: size, window: 1, more: more, taken: &taken}
	confirmed, err := p.run(ctx)
	if costErr := m.end(&r, int(confirmed)); err == nil {
		err = costErr
	}
	if err == nil {
		err = t.drain(ctx, l.ledger, []uint64{confirmed}, q)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Times = quantilesOf(taken.take())
	return r, t.remove(q)
}

func runRate(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 20_000, "`messages` to publish")
	size := fs.Int("size", 1024, "`bytes` per body")
	rate := fs.Int("rate", 2000, "`messages` a second")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *size < bodyHead || *rate < 1 || *rate > 1_000_000 {
		return fmt.Errorf("-size must be at least %d, -rate between 1 and 1000000", bodyHead)
	}
	r, err := fixedRate(ctx, t, upTo(*n), *size, *rate)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// fixedRate measures how long after the publish call messages reach their consumer, at a rate that
// the broker handles easily.
func fixedRate(ctx context.Context, t *target, more func(uint64) bool, size, rate int) (result, error) {
	r := result{Name: fmt.Sprintf("end to end at %d/s", rate)}
	q := queue{name: "bench-rate"}
	if err := t.declare(q); err != nil {
		return r, err
	}
	var confirms, late samples
	l := &load{ledger: newLedger(1, size)}
	l.publishers = []*publisher{{
		uri: t.uri(0), queues: []string{q.name}, size: size, window: 10_000, more: more,
		interval: time.Second / time.Duration(rate), taken: &confirms,
	}}
	l.consumers = []*consumer{{
		uri: t.uri(1), queue: q.name, prefetch: 500, ackEvery: 50, ledger: l.ledger, late: &late,
	}}
	if err := l.run(ctx, t.pids, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	r.Times = quantilesOf(late.take())
	c := quantilesOf(confirms.take())
	r.note("confirm p50", c.P50, "ms")
	r.note("confirm p99", c.P99, "ms")
	return r, t.remove(q)
}

func runTTL(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 20_000, "`messages` to publish")
	from := fs.Duration("from", 200*time.Millisecond, "shortest `life` of a message")
	to := fs.Duration("to", 5*time.Second, "longest `life` of a message")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *from < 0 || *to < *from {
		return fmt.Errorf("-from %v -to %v is no range", *from, *to)
	}
	r, err := lateness(ctx, t, *n, *from, *to)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// ttlRate is how many messages a second are published to expire: the deadlines are to be measured,
// not the transmission of a burst to the servers.
const ttlRate = 2000

// lateness measures how long after their deadline, counted from the publish call, messages with
// mixed TTLs in one queue reach the dead-letter queue.
func lateness(ctx context.Context, t *target, n int, from, to time.Duration) (result, error) {
	const size = 256
	r := result{Name: fmt.Sprintf("TTL lateness, %d messages, %v–%v", n, from, to)}
	if from == to {
		r.Name = fmt.Sprintf("TTL lateness, %d messages, %v", n, from)
	}
	dead := queue{name: "bench-dead"}
	source := queue{name: "bench-ttl", args: amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name,
	}}
	if err := t.declare(dead, source); err != nil {
		return r, err
	}
	var late samples
	l := &load{ledger: newLedger(1, size)}
	l.publishers = []*publisher{{
		uri: t.uri(0), queues: []string{source.name}, size: size, window: 1000, more: upTo(n), interval: time.Second / ttlRate,
		ttl: func() time.Duration { return (from + rand.N(to-from+1)).Truncate(time.Millisecond) },
	}}
	l.consumers = []*consumer{{
		uri: t.uri(1), queue: dead.name, prefetch: 1000, ackEvery: 1, ledger: l.ledger, late: &late,
	}}
	if err := l.run(ctx, t.pids, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	early, times := 0, late.take()
	for _, d := range times {
		if d < -time.Millisecond {
			early++
		}
	}
	r.Times = quantilesOf(times)
	r.note("came more than 1 ms early", float64(early), "messages")
	return r, t.remove(source, dead)
}

func runBacklog(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	s := backlogShape
	fs.IntVar(&s.messages, "messages", s.messages, "`messages` to leave waiting")
	fs.IntVar(&s.size, "size", s.size, "`bytes` per body")
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}
	results, err := backlog(ctx, t, s, nil)
	if err != nil {
		return err
	}
	return publishResults(results, t.json)
}

var backlogShape = func() shape {
	s := defaultShape
	s.messages = 1_000_000
	return s
}()

// backlog fills a queue, runs between while it is full, and consumes it again. The results are
// those of filling and of consuming.
func backlog(ctx context.Context, t *target, s shape, between func(queue string, fill *result) error) ([]result, error) {
	fill, drain := result{Name: "backlog, fill"}, result{Name: "backlog, drain"}
	q := queue{name: "bench-backlog"}
	if err := t.declare(q); err != nil {
		return nil, err
	}
	before, err := residentBytes(t.pids)
	if err != nil {
		return nil, err
	}
	m, err := startMeter(t.pids)
	if err != nil {
		return nil, err
	}
	all := s.load(t, []queue{q})
	published, err := all.publishers[0].run(ctx)
	if costErr := m.end(&fill, int(published)); err == nil {
		err = costErr
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", fill.Name, err)
	}
	after, err := residentBytes(t.pids)
	if err != nil {
		return nil, err
	}
	if len(t.pids) > 0 {
		fill.note("resident memory per waiting message and server", float64(after-before)/float64(published)/float64(len(t.pids)), "bytes")
	}
	if between != nil {
		if err := between(q.name, &fill); err != nil {
			return nil, err
		}
	}
	// The waiting messages count as published earlier by this publisher.
	consume := &load{consumers: all.consumers, ledger: all.ledger, published: []uint64{published}}
	if err := consume.run(ctx, t.pids, &drain); err != nil {
		return nil, fmt.Errorf("%s: %w", drain.Name, err)
	}
	return []result{fill, drain}, t.remove(q)
}

func runPinned(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t, s := targetFlags(fs), backlogShape
	fs.IntVar(&s.messages, "messages", s.messages, "`messages` to pass through")
	fs.IntVar(&s.size, "size", s.size, "`bytes` per body")
	dir := fs.String("data-dir", "", "`folder` of the servers' data, to measure its size")
	if err := parse(fs, args); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return err
	}
	r, err := pinned(ctx, t, s, *dir)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// pinned takes one message and keeps it unsettled while others pass through
// the same queue, and measures what stays on disk.
func pinned(ctx context.Context, t *target, s shape, dir string) (result, error) {
	r := result{Name: "pinned message"}
	q := queue{name: "bench-pinned"}
	if err := t.declare(q); err != nil {
		return r, err
	}
	conn, ch, err := connect(t.uri(0), false)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	if err := ch.PublishWithContext(ctx, "", q.name, false, false, amqp.Publishing{Body: make([]byte, s.size)}); err != nil {
		return r, err
	}
	for held := false; !held; {
		if _, held, err = ch.Get(q.name, false); err != nil {
			return r, err
		}
	}
	if err := s.load(t, []queue{q}).run(ctx, t.pids, &r); err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	if dir != "" {
		disk, err := cluster.DiskBytes(dir)
		if err != nil {
			return r, err
		}
		r.note("disk in use afterwards", float64(disk)/(1<<20), "MiB")
	}
	r.note("bodies that went through", float64(r.Messages)*float64(s.size)/(1<<20), "MiB per server")
	if err := conn.Close(); err != nil {
		return r, err
	}
	return r, t.remove(q)
}
