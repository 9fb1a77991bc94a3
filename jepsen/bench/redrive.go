package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	// redriveLife is how long a message lives before it is a letter.
	redriveLife = time.Millisecond
	// redriveSlow bounds how long a letter takes to come somewhere, beside stall for all.
	redriveSlow = 10 * time.Millisecond
	redrivePoll = 50 * time.Millisecond
)

var errNotRedriven = errors.New("letters were not redriven as they should be")

// redriving says which letters go back, and what is measured meanwhile.
type redriving struct {
	*bench
	letters, size int
	rate          int           // letters a second; 0: by requests of 1000, one after the other
	steady        int           // messages a second that another queue confirms
	alone         time.Duration // how long they are measured without a redrive
}

func redriveFlags(f flags, l *lab) func(*bench) {
	f.nodes(l)
	letters, size := f.number("letters", 1_000_000, 1, unbounded, "`letters` that go back to where they died"), f.size(smallSize)
	rate := f.number("rate", 0, 0, 10_000, "`letters` a second, at which the queue goes on by itself; 0: by requests, as fast as they are answered")
	steady := f.number("steady", 1000, 1, 1_000_000, "`messages` a second that another queue confirms meanwhile")
	alone := f.Duration("duration", 10*time.Second, "how `long` its confirms are measured alone")
	return func(b *bench) {
		b.warmUp(warmTime)
		redriving{b, *letters, *size, *rate, *steady, *alone}.run()
	}
}

// run fills a queue with letters and has them go back, while another queue confirms messages at a fixed rate. It
// measures those confirms before and meanwhile, and checks that each letter came back once, and says that it was redriven.
func (b redriving) run() {
	dead, steady := queue{name: "bench-redrive-dead"}, queue{name: "bench-redrive-steady"}
	source := lettersTo(dead.name, "bench-redrive")
	b.declare(dead, source, steady)
	fill := b.filler(newLedger(fillers), 0, b.letters, b.size, source.name)
	for _, p := range fill.publishers {
		p.set = func(m *client.Message) { m.TTL = redriveLife }
	}
	b.fill(fill, nil)
	must(b.holds(b.ctx, dead.name, b.letters))
	b.calm(calmTimeout)

	alone := b.confirms("alone", steady, during(b.alone), nil)
	back := report.Result{Name: fmt.Sprintf("%d letters redriven", b.letters)}
	var over atomic.Bool
	meanwhile := b.confirms("during a redrive", steady, func(uint64) bool { return !over.Load() }, func(ctx context.Context) error {
		defer over.Store(true)
		return try(func() {
			b.cost(&back, func() int {
				must(b.back(ctx, dead.name))
				must(b.holds(ctx, source.name, b.letters))
				return b.letters
			})
		})
	})
	if n := b.ready(dead.name); n != 0 {
		must(fmt.Errorf("%w: %d are left", errNotRedriven, n))
	}
	wrong := 0
	b.bench.run(&load{ledger: fill.ledger, consumers: []*consumer{{uri: b.uri(1), queue: source.name, prefetch: 500, ackEvery: 50, each: func(d amqp.Delivery) {
		if d.Headers["x-redriven"] != int64(1) {
			wrong++
		}
	}}}}, nil)
	if wrong > 0 {
		must(fmt.Errorf("%w: %d do not say that they were once", errNotRedriven, wrong))
	}
	b.remove(source, dead, steady)
	b.keep(alone, meanwhile, back)
}

// confirms measures how long the confirms of messages at a fixed rate take while something happens.
func (b redriving) confirms(when string, q queue, more func(uint64) bool, meanwhile func(context.Context) error) report.Result {
	r := report.Result{Name: fmt.Sprintf("confirms at %d msg/s, %s", b.steady, when)}
	var taken samples
	b.bench.run(&load{
		ledger: newLedger(1), meanwhile: meanwhile,
		publishers: []*publisher{{uri: b.uri(0), queues: []string{q.name}, size: b.size, window: 1000, more: more, rate: b.steady, taken: &taken}},
		consumers:  []*consumer{{uri: b.uri(1), queue: q.name, prefetch: 500, ackEvery: 50}},
	}, &r)
	r.Times = taken.quantiles()
	return r
}

// back has all letters of a queue go back.
func (b redriving) back(ctx context.Context, dead string) error {
	if b.rate > 0 {
		return b.atRate(ctx, dead)
	}
	sum, body := 0, map[string]any{}
	for {
		var answer struct {
			Messages int
			Next     string
		}
		if err := b.own.Nodes[0].Call(ctx, http.MethodPost, "/api/queues/%2F/"+dead+"/redrive", body, &answer); err != nil {
			return err
		}
		if sum += answer.Messages; answer.Next == "" {
			break
		}
		body["after"] = answer.Next
	}
	if sum != b.letters {
		return fmt.Errorf("%w: %d of %d", errNotRedriven, sum, b.letters)
	}
	return nil
}

// atRate has the queue redrive all at a rate.
func (b redriving) atRate(ctx context.Context, dead string) error {
	path := "/api/queues/%2F/" + dead
	if err := b.own.Nodes[0].Call(ctx, http.MethodPost, path+"/redrive", map[string]any{"rate": b.rate}, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stall+2*time.Duration(b.letters/b.rate)*time.Second)
	defer cancel()
	var q struct {
		Redrive struct {
			Ended *int64
			Taken int
		}
	}
	err := await.Until(ctx, redrivePoll, "the end of the redrive", func() (bool, error) {
		err := b.own.Nodes[0].Call(ctx, http.MethodGet, path, nil, &q)
		return q.Redrive.Ended != nil, err
	})
	if err == nil && q.Redrive.Taken != b.letters {
		err = fmt.Errorf("%w: %d of %d", errNotRedriven, q.Redrive.Taken, b.letters)
	}
	return err
}

// holds waits until so many messages are ready in a queue.
func (b redriving) holds(ctx context.Context, name string, n int) error {
	conn, ch, err := open(ctx, nil, b.uri(0))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, stall+time.Duration(n)*redriveSlow)
	defer cancel()
	return await.Until(ctx, redrivePoll, fmt.Sprintf("%d messages in %s", n, name), func() (bool, error) {
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return q.Messages == n, errors.Join(err, fmt.Errorf("%d", q.Messages))
	})
}
