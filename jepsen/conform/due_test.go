package conform

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

// electing is how much later a thing may be whose leader dies meanwhile: the
// others have to notice, vote, and take over.
const electing = 2 * time.Second

// healing is within what a cluster goes on once a majority of its nodes has been
// started: these open their data and link, and the catalog and each queue elect.
const healing = 10 * time.Second

// machine measures how long this process was kept from running.
var machine *stall.Meter

// timing is what a row's bounds on lateness are made of.
type timing struct {
	began time.Time     // the row
	extra time.Duration // electing, where nodes die

	answers sync.Mutex
	longest time.Duration // answer to a request that begins a time
	timed   bool          // the row asks for something at a time that it may live to see
	bounded bool          // and says when it is due
}

// by is the row as it waits for what is due at an instant: all that it waits
// for must come, and must not be later than allowed.
func (t *T) by(due time.Time) *T {
	t.answers.Lock()
	defer t.answers.Unlock()
	t.bounded = true
	at := *t
	at.due = due
	return &at
}

// now is the row as it waits for what is due at once.
func (t *T) now() *T { return t.by(time.Now()) }

// allowed is how late something may be seen: a second, three times the longest
// stall of this machine since the row began, an election where nodes die, and
// the time the broker took for an answer, since it is not known when within
// this time it began to count.
func (t *T) allowed() time.Duration {
	t.answers.Lock()
	defer t.answers.Unlock()
	return stall.Tolerance(machine.Longest(t.began)) + t.longest + t.extra
}

// begins is called before a request that begins a time, what it returns after
// the answer.
func (t *T) begins() (answered func()) {
	at := time.Now()
	return func() {
		t.answers.Lock()
		defer t.answers.Unlock()
		t.longest = max(t.longest, time.Since(at))
	}
}

// inTime fails the row if what it began to wait for at an instant has come too
// late. If that was due before, the row has looked too late to say more.
func (t *T) inTime(what string, began time.Time) {
	t.Helper()
	if t.due.IsZero() {
		return
	}
	due := t.due
	if began.After(due) {
		due = began
	}
	t.notLate(what, due)
}

// notLate fails the row if an instant is over for longer than is allowed.
func (t *T) notLate(what string, due time.Time) {
	t.Helper()
	late, allowed := time.Since(due), t.allowed()
	if late > allowed {
		t.Errorf("%s: %v late, allowed are %v", what, late.Round(time.Millisecond), allowed.Round(time.Millisecond))
		return
	}
	if late > poll {
		t.Logf("%s: %v late", what, late.Round(time.Millisecond))
	}
}

// within waits for something to come. ok false: nothing comes any more.
func within[E any](t *T, what string, from <-chan E) (e E, ok bool) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	select {
	case e, ok = <-from:
	case <-ctx.Done():
		t.Fatalf("no %s", what)
	}
	t.inTime(what, began)
	return e, ok
}

// soonReady waits until a queue has n ready messages, which it is due to have
// at an instant.
func (t *T) soonReady(queue string, n int, due time.Time) {
	t.Helper()
	t.by(due).quietly(queue, n)
	t.eventually(fmt.Sprintf("%s has %d ready messages", queue, n), func() error {
		if have := t.ready(queue); have != n {
			return fmt.Errorf("%d", have)
		}
		return nil
	})
}

// soonGone waits until a queue is deleted, which it is due to be at an instant.
func (t *T) soonGone(queue string, due time.Time) {
	t.Helper()
	t.by(due).quietly(queue, gone)
	t.by(due).eventually(queue+" is gone", func() error {
		if t.exists(queue) {
			return errors.New("it exists")
		}
		return nil
	})
}

// gone is no number of messages.
const gone = -1

// quietly waits until a queue has n ready messages, or is gone, without asking
// it: a queue that is asked for counts ends what is due first, and would never
// be seen late.
func (t *T) quietly(queue string, n int) {
	t.Helper()
	t.eventually(fmt.Sprintf("%s has %d ready messages by itself", queue, n), func() error {
		if have, led := t.glance(queue); have != n || n != gone && !led {
			return fmt.Errorf("%d, led: %v", have, led)
		}
		return nil
	})
}

// quiet is how long before its instant a queue is asked for the last time.
const quiet = 200 * time.Millisecond

// glance returns how many messages a queue has ready, by its leader's replica
// if it is led, and gone if no node has a replica.
func (t *T) glance(queue string) (ready int, led bool) {
	t.Helper()
	ready = gone
	for _, node := range t.Nodes {
		replicas, err := node.ReplicasOf(t.ctx, queue)
		t.must(err)
		for _, r := range replicas {
			if !led {
				ready, led = int(r.Ready), r.Leader
			}
		}
	}
	return ready, led
}

// eventually repeats a check until it holds.
func (t *T) eventually(what string, check func() error) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	t.must(await.Until(ctx, poll, what, func() (bool, error) {
		err := check()
		return err == nil, err
	}))
	t.inTime(what, began)
}

// take gets and acks n messages, waiting for each.
func (t *T) take(queue string, n int) []*amqp.Delivery {
	t.Helper()
	var all []*amqp.Delivery
	for range n {
		t.eventually(fmt.Sprintf("message %d of %d in %s", len(all)+1, n, queue), func() error {
			d := t.get(queue)
			if d == nil {
				return errors.New("it is empty")
			}
			all = append(all, d)
			return d.Ack(false)
		})
	}
	return all
}

// next is the next delivery of a consumer.
func (t *T) next(from <-chan amqp.Delivery) amqp.Delivery {
	t.Helper()
	d, ok := within(t, "delivery", from)
	if !ok {
		t.Fatal("the consumer has ended")
	}
	return d
}

// timesSet are arguments and headers that make something happen after so many
// milliseconds.
var timesSet = []string{
	"x-message-ttl", "x-expires", "x-consumer-timeout", "x-auto-delete-on-idle", "x-delay", "x-opt-delivery-delay",
	"x-consumer-disconnected-timeout", "x-delayed-retry-min", "x-retry-after", "x-lock-duration", "x-lock-auto-renew", "x-lock-detach-grace",
}

// asks notes whether a table asks for something at a time the row may live to see.
func (t *T) asks(table amqp.Table) {
	for _, name := range timesSet {
		var after int64
		switch v := table[name].(type) {
		case int32:
			after = int64(v)
		case int64:
			after = v
		case int:
			after = int64(v)
		}
		if after > 0 && after < patience.Milliseconds() {
			t.answers.Lock()
			t.timed = true
			t.answers.Unlock()
		}
	}
}
