package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// lockQueues spread the locks of the run locks; one consumer holds all of a queue.
	lockQueues = 10
	// lockEvery is how often each lock is renewed, and lockLasts how long it lasts.
	lockEvery, lockLasts = 10 * time.Second, 30 * time.Second
	// lockList is how many delivery tags one command renews; the broker takes 256.
	lockList = 250
	lockSize = 100
)

// renewing is a way of renewing locks.
type renewing string

const (
	byNobody   renewing = "held for longer than measured"
	byConsumer renewing = "renewed by consumer"
	byTags     renewing = "renewed by lists of tags"
)

var errNotRenewed = errors.New("locks were not renewed")

func runLocks(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("locks", 100_000, "`locks` held at the same time")
	rounds := fs.Int("rounds", 3, "how often each is renewed, 10 s after another")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *n < lockQueues || *rounds < 1 {
		return fmt.Errorf("-locks must be at least %d, -rounds at least 1", lockQueues)
	}
	all, err := renewedLocks(ctx, t, *n, *rounds)
	if err != nil {
		return err
	}
	return publishResults(all, t.json)
}

// renewedLocks holds n messages by locks and measures the processor time of the servers: without
// renewals, and while each lock is renewed every 10 s.
func renewedLocks(ctx context.Context, t *target, n, rounds int) (all []result, err error) {
	for _, way := range []renewing{byNobody, byConsumer, byTags} {
		h := &lockHolders{target: t, n: n / lockQueues * lockQueues}
		r, err := h.measure(ctx, way, rounds)
		h.close()
		if err != nil {
			return all, fmt.Errorf("%s: %w", r.Name, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// lockHolders are the consumers that hold locks.
type lockHolders struct {
	*target
	n     int
	conns []*amqp.Connection
	chans []*amqp.Channel
	tags  [][]uint64 // of each channel
}

func (h *lockHolders) queues() (all []queue) {
	for i := range lockQueues {
		all = append(all, queue{name: fmt.Sprint("bench-locks-", i+1)})
	}
	return all
}

func (h *lockHolders) measure(ctx context.Context, way renewing, rounds int) (r result, err error) {
	r.Name = fmt.Sprintf("%d locks, %s", h.n, way)
	if err := h.declare(h.queues()...); err != nil {
		return r, err
	}
	filled, err := fill(ctx, h.target, h.n, func(p *publisher) {
		for _, q := range h.queues() {
			p.queues, p.size = append(p.queues, q.name), lockSize
		}
	})
	if err != nil {
		return r, err
	}
	lasts := lockLasts
	if way == byNobody {
		lasts += time.Duration(rounds) * lockEvery
	}
	if err := h.hold(ctx, lasts); err != nil {
		return r, err
	}
	m, err := startMeter(h.pids)
	if err != nil {
		return r, err
	}
	renewals := h.n
	if way != byNobody {
		renewals *= rounds
	}
	var taken samples
	for began, round := clock(), 0; round < rounds && err == nil; round++ {
		if way != byNobody {
			err = h.renew(ctx, way, &taken)
		}
		if err == nil {
			err = pause(ctx, began+time.Duration(round+1)*lockEvery-clock())
		}
	}
	if err = errors.Join(err, m.end(&r, renewals)); err != nil {
		return r, err
	}
	r.Times = quantilesOf(taken.take())
	r.note("processors used by all servers", r.ServerCPU*float64(renewals)/1e6/r.Seconds, "cores")
	filled.notes(&r, "message before it is held")
	return r, errors.Join(h.check(way), h.remove(h.queues()...))
}

// hold takes all messages, and settles none.
func (h *lockHolders) hold(ctx context.Context, lasts time.Duration) error {
	for i, q := range h.queues() {
		conn, ch, err := connect(h.uri(i), true)
		if err != nil {
			return err
		}
		h.conns, h.chans = append(h.conns, conn), append(h.chans, ch)
		if err := ch.Confirm(false); err != nil {
			return err
		}
		from, err := ch.Consume(q.name, q.name, false, false, false, false, amqp.Table{"x-lock-duration": lasts.Milliseconds()})
		if err != nil {
			return err
		}
		tags, err := tagsOf(ctx, from, h.n/lockQueues)
		if err != nil {
			return fmt.Errorf("%s: %w", q.name, err)
		}
		h.tags = append(h.tags, tags)
		go func() { // ends with the channel
			for range from {
			}
		}()
	}
	return nil
}

// tagsOf takes n deliveries.
func tagsOf(ctx context.Context, from <-chan amqp.Delivery, n int) (tags []uint64, err error) {
	quiet := time.NewTimer(stall)
	defer quiet.Stop()
	for len(tags) < n {
		select {
		case d, ok := <-from:
			if !ok {
				return nil, errClosed
			}
			tags = append(tags, d.DeliveryTag)
			quiet.Reset(stall)
		case <-quiet.C:
			return nil, errStalled
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return tags, nil
}

// renew renews all locks once, and adds how long each command took.
func (h *lockHolders) renew(ctx context.Context, way renewing, taken *samples) error {
	errs := make([]error, len(h.chans))
	var all sync.WaitGroup
	for i, ch := range h.chans {
		all.Go(func() { errs[i] = h.renewOn(ctx, ch, i, way, taken) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (h *lockHolders) renewOn(ctx context.Context, ch *amqp.Channel, i int, way renewing, taken *samples) error {
	if way == byConsumer {
		return sendCommand(ctx, ch, "lock.renew", amqp.Table{"x-consumer-tag": h.queues()[i].name}, taken)
	}
	for tags := h.tags[i]; len(tags) > 0; {
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

// check makes sure that no lock was lost: no message is ready.
func (h *lockHolders) check(way renewing) error {
	for _, q := range h.queues() {
		if n, err := h.ready(q.name); err != nil || n > 0 {
			return errors.Join(err, fmt.Errorf("%w: %s: %d messages of %s are ready", errNotRenewed, way, n, q.name))
		}
	}
	return nil
}

func (h *lockHolders) close() {
	for _, c := range h.conns {
		_ = c.Close() // the run is over
	}
}

// lockedThroughput measures the same throughput without locks and with them.
func lockedThroughput(ctx context.Context, t *target, s shape) (all []result, err error) {
	for _, locked := range []bool{false, true} {
		one := s
		name := "throughput without locks"
		if locked {
			one.consume, name = amqp.Table{"x-lock-duration": time.Minute.Milliseconds()}, "throughput with locks"
		}
		r, err := throughput(ctx, t, one)
		if err != nil {
			return all, err
		}
		r.Name = fmt.Sprintf("%s, %d queues, %d bytes", name, s.queues, s.size)
		if locked {
			r.note("of that without", 100*r.PerSecond/all[0].PerSecond, "%")
		}
		all = append(all, r)
	}
	return all, nil
}
