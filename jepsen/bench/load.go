package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	// stall is how long a run may make no progress before it is given up.
	stall = 30 * time.Second
	// settlePoll is how often it is checked whether everything has arrived.
	settlePoll = 5 * time.Millisecond
)

var errStalled = errors.New("nothing has come for " + stall.String())

// publisher publishes with confirms, to its queues in turn.
type publisher struct {
	id     int
	uri    string
	queues []string
	size   int
	window int // unconfirmed messages
	// more reports whether message n, counted from 0, is to be published.
	more func(n uint64) bool
	// set, if set, completes a message.
	set func(m *client.Message)
	// rate is how many messages a second are due; 0: as many as the window allows.
	rate int
	// taken, if set, gets the time from each publish to its confirm.
	taken *samples
}

// run publishes until more returns false and all are confirmed. The connection must not be lost.
func (p *publisher) run(ctx context.Context, l *ledger) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	e := l.entries[p.id]
	e.taken, e.fail = p.taken, fail
	n := uint64(0)
	next := func() (client.Message, bool) {
		if !p.more(n) {
			return client.Message{}, false
		}
		m := client.Message{RoutingKey: p.queues[n%uint64(len(p.queues))], Size: p.size}
		if p.set != nil {
			p.set(&m)
		}
		n++
		return m, true
	}
	run := p.stream
	if !isNATS(p.uri) {
		c := client.Publisher{Name: p.queues[0], URIs: []string{p.uri}, Window: p.window, Rate: p.rate, Steady: true, Plain: true,
			Lost: func(reason error) { fail(errors.Join(errClosed, reason)) }}
		if p.window > 1 {
			c.Dial = client.Gather
		}
		run = c.Run
	}
	err := run(ctx, e, next)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// consumer consumes one queue and acks several deliveries at once.
type consumer struct {
	uri      string
	queue    string
	prefetch int
	ackEvery int
	args     amqp.Table // of the subscription
	// interval is the time between deliveries taken; 0: as they come.
	interval time.Duration
	// each, if set, is called with each delivery; there is no interval then.
	each func(amqp.Delivery)
	// shared, if set, is a connection that several use.
	shared *amqp.Connection
}

// run takes deliveries until ctx ends, then acks the rest and closes. It calls subscribed once.
func (c *consumer) run(ctx context.Context, l *ledger, subscribed func()) error {
	if isNATS(c.uri) {
		return c.stream(ctx, l, subscribed)
	}
	ended := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	in := client.Consumer{
		Name: c.queue, URIs: []string{c.uri}, Dial: client.Gather, Conn: c.shared, Queue: c.queue,
		Prefetch: c.prefetch, Batch: c.ackEvery, Arguments: c.args, Subscribed: subscribed,
		Lost: func(reason error) { fail(errors.Join(errClosed, reason)) }, Each: c.each,
	}
	if c.interval > 0 {
		began, took := clock(), 0
		in.Each = func(amqp.Delivery) {
			took++
			_ = pause(ctx, began+time.Duration(took)*c.interval-clock()) // the end of ctx is noticed by the client
		}
	}
	err := in.Run(ctx, l.entries[0])
	if cause := context.Cause(ctx); cause != nil && ended.Err() == nil {
		return cause
	}
	return err
}

// load is publishers and consumers at work at the same time.
type load struct {
	publishers []*publisher
	consumers  []*consumer
	ledger     *ledger
	// meanwhile, if set, happens while they publish, which is not over before it is.
	meanwhile func(ctx context.Context) error
}

// run publishes and consumes until everything confirmed has arrived, checks that each message arrived once, and
// adds the cost to r, unless that is nil.
func (b *bench) run(l *load, r *report.Result) {
	err := b.work(l, r, func(ctx context.Context) (uint64, error) {
		err := l.ledger.await(ctx)
		confirmed, _ := l.ledger.sums()
		return confirmed, err
	})
	// What was lost or doubled explains a stall better than the stall does.
	if wrong := l.ledger.check(); wrong != nil && (err == nil || errors.Is(err, errStalled)) {
		err = errors.Join(wrong, err)
	}
	must(err)
}

// fill publishes, and consumes meanwhile if there are consumers, and adds the cost to r, unless that is nil. What is
// not consumed then stays.
func (b *bench) fill(l *load, r *report.Result) {
	before, _ := l.ledger.sums()
	must(b.work(l, r, func(context.Context) (uint64, error) {
		confirmed, _ := l.ledger.sums()
		return confirmed - before, nil
	}))
}

// work has consumers consume until the publishers and then end have returned. The cost of as many messages as end
// counts is that from when all have subscribed, or, without publishers, from when they are about to.
func (b *bench) work(l *load, r *report.Result, end func(ctx context.Context) (n uint64, err error)) (err error) {
	ctx, fail := context.WithCancelCause(b.ctx)
	defer fail(nil)
	consuming, stop := context.WithCancel(ctx)
	var consumers sync.WaitGroup
	defer consumers.Wait()
	defer stop()
	subscribe := sync.OnceFunc(func() {
		subscribed := make(chan struct{}, len(l.consumers))
		for i, c := range l.consumers {
			consumers.Go(func() {
				if err := c.run(consuming, l.ledger, func() { subscribed <- struct{}{} }); err != nil {
					fail(fmt.Errorf("consumer %d: %w", i, err))
				}
			})
		}
		for range l.consumers {
			select {
			case <-subscribed:
			case <-ctx.Done():
				must(context.Cause(ctx))
			}
		}
	})
	if len(l.publishers) > 0 {
		subscribe()
	}
	b.cost(r, func() int {
		subscribe()
		l.publish(ctx, fail)
		var n uint64
		n, err = end(ctx)
		return int(n)
	})
	stop()
	consumers.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// publish runs the publishers to their end.
func (l *load) publish(ctx context.Context, fail context.CancelCauseFunc) {
	var all sync.WaitGroup
	if l.meanwhile != nil {
		all.Go(func() {
			if err := l.meanwhile(ctx); err != nil {
				fail(err)
			}
		})
	}
	for i, p := range l.publishers {
		all.Go(func() {
			if err := p.run(ctx, l.ledger); err != nil {
				fail(fmt.Errorf("publisher %d: %w", i, err))
			}
		})
	}
	all.Wait()
}

// await waits until as many messages have arrived as are confirmed.
func (l *ledger) await(ctx context.Context) error {
	last, since := uint64(0), clock()
	for {
		confirmed, n := l.sums()
		if n >= confirmed {
			return nil
		}
		if n != last {
			last, since = n, clock()
		} else if clock()-since > stall {
			return errStalled
		}
		if err := pause(ctx, settlePoll); err != nil {
			return err
		}
	}
}

// drain consumes what waits in the queues and checks that this, with what the ledger has already seen, is what
// was confirmed.
func (b *bench) drain(seen *ledger, queues ...queue) {
	l := &load{ledger: seen}
	for i, q := range queues {
		l.consumers = append(l.consumers, &consumer{uri: b.uri(i), queue: q.name, prefetch: 500, ackEvery: 50})
	}
	b.run(l, nil)
}

// fillers publish messages that stay.
const fillers = 4

// filler is a load of n messages to queues. Its publishers have the numbers from first on.
func (b *bench) filler(l *ledger, first, n, size int, queues ...string) *load {
	all := &load{ledger: l}
	for i := range fillers {
		all.publishers = append(all.publishers, &publisher{
			id: first + i, uri: b.uri(i), queues: queues, size: size, window: 2000, more: upTo(n*(i+1)/fillers - n*i/fillers),
		})
	}
	return all
}

// upTo returns a function that reports true n times.
func upTo(n int) func(uint64) bool {
	return func(i uint64) bool { return i < uint64(n) }
}

// during returns a function that reports true until d is over, counted from its first call.
func during(d time.Duration) func(uint64) bool {
	var end time.Duration
	return func(uint64) bool {
		if end == 0 {
			end = clock() + d
		}
		return clock() < end
	}
}

// target is the brokers under load.
type target struct {
	uris      []string
	pids      []int // of the servers; none: their cost is not measured
	queueType string
	in10      bool   // clients speak AMQP 1.0
	manage    string // where entities of Azure Service Bus are created, which queues then are; empty: they are not
}

// isNATS reports whether a broker speaks the protocol of NATS.
func isNATS(uri string) bool { return strings.HasPrefix(uri, "nats://") }

// uri spreads clients over the nodes.
func (t *target) uri(n int) string {
	uri := t.uris[n%len(t.uris)]
	if t.in10 {
		return client.In10(uri)
	}
	return uri
}

// without is the cluster as seen by clients that do not connect to a given node.
func (t *target) without(node int) *target {
	rest := *t
	rest.uris = slices.Delete(slices.Clone(t.uris), node, node+1)
	rest.pids = slices.Delete(slices.Clone(t.pids), node, node+1)
	return &rest
}

// queue is a queue to be declared for a run.
type queue struct {
	name string
	args amqp.Table
}

// numbered are n queues, from 1.
func numbered(prefix string, n int) (all []queue) {
	for i := range n {
		all = append(all, queue{name: fmt.Sprint(prefix, i+1)})
	}
	return all
}

func namesOf(queues []queue) (names []string) {
	for _, q := range queues {
		names = append(names, q.name)
	}
	return names
}

// declare deletes the queues and declares them again, empty.
func (b *bench) declare(queues ...queue) {
	if isNATS(b.uris[0]) {
		must(eachStream(b.uris[0], queues, renewStream))
		return
	}
	if b.manage != "" {
		for _, q := range queues {
			must(b.entity(b.ctx, http.MethodDelete, q.name, ""))
			must(b.entity(b.ctx, http.MethodPut, q.name, ""))
		}
		return
	}
	ch, end := b.channel(b.uris[0])
	defer end()
	for _, q := range queues {
		get(ch.QueueDelete(q.name, false, false, false))
		args := amqp.Table{}
		maps.Copy(args, q.args)
		if b.queueType != "" {
			args["x-queue-type"] = b.queueType
		}
		if _, err := ch.QueueDeclare(q.name, true, false, false, false, args); err != nil {
			must(fmt.Errorf("declare %s: %w", q.name, err))
		}
	}
}

// remove deletes the queues with all they hold.
func (b *bench) remove(queues ...queue) {
	if isNATS(b.uris[0]) {
		must(eachStream(b.uris[0], queues, removeStream))
		return
	}
	if b.manage != "" {
		for _, q := range queues {
			must(b.entity(b.ctx, http.MethodDelete, q.name, ""))
		}
		return
	}
	ch, end := b.channel(b.uris[0])
	defer end()
	for _, q := range queues {
		get(ch.QueueDelete(q.name, false, false, false))
	}
}

// ready counts the messages waiting in a queue.
func (b *bench) ready(name string) int { return b.readyAt(b.uris[0], name) }

func (b *bench) readyAt(uri, name string) int {
	ch, end := b.channel(uri)
	defer end()
	return get(ch.QueueDeclarePassive(name, true, false, false, false, nil)).Messages
}

// channel opens a connection and a channel. end closes both.
func (b *bench) channel(uri string) (ch *amqp.Channel, end func()) {
	conn, ch, err := open(b.ctx, nil, uri)
	must(err)
	return ch, func() { _ = conn.Close() } // what was done on it was answered
}

// open opens a connection by dial, or without it, and a channel.
func open(ctx context.Context, dial client.Dialer, uri string) (*amqp.Connection, *amqp.Channel, error) {
	conn, err := client.ConnectBy(ctx, dial, uri)
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		_ = conn.Close()
	}
	return conn, ch, err
}
