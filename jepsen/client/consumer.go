package client

import (
	"cmp"
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
	// Batch is how many deliveries one ack settles, unless there are no more for a while;
	// 0: 1. It is not used with Settle, nor with More.
	Batch int
	// Renew is after how many deliveries the consumer leaves in order, so that its acks are
	// known to hold, and subscribes again; 0: never.
	Renew int
	// Subscribes, if set, is called when the consumer is about to subscribe, and Subscribed when it has.
	Subscribes func(name string, epoch int)
	Subscribed func()
	// Lost, if set, is called with the reason, which may be nil, when the subscription is refused or lost.
	Lost func(reason error)
	// Conn, if set, is a connection that consumers share, and that stays open, in place of one of its own.
	Conn *amqp.Connection

	h     Recorder
	epoch int
	subscription
}

// subscription is what a consumer has on one connection.
type subscription struct {
	ch     Channel
	from   <-chan amqp.Delivery
	closed <-chan *amqp.Error
	ended  chan struct{} // closed when nobody reads from any more
	acked  []int         // positions of the deliveries that were acked
	taken  []int         // those that the next ack settles
	last   uint64        // delivery tag of those
}

// Run consumes until ctx ends, and then closes its connection in order, so that its
// acks are known to hold. An error means that it was not subscribed at the end.
func (c *Consumer) Run(ctx context.Context, h Recorder) error {
	c.h = h
	if c.Prefetch == 0 {
		c.Prefetch = 256
	}
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	var err error
	for {
		reason := error(nil)
		if err = c.subscribe(ctx); err == nil {
			switch c.consume(ctx) {
			case over:
				return c.leave()
			case renewed:
				_ = c.leave() // or its acks prove nothing
				continue
			case gone:
				reason = why(nil, c.closed)
				c.lost()
			}
		}
		if c.Lost != nil && ctx.Err() == nil {
			c.Lost(cmp.Or(err, reason))
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
	l, err := c.open(ctx)
	if err != nil {
		return err
	}
	c.epoch++
	if c.Subscribes != nil {
		c.Subscribes(c.Name, c.epoch)
	}
	c.ended = make(chan struct{})
	if c.from, err = l.Subscribe(append([]string{c.Queue}, c.More...), c.tag, c.Prefetch, c.Arguments, c.ended); err != nil {
		close(c.ended)
		l.Abandon()
		return err
	}
	c.ch, c.closed = l, l.Closed()
	if c.Subscribed != nil {
		c.Subscribed()
	}
	return nil
}

// open opens a channel, on a connection of its own if there is no other.
func (c *Consumer) open(ctx context.Context) (Channel, error) {
	if c.Conn == nil {
		return anyChannel(ctx, c.Dial, c.URIs, c.First+c.epoch)
	}
	return channelOf(c.Conn, true)
}

// Subscribe consumes from several queues, whose deliveries come in one channel until ended is closed. tag
// names the subscription to each.
func Subscribe(ch *amqp.Channel, queues []string, tag func(queue string) string, arguments amqp.Table, ended <-chan struct{}) (<-chan amqp.Delivery, error) {
	var all []<-chan amqp.Delivery
	for _, queue := range queues {
		from, err := ch.Consume(queue, tag(queue), false, false, false, false, arguments)
		if err != nil {
			return nil, err
		}
		all = append(all, from)
	}
	return merged(all, ended), nil
}

// merged is what comes in several channels, until ended is closed.
func merged(from []<-chan amqp.Delivery, ended <-chan struct{}) <-chan amqp.Delivery {
	if len(from) == 1 {
		return from[0]
	}
	all := make(chan amqp.Delivery)
	var open sync.WaitGroup
	for _, c := range from {
		open.Go(func() {
			for d := range c {
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
	return all
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

// reason is why a consumer consumes no more.
type reason int

const (
	over    reason = iota // the context has ended
	renewed               // it has had as many deliveries as Renew says
	gone                  // the subscription is lost
)

// ackPause is how long a batch of acks waits for more deliveries.
const ackPause = 100 * time.Millisecond

// consume takes deliveries until there is a reason to end.
func (c *Consumer) consume(ctx context.Context) reason {
	pause := time.NewTicker(ackPause)
	defer pause.Stop()
	for {
		var waiting <-chan time.Time
		if len(c.taken) > 0 {
			waiting = pause.C
		}
		select {
		case <-ctx.Done():
			return over
		case <-waiting:
			if !c.ack() {
				return gone
			}
		case d, ok := <-c.from:
			if !ok || !c.take(d) {
				return gone
			}
			if c.Renew > 0 && len(c.acked) >= c.Renew {
				return renewed
			}
		}
	}
}

func (c *Consumer) take(d amqp.Delivery) bool {
	at := c.h.Deliver(Record(d, c.queueOf(d), c.Name, c.epoch))
	if c.Each != nil {
		c.Each(d)
	}
	if c.Settle == nil {
		c.taken, c.last = append(c.taken, at), d.DeliveryTag
		return len(c.taken) < c.Batch || c.ack()
	}
	acked, err := c.Settle(d)
	if acked && err == nil {
		c.acked = append(c.acked, at)
	}
	return err == nil
}

// ack settles what was taken.
func (c *Consumer) ack() bool {
	if len(c.taken) == 0 {
		return true
	}
	if c.ch.Ack(c.last, len(c.taken) > 1) != nil {
		return false
	}
	c.acked, c.taken = append(c.acked, c.taken...), c.taken[:0]
	return true
}

// leave ends the subscription, receives the deliveries on their way, and closes.
func (c *Consumer) leave() error {
	var err error
	for _, queue := range append([]string{c.Queue}, c.More...) {
		err = errors.Join(err, c.ch.Cancel(c.tag(queue)))
	}
	if err == nil {
		for d := range c.from {
			if !c.take(d) {
				break
			}
		}
		if !c.ack() {
			err = amqp.ErrClosed
		} else {
			err = c.ch.Close()
		}
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
	c.acked, c.taken = c.acked[:0], c.taken[:0]
	c.ch.Abandon()
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
