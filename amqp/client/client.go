// Package client makes calls of what quorate can do beyond AMQP: locks that are renewed while a
// message is worked on, retries at a time, deferred messages, schedules, sessions and pauses. It is
// for programs that use amqp091-go, and adds to a channel of that library what is a message to the
// exchange amq.quorate.command otherwise.
//
// A channel and its connection stay the program's: it opens them, and opens others when they are
// lost. What belonged to the channel is over then, as always in AMQP, and calls say so.
//
// Nothing is sent twice but the renewal of a lock, which is harmless. An error says one of three things:
//
//   - [ErrUnknown]: the command may have been carried out, or may still be;
//   - [ErrLockLost]: it has not been, and the delivery or group is not the caller's any more;
//   - any other [Error]: it has not been, for a reason that the broker gives.
//
// A context without a deadline gets one, [Timeout].
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Timeout is how long calls take at most whose context has no deadline. The broker gives up
// after five seconds without a leader.
const Timeout = 10 * time.Second

const (
	commandExchange = "amq.quorate.command"
	directReply     = "amq.rabbitmq.reply-to"
)

var (
	// ErrUnknown is in errors that do not say whether something has been done: no answer came in time, the
	// channel was closed before, or the queue had no leader and may still do it.
	ErrUnknown = errors.New("the outcome is not known")
	// ErrLockLost is in errors that say that a delivery or a group is not the caller's any more.
	ErrLockLost = errors.New("the lock is lost")
	// ErrClosed is in errors of calls on a channel that is closed.
	ErrClosed = errors.New("the channel is closed")
)

// Error is a refusal by the broker.
type Error struct {
	Verb    string   // what was refused, as "lock.renew"
	Code    int      // 404, 405, 406, …
	Text    string   // the broker's words
	Results []Result // of each object that was named; nil: refused as a whole
}

// Result is what became of one object that a command named.
type Result struct {
	DeliveryTag   uint64 `json:"delivery_tag"`
	LockToken     string `json:"lock_token"`
	DeferralToken string `json:"deferral_token"`
	GroupID       string `json:"group_id"`
	OK            bool   `json:"ok"`
	Code          int    `json:"code"`
	Error         string `json:"error"`
	Remaining     int64  `json:"remaining_ms"`
	State         []byte `json:"state"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %d %s", e.Verb, e.Code, e.Text) }

// Is reports whether e means that a lock is lost, or that the outcome is not known.
func (e *Error) Is(kind error) bool {
	switch kind {
	case ErrUnknown:
		return e.Code == amqp.PreconditionFailed && strings.HasSuffix(e.Text, "has no leader")
	case ErrLockLost:
		renews := strings.HasSuffix(e.Verb, ".renew")
		return e.Code == amqp.NotFound && (renews || strings.HasPrefix(e.Verb, "message.") && e.Verb != "message.receive-deferred") ||
			e.Code == amqp.ResourceLocked && renews
	}
	return false
}

// Client sends commands on a channel. Its methods may be called from any goroutine.
type Client struct {
	ch    *amqp.Channel
	round chan struct{} // received from once all that the channel has delivered before is in the maps
	done  chan struct{} // closed with the channel
	why   error         // set before

	mu       sync.Mutex
	number   uint64                  // of the last command
	waiting  map[string]chan *answer // by correlation id
	returned map[string]*amqp.Return // of messages that are being scheduled, by their ids; nil: none yet
}

// answer is the broker's to a command.
type answer struct {
	OK      bool     `json:"ok"`
	Code    int      `json:"code"`
	Error   string   `json:"error"`
	Results []Result `json:"results"`
}

// New makes a client of a channel, which it puts into confirm mode and lets consume direct replies (amq.rabbitmq.reply-to): a
// channel has at most one client, and no other consumer of these. Commands are about what was delivered on the
// same channel, so this is the one that consumes.
func New(ch *amqp.Channel) (*Client, error) {
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	returned := ch.NotifyReturn(make(chan amqp.Return))
	replies, err := ch.Consume(directReply, "", true, false, false, false, nil)
	c := &Client{
		ch: ch, round: make(chan struct{}), done: make(chan struct{}),
		waiting: map[string]chan *answer{}, returned: map[string]*amqp.Return{},
	}
	go c.receive(replies, returned, closed)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// receive passes on what the channel receives, until it is closed.
func (c *Client) receive(replies <-chan amqp.Delivery, returned <-chan amqp.Return, closed <-chan *amqp.Error) {
	for returned != nil {
		select {
		case reply, ok := <-replies:
			if !ok {
				replies = nil
				continue
			}
			c.answered(&reply)
		case r, ok := <-returned:
			if !ok {
				returned = nil
				continue
			}
			c.mu.Lock()
			if _, mine := c.returned[r.MessageId]; mine {
				c.returned[r.MessageId] = &r
			}
			c.mu.Unlock()
		case c.round <- struct{}{}:
		}
	}
	c.why = ErrClosed
	if err := <-closed; err != nil {
		c.why = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	close(c.done)
}

func (c *Client) answered(reply *amqp.Delivery) {
	a := &answer{}
	if err := json.Unmarshal(reply.Body, a); err != nil {
		return // a reply to somebody else's request: there is nobody who waits for it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if to := c.waiting[reply.CorrelationId]; to != nil {
		to <- a
		delete(c.waiting, reply.CorrelationId)
	}
}

// command publishes a command and waits for its answer.
func (c *Client) command(ctx context.Context, verb string, headers amqp.Table, body []byte) (*answer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	to := make(chan *answer, 1)
	c.mu.Lock()
	c.number++
	id := strconv.FormatUint(c.number, 10)
	c.waiting[id] = to
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, id)
	}()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	if err := c.ch.PublishWithContext(ctx, commandExchange, verb, false, false, amqp.Publishing{
		ReplyTo: directReply, CorrelationId: id, Headers: headers, Body: body,
	}); err != nil {
		return nil, c.unsent(verb, err)
	}
	select {
	case a := <-to:
		return a.check(verb)
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w: %w", verb, ErrUnknown, context.Cause(ctx))
	case <-c.done:
		return nil, fmt.Errorf("%s: %w: %w", verb, ErrUnknown, c.why)
	}
}

// unsent returns the error of a publish that the library has not done, or not whole.
func (c *Client) unsent(what string, err error) error {
	switch {
	case errors.Is(err, amqp.ErrClosed):
		return fmt.Errorf("%s: %w: %w", what, ErrClosed, err)
	case c.ch.IsClosed():
		return fmt.Errorf("%s: %w: %w", what, ErrUnknown, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (a *answer) check(verb string) (*answer, error) {
	if !a.OK {
		return nil, &Error{Verb: verb, Code: a.Code, Text: a.Error, Results: a.Results}
	}
	return a, nil
}

// do is command for what answers nothing else.
func (c *Client) do(ctx context.Context, verb string, headers amqp.Table) error {
	_, err := c.command(ctx, verb, headers, nil)
	return err
}

// bounded returns a context with a deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, Timeout)
}
