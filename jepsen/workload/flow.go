// Package workload defines what clients do during a run.
package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Queue is a queue to be declared.
type Queue struct {
	Name      string
	Arguments amqp.Table
}

// Declare declares durable queues through one node.
func Declare(ctx context.Context, uri string, queues ...Queue) error {
	conn, ch, err := open(ctx, uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, q := range queues {
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Arguments); err != nil {
			return fmt.Errorf("declare %s: %w", q.Name, err)
		}
	}
	return nil
}

// Use sends a message through each of the queues, which are empty again afterwards.
func Use(ctx context.Context, uri string, queues ...string) error {
	conn, ch, err := open(ctx, uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for _, q := range queues {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", q, false, false, amqp.Publishing{})
		if err != nil {
			return err
		}
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("publish to %s: acked: %v, %w", q, ok, err)
		}
		d, ok, err := ch.Get(q, false)
		if err != nil || !ok {
			return fmt.Errorf("get from %s: got: %v, %w", q, ok, err)
		}
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return nil
}

// Flow publishes, and at the same time consumes from the queue where the messages
// arrive.
type Flow struct {
	URIs      []string
	PublishAt int // position of the publisher's first broker
	ConsumeAt int
	// Next returns the next message; false ends publishing.
	Next func() (client.Message, bool)
	// Queue is where the messages are consumed.
	Queue string
	Rate  int // per second; 0: as fast as confirms allow
	// Window is how many messages may be without a confirm, or without an ack; 0: 256.
	Window int
	// Patience is how long the consumer may wait for confirmed messages once all are
	// published. The checkers report what is missing then.
	Patience time.Duration
}

// Run runs the flow, and calls during, if given, in the meantime; it fails if during
// does. At the end it drains the queue through every node.
func (f *Flow) Run(ctx context.Context, h *history.History, during func(context.Context) error) error {
	var tasks sync.WaitGroup
	var published, consumed, broken error
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	publishing, done := context.WithCancel(ctx)
	tasks.Go(func() {
		c := client.Consumer{Name: "consumer", URIs: f.URIs, First: f.ConsumeAt, Queue: f.Queue, Prefetch: f.Window}
		consumed = c.Run(consuming, h)
	})
	tasks.Go(func() {
		defer done()
		p := client.Publisher{Name: "publisher", URIs: f.URIs, First: f.PublishAt, Rate: f.Rate, Window: f.Window}
		published = p.Run(ctx, h, f.Next)
	})
	if during != nil {
		broken = during(ctx)
	}
	<-publishing.Done()
	waiting, cancel := context.WithTimeout(ctx, f.Patience)
	defer cancel()
	_ = await.Until(waiting, 10*time.Millisecond, "all deliveries", func() (bool, error) { return h.Missing() == 0, nil })
	stop()
	tasks.Wait()
	return errors.Join(published, broken, consumed, f.drain(ctx, h))
}

func (f *Flow) drain(ctx context.Context, h *history.History) error {
	for i, uri := range f.URIs {
		if err := Drain(ctx, uri, f.Queue, fmt.Sprintf("drain %d", i+1), h); err != nil {
			return fmt.Errorf("drain through node %d: %w", i+1, err)
		}
	}
	return nil
}

const (
	// fewMessages are got one by one.
	fewMessages = 20
	// drainPrefetch is how many deliveries Drain has unsettled at most, drainPause how long it
	// waits for one that was counted before.
	drainPrefetch = 500
	drainPause    = time.Second
)

// Drain empties a queue: it consumes most of what waits there, and takes the rest, and what
// comes meanwhile, with basic.get.
func Drain(ctx context.Context, uri, queue, name string, h client.Recorder) error {
	conn, ch, err := open(ctx, uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	taken, err := consumeReady(ch, queue, name, h)
	if err != nil {
		return err
	}
	for {
		d, ok, err := ch.Get(queue, false)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		taken = append(taken, h.Deliver(client.Record(d, queue, name, 1)))
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	h.Acked(taken)
	if err := ch.Close(); err != nil {
		return err
	}
	h.Settled(taken)
	return nil
}

// consumeReady consumes as many messages as are ready in a queue, unless these are few.
func consumeReady(ch *amqp.Channel, queue, name string, h client.Recorder) (taken []int, err error) {
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil || q.Messages <= fewMessages {
		return nil, err
	}
	if err := ch.Qos(drainPrefetch, 0, false); err != nil {
		return nil, err
	}
	from, err := ch.Consume(queue, name, false, false, false, false, nil)
	if err != nil {
		return nil, err
	}
	take := func(d amqp.Delivery) error {
		taken = append(taken, h.Deliver(client.Record(d, queue, name, 1)))
		return d.Ack(false)
	}
	idle := time.NewTimer(drainPause)
	defer idle.Stop()
	for waiting := true; waiting && len(taken) < q.Messages; {
		select {
		case d, ok := <-from:
			if !ok {
				return nil, amqp.ErrClosed
			}
			if err := take(d); err != nil {
				return nil, err
			}
			idle.Reset(drainPause)
		case <-idle.C:
			waiting = false
		}
	}
	if err := ch.Cancel(name, false); err != nil {
		return nil, err
	}
	for d := range from { // was on its way
		if err := take(d); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// Count returns a source of n messages.
func Count(n int, make func() client.Message) func() (client.Message, bool) {
	return func() (client.Message, bool) {
		if n == 0 {
			return client.Message{}, false
		}
		n--
		return make(), true
	}
}

// Before returns the messages of a source, and no more after an instant.
func Before(end time.Time, next func() (client.Message, bool)) func() (client.Message, bool) {
	return func() (client.Message, bool) {
		if time.Now().After(end) {
			return client.Message{}, false
		}
		return next()
	}
}

// Until returns a source of messages that ends when stop is closed.
func Until(stop <-chan struct{}, make func() client.Message) func() (client.Message, bool) {
	return func() (client.Message, bool) {
		select {
		case <-stop:
			return client.Message{}, false
		default:
			return make(), true
		}
	}
}
