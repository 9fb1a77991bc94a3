package jepsen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/workload"
)

// play is one workload beside others, with a history of its own.
type play struct {
	*history.History
	name   string
	queues []workload.Queue
	// setup, if set, declares more than queues.
	setup func(ctx context.Context) error
	// publish are clients that work until enough is closed, and end when all is confirmed
	// that they have published.
	publish []func(ctx context.Context, enough <-chan struct{}) error
	// consume are clients that work until their context ends.
	consume []func(ctx context.Context) error
	workers []*workload.Worker
	// serves are the queues, as attempts name them, that must confirm soon after a heal.
	serves []string
	// over reports whether all that was published is done with; nil: all confirmed
	// messages were received.
	over func() bool
	// last, if set, is called when the consumers have gone.
	last   func(ctx context.Context) error
	checks []func(*history.History) checker.Verdict
	// tried, if set, says what makes the run worthless.
	tried func() error
}

// drainedWithin bounds the time from the last heal until all is done, beside the stalls
// of the machine.
const drainedWithin = time.Minute

// mustPlayWhile lets workloads run at the same time while something is done to the
// cluster. Afterwards everything must be drained soon, and all replicas be equal.
func (r *run) mustPlayWhile(plays []*play, breaks func(ctx context.Context) error) {
	r.Helper()
	for _, p := range plays {
		r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), p.queues...))
		if p.setup != nil {
			r.must(p.setup(r.ctx))
		}
	}
	working, stop := context.WithCancel(r.ctx)
	defer stop()
	publishing, consuming, enough := &crew{}, &crew{}, make(chan struct{})
	for _, p := range plays {
		p.start(working, publishing, consuming, enough)
	}
	broken := breaks(r.ctx)
	close(enough)
	if broken == nil {
		r.awaitDrained(plays, publishing)
	}
	stop()
	for _, err := range append(publishing.wait(), consuming.wait()...) {
		r.Error(err)
	}
	r.must(broken)
	for _, p := range plays {
		if p.last != nil {
			r.must(p.last(r.ctx))
		}
	}
	for _, p := range plays {
		r.evaluate(p)
	}
	r.mustConverge()
}

// crew are clients that run at the same time.
type crew struct {
	tasks sync.WaitGroup
	mu    sync.Mutex
	errs  []error
}

func (c *crew) add(name string, work func() error) {
	c.tasks.Go(func() {
		if err := work(); err != nil && !errors.Is(err, context.Canceled) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.errs = append(c.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
}

// wait waits for all and returns their errors.
func (c *crew) wait() []error {
	c.tasks.Wait()
	return c.errs
}

// done returns a channel that is closed when all have ended.
func (c *crew) done() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		c.tasks.Wait()
		close(ended)
	}()
	return ended
}

func (p *play) start(working context.Context, publishing, consuming *crew, enough <-chan struct{}) {
	for _, f := range p.publish {
		publishing.add(p.name, func() error { return f(working, enough) })
	}
	for _, f := range p.consume {
		consuming.add(p.name, func() error { return f(working) })
	}
	for _, w := range p.workers {
		consuming.add(p.name, func() error { return w.Run(working, p.History) })
	}
}

// awaitDrained waits until all publishers have ended and all plays are over.
func (r *run) awaitDrained(plays []*play, publishing *crew) {
	r.Helper()
	began := time.Now()
	late := func() bool {
		return time.Since(began) > drainedWithin+stall.Tolerance(machine.Longest(began))
	}
	confirmed := publishing.done()
	var stuck []string
	for _, p := range plays {
		err := await.Until(r.ctx, 50*time.Millisecond, p.name, func() (bool, error) {
			select {
			case <-confirmed:
				return p.isOver() || late(), nil
			default:
				return late(), nil
			}
		})
		if err != nil || late() && !p.isOver() {
			stuck = append(stuck, fmt.Sprintf("%s is not over %v after the last heal", p.name, time.Since(began).Round(time.Second)))
		}
	}
	select {
	case <-confirmed:
	default:
		stuck = append(stuck, "not all that was published is confirmed")
	}
	r.Logf("all drained %v after the last heal", time.Since(began).Round(time.Millisecond))
	r.found("stuck", stuck...)
}

func (p *play) isOver() bool {
	if p.over == nil {
		return p.Missing() == 0
	}
	return p.over()
}

// evaluate checks what has become of a play.
func (r *run) evaluate(p *play) {
	r.Helper()
	p.Faults, p.Stall = r.Faults, machine.Longest(r.began)
	r.Logf("%s: %d published, %d confirmed, %d delivered, %s", p.name, len(p.Attempts)+p.Past.Published, p.Confirmed()+p.Past.Confirmed, p.received(), p.summary())
	for _, f := range p.checks {
		r.check(named(p.name, f(p.History)))
	}
	if p.tried != nil {
		if err := p.tried(); err != nil {
			r.Errorf("%s: nothing was tried: %v", p.name, err)
		}
	} else if p.Confirmed()+p.Past.Confirmed == 0 || p.received() == 0 {
		r.Errorf("%s: nothing was tried", p.name)
	}
}

// received counts deliveries.
func (p *play) received() int {
	n := len(p.Deliveries) + p.Past.Delivered
	for i := range p.Ops {
		if p.Ops[i].Kind == history.Deliver {
			n++
		}
	}
	return n
}

// named puts a workload's name before the problems that were found in it.
func named(name string, v checker.Verdict) checker.Verdict {
	v.Problems = slices.Clone(v.Problems)
	for i := range v.Problems {
		v.Problems[i] = name + ": " + v.Problems[i]
	}
	return v
}

// summary counts what was asked for and what came of it.
func (p *play) summary() string {
	count := map[string]int{}
	for _, o := range p.Ops {
		count[o.Kind+" "+string(o.Result)]++
	}
	return fmt.Sprint(count)
}

// confirmsSoon waits until each queue of the plays has confirmed a message since now,
// when a fault has healed.
func (r *run) confirmsSoon(ctx context.Context, plays []*play, fault string) error {
	healed, began := r.Now(), time.Now()
	var missing string
	err := await.Until(ctx, 20*time.Millisecond, "confirms of all queues", func() (bool, error) {
		for _, p := range plays {
			for _, q := range p.serves {
				if p.Answered(q) <= healed {
					missing = q
					return false, fmt.Errorf("queue %s confirms nothing", q)
				}
			}
		}
		return true, nil
	})
	took, late := time.Since(began), []string(nil)
	if allowed := confirmsAgain + stall.Tolerance(machine.Longest(began)); took > allowed {
		late = append(late, fmt.Sprintf("%s: queue %s confirms again %v after the heal, allowed are %v", fault, missing, took.Round(time.Millisecond), allowed))
	}
	r.found("resume", late...)
	r.Logf("%v %s: all queues confirm %v after the heal, the last one %s", r.Now().Round(time.Millisecond), fault, took.Round(time.Millisecond), missing)
	return err
}

// publisher makes a play publish through one more channel, so many messages in a second.
func (p *play) publisher(r *run, name string, first, rate int, next func() client.Message) {
	uris := r.inTurn()
	p.publish = append(p.publish, func(ctx context.Context, enough <-chan struct{}) error {
		c := client.Publisher{Name: name, URIs: uris, First: first, Rate: rate}
		return c.Run(ctx, p.History, workload.Until(enough, next))
	})
}

// consumer makes a play consume through one more channel.
func (p *play) consumer(r *run, c client.Consumer) {
	c.URIs = r.inTurn()
	p.consume = append(p.consume, func(ctx context.Context) error { return c.Run(ctx, p.History) })
}

// inTurn are the nodes for one more client: every other one speaks AMQP 1.0.
func (r *run) inTurn() []string {
	uris := r.URIs()
	if r.clients++; r.clients%2 == 0 {
		for i, uri := range uris {
			uris[i] = client.In10(uri)
		}
	}
	return uris
}

// drains makes a play take, through every node, what its consumers have left.
func (p *play) drains(r *run, queues ...string) {
	p.last = func(ctx context.Context) error {
		for i, uri := range r.URIs() {
			for _, q := range queues {
				if err := workload.Drain(ctx, uri, q, fmt.Sprintf("drain %d", i+1), p.History); err != nil {
					return fmt.Errorf("drain %s through node %d: %w", q, i+1, err)
				}
			}
		}
		return nil
	}
}

// short reports whether a run lasts for seconds only.
func short() bool { return *chaosTime < time.Minute }

// messageLimit bounds what one client publishes in a run, and so the memory that
// histories take: about 300 bytes for a message.
const messageLimit = 1_000_000

// bounded is a rate, or a lower one if a run is so long that there would be too many
// messages.
func bounded(rate int) int {
	return max(1, min(rate, int(messageLimit/max(1, chaosTime.Seconds()))))
}

// check is a checker of a play.
type check = func(*history.History) checker.Verdict
