package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	// lockQueues spread the locks of the run locks; one consumer holds all of a queue.
	lockQueues = 10
	// lockEvery is how often each lock is renewed, and lockLasts how long it lasts.
	lockEvery, lockLasts = 10 * time.Second, 30 * time.Second
	// lockList is how many delivery tags one command renews; the broker takes 256.
	lockList = 250
)

// renewing is a way of renewing locks.
type renewing string

const (
	byNobody   renewing = "held for longer than measured"
	byConsumer renewing = "renewed by consumer"
	byTags     renewing = "renewed by lists of tags"
)

var errNotRenewed = errors.New("locks were not renewed")

// renewedLocks holds n messages by locks and measures the processor time of the servers: without
// renewals, and while each lock is renewed every 10 s.
func (b *bench) renewedLocks(n, rounds int) {
	for _, way := range []renewing{byNobody, byConsumer, byTags} {
		b.keep(b.heldLocks(n/lockQueues*lockQueues, rounds, way))
	}
}

func (b *bench) heldLocks(n, rounds int, way renewing) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d locks, %s", n, way)}
	queues := numbered("bench-locks-", lockQueues)
	b.declare(queues...)
	filled := b.stay(b.filler(newLedger(fillers), 0, n, smallSize, namesOf(queues)...), nil)
	lasts, renewals := lockLasts, n*rounds
	if way == byNobody {
		lasts, renewals = lasts+time.Duration(rounds)*lockEvery, n
	}
	var taken samples
	var renew []func() error
	for i, q := range queues {
		conn, ch, err := open(b.ctx, client.Gather, b.uri(i))
		must(err)
		defer conn.Close()
		must(ch.Confirm(false))
		from := get(ch.Consume(q.name, q.name, false, false, false, false, amqp.Table{"x-lock-duration": lasts.Milliseconds()}))
		tags := get(tagsOf(b.ctx, from, n/lockQueues))
		go func() { // ends with the channel
			for range from {
			}
		}()
		renew = append(renew, func() error { return renewOn(b.ctx, ch, q.name, tags, way, &taken) })
	}
	b.cost(&r, func() int {
		for began, round := clock(), 0; round < rounds; round++ {
			each(b.ctx, len(renew), len(renew), func(i int) error { return renew[i]() })
			b.pause(began + time.Duration(round+1)*lockEvery - clock())
		}
		return renewals
	})
	r.Times = taken.quantiles()
	r.Note("processors used by all servers", r.ServerCPU*float64(renewals)/1e6/r.Seconds, "cores")
	filled.note(&r, "message before it is held")
	for _, q := range queues {
		if n := b.ready(q.name); n > 0 {
			must(fmt.Errorf("%w: %s: %d messages of %s are ready", errNotRenewed, way, n, q.name))
		}
	}
	b.remove(queues...)
	return r
}

// tagsOf takes n deliveries.
func tagsOf(ctx context.Context, from <-chan amqp.Delivery, n int) (tags []uint64, err error) {
	for len(tags) < n {
		select {
		case d, ok := <-from:
			if !ok {
				return nil, errClosed
			}
			tags = append(tags, d.DeliveryTag)
		case <-time.After(stall):
			return nil, errStalled
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return tags, nil
}

// renewOn renews all locks of a channel once, and adds how long each command took.
func renewOn(ctx context.Context, ch *amqp.Channel, consumer string, tags []uint64, way renewing, taken *samples) error {
	switch way {
	case byNobody:
		return nil
	case byConsumer:
		return sendCommand(ctx, ch, "lock.renew", amqp.Table{"x-consumer-tag": consumer}, taken)
	}
	for len(tags) > 0 {
		n := min(lockList, len(tags))
		list := make([]any, n)
		for k, tag := range tags[:n] {
			list[k] = int64(tag)
		}
		if err := sendCommand(ctx, ch, "lock.renew", amqp.Table{"x-delivery-tags": list}, taken); err != nil {
			return err
		}
		tags = tags[n:]
	}
	return nil
}

// sendCommand sends a command, which must take effect, and adds how long that took.
func sendCommand(ctx context.Context, ch *amqp.Channel, verb string, headers amqp.Table, taken *samples) error {
	began := clock()
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "amq.quorate.command", verb, false, false, amqp.Publishing{Headers: headers})
	if err != nil {
		return err
	}
	acked, err := c.WaitContext(ctx)
	if err == nil && !acked {
		err = fmt.Errorf("%s: %w", verb, errNacked)
	}
	taken.add(clock() - began)
	return err
}

const (
	// slowQueues and slowPerChannel spread the consumers of the run timeouts, slowPerConnection their channels.
	slowQueues        = 100
	slowPerChannel    = 100
	slowPerConnection = 10
	// slowSetup is the time to register one of them on a busy machine, and slowMargin is added for
	// all.
	slowSetup  = 2 * time.Millisecond
	slowMargin = 6 * time.Second
	// slowCalm is how long confirms elsewhere are measured before the timeouts.
	slowCalm = 3 * time.Second
	// slowAtLeast is the minimum time they are measured from then on.
	slowAtLeast = time.Second
	// slowProbes are the publishes a second to another queue, and slowWindow how many of them
	// may wait for their confirms.
	slowProbes = 500
	slowWindow = 1000
	maxSlow    = 100_000
)

// timeouts makes consumers of one node hold a message each for too long, all until the same
// instant. It measures how long after that the last message is at another consumer and the last
// client is notified, and how long confirms of another queue take before and meanwhile.
func (b *bench) timeouts(n int) report.Result {
	r := report.Result{Name: fmt.Sprintf("%d consumers time out at once", n)}
	elsewhere := queue{"bench-slow-elsewhere", amqp.Table{"x-max-length": 1000}} // none of its consumers times out
	s := &slowRun{queues: numbered("bench-slow-", min(slowQueues, n)), n: n, notices: make([]atomic.Int32, n)}
	b.declare(append(s.queues, elsewhere)...)
	defer s.close()
	s.prepare(b)
	var probed samples
	var before *report.Quantiles
	var meanwhile []time.Duration
	var over atomic.Bool
	probe := &load{ledger: newLedger(1), publishers: []*publisher{{
		uri: b.uri(0), queues: []string{elsewhere.name}, size: smallSize, window: slowWindow, rate: slowProbes, taken: &probed,
		more: func(uint64) bool { return !over.Load() },
	}}}
	probe.meanwhile = func(ctx context.Context) error {
		defer over.Store(true)
		return try(func() {
			must(pause(ctx, s.due-clock()-slowCalm))
			probed.take()
			must(pause(ctx, s.due-clock()))
			before = probed.quantiles()
			b.cost(&r, func() int {
				must(s.await(ctx))
				return n
			})
			must(pause(ctx, s.due+slowAtLeast-clock()))
			meanwhile = probed.take()
		})
	}
	b.fill(probe, nil)
	s.check()
	if r.Times = report.QuantilesOf(meanwhile); r.Times == nil || before == nil {
		must(errors.New("another queue confirmed nothing"))
	}
	r.Note("the last message is with another consumer after", (time.Duration(s.lastBack.Load()) - s.due).Seconds(), "s")
	r.Note("the last client is told after", (time.Duration(s.lastNotice.Load()) - s.due).Seconds(), "s")
	r.Note("clients that were told once", float64(n), "")
	r.Note("confirms of another queue meanwhile", float64(len(meanwhile)), "")
	r.Note("normally, confirms of another queue p50", before.P50, "ms")
	r.Note("normally, confirms of another queue p99", before.P99, "ms")
	b.remove(append(s.queues, elsewhere)...)
	return r
}

// slowRun holds the consumers that are too slow, and those that get their messages.
type slowRun struct {
	queues []queue
	n      int
	due    time.Duration // of all messages, by clock
	conns  []*amqp.Connection
	chans  []*amqp.Channel // of the slow consumers

	notices              []atomic.Int32 // by consumer
	noticedAll, back     atomic.Int32
	lastNotice, lastBack atomic.Int64 // by clock
}

// prepare fills the queues, has the slow consumers take what is in them, and others wait for what goes back.
func (s *slowRun) prepare(b *bench) {
	b.fill(&load{ledger: newLedger(1), publishers: []*publisher{{
		uri: b.uri(0), queues: namesOf(s.queues), size: smallSize, window: 1000, more: upTo(s.n),
	}}}, nil)
	s.due = (clock() + time.Duration(s.n)*slowSetup + slowMargin + slowCalm).Truncate(time.Millisecond)
	channels := (s.n + slowPerChannel - 1) / slowPerChannel
	for i := range channels {
		if i%slowPerConnection == 0 {
			s.conns = append(s.conns, get(client.ConnectBy(b.ctx, client.Gather, b.uri(0))))
		}
		s.chans = append(s.chans, get(s.conns[len(s.conns)-1].Channel()))
	}
	each(b.ctx, channels, channels, func(i int) error {
		return s.beSlow(b.ctx, s.chans[i], i*slowPerChannel, min((i+1)*slowPerChannel, s.n))
	})
	if clock() > s.due-slowCalm {
		must(errSetupTooSlow)
	}
	conn, ch, err := open(b.ctx, client.Gather, b.uri(1))
	must(err)
	s.conns = append(s.conns, conn)
	for _, q := range s.queues {
		from := get(ch.Consume(q.name, "back-"+q.name, true, false, false, false, nil))
		go func() { // ends with the channel
			for range from {
				s.lastBack.Store(int64(clock()))
				s.back.Add(1)
			}
		}()
	}
}

// beSlow registers consumers, each of which gets a message and keeps it.
func (s *slowRun) beSlow(ctx context.Context, ch *amqp.Channel, first, last int) error {
	cancelled := ch.NotifyCancel(make(chan string, 2*slowPerChannel))
	go func() { // ends with the channel
		for tag := range cancelled {
			if i, err := strconv.Atoi(tag); err == nil && i < s.n {
				s.notices[i].Add(1)
			}
			s.lastNotice.Store(int64(clock()))
			s.noticedAll.Add(1)
		}
	}()
	if err := ch.Qos(1, 0, false); err != nil {
		return err
	}
	for i := first; i < last; i++ {
		left := s.due - clock()
		if left <= 0 {
			return errSetupTooSlow
		}
		from, err := ch.Consume(s.queues[i%len(s.queues)].name, strconv.Itoa(i), false, false, false, false, amqp.Table{"x-consumer-timeout": left.Milliseconds()})
		if err != nil {
			return err
		}
		select {
		case _, ok := <-from:
			if !ok {
				return errClosed
			}
		case <-time.After(left):
			return errSetupTooSlow
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// await waits until all messages are back and all clients are notified.
func (s *slowRun) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stall+time.Duration(s.n)*slowSetup)
	defer cancel()
	return await.Until(ctx, settlePoll, fmt.Sprintf("%d messages to be back and as many clients to be told", s.n), func() (bool, error) {
		back, told := s.back.Load(), s.noticedAll.Load()
		return int(back) >= s.n && int(told) >= s.n, fmt.Errorf("%d and %d", back, told)
	})
}

// check uses each channel, so that everything in transit has arrived, and checks that every client
// was notified once and every message came back once.
func (s *slowRun) check() {
	for _, ch := range s.chans {
		must(ch.Qos(1, 0, false))
	}
	for i := range s.notices {
		if times := s.notices[i].Load(); times != 1 {
			must(fmt.Errorf("the client of consumer %d was told %d times", i, times))
		}
	}
	if back := int(s.back.Load()); back != s.n {
		must(fmt.Errorf("%d messages came back, of %d", back, s.n))
	}
}

// close ends all connections, at the same time.
func (s *slowRun) close() {
	var all sync.WaitGroup
	for _, c := range s.conns {
		all.Go(func() { _ = c.Close() }) // the run is over
	}
	all.Wait()
}

const (
	// expiryFillRate is how many messages a second are at least published to expire.
	expiryFillRate = 30_000
	// expirySpan is the time within which all of them expire.
	expirySpan = time.Second
	// expiryPoll is how often the number of remaining messages is read.
	expiryPoll = 20 * time.Millisecond
)

// expireAll fills a queue with messages whose deadlines are drawn from one second, and measures how
// fast they leave it, for another queue or for good, and how long a publish and a get at that queue
// take meanwhile.
func (b *bench) expireAll(n int, deadLetter bool) report.Result {
	dead, source, how := queue{name: "bench-mortal-dead"}, queue{name: "bench-mortal"}, "dropped"
	if deadLetter {
		source, how = lettersTo(dead.name, source.name), "dead-lettered"
	}
	r := report.Result{Name: fmt.Sprintf("%d messages die within %v, %s", n, expirySpan, how)}
	b.declare(dead, source)
	due := clock() + time.Duration(n)*time.Second/expiryFillRate + 3*time.Second
	b.stayFor(due, n, source.name)
	b.pause(due - clock())
	var taken []time.Duration
	b.cost(&r, func() int {
		taken = b.useUntil(source.name, func() bool {
			if deadLetter {
				return b.ready(dead.name) == n
			}
			return b.ready(source.name) < n/1000
		})
		return n
	})
	r.Times = report.QuantilesOf(taken)
	r.Note("publishes and gets at that queue meanwhile", float64(len(taken)), "")
	b.remove(source, dead)
	return r
}

// stayFor publishes messages that expire within a span from an instant.
func (b *bench) stayFor(due time.Duration, n int, queue string) {
	l := b.filler(newLedger(fillers), 0, n, smallSize, queue)
	for _, p := range l.publishers {
		p.set = func(m *client.Message) {
			m.TTL = between(0, expirySpan) + max(due-clock(), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
		}
	}
	b.fill(l, nil)
	if clock() > due {
		must(errSetupTooSlow)
	}
}

var errSetupTooSlow = errors.New("the time was up before all was in place")

// useUntil repeatedly publishes a message with high priority to a queue and gets it back, until
// done returns true; it returns how long each pair took.
func (b *bench) useUntil(name string, done func() bool) (taken []time.Duration) {
	ctx, stop := context.WithTimeoutCause(b.ctx, stall+2*time.Minute, errStalled)
	defer stop()
	var over atomic.Bool
	using := make(chan error, 1)
	go func() { using <- try(func() { taken = b.use(ctx, name, &over) }) }()
	err := try(func() {
		for !done() {
			must(pause(ctx, expiryPoll))
		}
	})
	over.Store(true)
	must(errors.Join(err, <-using))
	return taken
}

func (b *bench) use(ctx context.Context, name string, over *atomic.Bool) (taken []time.Duration) {
	ch, end := b.channel(b.uri(0))
	defer end()
	must(ch.Confirm(false))
	for !over.Load() {
		began := clock()
		c := get(ch.PublishWithDeferredConfirmWithContext(ctx, "", name, false, false, amqp.Publishing{Priority: 9}))
		get(c.WaitContext(ctx))
		d, ok, err := ch.Get(name, false)
		must(err)
		taken = append(taken, clock()-began)
		if ok {
			must(d.Ack(false))
		}
	}
	return taken
}
