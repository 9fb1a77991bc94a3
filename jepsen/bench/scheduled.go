package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Parameters of the run scheduled: messages that are due much later, and those that are measured,
// due after a delay from a range.
const (
	farFrom, farTo   = time.Hour, 2 * time.Hour
	soonFrom, soonTo = time.Second, 5 * time.Second
	soonMessages     = 20_000
	scheduledSize    = 100
)

func runScheduled(ctx context.Context, fs *flag.FlagSet, args []string) error {
	t := targetFlags(fs)
	n := fs.Int("messages", 1_000_000, "`messages` that wait until much later")
	soon := fs.Int("soon", soonMessages, "`messages` that are due soon, and measured")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *n < 1 || *soon < 1 {
		return errors.New("-messages and -soon must be at least 1")
	}
	r, err := scheduled(ctx, t, *n, *soon)
	if err != nil {
		return err
	}
	return publishResults([]result{r}, t.json)
}

// scheduled leaves n messages waiting for much later, measures what they cost in memory, and how
// late others come that are due soon.
func scheduled(ctx context.Context, t *target, n, soon int) (result, error) {
	r := result{Name: fmt.Sprintf("scheduled lateness, %d others wait", n)}
	q := queue{name: "bench-scheduled"}
	if err := t.declare(q); err != nil {
		return r, err
	}
	filled, err := fill(ctx, t, n, func(p *publisher) {
		p.queues, p.size, p.ttl, p.open = []string{q.name}, scheduledSize, between(farFrom, farTo), openScheduler
	})
	if err != nil {
		return r, fmt.Errorf("%s: %w", r.Name, err)
	}
	var late samples
	l := &load{ledger: newLedger(1, scheduledSize)}
	l.publishers = []*publisher{{
		uri: t.uri(0), queues: []string{q.name}, size: scheduledSize, window: 1000, more: upTo(soon),
		interval: time.Second / ttlRate, ttl: between(soonFrom, soonTo), open: openScheduler,
	}}
	l.consumers = []*consumer{{uri: t.uri(1), queue: q.name, prefetch: 1000, ackEvery: 1, ledger: l.ledger, late: &late}}
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
	filled.notes(&r, "waiting message")
	return r, t.remove(q)
}

// between draws whole milliseconds.
func between(from, to time.Duration) func() time.Duration {
	return func() time.Duration { return (from + rand.N(to-from+1)).Truncate(time.Millisecond) }
}

// filling is the cost of messages that stay.
type filling struct {
	perSecond float64
	bytes     float64 // resident, for each message and server; 0: not measured
}

func (f filling) notes(r *result, what string) {
	r.note("filled at", f.perSecond, "messages/s")
	if f.bytes != 0 {
		r.note("resident memory per "+what+" and server", f.bytes, "bytes")
	}
}

// fillers publish messages that stay.
const fillers = 4

// fill publishes n messages that stay, and measures them. set completes a publisher.
func fill(ctx context.Context, t *target, n int, set func(*publisher)) (f filling, err error) {
	before, err := residentBytes(t.pids)
	if err != nil {
		return f, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	l := &load{}
	for i := range fillers {
		p := &publisher{id: uint32(i), uri: t.uri(i), window: 2000, more: upTo(n*(i+1)/fillers - n*i/fillers)}
		set(p)
		l.publishers = append(l.publishers, p)
	}
	began := clock()
	l.publish(ctx, fail)
	if err := context.Cause(ctx); err != nil {
		return f, err
	}
	f.perSecond = float64(n) / (clock() - began).Seconds()
	if len(t.pids) == 0 {
		return f, nil
	}
	if _, err := calm(ctx, t.pids, calmTimeout); err != nil {
		return f, err
	}
	after, err := residentBytes(t.pids)
	f.bytes = float64(after-before) / float64(n) / float64(len(t.pids))
	return f, err
}

// headerSender publishes with headers, which it makes from a message's time to live.
type headerSender struct {
	*channelSender
	headers func(ttl time.Duration) amqp.Table
}

func (o *headerSender) publish(queue string, body []byte, ttl time.Duration) error {
	return o.ch.Publish("", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body, Headers: o.headers(ttl)})
}

// openWithHeaders connects a publisher whose messages have headers.
func openWithHeaders(headers func(ttl time.Duration) amqp.Table) func(string, int) (sender, error) {
	return func(uri string, window int) (sender, error) {
		s, err := openSender(uri, window)
		if err != nil {
			return nil, err
		}
		plain, ok := s.(*channelSender)
		if !ok {
			s.drop()
			return nil, errNoHeaders
		}
		return &headerSender{plain, headers}, nil
	}
}

var errNoHeaders = errors.New("only AMQP 0-9-1 has these messages")

// openScheduler connects a publisher whose messages are ready after their time to live.
var openScheduler = openWithHeaders(func(ttl time.Duration) amqp.Table {
	return amqp.Table{"x-opt-delivery-delay": ttl.Milliseconds()}
})
