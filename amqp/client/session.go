package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Group is a group of messages that a consumer of the channel holds.
type Group struct {
	Queue, ConsumerTag, ID string

	client *Client
	held   holding
}

// Group returns the calls of a group that a consumer of the program's own holds; see also [Client.Accept].
func (c *Client) Group(queue, consumerTag, id string) *Group {
	return &Group{Queue: queue, ConsumerTag: consumerTag, ID: id, client: c, held: newHolding(c)}
}

func (g *Group) command(ctx context.Context, verb string, body []byte) (*answer, error) {
	return g.client.command(ctx, verb, g.headers(), body)
}

func (g *Group) headers() amqp.Table {
	return amqp.Table{"x-queue": g.Queue, "x-group-id": g.ID, "x-consumer-tag": g.ConsumerTag}
}

// Renew makes the lock of the group begin anew, and returns how long it lasts. 0: it has no lock.
func (g *Group) Renew(ctx context.Context) (time.Duration, error) {
	return g.client.renew(ctx, "group.renew", g.headers())
}

// Hold renews the lock, as [Message.Hold] does, until the group is released.
func (g *Group) Hold(ctx context.Context) (context.Context, error) { return g.held.begin(ctx, g.Renew) }

// Release gives the group up; what is not settled returns, which is no failure. The consumer may be given it again.
func (g *Group) Release(ctx context.Context) error {
	return g.held.end(ctx, func(ctx context.Context) error { return g.client.do(ctx, "group.release", g.headers()) })
}

// SetState keeps bytes with the group for whoever holds it next; none: the state is removed.
func (g *Group) SetState(ctx context.Context, state []byte) error {
	_, err := g.command(ctx, "group.set-state", state)
	return err
}

// State returns the state of the group; empty: there is none.
func (g *Group) State(ctx context.Context) ([]byte, error) {
	a, err := g.command(ctx, "group.get-state", nil)
	if err != nil || len(a.Results) == 0 {
		return nil, err
	}
	return a.Results[0].State, nil
}

var (
	// ErrSessionEnded is returned when the session's group has been given up, since nothing of it was
	// left, or its consumer cancelled.
	ErrSessionEnded = errors.New("the session has ended")
	// ErrNoGroup is returned when what the queue hands out next is of no group.
	ErrNoGroup = errors.New("the next message is of no group")
)

// Session is a group with its messages, received in order by a consumer that takes no other.
type Session struct {
	*Group

	deliveries <-chan amqp.Delivery
	first      *amqp.Delivery

	mu        sync.Mutex
	unsettled map[uint64]bool // delivery tags
}

// Accept waits for a group that nobody holds, that with an id or with "" the next one, and for its first message.
// arguments are the consumer's: x-lock-duration and others. The prefetch is the channel's.
func (c *Client) Accept(ctx context.Context, queue, id string, arguments amqp.Table) (*Session, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	all := amqp.Table{}
	maps.Copy(all, arguments)
	if id != "" {
		all["x-group-id"] = id
	}
	c.mu.Lock()
	c.number++
	tag := fmt.Sprintf("session-%d", c.number)
	c.mu.Unlock()
	deliveries, err := c.ch.Consume(queue, tag, false, false, false, false, all)
	if err != nil {
		return nil, err
	}
	s := &Session{Group: c.Group(queue, tag, id), deliveries: deliveries, unsettled: map[uint64]bool{}}
	d, err := s.next(ctx)
	if err == nil {
		s.ID, s.first = groupOf(d), d
		if s.ID == "" {
			err = ErrNoGroup
		}
	}
	if err != nil {
		clean, stop := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
		defer stop()
		return nil, errors.Join(err, s.Close(clean))
	}
	return s, nil
}

// groupOf returns the group of a message; empty: it has none.
func groupOf(d *amqp.Delivery) string {
	if id := d.Headers["x-group-id"]; id != nil {
		return fmt.Sprint(id)
	}
	return d.AppId
}

// next takes a delivery, which the session has to settle from then on.
func (s *Session) next(ctx context.Context) (*amqp.Delivery, error) {
	select {
	case d, ok := <-s.deliveries:
		if ok {
			s.mu.Lock()
			s.unsettled[d.DeliveryTag] = true
			s.mu.Unlock()
			return &d, nil
		}
		if s.client.ch.IsClosed() {
			<-s.client.done
			return nil, s.client.why
		}
		return nil, ErrSessionEnded
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Receive waits for the next message of the group. If the consumer has been given another group, what it got returns
// when the session is closed.
func (s *Session) Receive(ctx context.Context) (*Message, error) {
	d := s.first
	s.first = nil
	if d == nil {
		var err error
		if d, err = s.next(ctx); err != nil {
			return nil, err
		}
	}
	if groupOf(d) != s.ID {
		return nil, ErrSessionEnded
	}
	m := s.client.Message(*d)
	m.settled = func() { s.settled(d.DeliveryTag) }
	return m, nil
}

func (s *Session) settled(tag uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unsettled, tag)
}

// maxTags is how many delivery tags a command may name.
const maxTags = 256

// Close cancels the consumer and returns what it has not settled, which is no failure. The group is free then.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	s.held.over(context.Canceled)
	if s.client.ch.IsClosed() {
		return nil // and everything has returned
	}
	if err := s.client.ch.Cancel(s.ConsumerTag, false); err != nil {
		return err
	}
	s.mu.Lock()
	for d := range s.deliveries { // what is left of them; the library has closed it
		s.unsettled[d.DeliveryTag] = true
	}
	tags := slices.Sorted(maps.Keys(s.unsettled))
	s.mu.Unlock()
	for some := range slices.Chunk(tags, maxTags) {
		var list []any
		for _, tag := range some {
			list = append(list, int64(tag))
		}
		err := s.client.do(ctx, "message.settle", amqp.Table{"x-delivery-tags": list, "x-outcome": "requeue"})
		if err != nil && !errors.Is(err, ErrLockLost) {
			return err
		}
		for _, tag := range some {
			s.settled(tag)
		}
	}
	return nil
}
