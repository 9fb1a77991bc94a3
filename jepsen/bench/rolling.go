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
	defaultRollQueues = 1000
	defaultRollRate   = 1000
	// rollPublishers share the queues of a rolling restart.
	rollPublishers = 8
	rollSize       = 256
	// rollWindow is how many messages of a publisher may be unconfirmed: enough for a long pause at
	// the rate of the run.
	rollWindow = 20_000
	// rollCalm is how long messages flow before and after the restarts.
	rollCalm = 2 * time.Second
	// rollTimeout bounds a run.
	rollTimeout = 10 * time.Minute
	// rollRetry is the pause between two attempts to connect to some node.
	rollRetry = 10 * time.Millisecond
)

// rolling is a restart of all nodes in turn under load.
type rolling struct {
	queues int
	rate   int // messages a second, all queues together
	kill   bool
}

func (r rolling) name() string {
	how := "drain and stop"
	if r.kill {
		how = "SIGKILL"
	}
	return fmt.Sprintf("rolling restart, %s, %d queues", how, r.queues)
}

func runRolling(ctx context.Context, fs *flag.FlagSet, args []string) error {
	l := labFlags(fs)
	queues := fs.Int("queues", defaultRollQueues, "`number` of queues")
	rate := fs.Int("rate", defaultRollRate, "`messages` a second through all queues together")
	if err := parse(fs, args); err != nil {
		return err
	}
	if *queues < 1 || *queues > 100_000 || *rate < 1 || *rate > 100_000 {
		return errors.New("-queues and -rate must be between 1 and 100000")
	}
	var all collection
	err := l.with(ctx, func() error { return rollBoth(ctx, l, *queues, *rate, &all) })
	return errors.Join(err, publishResults(all.medians(), l.json))
}

// rollBoth restarts the nodes with drains, then by killing them.
func rollBoth(ctx context.Context, l *lab, queues, rate int, all *collection) error {
	for _, kill := range []bool{false, true} {
		if _, err := calm(ctx, l.target.pids, calmTimeout); err != nil {
			return err
		}
		r, err := rolling{queues, rate, kill}.run(ctx, l)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Name, err)
		}
		all.add("", r)
	}
	return nil
}

// run publishes at a constant rate to all queues while the nodes are restarted, and measures for
// each queue the longest time from when a message was due to its confirm, however often the
// publisher had to reconnect. Then it checks that everything confirmed is there, and nothing twice.
func (r rolling) run(ctx context.Context, l *lab) (result, error) {
	out := result{Name: r.name()}
	ctx, stop := context.WithTimeout(ctx, rollTimeout)
	defer stop()
	c := &crowd{lab: l, n: r.queues}
	err := c.spread(ctx, l.target, func(ch *amqp.Channel, i int) error {
		return l.target.declareQueue(ch, queue{name: c.name(i)})
	})
	if err != nil {
		return out, err
	}
	book := newLedger(rollPublishers, rollSize)
	rollers := r.rollers(l.target, c)
	publishing, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	errs := make([]error, len(rollers))
	began := clock()
	for i, p := range rollers {
		all.Go(func() { errs[i] = p.run(ctx, publishing.Done()) })
	}
	err = errors.Join(pause(ctx, rollCalm), l.cluster.Roll(ctx, r.kill), pause(ctx, rollCalm))
	l.findProcesses()
	end()
	all.Wait()
	took := clock() - began
	if err = errors.Join(append(errs, err)...); err != nil {
		return out, err
	}
	if err := c.spread(ctx, l.target, func(ch *amqp.Channel, i int) error { return takeAll(ch, c.name(i), book) }); err != nil {
		return out, err
	}
	r.enter(&out, rollers, took)
	return out, errors.Join(book.holds(rollers), c.spread(ctx, l.target, func(ch *amqp.Channel, i int) error {
		_, err := ch.QueueDelete(c.name(i), false, false, false)
		return err
	}))
}

func (r rolling) rollers(t *target, c *crowd) []*roller {
	all := make([]*roller, rollPublishers)
	for i := range all {
		p := &roller{id: uint32(i), uris: t.uris, next: i, interval: time.Second * rollPublishers / time.Duration(r.rate)}
		for q := i; q < r.queues; q += rollPublishers {
			p.queues = append(p.queues, c.name(q))
		}
		p.worst = make([]time.Duration, len(p.queues))
		all[i] = p
	}
	return all
}

// enter adds the publishers' measurements to the result.
func (r rolling) enter(out *result, rollers []*roller, took time.Duration) {
	var worst []time.Duration
	again, connects := 0, 0
	for _, p := range rollers {
		worst = append(worst, p.worst...)
		out.Messages += p.confirmed
		again, connects = again+p.repeated, connects+p.connects-1
	}
	out.Times, out.Seconds = quantilesOf(worst), took.Seconds()
	out.PerSecond = float64(out.Messages) / took.Seconds()
	out.note("longest wait for a confirm per queue, 99 % of the queues", out.Times.P99/1e3, "s")
	out.note("longest wait for a confirm of any queue", out.Times.Max/1e3, "s")
	out.note("published again after a lost connection", float64(again), "messages")
	out.note("lost connections", float64(connects), "")
}

// takeAll takes what waits in a queue.
func takeAll(ch *amqp.Channel, name string, book *ledger) error {
	q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	if err != nil || q.Messages == 0 {
		return err
	}
	from, err := ch.Consume(name, name, true, false, false, false, nil)
	if err != nil {
		return err
	}
	for range q.Messages {
		d, ok := <-from
		if !ok {
			return errClosed
		}
		if _, ours := book.take(d.Body); !ours {
			return errForeign
		}
	}
	return ch.Cancel(name, false)
}

// holds returns an error if a confirmed attempt did not arrive, or one arrived twice.
func (l *ledger) holds(rollers []*roller) error {
	for i, p := range rollers {
		e, lost := l.entries[i], 0
		for n, ok := range p.answered {
			word := n / 64
			if ok && (word >= len(e.seen) || e.seen[word]&(1<<(n%64)) == 0) {
				lost++
			}
		}
		if lost > 0 || e.doubled > 0 {
			return fmt.Errorf("publisher %d: %d confirmed messages lost, %d came twice", i, lost, e.doubled)
		}
	}
	return nil
}

// roller publishes to its queues in turn at a constant rate. When its connection is lost it
// connects to the next node and publishes again what was not confirmed, each as a new attempt.
type roller struct {
	id       uint32
	uris     []string
	next     int // node to connect to
	queues   []string
	interval time.Duration

	conn     *amqp.Connection
	ch       *amqp.Channel
	answers  chan amqp.Confirmation
	open     []attempt // published on this connection and not answered
	again    []attempt
	answered []bool // by number of the attempt: confirmed
	body     [rollSize]byte

	worst                         []time.Duration // by queue
	confirmed, repeated, connects int
}

type attempt struct {
	number int
	queue  int
	due    time.Duration
}

// run publishes until stop, and then until everything is confirmed.
func (p *roller) run(ctx context.Context, stop <-chan struct{}) error {
	defer func() {
		if p.conn != nil {
			_ = p.conn.Close()
		}
	}()
	tick := time.NewTicker(max(p.interval, time.Millisecond))
	defer tick.Stop()
	began, sent := clock(), 0
	for {
		if p.ch == nil {
			if err := p.connect(ctx); err != nil {
				return fmt.Errorf("publisher %d: %d messages not confirmed: %w", p.id, len(p.again), err)
			}
		}
		if stop == nil && len(p.open)+len(p.again) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("publisher %d: %d messages not confirmed: %w", p.id, len(p.open), context.Cause(ctx))
		case <-stop:
			stop = nil
		case a, ok := <-p.answers:
			p.take(a, ok)
		case <-tick.C:
			for stop != nil && p.ch != nil && began+time.Duration(sent)*p.interval <= clock() && len(p.open) < rollWindow {
				p.publish(sent%len(p.queues), began+time.Duration(sent)*p.interval)
				sent++
			}
		}
	}
}

// connect connects to the next node that accepts the publisher, and repeats what was not confirmed.
func (p *roller) connect(ctx context.Context) error {
	for {
		conn, ch, err := connect(p.uris[p.next%len(p.uris)], true)
		p.next++
		if err == nil {
			if err = ch.Confirm(false); err == nil {
				p.conn, p.ch = conn, ch
				p.answers = ch.NotifyPublish(make(chan amqp.Confirmation, rollWindow))
				break
			}
			_ = conn.Close()
		}
		if err := pause(ctx, rollRetry); err != nil {
			return err
		}
	}
	p.connects++
	again := p.again
	p.again = nil
	for i, a := range again {
		if p.ch == nil {
			p.again = append(p.again, again[i:]...)
			break
		}
		p.repeated++
		p.publish(a.queue, a.due)
	}
	return nil
}

// publish makes one attempt to publish a message that is due.
func (p *roller) publish(queue int, due time.Duration) {
	a := attempt{len(p.answered), queue, due}
	p.answered = append(p.answered, false)
	p.open = append(p.open, a)
	stamp(p.body[:], p.id, uint64(a.number), clock(), due)
	err := p.ch.Publish("", p.queues[queue], false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: p.body[:]})
	if err != nil {
		p.lost()
	}
}

// take handles an answer: they come in the order of the attempts.
func (p *roller) take(c amqp.Confirmation, ok bool) {
	if !ok {
		p.lost()
		return
	}
	a := p.open[0]
	p.open = p.open[1:]
	if !c.Ack {
		p.again = append(p.again, a)
		p.lost()
		return
	}
	p.answered[a.number] = true
	p.confirmed++
	p.worst[a.queue] = max(p.worst[a.queue], clock()-a.due)
}

// lost takes the answers that have arrived, and keeps the rest for the next connection.
func (p *roller) lost() {
	if p.ch == nil {
		return
	}
	_ = p.conn.Close()
	p.ch = nil
	for c := range p.answers { // ends with the channel
		if len(p.open) > 0 && c.Ack {
			p.take(c, true)
		}
	}
	p.again = append(p.again, p.open...)
	p.open, p.conn = nil, nil
}
