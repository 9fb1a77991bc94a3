package workload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Hold delays messages by hold queues: one queue per delay, with a TTL, a
// dead-letter exchange and a lease, and without consumers.
type Hold struct {
	URI      string
	Exchange string // where messages go when their delay is over
	Key      string
	Queue    string // bound to Exchange with Key
	Delays   []time.Duration
	Each     int // messages per delay
}

// Name returns the name of the hold queue of a delay.
func (w *Hold) Name(delay time.Duration) string {
	return "hold." + w.Exchange + "." + w.Key + "." + strconv.FormatInt(delay.Milliseconds(), 10)
}

// Lease returns the hold queue's x-expires.
func (w *Hold) Lease(delay time.Duration) time.Duration { return 2 * delay }

// ErrReturned means that a hold queue did not exist when it was published to.
var ErrReturned = errors.New("returned as unroutable")

// Setup declares the exchange and the queue in which the messages arrive.
func (w *Hold) Setup(ctx context.Context) error {
	conn, ch, err := open(ctx, w.URI)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ch.ExchangeDeclare(w.Exchange, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(w.Queue, true, false, false, false, nil); err != nil {
		return err
	}
	return ch.QueueBind(w.Queue, w.Key, w.Exchange, false, nil)
}

// Publish declares the hold queue of each message's delay again and publishes to
// it, for the delays in turn. It returns when each hold queue was last declared,
// measured before the call.
func (w *Hold) Publish(ctx context.Context, h *history.History) (map[time.Duration]time.Time, error) {
	conn, ch, err := open(ctx, w.URI)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	declared := map[time.Duration]time.Time{}
	for range w.Each {
		for _, delay := range w.Delays {
			declared[delay] = time.Now()
			if err := w.publish(ctx, ch, h, delay, returns); err != nil {
				return nil, fmt.Errorf("delay %v: %w", delay, err)
			}
		}
	}
	return declared, ch.Close()
}

func (w *Hold) publish(ctx context.Context, ch *amqp.Channel, h *history.History, delay time.Duration, returns <-chan amqp.Return) error {
	name := w.Name(delay)
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
		"x-message-ttl":             delay.Milliseconds(),
		"x-dead-letter-exchange":    w.Exchange,
		"x-dead-letter-routing-key": w.Key,
		"x-expires":                 w.Lease(delay).Milliseconds(),
	})
	if err != nil {
		return err
	}
	// One stream per delay: the order must hold within a stream, not between them.
	key := h.Begin(history.Attempt{Message: h.NextMessage(), Publisher: name, Queue: w.Queue, TTL: delay})
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", name, true, false, amqp.Publishing{
		DeliveryMode: amqp.Persistent,
		ContentType:  "text/x-hold",
		MessageId:    strconv.FormatUint(key, 10),
		Headers:      amqp.Table{"delay": delay.Milliseconds()},
		Body:         client.Body(key, 100),
	})
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case <-returns:
		h.End(key, history.No)
		return ErrReturned
	default:
	}
	if !acked {
		h.End(key, history.No)
		return errors.New("basic.nack")
	}
	h.End(key, history.OK)
	return nil
}

// Changed describes how a delivery differs from what Publish sent; "": not at all.
func (w *Hold) Changed(d amqp.Delivery, a history.Attempt) string {
	first, _ := d.Headers["x-first-death-queue"].(string)
	delay, _ := d.Headers["delay"].(int64)
	switch {
	case d.Exchange != w.Exchange || d.RoutingKey != w.Key:
		return fmt.Sprintf("came by exchange %q with key %q", d.Exchange, d.RoutingKey)
	case d.ContentType != "text/x-hold" || d.DeliveryMode != amqp.Persistent || d.MessageId != strconv.FormatUint(a.Key, 10):
		return fmt.Sprintf("properties: content type %q, delivery mode %d, message id %q", d.ContentType, d.DeliveryMode, d.MessageId)
	case delay != a.TTL.Milliseconds():
		return fmt.Sprintf("header delay = %v", d.Headers["delay"])
	case first != w.Name(a.TTL) || d.Headers["x-first-death-reason"] != "expired" || d.Headers["x-first-death-exchange"] != "":
		return fmt.Sprintf("headers of the first death: %v", d.Headers)
	case d.Expiration != "":
		return fmt.Sprintf("expiration = %q", d.Expiration)
	}
	return ""
}

func open(ctx context.Context, uri string) (*amqp.Connection, *amqp.Channel, error) {
	conn, err := client.Connect(ctx, uri)
	if err != nil {
		return nil, nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, ch, nil
}
