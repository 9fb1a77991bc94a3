package jepsen

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
	amqp "github.com/rabbitmq/amqp091-go"
)

const consumerTimeout = time.Second

// A consumer that does not ack for longer than its timeout loses what is due
// and nothing else: another consumer gets it, marked; the client gets a
// basic.cancel; its channel lives, and its other deliveries are still its own.
func TestConsumerTimeout(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute)
	for round := range 5 {
		queue := fmt.Sprintf("jobs-%d", round)
		r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: queue}))
		s := &slowWorker{r: r, queue: queue}
		if s.mustRun() {
			r.mustConverge()
			return
		}
		t.Logf("round %d: this machine was too slow to ack in time, which proves nothing", round)
	}
	t.Error("no round was fast enough to be judged")
}

// slowWorker is a consumer that lets its first deliveries become due, another
// one that takes what is returned, and a publisher.
type slowWorker struct {
	r     *run
	queue string

	publisher, slow, other *amqp.Channel
	cancelled              chan string
	closed                 chan *amqp.Error
	toSlow, toOther        <-chan amqp.Delivery
}

// handed is a delivery and the time before its message was published: the
// broker counts the timeout from a later moment.
type handed struct {
	amqp.Delivery
	before time.Time
	got    time.Time
}

// mustRun reports false if the younger deliveries were not acked well within
// their timeout, so that the run proves nothing.
func (s *slowWorker) mustRun() bool {
	s.r.Helper()
	s.mustOpen()
	old, ok := s.mustHand(5, 0)
	if !ok {
		return false
	}
	select {
	case <-time.After(consumerTimeout * 6 / 10):
	case <-s.r.ctx.Done():
	}
	young, ok := s.mustHand(5, 5)
	if !ok {
		return false
	}
	s.mustSubscribeOther()

	select {
	case tag := <-s.cancelled:
		if tag != "slow" {
			s.r.Errorf("basic.cancel for %q", tag)
		}
	case <-s.r.ctx.Done():
		s.r.Fatal("no basic.cancel")
	}
	s.r.notLate("basic.cancel", old[0].got.Add(consumerTimeout), 0)
	for _, d := range young {
		s.r.must(d.Ack(false))
		if time.Since(d.before) > consumerTimeout*9/10 {
			return false
		}
	}
	s.mustReturn(old)
	s.mustLive(old)
	return true
}

func (s *slowWorker) mustOpen() {
	s.r.Helper()
	channels := []**amqp.Channel{&s.publisher, &s.slow, &s.other}
	for i, ch := range channels {
		conn, err := client.Connect(s.r.ctx, s.r.Nodes[i].URI())
		s.r.must(err)
		s.r.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
		*ch, err = conn.Channel()
		s.r.must(err)
	}
	s.r.must(s.publisher.Confirm(false))
	s.cancelled = s.slow.NotifyCancel(make(chan string, 1))
	s.closed = s.slow.NotifyClose(make(chan *amqp.Error, 1))
	var err error
	s.toSlow, err = s.slow.Consume(s.queue, "slow", false, false, false, false, amqp.Table{
		"x-consumer-timeout": consumerTimeout.Milliseconds(),
	})
	s.r.must(err)
}

// mustHand publishes n messages, numbered from first, and takes their
// deliveries. ok false: the subscription was cancelled meanwhile.
func (s *slowWorker) mustHand(n, first int) (all []handed, ok bool) {
	s.r.Helper()
	for i := range n {
		before := time.Now()
		confirm, err := s.publisher.PublishWithDeferredConfirmWithContext(s.r.ctx, "", s.queue, false, false,
			amqp.Publishing{Body: fmt.Appendf(nil, "job %d", first+i)})
		s.r.must(err)
		if ok, err := confirm.WaitContext(s.r.ctx); err != nil || !ok {
			s.r.Fatalf("publish: confirmed=%t, %v", ok, err)
		}
		d, ok := s.mustTake(s.toSlow)
		if !ok {
			return nil, false
		}
		all = append(all, handed{d, before, time.Now()})
	}
	return all, true
}

// mustTake waits for a delivery. ok false: the subscription has ended.
func (s *slowWorker) mustTake(from <-chan amqp.Delivery) (d amqp.Delivery, ok bool) {
	s.r.Helper()
	select {
	case d, ok = <-from:
		return d, ok
	case <-s.r.ctx.Done():
		s.r.Fatal("no delivery")
	}
	panic("unreachable")
}

func (s *slowWorker) mustSubscribeOther() {
	s.r.Helper()
	var err error
	s.toOther, err = s.other.Consume(s.queue, "other", false, false, false, false, nil)
	s.r.must(err)
}

// mustReturn takes what was returned: the old messages, in order, marked, not
// before their time.
func (s *slowWorker) mustReturn(old []handed) {
	s.r.Helper()
	for i, o := range old {
		d, ok := s.mustTake(s.toOther)
		if !ok {
			s.r.Fatal("the other subscription ended")
		}
		if want := fmt.Sprintf("job %d", i); string(d.Body) != want {
			s.r.Errorf("the other consumer got %q, want %q", d.Body, want)
		}
		if !d.Redelivered {
			s.r.Errorf("%q is not marked as redelivered", d.Body)
		}
		s.r.notLate("the return", o.got.Add(consumerTimeout), 0)
		var soon []string
		if early := consumerTimeout - time.Since(o.before); early > checker.Grain {
			soon = append(soon, fmt.Sprintf("%q was taken away %v early", d.Body, early))
		}
		s.r.found("timeout", soon...)
		s.r.must(d.Ack(false))
	}
}

// mustLive uses the slow consumer's channel: a late ack does no harm, its tag
// may be used again, and nothing but a new message comes.
func (s *slowWorker) mustLive(old []handed) {
	s.r.Helper()
	s.r.must(old[0].Ack(false))
	again, err := s.slow.Consume(s.queue, "slow", false, false, false, false, nil)
	s.r.must(err)
	s.r.must(s.other.Cancel("other", false))
	for d := range s.toOther {
		s.r.Errorf("the other consumer also got %q (redelivered=%t)", d.Body, d.Redelivered)
	}
	s.r.must(s.publisher.PublishWithContext(s.r.ctx, "", s.queue, false, false, amqp.Publishing{Body: []byte("new")}))
	d, ok := s.mustTake(again)
	if !ok || string(d.Body) != "new" || d.Redelivered {
		s.r.Fatalf("the new subscription got %q (redelivered=%t, ended=%t)", d.Body, d.Redelivered, !ok)
	}
	s.r.must(d.Ack(false))
	s.r.must(s.slow.Close())
	if err := <-s.closed; err != nil {
		s.r.Errorf("the slow consumer's channel was closed: %v", err)
	}
	s.mustBeEmpty()
}

// mustBeEmpty waits until no message is left, held or not.
func (s *slowWorker) mustBeEmpty() {
	s.r.Helper()
	ctx, cancel := context.WithTimeout(s.r.ctx, time.Minute)
	defer cancel()
	s.r.must(await.Until(ctx, 50*time.Millisecond, s.queue+" to be empty", func() (bool, error) {
		leader, err := s.r.Leader(ctx, s.queue)
		if err != nil {
			return false, err
		}
		replicas, err := leader.Replicas(ctx)
		for _, x := range replicas {
			if x.Name == s.queue && x.Ready+x.Unacknowledged > 0 {
				return false, fmt.Errorf("%d ready, %d unacknowledged", x.Ready, x.Unacknowledged)
			}
		}
		return err == nil, err
	}))
}
