package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/report"
)

const (
	// crowdWorkers is how many channels per node take the messages out of the queues at a time.
	crowdWorkers = 3
	// crowdTimeout bounds each run through queues, beside crowdSlow for each queue or message.
	crowdTimeout = 3 * time.Minute
	crowdSlow    = 10 * time.Millisecond
)

// crowdShape says how many queues there are, and what is done with them.
type crowdShape struct {
	queues   int
	used     int // of them, spread over all, get messages where it is not said which do; 0: all
	inFlight int // declares at a time
	single   int // queues that are declared one after the other, before the others
	lone     int // queues that are woken one after the other
	busy     int // queues that are busy while the others rest
	rate     int // messages a second while a node is killed, to all queues in turn
	// calmFor is how long the queues rest before what is to find them at rest, and restFor before idle processor
	// time is measured for idleFor: members of a group are told once what is committed when it has rested for
	// half a minute.
	calmFor, restFor, idleFor time.Duration
	// paced is how long messages flow while a node is killed, and before how long of it before.
	paced, before time.Duration
	// thaw is how long after a node was frozen the others have found out that it lives.
	thaw time.Duration
	only string
}

var defaultCrowd = crowdShape{
	queues: 10_000, inFlight: 30, single: 500, lone: 2000, busy: 2000, rate: 1000,
	calmFor: 30 * time.Second, restFor: 75 * time.Second, idleFor: time.Minute, paced: 20 * time.Second, before: 5 * time.Second, thaw: 10 * time.Second,
}

// crowdFlags adds the flags of the command queues.
func crowdFlags(f flags, l *lab) func(*bench) {
	s := defaultCrowd
	f.nodes(l)
	for _, n := range []struct {
		name  string
		n     *int
		most  int
		usage string
	}{
		{"queues", &s.queues, 1_000_000, "`number` of queues"},
		{"use", &s.used, 1_000_000, "`queues` that get messages, the others are only declared; wake and busy choose theirs from all; 0: all"},
		{"in-flight", &s.inFlight, 1000, "`declares` at a time"},
		{"wake", &s.lone, unbounded, "`queues` that rest and are woken one after the other"},
		{"busy", &s.busy, unbounded, "`queues` that are busy in the run hot kill, while the others rest"},
		{"rate", &s.rate, 1_000_000, "`messages` a second to all queues in turn while a node is killed"},
	} {
		f.Var(bounded{n.n, min(1, *n.n), n.most}, n.name, n.usage)
	}
	f.DurationVar(&s.calmFor, "calm", s.calmFor, "how `long` queues rest before what is to find them at rest; longer than raft.idle_after")
	f.DurationVar(&s.idleFor, "idle", s.idleFor, "how `long` idle nodes are measured")
	only := f.only()
	return func(b *bench) {
		s.only = *only
		b.manyQueues(s)
	}
}

// manyQueues measures a cluster with a large number of queues.
func (b *bench) manyQueues(s crowdShape) {
	if s.used == 0 {
		s.used = s.queues
	}
	s.used = min(s.used, s.queues)
	c := &crowd{bench: b, crowdShape: s, ledger: newLedger(0), has: make([]bool, s.queues)}
	all := []step{
		{"declare", c.declareAll},
		{"memory", c.memory}, {"idle", c.unused}, {"frozen", c.freezeOne}, {"wake", c.wake}, {"pages", c.readPages},
		{"cold kill", c.coldKill}, {"hot kill", c.hotKill}, {"burst", c.burst}, {"restart", c.restart},
	}
	if selected("memory", s.only) {
		c.empty = c.footprint()
	}
	if selected("idle", s.only) {
		c.emptyIdle = c.idleness()
	}
	if !selected(all[0].name, s.only) {
		c.declareAll()
	}
	c.steps(s.only, calmTimeout, all)
	c.last()
}

// crowd is a large number of queues.
type crowd struct {
	*bench
	crowdShape
	ledger *ledger // a round through queues is a publisher, a queue its message
	has    []bool  // whether a queue has messages
	// empty and emptyIdle are of the cluster before there were queues.
	empty     footprint
	emptyIdle idleness
}

func (c *crowd) name(i int) string { return fmt.Sprintf("bench-crowd-%d", i+1) }

func (c *crowd) result(format string, args ...any) report.Result {
	return report.Result{Name: fmt.Sprintf(format, args...)}
}

// declareAll creates the queues: some one after the other, the rest several at a time.
func (c *crowd) declareAll() {
	one := min(c.single, c.queues/2)
	if one > 0 {
		c.declareSome(c.result("declare %d queues, one at a time", one), 0, one, 1)
	}
	c.declareSome(c.result("declare %d queues, %d at a time", c.queues-one, c.inFlight), one, c.queues, c.inFlight)
}

func (c *crowd) declareSome(r report.Result, from, to, atOnce int) {
	c.spend(&r, "declare", func() int {
		c.spread(from, to, atOnce, func(ch *amqp.Channel, i int) error {
			_, err := ch.QueueDeclare(c.name(i), true, false, false, false, amqp.Table{"x-queue-type": c.queueType})
			return err
		})
		return to - from
	})
	c.keep(r)
}

// spend measures what work on as many things as it returns costs, and adds it to r.
func (c *crowd) spend(r *report.Result, thing string, work func() int) {
	before := c.counts()
	c.cost(r, work)
	c.noteCounts(r, thing, before, c.counts())
}

// noteCounts records what each of the things has cost between two readings of the metrics, of which a server of an
// earlier version may lack some.
func (c *crowd) noteCounts(r *report.Result, thing string, before, after map[string]float64) {
	r.Note("processor time of all nodes per "+thing, r.ServerCPU/1e3, "ms")
	if n, known := after[diskSyncs]; known {
		r.Note("fdatasync and fsync per node and "+thing, (n-before[diskSyncs])/r.Messages/float64(len(c.pids)), "")
	}
	if n, known := after[framesSent]; known {
		r.Note("messages between nodes per "+thing, (n-before[framesSent])/r.Messages, "")
	}
}

// spread does something to each of the queues from a number to below another, so many at a time, on channels to
// the nodes in turn: a queue is led by the node at which it was declared.
func (c *crowd) spread(from, to, atOnce int, do func(ch *amqp.Channel, i int) error) {
	ctx, cancel := context.WithTimeout(c.ctx, 5*crowdTimeout+time.Duration(to-from)*crowdSlow)
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(atOnce, to-from) {
		all.Go(func() error {
			channels := make([]*amqp.Channel, len(c.uris))
			for k := range channels {
				conn, ch, err := open(ctx, nil, c.uri(k))
				if err != nil {
					return err
				}
				defer conn.Close()
				// A call that is never answered ends with the connection.
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				channels[k] = ch
			}
			for i := from + int(next.Add(1)) - 1; i < to && ctx.Err() == nil; i = from + int(next.Add(1)) - 1 {
				if err := do(channels[i%len(channels)], i); err != nil {
					return fmt.Errorf("%s: %w", c.name(i), err)
				}
			}
			return nil
		})
	}
	must(all.Wait())
}

// settle lets the queues come to rest.
func (c *crowd) settle() {
	c.pause(c.calmFor)
	c.calm(calmTimeout)
}

// sent is what became of messages to queues in turn.
type sent struct{ published, confirmed []time.Duration }

// waits returns how long each queue waited for a confirm, at most.
func (s *sent) waits(queues int) []time.Duration {
	longest := make([]time.Duration, queues)
	for m, at := range s.confirmed {
		longest[m%queues] = max(longest[m%queues], at-s.published[m])
	}
	return longest
}

// round adds a round through the first n queues to the ledger, and returns its number.
func (c *crowd) round(n int) int {
	number := len(c.ledger.entries)
	c.ledger.entries = append(c.ledger.entries, &entry{ledger: c.ledger, publisher: number, confirmed: uint64(n)})
	return number
}

// spaced is the number of a queue of so many that are spread over all: a rebalance gives a node queues that follow
// each other.
func (c *crowd) spaced(k, of int) int { return k * c.queues / of }

// send publishes so many messages to some queues in turn, a publisher per node of t, and returns when all are
// confirmed. rate is that of all publishers together, in messages a second; 0: as fast as they
// can.
func (c *crowd) send(t *target, queues, messages, rate int) sent {
	bound := crowdTimeout + time.Duration(messages)*crowdSlow
	if rate > 0 {
		bound += time.Duration(messages/rate) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.ctx, bound)
	defer cancel()
	for k := range min(messages, queues) {
		c.has[c.spaced(k, queues)] = true
	}
	first := len(c.ledger.entries)
	for left := messages; left > 0; left -= queues {
		c.round(min(left, queues))
	}
	p := pacer{crowd: c, queues: queues, first: first, rate: rate, sent: sent{make([]time.Duration, messages), make([]time.Duration, messages)}}
	errs := make([]error, len(t.uris))
	var all sync.WaitGroup
	for k := range t.uris {
		all.Go(func() { errs[k] = p.publish(ctx, t.uris[k], k, len(t.uris)) })
	}
	all.Wait()
	must(errors.Join(errs...))
	return p.sent
}

// message is what goes to a queue in a round.
func (c *crowd) message(round, queue int) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: client.Brief(nil, keyOf(round, uint64(queue)), smallSize)}
}

// pacer sends messages to some queues in turn.
type pacer struct {
	*crowd
	queues int
	first  int // round of its first message
	rate   int
	sent   sent
}

// queue is where a message goes.
func (p *pacer) queue(m int) string { return p.name(p.spaced(m%p.queues, p.queues)) }

// publish sends the messages of one publisher. The confirm of one queue does not wait for that of another, as a
// client's do.
func (p *pacer) publish(ctx context.Context, uri string, first, step int) error {
	conn, ch, err := open(ctx, client.Gather, uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	refused := make([]error, len(p.sent.confirmed))
	var waiting sync.WaitGroup
	began := clock()
	for m := first; m < len(refused); m += step {
		if p.rate > 0 {
			if refused[m] = pause(ctx, began+time.Duration(m)*time.Second/time.Duration(p.rate)-clock()); refused[m] != nil {
				break
			}
		}
		p.sent.published[m] = clock()
		confirm, err := ch.PublishWithDeferredConfirm("", p.queue(m), false, false, p.message(p.first+m/p.queues, m%p.queues))
		if err != nil {
			refused[m] = err
			break
		}
		waiting.Go(func() {
			refused[m] = confirmed(ctx, confirm)
			p.sent.confirmed[m] = clock()
		})
	}
	waiting.Wait()
	for m, err := range refused {
		if err != nil {
			_ = conn.Close() // so that the reason is known
			return errors.Join(fmt.Errorf("%s: %w", p.queue(m), err), fmt.Errorf("closed: %v", <-closed))
		}
	}
	return nil
}

// confirmed waits for a confirm.
func confirmed(ctx context.Context, confirm *amqp.DeferredConfirmation) error {
	ok, err := confirm.WaitContext(ctx)
	if err == nil && !ok {
		err = errNacked
	}
	return err
}

// last sends one more message to each queue that is used, then takes all messages in queues that have had any.
func (c *crowd) last() {
	r := c.result("one message through each of %d queues", c.used)
	c.cost(&r, func() int {
		c.send(c.target, c.used, c.used, 0)
		rounds := len(c.ledger.entries)
		c.spread(0, c.queues, crowdWorkers*len(c.uris), func(ch *amqp.Channel, i int) error {
			for range rounds + 1 {
				if !c.has[i] {
					return nil
				}
				d, ok, err := ch.Get(c.name(i), true)
				if err != nil || !ok {
					return err
				}
				key, _ := client.Key(d.Body)
				c.ledger.take(key)
			}
			return fmt.Errorf("more than %d messages", rounds)
		})
		return c.used
	})
	must(c.ledger.check())
	c.keep(r)
}
