package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Consumer consumes a queue and acks each delivery once it is recorded. When its
// connection or its subscription is lost, it subscribes again at the next broker.
type Consumer struct {
	Name  string
	URIs  []string
	First int    // position of the first broker
	Dial  Dialer // nil: TCP
	Queue string
	// More are further queues, which the same channel consumes.
	More []string
	// As, if set, is the queue that deliveries are recorded of.
	As       string
	Prefetch int // of each queue; 0: 256
	// Arguments of the subscription.
	Arguments amqp.Table
	// Each, if set, is called with every delivery before it is acked.
	Each func(amqp.Delivery)
	// Settle, if set, ends a delivery instead of an ack, and reports whether it is one.
	Settle func(amqp.Delivery) (acked bool, err error)

	h     *history.History
	conn  *amqp.Connection
	ch    *amqp.Channel
	from  <-chan amqp.Delivery
	ended chan struct{} // closed when nobody reads from any more
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
	conn, ch, err := channel(ctx, c.Dial, c.URIs, c.First+c.epoch)
	if err != nil {
		return err
	}
	c.epoch++
	c.ended = make(chan struct{})
	if err = ch.Qos(c.Prefetch, 0, false); err == nil {
		c.from, err = c.consumeAll(ch)
	}
	if err != nil {
		close(c.ended)
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout))
		return err
	}
	c.conn, c.ch = conn, ch
	return nil
}

// consumeAll subscribes to all queues, whose deliveries come in one channel.
func (c *Consumer) consumeAll(ch *amqp.Channel) (<-chan amqp.Delivery, error) {
	if len(c.More) == 0 {
		return ch.Consume(c.Queue, c.Name, false, false, false, false, c.Arguments)
	}
	all, ended := make(chan amqp.Delivery), c.ended
	var open sync.WaitGroup
	for _, queue := range append([]string{c.Queue}, c.More...) {
		from, err := ch.Consume(queue, c.tag(queue), false, false, false, false, c.Arguments)
		if err != nil {
			return nil, err
		}
		open.Go(func() {
			for d := range from {
				select {
				case all <- d:
				case <-ended:
				}
			}
		})
	}
	go func() {
		open.Wait()
		close(all)
	}()
	return all, nil
}

// tag names the subscription to one of several queues.
func (c *Consumer) tag(queue string) string {
	if len(c.More) == 0 {
		return c.Name
	}
	return c.Name + "/" + queue
}

// queueOf returns the queue that a delivery is recorded of.
func (c *Consumer) queueOf(d amqp.Delivery) string {
	switch {
	case c.As != "":
		return c.As
	case len(c.More) > 0:
		return strings.TrimPrefix(d.ConsumerTag, c.Name+"/")
	}
	return c.Queue
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
	at := c.h.Deliver(Record(d, c.queueOf(d), c.Name, c.epoch))
	if c.Each != nil {
		c.Each(d)
	}
	acked, err := true, error(nil)
	if c.Settle != nil {
		acked, err = c.Settle(d)
	} else {
		err = d.Ack(false)
	}
	if acked && err == nil {
		c.acked = append(c.acked, at)
	}
	return err == nil
}

// leave ends the subscription, receives the deliveries on their way, and closes.
func (c *Consumer) leave() error {
	var err error
	for _, queue := range append([]string{c.Queue}, c.More...) {
		err = errors.Join(err, c.ch.Cancel(c.tag(queue), false))
	}
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
	close(c.ended)
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
