// Package migrate moves the messages of queues from another AMQP 0-9-1 broker to this one.
//
// A message is acknowledged at the source after the destination has confirmed it, so none is lost,
// whatever ends the work. What was confirmed here and not yet acknowledged there comes a second time
// when the work is done again: such messages are counted and marked (see Marker).
//
// Messages keep their properties, headers and routing keys, and their order. They do not keep their
// exchange: they are published to a fanout exchange that exists for as long as its queue is being
// moved, and leads to that queue alone, whatever the message's headers CC and BCC name.
package migrate

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// Marker is the header of a message that may have been moved before.
	Marker = "x-migrated-again"
	// exchangePrefix begins the name of the exchange through which a queue is filled. While it
	// exists the queue is not completely moved.
	exchangePrefix = "quorate.migration."

	// window is how many messages are on their way at most: what may come twice after a crash.
	window = 500
	// A queue is empty if the source says so emptyChecks times, emptyPause apart, while nothing comes;
	// resumedChecks times if an earlier attempt ended, as what that held may still be on its way back.
	emptyChecks   = 3
	resumedChecks = 20
	emptyPause    = 100 * time.Millisecond
	// stalledAfter is how long a queue that is not empty may deliver nothing: another consumer may be
	// its single active one.
	stalledAfter = 30 * time.Second
	// finishWait bounds the wait for outstanding confirms when the work is interrupted.
	finishWait = 10 * time.Second
	heartbeat  = 10 * time.Second
	// ackBatch is how many messages are acknowledged together at most.
	ackBatch = 64
)

// Queue is a queue to be moved.
type Queue struct {
	VHost string
	Name  string
	// TTL is that of the queue's messages, in milliseconds, as the destination has it; negative:
	// none.
	TTL int64
}

// Outcome is what became of a queue. The numbers are messages.
type Outcome struct {
	VHost  string `json:"vhost"`
	Name   string `json:"name"`
	Result string `json:"result"` // Moved, or what is in the way
	Moved  int64  `json:"moved"`
	Left   int    `json:"left"` // ready at the source afterwards
	// Redelivered had been delivered before. Marked are those of them that this or an earlier attempt
	// may have moved already.
	Redelivered int64 `json:"redelivered"`
	Marked      int64 `json:"marked"`
	TTL
}

// Moved is the Result of a queue that is done.
const Moved = "moved"

// ErrBroken means that a connection has ended: the rest can be moved by doing the same again.
var ErrBroken = errors.New("interrupted; the same command moves the rest")

// Pair is a connection to the same vhost of both brokers.
type Pair struct {
	vhost    string
	from, to *amqp.Connection
}

// Open connects to a vhost of both brokers, given by their URIs.
func Open(from, to, vhost string, secure *tls.Config) (*Pair, error) {
	p := &Pair{vhost: vhost}
	var err error
	if p.from, err = dial(from, vhost, secure); err != nil {
		return nil, fmt.Errorf("%w: source, vhost %s: %w", ErrBroken, vhost, err)
	}
	if p.to, err = dial(to, vhost, secure); err != nil {
		_ = p.from.Close()
		return nil, fmt.Errorf("%w: destination, vhost %s: %w", ErrBroken, vhost, err)
	}
	return p, nil
}

func dial(uri, vhost string, secure *tls.Config) (*amqp.Connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("quoratectl migrate")
	return amqp.DialConfig(uri, amqp.Config{Vhost: vhost, Heartbeat: heartbeat, TLSClientConfig: secure.Clone(), Properties: properties})
}

// Close ends the connections. What is not acknowledged returns to the source's queues.
func (p *Pair) Close() error { return errors.Join(p.from.Close(), p.to.Close()) }

// Move moves the messages of a queue until the source has no more. moved counts them on the way. An
// error that wraps ErrBroken concerns the connections; what concerns the queue alone is the outcome's
// result.
func (p *Pair) Move(ctx context.Context, q Queue, moved *atomic.Int64) (Outcome, error) {
	m := &mover{queue: q, exchange: exchangeOf(q.Name), moved: moved, out: Outcome{VHost: q.VHost, Name: q.Name}}
	err := m.move(ctx, p)
	m.out.Result = Moved
	if err != nil {
		m.out.Result = err.Error()
	}
	switch {
	case err == nil:
		return m.out, nil
	case ctx.Err() != nil:
		return m.out, fmt.Errorf("%w: %w", ErrBroken, ctx.Err())
	case p.from.IsClosed() || p.to.IsClosed():
		return m.out, fmt.Errorf("%w: queue %s: %w", ErrBroken, q.Name, err)
	}
	return m.out, nil
}

func exchangeOf(queue string) string {
	if name := exchangePrefix + queue; len(name) <= 255 {
		return name
	}
	sum := sha256.Sum256([]byte(queue))
	return exchangePrefix + hex.EncodeToString(sum[:])
}

// mover moves one queue.
//
//	published − answered = len(tags) ≤ window
type mover struct {
	queue    Queue
	exchange string
	moved    *atomic.Int64
	out      Outcome
	resumed  bool // an earlier attempt has not come to its end

	source, asks, dest *amqp.Channel
	confirms           chan amqp.Confirmation
	returns            chan amqp.Return
	ended              [2]chan *amqp.Error // of source and dest
	tags               []uint64            // at the source, of what waits for a confirm, in order
	confirmed          uint64              // the newest of pending confirmed ones that are not acknowledged yet
	pending            int
	refused            error // why the destination has refused a message
	unrouted           bool  // it had no route
}

func (m *mover) move(ctx context.Context, p *Pair) (err error) {
	if m.asks, err = p.from.Channel(); err != nil {
		return err
	}
	defer m.asks.Close()
	if err := m.prepare(p); err != nil {
		return err
	}
	if empty, err := m.empty(ctx); err != nil || empty && !m.resumed {
		return err
	}
	if err := m.connect(p); err != nil {
		return err
	}
	defer m.source.Close() // what is left returns
	if err := m.transfer(ctx); err != nil {
		return err
	}
	return m.dest.ExchangeDelete(m.exchange, false, false)
}

// prepare finds out whether the queue is at both brokers, and whether it was being moved before.
func (m *mover) prepare(p *Pair) (err error) {
	if _, err = m.asks.QueueDeclarePassive(m.queue.Name, true, false, false, false, nil); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if m.dest, err = p.to.Channel(); err != nil {
		return err
	}
	if _, err = m.dest.QueueDeclarePassive(m.queue.Name, true, false, false, false, nil); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	err = m.dest.ExchangeDeclarePassive(m.exchange, amqp.ExchangeFanout, true, false, false, false, nil)
	if m.resumed = err == nil; m.resumed {
		return nil
	}
	var missing *amqp.Error
	if !errors.As(err, &missing) || missing.Code != amqp.NotFound {
		return err
	}
	m.dest, err = p.to.Channel()
	return err
}

// empty reports whether the source has no message that is ready.
func (m *mover) empty(ctx context.Context) (bool, error) {
	checks := emptyChecks
	if m.resumed {
		checks = resumedChecks
	}
	for range checks {
		q, err := m.asks.QueueDeclarePassive(m.queue.Name, true, false, false, false, nil)
		if m.out.Left = q.Messages; err != nil || q.Messages > 0 {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(emptyPause):
		}
	}
	return true, nil
}

// connect makes the way of the messages.
func (m *mover) connect(p *Pair) (err error) {
	if err := m.dest.ExchangeDeclare(m.exchange, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return err
	}
	if err := m.dest.QueueBind(m.queue.Name, "", m.exchange, false, nil); err != nil {
		return err
	}
	m.confirms = m.dest.NotifyPublish(make(chan amqp.Confirmation, window))
	m.returns = m.dest.NotifyReturn(make(chan amqp.Return, window))
	m.ended[1] = m.dest.NotifyClose(make(chan *amqp.Error, 1))
	if err := m.dest.Confirm(false); err != nil {
		return err
	}
	if m.source, err = p.from.Channel(); err != nil {
		return err
	}
	m.ended[0] = m.source.NotifyClose(make(chan *amqp.Error, 1))
	return m.source.Qos(window, 0, false)
}

const consumerTag = "quoratectl-migrate"

// errStalled means that another consumer gets the messages.
var errStalled = fmt.Errorf("the source delivers nothing for %v: another consumer may be its single active or exclusive one", stalledAfter)

// transfer takes messages until there are none, publishes them and acknowledges what is confirmed.
func (m *mover) transfer(ctx context.Context) error {
	deliveries, err := m.source.Consume(m.queue.Name, consumerTag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	last := time.Now() // when something came
	pause := time.NewTicker(emptyPause)
	defer pause.Stop()
	for m.refused == nil {
		select {
		case <-ctx.Done():
			return errors.Join(m.finish(finishWait), ctx.Err())
		case d, ok := <-deliveries:
			if !ok {
				return m.over("the source has cancelled the consumer")
			}
			last = time.Now()
			if err := m.publish(ctx, &d); err != nil {
				return err
			}
		case c, ok := <-m.confirms:
			if !ok {
				return m.over("the destination has closed the channel")
			}
			if err := m.settle(c); err != nil {
				return err
			}
		case <-pause.C:
			if len(m.tags) > 0 || time.Since(last) < emptyPause {
				continue
			}
			empty, err := m.empty(ctx)
			switch {
			case err != nil:
				return err
			case empty && len(deliveries) == 0:
				return m.end(ctx, deliveries)
			case time.Since(last) > stalledAfter:
				return errStalled
			}
		}
	}
	return errors.Join(m.finish(finishWait), m.refused)
}

// end stops consuming and moves what has come meanwhile.
func (m *mover) end(ctx context.Context, deliveries <-chan amqp.Delivery) error {
	if err := m.source.Cancel(consumerTag, false); err != nil {
		return err
	}
	for d := range deliveries {
		for len(m.tags) == window && m.refused == nil {
			if err := m.await(finishWait); err != nil {
				return err
			}
		}
		if m.refused != nil {
			break
		}
		if err := m.publish(ctx, &d); err != nil {
			return err
		}
	}
	if err := errors.Join(m.finish(finishWait), m.refused); err != nil {
		return err
	}
	_, err := m.empty(ctx)
	return err
}

// finish settles everything outstanding. An answer that does not come in time is left open: the
// source keeps the message.
func (m *mover) finish(within time.Duration) error {
	for len(m.tags) > 0 {
		if err := m.await(within); err != nil {
			return err
		}
	}
	return nil
}

func (m *mover) await(within time.Duration) error {
	select {
	case c, ok := <-m.confirms:
		if !ok {
			return m.over("the destination has closed the channel")
		}
		return m.settle(c)
	case <-time.After(within):
		return fmt.Errorf("the destination has not confirmed %d messages within %v", len(m.tags), within)
	}
}

// over says why a channel has ended.
func (m *mover) over(what string) error {
	for _, ended := range m.ended {
		select {
		case err := <-ended:
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		case <-time.After(emptyPause):
		}
	}
	return errors.New(what)
}

// publish sends a message on.
func (m *mover) publish(ctx context.Context, d *amqp.Delivery) error {
	p := m.message(d, time.Now())
	if err := m.dest.PublishWithContext(context.WithoutCancel(ctx), m.exchange, d.RoutingKey, true, false, p); err != nil {
		return m.over(err.Error())
	}
	m.tags = append(m.tags, d.DeliveryTag)
	return nil
}

// message is what is published for a delivery.
func (m *mover) message(d *amqp.Delivery, now time.Time) amqp.Publishing {
	p := amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
	for _, counted := range []string{"x-delivery-count", "x-acquired-count"} { // by the source's queue
		delete(p.Headers, counted)
	}
	p.Expiration = m.out.TTL.left(d, m.queue.TTL, now)
	if d.Redelivered {
		m.out.Redelivered++
		if m.resumed {
			m.out.Marked++
			if p.Headers == nil {
				p.Headers = amqp.Table{}
			}
			p.Headers[Marker] = true
		}
	}
	return p
}

// settle takes the destination's answer for the oldest outstanding message, and has it acknowledged
// at the source. What was refused stays unacknowledged there, and returns when the channel ends. So
// does everything from the first message on that came back unrouted: that is confirmed, too, and its
// return comes before its confirm, but not right before it.
func (m *mover) settle(c amqp.Confirmation) error {
	tag := m.tags[0]
	m.tags = m.tags[1:]
	select {
	case r := <-m.returns:
		m.unrouted = true
		m.refused = fmt.Errorf("a message has no route: the queue at the destination, or its binding to %s, is gone: %s", r.Exchange, r.ReplyText)
	default:
	}
	if !c.Ack && m.refused == nil {
		m.refused = errors.New("the destination has refused a message: its queue may be full")
	}
	switch {
	case m.unrouted || !c.Ack:
		return m.acknowledge()
	case m.refused != nil: // one before it is not to be acknowledged
		m.counted()
		return m.source.Ack(tag, false)
	}
	m.counted()
	m.confirmed = tag
	if m.pending++; m.pending < ackBatch && len(m.confirms) > 0 {
		return nil
	}
	return m.acknowledge()
}

func (m *mover) counted() {
	m.out.Moved++
	m.moved.Add(1)
}

// acknowledge acknowledges what is confirmed, at once.
func (m *mover) acknowledge() error {
	if m.pending == 0 {
		return nil
	}
	m.pending = 0
	return m.source.Ack(m.confirmed, true)
}
