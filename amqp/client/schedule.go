package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// When is a time at which a message is ready. The zero value is none.
type When struct {
	after time.Duration
	at    time.Time
	given bool
}

// After is a time from now on, by the broker's clock. It is cut to milliseconds.
func After(d time.Duration) When { return When{after: d, given: true} }

// At is a point in time, by a clock that ought to agree with the broker's.
func At(t time.Time) When { return When{at: t, given: true} }

// set adds the header that says it.
func (w When) set(headers amqp.Table, delay string) {
	switch {
	case !w.given:
	case w.at.IsZero():
		headers[delay] = w.after.Milliseconds()
	default:
		headers["x-opt-delivery-time"] = w.at.UnixMilli()
	}
}

// Conflict says what happens to a scheduled message whose id another one has that waits.
type Conflict string

// What happens to the second message; the broker's default is Replace.
const (
	Replace Conflict = "replace" // the first is removed
	Refuse  Conflict = "reject"  // the second is refused: [ErrNacked]
	Ignore  Conflict = "ignore"  // the second is dropped, without an error
)

// ErrNacked is in errors that say that the broker has refused a message.
var ErrNacked = errors.New("nacked")

// Scheduled is how a message is scheduled.
type Scheduled struct {
	When     When
	ID       string   // a name that is unique in the queue, to cancel it by; may be missing
	Conflict Conflict // if another one has this name
}

// Schedule publishes a message that waits in the queues to which it is routed until its time, and returns when
// a majority of nodes has it. A message without an id is given one. A message that is routed to no queue
// is an [Error] with code 312.
func (c *Client) Schedule(ctx context.Context, exchange, key string, m amqp.Publishing, s Scheduled) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	headers := amqp.Table{}
	maps.Copy(headers, m.Headers)
	s.When.set(headers, "x-opt-delivery-delay")
	if s.ID != "" {
		headers["x-schedule-id"] = s.ID
	}
	if s.Conflict != "" {
		headers["x-schedule-conflict"] = string(s.Conflict)
	}
	m.Headers = headers
	if m.MessageId == "" {
		m.MessageId = rand.Text()
	}
	c.mu.Lock()
	c.returned[m.MessageId] = nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.returned, m.MessageId)
	}()
	confirm, err := c.ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, m)
	if err != nil {
		return c.unsent("schedule", err)
	}
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("schedule: %w: %w", ErrUnknown, err)
	case !acked && c.ch.IsClosed():
		<-c.done
		return fmt.Errorf("schedule: %w: %w", ErrUnknown, c.why)
	case !acked:
		return fmt.Errorf("schedule: %w", ErrNacked)
	}
	return c.checkReturned(m.MessageId)
}

// checkReturned returns why a confirmed message came back; nil: it did not. The channel delivers a return
// before the confirm.
func (c *Client) checkReturned(messageID string) error {
	select {
	case <-c.round:
	case <-c.done:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if why := c.returned[messageID]; why != nil {
		return &Error{Verb: "schedule", Code: int(why.ReplyCode), Text: why.ReplyText}
	}
	return nil
}

// Place is where scheduled messages wait.
type Place struct{ header, name string }

// InQueue is a queue to which messages were published with a time.
func InQueue(name string) Place { return Place{"x-queue", name} }

// InExchange is a delayed exchange.
func InExchange(name string) Place { return Place{"x-exchange", name} }

func (p Place) headers(id string) amqp.Table {
	return amqp.Table{p.header: p.name, "x-schedule-id": id}
}

// Cancel removes a scheduled message, which is then never delivered. 404: it has been, or never was there.
func (c *Client) Cancel(ctx context.Context, in Place, id string) error {
	return c.do(ctx, "schedule.cancel", in.headers(id))
}

// Reschedule gives a scheduled message another time.
func (c *Client) Reschedule(ctx context.Context, in Place, id string, when When) error {
	headers := in.headers(id)
	when.set(headers, "x-delay")
	return c.do(ctx, "schedule.update", headers)
}

// Fire makes a scheduled message due now.
func (c *Client) Fire(ctx context.Context, in Place, id string) error {
	return c.do(ctx, "schedule.fire", in.headers(id))
}

// Pause stops handing out the messages of a queue, for a time or, with 0, until it is resumed. Its publishers go on.
func (c *Client) Pause(ctx context.Context, queue, reason string, d time.Duration) error {
	headers := amqp.Table{"x-queue": queue, "x-reason": reason}
	if d != 0 {
		headers["x-duration"] = d.Milliseconds()
	}
	return c.do(ctx, "queue.pause", headers)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, queue string) error {
	return c.do(ctx, "queue.resume", amqp.Table{"x-queue": queue})
}
