package client

import (
	"context"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is a delivery whose settlements say whether they took effect.
type Message struct {
	// Delivery is what the channel has delivered; empty for a message that is named by a token.
	Delivery amqp.Delivery

	client  *Client
	which   amqp.Table // names it in commands
	held    holding
	settled func() // the session's; nil: there is none
}

// Message returns the calls of a delivery of this channel, which was not consumed with autoAck.
func (c *Client) Message(d amqp.Delivery) *Message {
	return &Message{Delivery: d, client: c, which: amqp.Table{"x-delivery-tag": int64(d.DeliveryTag)}, held: newHolding(c)}
}

// MessageWithToken returns the calls of a delivery, of any channel, by its lock token: the header x-lock-token that
// a consumer with x-delivery-info gets. It needs the permission to read the queue.
func (c *Client) MessageWithToken(token string) *Message {
	return &Message{client: c, which: amqp.Table{"x-lock-token": token}, held: newHolding(c)}
}

// Renew makes the lock begin anew, for a time or, with 0, for as long as at first, and returns how long it lasts
// from now on. 0: the delivery has no lock.
func (m *Message) Renew(ctx context.Context, lock time.Duration) (time.Duration, error) {
	headers := amqp.Table{}
	if lock != 0 {
		headers["x-lock-duration"] = lock.Milliseconds()
	}
	maps.Copy(headers, m.which)
	return m.client.renew(ctx, "lock.renew", headers)
}

// renew sends a renewal and returns how long the lock lasts from when it was sent.
func (c *Client) renew(ctx context.Context, verb string, headers amqp.Table) (time.Duration, error) {
	a, err := c.command(ctx, verb, headers, nil)
	if err != nil || len(a.Results) == 0 {
		return 0, err
	}
	return time.Duration(a.Results[0].Remaining) * time.Millisecond, nil
}

// Hold renews the lock, now and in the background, until the message is settled by a call of m, or ctx ends. The
// context that it returns is cancelled then, and when the lock is lost or the channel closed;
// context.Cause says why, with [ErrLockLost] or [ErrClosed].
func (m *Message) Hold(ctx context.Context, lock time.Duration) (context.Context, error) {
	return m.held.begin(ctx, func(ctx context.Context) (time.Duration, error) { return m.Renew(ctx, lock) })
}

// Ack removes the message.
func (m *Message) Ack(ctx context.Context) error { return m.settle(ctx, "ack", nil) }

// Requeue returns the message to its place, which is no failure.
func (m *Message) Requeue(ctx context.Context) error { return m.settle(ctx, "requeue", nil) }

// Reject makes the message a dead letter if its queue has a dead-letter exchange, and drops it otherwise.
func (m *Message) Reject(ctx context.Context) error { return m.settle(ctx, "reject", nil) }

// DeadLetter is Reject with headers of the dead letter that say why: a short reason, and a description.
func (m *Message) DeadLetter(ctx context.Context, reason, description string) error {
	return m.settle(ctx, "dead-letter", amqp.Table{"x-reason": reason, "x-description": description})
}

func (m *Message) settle(ctx context.Context, outcome string, headers amqp.Table) error {
	all := amqp.Table{"x-outcome": outcome}
	maps.Copy(all, headers)
	return m.end(ctx, "message.settle", all)
}

// Retry returns the message, to be ready again at a time. failed: this was a failure, which counts for
// the queue's delivery limit.
func (m *Message) Retry(ctx context.Context, when When, failed bool) error {
	headers := amqp.Table{"x-delivery-failed": failed}
	when.set(headers, "x-delay")
	return m.end(ctx, "message.retry", headers)
}

// Defer puts the message aside under a token that is unique in its queue, until somebody asks for it by that
// token or, with a time, it returns by itself.
func (m *Message) Defer(ctx context.Context, token string, returns When) error {
	headers := amqp.Table{"x-deferral-token": token}
	returns.set(headers, "x-delay")
	return m.end(ctx, "message.defer", headers)
}

// end sends a command that settles the message. A renewal that is under way is answered before.
func (m *Message) end(ctx context.Context, verb string, headers amqp.Table) error {
	maps.Copy(headers, m.which)
	err := m.held.end(ctx, func(ctx context.Context) error { return m.client.do(ctx, verb, headers) })
	if err == nil && m.settled != nil {
		m.settled()
	}
	return err
}

// ReceiveDeferred has deferred messages delivered to a consumer of the channel. The results of an [Error] say which
// of them are not.
func (c *Client) ReceiveDeferred(ctx context.Context, queue, consumerTag string, tokens ...string) error {
	list := make([]any, len(tokens))
	for i, token := range tokens {
		list[i] = token
	}
	return c.do(ctx, "message.receive-deferred", amqp.Table{"x-queue": queue, "x-consumer-tag": consumerTag, "x-deferral-tokens": list})
}
