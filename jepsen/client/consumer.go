package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Consumer consumes a queue and acks each delivery once it is recorded. When its
// connection or its subscription is lost, it subscribes again at the next broker.
type Consumer struct {
	Name     string
	URIs     []string
	First    int // position of the first broker
	Queue    string
	Prefetch int // 0: 256
	// Arguments of the subscription.
	Arguments amqp.Table
	// Each, if set, is called with every delivery before it is acked.
	Each func(amqp.Delivery)

	h     *history.History
	conn  *amqp.Connection
	ch    *amqp.Channel
	from  <-chan amqp.Delivery
	epoch int
	acked []int // positions of the deliveries that this epoch has acked
}

// Run consumes until ctx ends, and then closes its connection in order, so that its
// acks are known to hold. An error means that it was not subscribed at the end.
func (c *Consumer) Run(ctx context.Context, h *history.History) error {
	c.h = h
	if c.Prefetch == 0 {
		c.Prefetch = 256
	}
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	var err error
	for {
		if err = c.subscribe(ctx); err == nil {
			if c.consume(ctx) {
				return c.leave()
			}
			c.lost()
		}
		select {
		case <-ctx.Done():
			if err == nil || errors.Is(err, context.Canceled) { // it was reconnecting
				return nil
			}
			return fmt.Errorf("consumer %s: %w", c.Name, err)
		case <-pause.C:
		}
	}
}

func (c *Consumer) subscribe(ctx context.Context) error {
	conn, ch, err := channel(ctx, c.URIs, c.First+c.epoch)
	if err != nil {
		return err
	}
	c.epoch++
	if err = ch.Qos(c.Prefetch, 0, false); err == nil {
		c.from, err = ch.Consume(c.Queue, c.Name, false, false, false, false, c.Arguments)
	}
	if err != nil {
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout))
		return err
	}
	c.conn, c.ch = conn, ch
	return nil
}

// consume returns true when ctx has ended, false when the subscription is lost.
func (c *Consumer) consume(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return true
		case d, ok := <-c.from:
			if !ok || !c.take(d) {
				return false
			}
		}
	}
}

func (c *Consumer) take(d amqp.Delivery) bool {
	at := c.h.Deliver(Record(d, c.Queue, c.Name, c.epoch))
	if c.Each != nil {
		c.Each(d)
	}
	if err := d.Ack(false); err != nil {
		return false
	}
	c.acked = append(c.acked, at)
	return true
}

// leave ends the subscription, receives the deliveries on their way, and closes.
func (c *Consumer) leave() error {
	err := c.ch.Cancel(c.Name, false)
	if err == nil {
		for d := range c.from {
			if !c.take(d) {
				break
			}
		}
		err = c.ch.Close()
	}
	if err == nil {
		c.h.Settled(c.acked)
	}
	c.lost()
	if err != nil {
		return fmt.Errorf("consumer %s: close: %w", c.Name, err)
	}
	return nil
}

func (c *Consumer) lost() {
	c.h.Acked(c.acked)
	c.acked = c.acked[:0]
	_ = c.conn.CloseDeadline(time.Now().Add(closeTimeout))
}

// Record converts a delivery to the form of the history.
func Record(d amqp.Delivery, queue, consumer string, epoch int) history.Delivery {
	r := history.Delivery{
		Queue: queue, Consumer: consumer, Epoch: epoch,
		Redelivered: d.Redelivered, Expiration: d.Expiration, Death: death(d.Headers),
	}
	if key, ok := Key(d.Body); ok {
		r.Key = key
	}
	return r
}

// death returns the newest entry of x-death. A field of a wrong type is returned as
// its zero value, which no checker accepts.
func death(headers amqp.Table) *history.Death {
	entries, _ := headers["x-death"].([]any)
	if len(entries) == 0 {
		return nil
	}
	t, _ := entries[0].(amqp.Table)
	out := history.Death{Entries: len(entries)}
	out.Queue, _ = t["queue"].(string)
	out.Reason, _ = t["reason"].(string)
	out.Exchange, _ = t["exchange"].(string)
	out.Count, _ = t["count"].(int64)
	out.Expiration, _ = t["original-expiration"].(string)
	keys, _ := t["routing-keys"].([]any)
	for _, k := range keys {
		s, _ := k.(string)
		out.RoutingKeys = append(out.RoutingKeys, s)
	}
	return &out
}
