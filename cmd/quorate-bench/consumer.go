package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ackLull is how long deliveries may stay away before what is not yet acked is.
const ackLull = 20 * time.Millisecond

var errForeign = errors.New("a body that is not of this run")

// consumer consumes its queues on one channel and acks several deliveries at once.
type consumer struct {
	uri      string
	queues   []string
	prefetch int // of each queue
	ackEvery int
	ledger   *ledger
	// late, if set, gets how long after its due time each message came.
	late *samples
	// pace is the time from one delivery taken to the next; 0: as they come.
	pace time.Duration

	conn *amqp.Connection
	ch   *amqp.Channel
	from <-chan amqp.Delivery // of all queues
	done chan struct{}        // closed when run returns
	took uint64               // deliveries
	last uint64               // newest delivery tag
	open int                  // deliveries not acked
}

func (c *consumer) subscribe() (err error) {
	if c.conn, c.ch, err = connect(c.uri, true); err != nil {
		return err
	}
	if err = c.ch.Qos(c.prefetch, 0, false); err == nil {
		err = c.consume()
	}
	if err != nil {
		_ = c.conn.Close()
	}
	return err
}

// consume begins to consume all queues. The deliveries of one come straight
// from the client library, those of several are brought together.
func (c *consumer) consume() error {
	c.done = make(chan struct{})
	if len(c.queues) == 1 {
		from, err := c.ch.Consume(c.queues[0], "", false, false, false, false, nil)
		c.from = from
		return err
	}
	from := make(chan amqp.Delivery, c.prefetch)
	c.from = from
	var all sync.WaitGroup
	for _, q := range c.queues {
		one, err := c.ch.Consume(q, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		all.Go(func() { c.forward(one, from) })
	}
	go func() {
		all.Wait()
		close(from)
	}()
	return nil
}

// forward hands deliveries on until they end, or until run has returned.
func (c *consumer) forward(one <-chan amqp.Delivery, all chan<- amqp.Delivery) {
	for d := range one {
		select {
		case all <- d:
		case <-c.done:
		}
	}
}

// run takes deliveries until ctx ends, then acks the rest and closes.
func (c *consumer) run(ctx context.Context) error {
	defer c.conn.Close()
	defer close(c.done)
	began := clock()
	closed := c.ch.NotifyClose(make(chan *amqp.Error, 1))
	lull := time.NewTicker(ackLull)
	defer lull.Stop()
	for {
		select {
		case d, ok := <-c.from:
			if !ok {
				return errors.Join(errClosed, reason(closed))
			}
			if err := c.take(&d); err != nil {
				return err
			}
			if c.pace > 0 {
				_ = pause(ctx, began+time.Duration(c.took)*c.pace-clock()) // the end of ctx is seen below
			}
		case <-lull.C:
			if err := c.ack(); err != nil {
				return err
			}
		case <-ctx.Done():
			return errors.Join(c.ack(), c.ch.Close())
		}
	}
}

func (c *consumer) take(d *amqp.Delivery) error {
	due, ok := c.ledger.take(d.Body)
	if !ok {
		return fmt.Errorf("queues %q: %w: %d bytes", c.queues, errForeign, len(d.Body))
	}
	if c.late != nil {
		c.late.add(clock() - due)
	}
	c.took++
	c.last = d.DeliveryTag
	if c.open++; c.open < c.ackEvery {
		return nil
	}
	return c.ack()
}

func (c *consumer) ack() error {
	if c.open == 0 {
		return nil
	}
	c.open = 0
	return c.ch.Ack(c.last, true)
}
