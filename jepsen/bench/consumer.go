package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ackLull is the maximum time that a delivery waits for others to be acked with it.
const ackLull = 20 * time.Millisecond

var errForeign = errors.New("a body that is not of this run")

// consumer consumes one queue and acks several deliveries at once.
type consumer struct {
	uri      string
	queue    string
	prefetch int
	ackEvery int
	ledger   *ledger
	// late, if set, gets how long after its due time each message arrived.
	late *samples
	// interval is the time between deliveries taken; 0: as they come.
	interval time.Duration
	// shared, if set, is a shared connection, which stays open.
	shared *amqp.Connection
	// args are those of the subscription.
	args amqp.Table

	in   receiver
	took uint64 // deliveries
	last uint64 // newest delivery tag
	open int    // deliveries not acked
}

func (c *consumer) subscribe() (err error) {
	c.in, err = openReceiver(c.uri, c.shared, c.queue, c.prefetch, c.args)
	return err
}

// run takes deliveries until ctx ends, then acks the rest and closes.
func (c *consumer) run(ctx context.Context) error {
	defer c.in.drop()
	began, from := clock(), c.in.deliveries()
	lull := time.NewTimer(ackLull)
	defer lull.Stop()
	for {
		select {
		case d, ok := <-from:
			if !ok {
				return errors.Join(errClosed, c.in.reason())
			}
			if err := c.take(&d); err != nil {
				return err
			}
			if c.open == 1 {
				lull.Reset(ackLull)
			}
			if c.interval > 0 {
				_ = pause(ctx, began+time.Duration(c.took)*c.interval-clock()) // the end of ctx is seen below
			}
		case <-lull.C:
			if err := c.ack(); err != nil {
				return err
			}
		case <-ctx.Done():
			return errors.Join(c.ack(), c.in.finish())
		}
	}
}

func (c *consumer) take(d *amqp.Delivery) error {
	due, ok := c.ledger.take(d.Body)
	if !ok {
		return fmt.Errorf("queue %s: %w: %d bytes", c.queue, errForeign, len(d.Body))
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
	return c.in.ack(c.last)
}
