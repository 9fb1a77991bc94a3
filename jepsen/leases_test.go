package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// leasePlay has clients that declare queues with a lease, use them for a while, leave
// them, and wait for their ends.
func (r *run) leasePlay(draw *rand.Rand) *play {
	p := &play{History: r.beside("lease"), name: "lease"}
	for i := range 3 {
		d := seeded(draw, 19)
		p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
			return r.tenant(ctx, p, i, d, enough)
		})
	}
	p.over = func() bool { return true }
	p.checks = []check{func(h *history.History) checker.Verdict { return checker.Leases(h, recovering) }}
	p.tried = func() error {
		gone := 0
		for _, o := range p.Ops {
			if o.Kind == history.Gone && o.Result == history.OK {
				gone++
			}
		}
		if gone == 0 {
			return errors.New("no queue has ended")
		}
		return nil
	}
	return p
}

// tenant uses one queue after the other, until each has ended.
func (r *run) tenant(ctx context.Context, p *play, number int, d *dice, enough <-chan struct{}) error {
	for round := 1; ; round++ {
		select {
		case <-ctx.Done():
			return nil
		case <-enough:
			return nil
		default:
		}
		t := &tenancy{
			p: p, uris: r.URIs()[:3], first: number + round, queue: fmt.Sprintf("lease-%d-%d", number+1, round),
			lease: time.Duration(1+d.below(3)) * time.Second,
		}
		t.live(ctx, d)
		t.close()
	}
}

// tenancy is the use of one queue.
type tenancy struct {
	p     *play
	uris  []string
	first int
	queue string
	lease time.Duration

	conn *amqp.Connection
	ch   *amqp.Channel
}

func (t *tenancy) close() {
	if t.conn != nil {
		_ = t.conn.CloseDeadline(time.Now().Add(time.Second))
	}
}

// live declares the queue, uses it, and waits until it has ended.
func (t *tenancy) live(ctx context.Context, d *dice) {
	if t.declare(ctx) != history.OK { // it may be there all the same
		return
	}
	for range d.below(6) {
		workload.Wait(ctx, d.within(0, t.lease*8/10))
		if t.seen(ctx) == history.Gone { // a use would make another queue
			return
		}
		switch d.below(3) {
		case 0:
			// A declare that comes too late would make another queue of this name.
			if t.declare(ctx) != history.OK {
				return
			}
		case 1:
			t.use(ctx, false, func() error {
				_, _, err := t.ch.Get(t.queue, true)
				return err
			})
		default:
			t.consume(ctx, d)
		}
	}
	for end := time.Now().Add(t.lease + time.Minute); time.Now().Before(end) && ctx.Err() == nil; {
		if t.seen(ctx) == history.Gone {
			return
		}
		workload.Wait(ctx, 100*time.Millisecond)
	}
}

// use records a use of the queue.
func (t *tenancy) use(ctx context.Context, consumed bool, do func() error) history.Result {
	o := history.Op{Kind: history.Use, Client: t.queue, Group: t.queue, Lock: t.lease, Again: consumed, Result: history.Unknown}
	if !t.open(ctx) {
		return history.No
	}
	o.Call = t.p.Now()
	if do() == nil {
		o.Result, o.Return = history.OK, t.p.Now()
	}
	t.p.Did(o)
	return o.Result
}

func (t *tenancy) declare(ctx context.Context) history.Result {
	return t.use(ctx, false, func() error {
		_, err := t.ch.QueueDeclare(t.queue, true, false, false, false, amqp.Table{"x-expires": t.lease.Milliseconds()})
		return err
	})
}

// consume subscribes for longer than the lease.
func (t *tenancy) consume(ctx context.Context, d *dice) {
	subscribed := t.use(ctx, false, func() error {
		_, err := t.ch.Consume(t.queue, "tenant", true, false, false, false, nil)
		return err
	})
	if subscribed != history.OK {
		return
	}
	o := history.Op{Kind: history.Use, Client: t.queue, Group: t.queue, Lock: t.lease, Again: true, Call: t.p.Now(), Result: history.Unknown}
	workload.Wait(ctx, t.lease+d.within(0, t.lease))
	// What is asked for here ends before the subscription does.
	other := &tenancy{p: t.p, uris: t.uris, first: t.first + 1, queue: t.queue, lease: t.lease}
	other.seen(ctx)
	other.close()
	if t.ch.IsClosed() {
		return
	}
	o.Return = t.p.Now()
	t.p.Did(o)
	t.use(ctx, false, func() error { return t.ch.Cancel("tenant", false) })
}

// seen asks whether the queue exists, which is no use of it.
func (t *tenancy) seen(ctx context.Context) string {
	o := history.Op{Kind: history.There, Client: t.queue, Group: t.queue, Result: history.Unknown}
	if !t.open(ctx) {
		return ""
	}
	o.Call = t.p.Now()
	_, err := t.ch.QueueDeclarePassive(t.queue, true, false, false, false, nil)
	var refused *amqp.Error
	switch {
	case err == nil:
		o.Result, o.Return = history.OK, t.p.Now()
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		o.Kind, o.Result, o.Return = history.Gone, history.OK, t.p.Now()
	default:
		return ""
	}
	t.p.Did(o)
	return o.Kind
}

// open has a channel, if a node lets it in.
func (t *tenancy) open(ctx context.Context) bool {
	for range 100 {
		if t.ch != nil && !t.ch.IsClosed() {
			return true
		}
		t.close()
		var err error
		t.first++
		if t.conn, err = client.Connect(ctx, t.uris[t.first%len(t.uris)]); err == nil {
			if t.ch, err = t.conn.Channel(); err == nil {
				return true
			}
		}
		if workload.Wait(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return false
		}
	}
	return false
}
