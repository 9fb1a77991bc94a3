package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rabbit "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
)

// flow publishes to one queue and consumes from the same or another one.
type flow struct {
	w         *world
	publishTo string
	consume   string
	// publishes10 and consumes10: in AMQP 1.0.
	publishes10, consumes10 bool

	queues    []declared
	perSecond int // messages that are published
	make      func(*rand.Rand) client.Message
	// check judges the history beyond what is judged of all.
	check func(*history.History) []checker.Verdict
	// prepare declares what the flow uses; nil: queues.
	prepare func(ctx context.Context) error
	// receive consumes until ctx ends; nil: like an application that acks everything.
	receive func(ctx context.Context) error
	// idle: after the healing nothing is published, so that only what is due moves the queue.
	idle bool
	// kept: nothing is consumed before the end.
	kept bool
	// spare is how many confirmed messages need not be delivered; nil: none.
	spare func() int

	history               *history.History
	rng                   *rand.Rand
	last                  atomic.Bool // nothing more is published
	publishing, consuming sync.WaitGroup
	stop                  context.CancelFunc // of the consumers
}

// declared is a queue that a flow uses.
type declared struct {
	name      string
	arguments rabbit.Table
}

// flows returns the flows of these kinds.
func flows(w *world, seed uint64, names []string) (all []*flow) {
	for _, name := range names {
		make := flowKinds[name]
		if make == nil {
			w.problem("no such flow: %s", name)
			continue
		}
		f := make(w)
		f.w, f.rng, f.history = w, rand.New(rand.NewPCG(seed, uint64(10+len(all)))), history.New()
		f.history.Stall = maxSkew / 3 // see stall.Tolerance
		all = append(all, f)
	}
	return all
}

// maxSkew is the default of the setting max_clock_skew.
const maxSkew = time.Second

// wrongBy is by how much a message may be early: a clock that a script sets wrong counts as right
// as far as others do not refute it. Without one, no delay and no end of a process makes one early.
func (s *script) wrongBy() time.Duration {
	if slices.ContainsFunc(s.Steps, func(s step) bool { return s.Do == clocks }) {
		return maxSkew
	}
	return 0
}

// early finds messages that left a queue before their TTL had passed.
func (w *world) early(h *history.History) checker.Verdict {
	found := checker.Verdict{Checker: "early"}
	for _, d := range h.Deliveries {
		if d.Key == 0 || d.Key > uint64(len(h.Attempts)) {
			continue // a ghost
		}
		if a := h.Attempts[d.Key-1]; a.TTL > 0 && d.At < a.Call+a.TTL-w.wrongBy-checker.Grain {
			found.Count++
			found.Problems = append(found.Problems, fmt.Sprintf("early: key %d, published at %v for %v, came %v too early", a.Key, a.Call, a.TTL, a.Call+a.TTL-d.At))
		}
	}
	return found
}

// dialer connects a client on a machine of its own.
func (w *world) dialer(name string) client.Dialer {
	h := w.net.join(name)
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		return w.net.dial(ctx, h, address)
	}
}

// uris are the nodes for a client of one protocol.
func (w *world) uris(in10 bool) (all []string) {
	for _, name := range w.names {
		uri := "amqp://guest:guest@" + name + ":5672/"
		if in10 {
			uri = client.In10(uri)
		}
		all = append(all, uri)
	}
	return all
}

// run starts the clients of a flow.
func (f *flow) run(ctx context.Context) {
	consuming, stop := context.WithCancel(ctx)
	f.stop = stop
	f.publishing.Go(func() {
		p := client.Publisher{Name: "publisher", URIs: f.w.uris(f.publishes10), First: 0, Window: 64, Rate: f.perSecond, Dial: f.w.dialer("p-" + f.publishTo), Hold: f.w.paused.Load}
		err := p.Run(ctx, f.history, func() (client.Message, bool) {
			return f.make(f.rng), !f.last.Load()
		})
		if err != nil {
			f.w.problem("%s: %v", f.publishTo, err)
		}
	})
	f.consuming.Go(func() {
		if f.receive != nil {
			if err := f.receive(consuming); err != nil {
				f.w.problem("%s: %v", f.consume, err)
			}
			return
		}
		c := client.Consumer{Name: "consumer", URIs: f.w.uris(f.consumes10), First: 1, Queue: f.consume, Prefetch: 16, Dial: f.w.dialer("c-" + f.consume)}
		if err := c.Run(consuming, f.history); err != nil {
			f.w.problem("%s: %v", f.consume, err)
		}
	})
}

// connect opens a channel at the first node that lets a client in.
func (w *world) connect(ctx context.Context, dial client.Dialer, nodes ...string) (*rabbit.Connection, *rabbit.Channel, error) {
	for n := 0; ; n++ {
		conn, err := rabbit.DialConfig("amqp://guest:guest@"+nodes[n%len(nodes)]+":5672/", rabbit.Config{
			Heartbeat: 10 * time.Second,
			Dial: func(network, address string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				c, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return c, c.SetDeadline(time.Now().Add(2 * time.Second))
			},
		})
		if err == nil {
			var ch *rabbit.Channel
			if ch, err = conn.Channel(); err == nil {
				return conn, ch, nil
			}
			_ = conn.CloseDeadline(time.Now().Add(time.Second))
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil, nil, fmt.Errorf("no node of %v lets a client in: %w", nodes, err)
		}
	}
}

// declare declares what all flows use.
func (w *world) declare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, f := range w.flows {
		prepare := f.prepare
		if prepare == nil {
			prepare = func(ctx context.Context) error { return w.declareQueues(ctx, f.queues) }
		}
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) declareQueues(ctx context.Context, queues []declared) error {
	conn, ch, err := w.connect(ctx, w.dialer("declarer"), w.names...)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	for _, q := range queues {
		if err := q.declare(ch); err != nil {
			return err
		}
	}
	return nil
}

func (q declared) declare(ch *rabbit.Channel) error {
	t := rabbit.Table{"x-queue-type": "quorum"}
	maps.Copy(t, q.arguments)
	if _, err := ch.QueueDeclare(q.name, true, false, false, false, t); err != nil {
		return fmt.Errorf("declare %s: %w", q.name, err)
	}
	return nil
}

// probe publishes to a flow's queue through one node until that is confirmed.
func (f *flow) probe(ctx context.Context, node string) error {
	dial := f.w.dialer("probe-" + f.publishTo + "-" + node)
	for {
		err := f.publishOnce(ctx, dial, node)
		if err == nil {
			return nil
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("nothing is confirmed by queue %s through %s: %w", f.publishTo, node, err)
		}
	}
}

func (f *flow) publishOnce(ctx context.Context, dial client.Dialer, node string) error {
	conn, ch, err := f.w.connect(ctx, dial, node)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	if err := ch.Confirm(false); err != nil {
		return err
	}
	key := f.history.Begin(history.Attempt{Message: f.history.NextMessage(), Publisher: "probe " + node, Queue: f.consume, TTL: probeTTL(f)})
	out := rabbit.Publishing{DeliveryMode: rabbit.Persistent, Body: client.Body(key, 64)}
	if ttl := probeTTL(f); ttl > 0 {
		out.Expiration = fmt.Sprint(ttl.Milliseconds())
	}
	c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", f.publishTo, false, false, out)
	if err != nil {
		return err
	}
	ok, err := c.WaitContext(ctx)
	switch {
	case err != nil:
		return err
	case !ok && ch.IsClosed(): // so ends what has no answer, too
		return fmt.Errorf("the channel of a publish is gone")
	case !ok:
		f.history.End(key, history.No)
		return fmt.Errorf("a publish is refused")
	}
	f.history.End(key, history.OK)
	return nil
}

func probeTTL(f *flow) time.Duration {
	if f.publishTo == f.consume {
		return 0
	}
	return time.Second
}

// drain takes what is left in a flow's queue, through one node.
func (f *flow) drain(ctx context.Context, node string) error {
	conn, ch, err := f.w.connect(ctx, f.w.dialer("drain-"+f.consume+"-"+node), node)
	if err != nil {
		return err
	}
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	for {
		d, ok, err := ch.Get(f.consume, false)
		if err != nil || !ok {
			return err
		}
		f.history.Deliver(client.Record(d, f.consume, "drain "+node, 1))
		if err := d.Ack(false); err != nil {
			return err
		}
	}
}

// missing is how many messages have yet to be delivered.
func (f *flow) missing() int {
	n := f.history.Missing()
	if f.spare != nil {
		n -= f.spare()
	}
	return max(n, 0)
}

// verdict judges what a flow's clients saw.
func (f *flow) verdict() {
	h := f.history
	all := []checker.Verdict{checker.Ghosts(h), checker.Doubled(h)}
	if f.missing() > 0 {
		all = append(all, checker.Lost(h))
	}
	if f.check != nil {
		all = append(all, f.check(h)...)
	}
	for _, v := range all {
		for _, p := range v.Problems {
			f.w.problem("%s: %s", f.publishTo, p)
		}
	}
	if h.Confirmed() == 0 {
		f.w.problem("%s: nothing was tried", f.publishTo)
	}
}
