package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/report"
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

// shape adds the flags of a throughput run.
func (f flags) shape() *shape {
	s := defaultShape
	for _, n := range []struct {
		name  string
		n     *int
		low   int
		usage string
	}{
		{"queues", &s.queues, 1, "`number` of queues"},
		{"publishers", &s.publishers, 1, "`number` of publishers per queue"},
		{"consumers", &s.consumers, 1, "`number` of consumers per queue"},
		{"size", &s.size, smallest, "`bytes` per body"},
		{"window", &s.window, 1, "unconfirmed `messages` per publisher"},
		{"prefetch", &s.prefetch, 1, "unacknowledged `messages` per consumer"},
		{"ack-every", &s.ackEvery, 1, "`messages` per basic.ack, at most as many as -prefetch"},
		{"messages", &s.messages, 0, "`messages` per publisher; 0: publish for -duration"},
	} {
		f.Var(bounded{n.n, n.low, unbounded}, n.name, n.usage)
	}
	f.DurationVar(&s.duration, "duration", s.duration, "how `long` to publish, without -messages")
	return &s
}

// throughput measures messages that were published, confirmed, delivered and acked. Its times are
// from the publish call to the consumer.
func (b *bench) throughput(s shape) report.Result {
	r := report.Result{Name: fmt.Sprintf("throughput, %d queues, %d bytes", s.queues, s.size)}
	if s.ackEvery > s.prefetch {
		must(fmt.Errorf("-ack-every must not exceed -prefetch, %d", s.prefetch))
	}
	queues := numbered("bench-", s.queues)
	b.declare(queues...)
	l := s.load(b.target, queues)
	l.ledger.late = &samples{}
	b.run(l, &r)
	r.Times = l.ledger.late.quantiles()
	b.remove(queues...)
	return r
}

// load spreads publishers and consumers over nodes so that those of a queue are not on the same
// one.
func (s shape) load(t *target, queues []queue) *load {
	l := &load{ledger: newLedger(len(queues) * s.publishers)}
	for i, q := range queues {
		for range s.publishers {
			more := during(s.duration)
			if s.messages > 0 {
				more = upTo(s.messages)
			}
			l.publishers = append(l.publishers, &publisher{
				id: len(l.publishers), uri: t.uri(i + len(l.publishers)), queues: []string{q.name}, size: s.size, window: s.window, more: more,
			})
		}
		for range s.consumers {
			l.consumers = append(l.consumers, &consumer{
				uri: t.uri(i + len(l.consumers) + 1), queue: q.name, prefetch: s.prefetch, ackEvery: s.ackEvery, args: s.consume,
			})
		}
	}
	return l
}

// latency measures how long a confirm takes when nothing else is in progress.
func (b *bench) latency(more func(uint64) bool, size int) report.Result {
	r := report.Result{Name: "confirm latency, window 1"}
	q := queue{name: "bench-latency"}
	b.declare(q)
	var taken samples
	l := &load{ledger: newLedger(1), publishers: []*publisher{{
		uri: b.uri(0), queues: []string{q.name}, size: size, window: 1, more: more, taken: &taken,
	}}}
	b.fill(l, &r)
	b.drain(l.ledger, q)
	r.Times = taken.quantiles()
	b.remove(q)
	return r
}

// one is a load of a publisher and a consumer at two nodes, and of the times that messages are late.
func (b *bench) one(p publisher, to string, prefetch, ackEvery int) (l *load, late *samples) {
	l = &load{ledger: newLedger(1), publishers: []*publisher{&p}}
	l.ledger.late, p.uri = &samples{}, b.uri(0)
	l.consumers = []*consumer{{uri: b.uri(1), queue: to, prefetch: prefetch, ackEvery: ackEvery}}
	return l, l.ledger.late
}

// fixedRate measures how long after the publish call messages reach their consumer, at a rate that
// the broker handles easily.
func (b *bench) fixedRate(more func(uint64) bool, size, rate int) report.Result {
	r := report.Result{Name: fmt.Sprintf("end to end at %d/s", rate)}
	q := queue{name: "bench-rate"}
	b.declare(q)
	var confirms samples
	l, late := b.one(publisher{queues: []string{q.name}, size: size, window: 10_000, more: more, rate: rate, taken: &confirms}, q.name, 500, 50)
	b.run(l, &r)
	r.Times = late.quantiles()
	if c := confirms.quantiles(); c != nil {
		r.Note("confirm p50", c.P50, "ms")
		r.Note("confirm p99", c.P99, "ms")
	}
	b.remove(q)
	return r
}

// ttlRate is how many messages a second are published to expire: the deadlines are to be measured,
// not the transmission of a burst to the servers.
const ttlRate = 2000

// between draws whole milliseconds.
func between(from, to time.Duration) time.Duration {
	return (from + rand.N(to-from+1)).Truncate(time.Millisecond)
}

// lettersTo is a queue whose dead letters go to another one.
func lettersTo(dead, name string) queue {
	return queue{name, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}}
}

// lateness measures how long after their deadline, counted from the publish call, messages with
// mixed TTLs in one queue reach the dead-letter queue.
func (b *bench) lateness(n int, from, to time.Duration) report.Result {
	r := report.Result{Name: fmt.Sprintf("TTL lateness, %d messages, %v–%v", n, from, to)}
	if from == to {
		r.Name = fmt.Sprintf("TTL lateness, %d messages, %v", n, from)
	}
	if from < 0 || to < from {
		must(fmt.Errorf("-from %v -to %v is no range", from, to))
	}
	dead := queue{name: "bench-dead"}
	source := lettersTo(dead.name, "bench-ttl")
	b.declare(dead, source)
	l, late := b.one(expiring(source.name, n, from, to), dead.name, 1000, 1)
	b.run(l, &r)
	noteLateness(&r, late)
	b.remove(source, dead)
	return r
}

// expiring publishes messages whose lives are drawn from a range.
func expiring(queue string, n int, from, to time.Duration) publisher {
	return publisher{
		queues: []string{queue}, size: 256, window: 1000, more: upTo(n), rate: ttlRate,
		set: func(m *client.Message) { m.TTL = between(from, to) },
	}
}

func noteLateness(r *report.Result, late *samples) {
	early, times := 0, late.take()
	for _, d := range times {
		if d < -time.Millisecond {
			early++
		}
	}
	r.Times = report.QuantilesOf(times)
	r.Note("came more than 1 ms early", float64(early), "messages")
}

// Parameters of the run scheduled: messages that are due much later, and those that are measured,
// due after a delay from a range.
const (
	farFrom, farTo   = time.Hour, 2 * time.Hour
	soonFrom, soonTo = time.Second, 5 * time.Second
	soonMessages     = 20_000
	smallSize        = 100
)

// scheduled leaves n messages waiting for much later, measures what they cost in memory, and how
// late others come that are due soon.
func (b *bench) scheduled(n, soon int) report.Result {
	r := report.Result{Name: fmt.Sprintf("scheduled lateness, %d others wait", n)}
	q := queue{name: "bench-scheduled"}
	b.declare(q)
	filled := b.stay(b.filler(newLedger(fillers), 0, n, smallSize, q.name), func(m *client.Message) { m.Wait = between(farFrom, farTo) })
	l, late := b.one(publisher{
		queues: []string{q.name}, size: smallSize, window: 1000, more: upTo(soon), rate: ttlRate,
		set: func(m *client.Message) { m.Wait = between(soonFrom, soonTo) },
	}, q.name, 1000, 1)
	b.run(l, &r)
	noteLateness(&r, late)
	filled.note(&r, "waiting message")
	b.remove(q)
	return r
}

// filling is the cost of messages that stay.
type filling struct {
	perSecond float64
	bytes     float64 // resident, for each message and server; 0: not measured
}

func (f filling) note(r *report.Result, what string) {
	r.Note("filled at", f.perSecond, "messages/s")
	if f.bytes != 0 {
		r.Note("resident memory per "+what+" and server", f.bytes, "bytes")
	}
}

// stay publishes messages that stay, and measures them. set completes each.
func (b *bench) stay(l *load, set func(*client.Message)) (f filling) {
	for _, p := range l.publishers {
		p.set = set
	}
	before, began := get(residentBytes(b.pids)), clock()
	b.fill(l, nil)
	n, _ := l.ledger.sums()
	f.perSecond = float64(n) / (clock() - began).Seconds()
	if len(b.pids) > 0 {
		b.calm(calmTimeout)
		f.bytes = (get(residentBytes(b.pids)) - before) / float64(n) / float64(len(b.pids))
	}
	return f
}

// groupConsumers hold groupsEach groups each at a time.
const groupConsumers, groupsEach = 6, 100

// groups fills a queue with messages of n groups, measures what a group costs in memory compared to
// a message without one, and how many groups a second are handed to consumers.
func (b *bench) groups(n int) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d groups, hand-outs", n)}
	plain := queue{name: "bench-groupless"}
	grouped := queue{name: "bench-groups", args: amqp.Table{"x-message-groups": true}}
	b.declare(plain, grouped)
	without := b.stay(b.filler(newLedger(fillers), 0, n, smallSize, plain.name), nil)
	l := b.filler(newLedger(fillers), 0, n, smallSize, grouped.name)
	var next atomic.Int64
	with := b.stay(l, func(m *client.Message) { m.Group = "group-" + strconv.FormatInt(next.Add(1), 10) })
	l.publishers = nil
	for i := range groupConsumers {
		l.consumers = append(l.consumers, &consumer{
			uri: b.uri(i), queue: grouped.name, prefetch: groupsEach, ackEvery: 1, args: amqp.Table{"x-max-groups": int32(groupsEach)},
		})
	}
	b.run(l, &r)
	with.note(&r, "message of a group")
	if with.bytes != 0 {
		r.Note("resident memory per group and server, without its message", with.bytes-without.bytes, "bytes")
	}
	b.remove(plain, grouped)
	return r
}

// forwarded publishes n messages to a queue from which they are forwarded, or dead-lettered at once,
// to another one that is consumed, and measures how fast they come, beside messages that are
// published there. Each message must come once.
func (b *bench) forwarded(n int) {
	to := queue{name: "bench-forward-to"}
	forward := queue{"bench-forward", amqp.Table{"x-forward-to-exchange": "", "x-forward-to-routing-key": to.name}}
	dead := lettersTo(to.name, forward.name)
	dead.args["x-message-ttl"] = int32(0)
	for _, way := range []struct {
		name string
		from queue
	}{{"forwarded", forward}, {"dead-lettered", dead}, {"published there", to}} {
		r := report.Result{Name: fmt.Sprintf("%d messages %s", n, way.name)}
		b.declare(to, way.from)
		l := b.filler(newLedger(fillers), 0, n, smallSize, way.from.name)
		for _, p := range l.publishers {
			p.window = 500
		}
		l.consumers = []*consumer{{uri: b.uri(1), queue: to.name, prefetch: 500, ackEvery: 50}}
		b.run(l, &r)
		b.remove(way.from, to)
		b.keep(r)
	}
}

// backlog fills a queue, runs between while it is full, and consumes it again. The results are
// those of filling and of consuming.
func (b *bench) backlog(n, size int, between func(queue string, fill *report.Result)) {
	fill, drain := report.Result{Name: "backlog, fill"}, report.Result{Name: "backlog, drain"}
	q := queue{name: "bench-backlog"}
	b.declare(q)
	before := get(residentBytes(b.pids))
	s := defaultShape
	s.messages, s.size = n, size
	l := s.load(b.target, []queue{q})
	b.fill(&load{ledger: l.ledger, publishers: l.publishers}, &fill)
	l.publishers = nil // their messages wait
	if len(b.pids) > 0 {
		fill.Note("resident memory per waiting message and server", (get(residentBytes(b.pids))-before)/fill.Messages/float64(len(b.pids)), "bytes")
	}
	if between != nil {
		between(q.name, &fill)
	}
	b.run(l, &drain)
	b.remove(q)
	b.keep(fill, drain)
}

// pinned takes one message and keeps it unsettled while others pass through
// the same queue, and measures what stays on disk.
func (b *bench) pinned(n, size int, dir string) report.Result {
	r := report.Result{Name: "pinned message"}
	q := queue{name: "bench-pinned"}
	b.declare(q)
	ch, end := b.channel(b.uri(0))
	defer end()
	must(ch.PublishWithContext(b.ctx, "", q.name, false, false, amqp.Publishing{Body: make([]byte, size)}))
	for held := false; !held; {
		var err error
		_, held, err = ch.Get(q.name, false)
		must(err)
	}
	s := defaultShape
	s.messages, s.size = n, size
	b.run(s.load(b.target, []queue{q}), &r)
	if dir != "" {
		r.Note("disk in use afterwards", float64(get(cluster.DiskBytes(dir)))/(1<<20), "MiB")
	}
	r.Note("bodies that went through", r.Messages*float64(size)/(1<<20), "MiB per server")
	end()
	b.remove(q)
	return r
}

// Parameters of idle connections: how many goroutines open them, and a heartbeat longer than the run, so that
// they send nothing. idleCalm is how long memory may take to settle.
const (
	idleDialers   = 16
	idleHeartbeat = 10 * time.Minute
	idleCalm      = 3 * time.Second
	dialTimeout   = 5 * time.Second
)

// idle opens connections and then channels to one node that do nothing, and measures after each how much more
// memory the node has resident. The node must be newly started: one that has worked has spare memory, which
// would hide the growth.
func (b *bench) idle(connections, channels int) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d idle connections with %d channels", connections, channels)}
	resident := func() float64 {
		b.pause(idleCalm)
		return get(residentBytes(b.pids[:1]))
	}
	all := make([]*amqp.Connection, connections)
	defer func() {
		for _, c := range all {
			if c != nil {
				_ = c.CloseDeadline(time.Now().Add(dialTimeout)) // the node may be gone
			}
		}
	}()
	before := resident()
	b.cost(&r, func() int {
		began := clock()
		each(b.ctx, connections, idleDialers, func(k int) (err error) {
			all[k], err = amqp.DialConfig(b.uri(0), amqp.Config{Heartbeat: idleHeartbeat, Dial: amqp.DefaultDial(dialTimeout)})
			return err
		})
		opened := clock() - began
		connected := resident()
		each(b.ctx, channels, idleDialers, func(k int) error {
			_, err := all[k%connections].Channel()
			return err
		})
		with := resident()
		r.Note("connections opened", float64(connections)/opened.Seconds(), "/s")
		r.Note("resident memory of the node per connection", (connected-before)/float64(connections)/1024, "KiB")
		r.Note("resident memory of the node per channel", (with-connected)/float64(channels)/1024, "KiB")
		return connections
	})
	return r
}
