package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ackLull is how long deliveries may stay away before what is not yet acked is.
const ackLull = 20 * time.Millisecond

var errForeign = errors.New("a body that is not of this run")

// consumer consumes one queue and acks several deliveries at once.
type consumer struct {
	uri      string
	queue    string
	prefetch int
	ackEvery int
	ledger   *ledger
	// late, if set, gets how long after its due time each message came.
	late *[]time.Duration

	conn *amqp.Connection
	ch   *amqp.Channel
	from <-chan amqp.Delivery
	last uint64 // newest delivery tag
	open int    // deliveries not acked
}

func (c *consumer) subscribe() (err error) {
	if c.conn, c.ch, err = connect(c.uri, true); err != nil {
		return err
	}
	if err = c.ch.Qos(c.prefetch, 0, false); err == nil {
		c.from, err = c.ch.Consume(c.queue, "", false, false, false, false, nil)
	}
	if err != nil {
		_ = c.conn.Close()
	}
	return err
}

// run takes deliveries until ctx ends, then acks the rest and closes.
func (c *consumer) run(ctx context.Context) error {
	defer c.conn.Close()
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
		return fmt.Errorf("queue %s: %w: %d bytes", c.queue, errForeign, len(d.Body))
	}
	if c.late != nil {
		*c.late = append(*c.late, clock()-due)
	}
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
