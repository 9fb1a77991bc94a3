package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Message is a message that an application publishes.
type Message struct {
	Exchange   string
	RoutingKey string
	Queue      string        // where it must finally be consumed
	TTL        time.Duration // 0: none; below a millisecond: 0 ms
	Delay      time.Duration // by a delayed exchange; recorded as a TTL
	Wait       time.Duration // in the queue, before it is ready; recorded apart
	Group      string        // of messages; "": none
	Priority   uint8
	Once       bool // all attempts have one message id, so that a queue can tell repetitions
	Size       int  // of the body, at least 12
}

// Publisher publishes with confirms and a window of unconfirmed messages. When its
// connection is lost, it connects to the next broker and publishes the unconfirmed
// messages again, each as a new attempt.
type Publisher struct {
	Name   string
	URIs   []string
	First  int    // position of the first broker
	Dial   Dialer // nil: TCP
	Window int    // 0: 256
	Rate   int    // messages per second; 0: as fast as the window allows
	// Hold, if set, keeps the publisher from publishing what is not a repetition while it
	// returns true.
	Hold func() bool

	h       Recorder
	conn    *amqp.Connection
	ch      *amqp.Channel
	answers chan amqp.Confirmation
	closed  chan *amqp.Error
	epoch   int
	open    []attempt // published on this connection and not answered, oldest first
	again   []numbered
	urgent  int // of again: those that a lost connection left, which are published at once
}

type numbered struct {
	Message
	number uint64
}

type attempt struct {
	numbered
	key uint64
	tag uint64
}

// Run publishes the messages that next returns until there are no more and all are
// confirmed, or until ctx ends. Only Run calls next.
func (p *Publisher) Run(ctx context.Context, h Recorder, next func() (Message, bool)) error {
	p.h = h
	if p.Window == 0 {
		p.Window = 256
	}
	pace := newPacer(p.Rate)
	defer pace.stop()
	now := make(chan time.Time)
	close(now)
	held := time.NewTicker(holdInterval)
	defer held.Stop()
	more := true
	for {
		if p.ch == nil {
			if err := p.connect(ctx); err != nil {
				return fmt.Errorf("publisher %s: %w", p.Name, err)
			}
			continue // the node may have gone away again
		}
		waiting := more || len(p.again) > 0
		if !waiting && len(p.open) == 0 {
			return p.close()
		}
		var turn, again <-chan time.Time
		switch {
		case !waiting || len(p.open) >= p.Window:
		case p.urgent > 0:
			turn = now
		case p.holds():
			again = held.C
		default:
			turn = pace.turn()
		}
		select {
		case <-ctx.Done():
			p.lost()
			return fmt.Errorf("publisher %s: %d messages not confirmed: %w", p.Name, len(p.again), ctx.Err())
		case <-p.closed:
			p.lost()
		case a, ok := <-p.answers:
			if ok {
				p.answer(a)
			} else {
				p.lost()
			}
		case <-again:
		case <-turn:
			m, ok := p.take(&more, next)
			if ok {
				p.publish(ctx, m)
			}
		}
	}
}

// holdInterval is how often a publisher that is held checks whether it still is.
const holdInterval = 5 * time.Millisecond

func (p *Publisher) holds() bool { return p.Hold != nil && len(p.again) == 0 && p.Hold() }

// take returns the message to publish next; repetitions come first.
func (p *Publisher) take(more *bool, next func() (Message, bool)) (numbered, bool) {
	if len(p.again) > 0 {
		m := p.again[0]
		p.again, p.urgent = p.again[1:], max(p.urgent-1, 0)
		return m, true
	}
	m, ok := next()
	if !ok {
		*more = false
		return numbered{}, false
	}
	return numbered{m, p.h.NextMessage()}, true
}

func (p *Publisher) publish(ctx context.Context, m numbered) {
	key := p.h.Begin(history.Attempt{
		Message: m.number, Publisher: p.Name, Epoch: p.epoch, Queue: m.Queue, TTL: m.TTL + m.Delay, Group: m.Group, Wait: m.Wait,
	})
	tag := p.ch.GetNextPublishSeqNo()
	p.open = append(p.open, attempt{m, key, tag})
	out := amqp.Publishing{DeliveryMode: amqp.Persistent, Priority: m.Priority, Headers: amqp.Table{}, Body: Body(key, m.Size)}
	out.MessageId = strconv.FormatUint(key, 10)
	if out.CorrelationId = out.MessageId; m.Once { // records of ends have both
		out.MessageId = strconv.FormatUint(m.number, 10)
	}
	if m.Group != "" {
		out.Headers["x-group-id"] = m.Group
	}
	if m.Wait > 0 {
		out.Headers["x-opt-delivery-delay"] = m.Wait.Milliseconds()
	}
	if m.TTL > 0 {
		out.Expiration = strconv.FormatInt(m.TTL.Milliseconds(), 10)
	}
	if m.Delay > 0 {
		out.Headers["x-delay"] = m.Delay.Milliseconds()
	}
	if err := p.ch.PublishWithContext(ctx, m.Exchange, m.RoutingKey, false, false, out); err != nil {
		p.lost()
	}
}

// answer handles one confirm. The client library delivers confirms in the order of
// the publishes.
func (p *Publisher) answer(c amqp.Confirmation) {
	for i, a := range p.open {
		if a.tag != c.DeliveryTag {
			continue
		}
		p.open = append(p.open[:i], p.open[i+1:]...)
		if c.Ack {
			p.h.End(a.key, history.OK)
		} else {
			p.h.End(a.key, history.No)
			p.again = append(p.again, a.numbered)
		}
		return
	}
}

func (p *Publisher) connect(ctx context.Context) error {
	conn, ch, err := channel(ctx, p.Dial, p.URIs, p.First+p.epoch)
	if err != nil {
		return err
	}
	p.epoch++
	if err := ch.Confirm(false); err != nil {
		_ = conn.CloseDeadline(time.Now().Add(closeTimeout))
		return ctx.Err() // or try again: the node went away
	}
	p.conn, p.ch = conn, ch
	p.answers = ch.NotifyPublish(make(chan amqp.Confirmation, p.Window))
	p.closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	return nil
}

// lost handles the answers that have still arrived, and keeps the remaining
// messages for repetition.
func (p *Publisher) lost() {
	_ = p.conn.CloseDeadline(time.Now().Add(closeTimeout))
	for a := range p.answers { // closed with the channel
		p.answer(a)
	}
	for _, a := range p.open {
		p.again = append(p.again, a.numbered)
	}
	p.open, p.conn, p.ch, p.urgent = nil, nil, nil, len(p.again)
}

func (p *Publisher) close() error {
	err := errors.Join(p.ch.Close(), p.conn.Close())
	p.conn, p.ch = nil, nil
	if err != nil {
		return fmt.Errorf("publisher %s: close: %w", p.Name, err)
	}
	return nil
}

// pacer limits publishing to a rate. It does not catch up after a pause.
type pacer struct {
	ticker *time.Ticker
	always chan time.Time
}

func newPacer(perSecond int) *pacer {
	if perSecond > 0 {
		return &pacer{ticker: time.NewTicker(time.Second / time.Duration(perSecond))}
	}
	always := make(chan time.Time)
	close(always)
	return &pacer{always: always}
}

func (p *pacer) turn() <-chan time.Time {
	if p.ticker != nil {
		return p.ticker.C
	}
	return p.always
}

func (p *pacer) stop() {
	if p.ticker != nil {
		p.ticker.Stop()
	}
}
