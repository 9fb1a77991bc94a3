// Package client publishes and consumes like an application, with confirms, acks
// and reconnects, and records every call and answer.
package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/history"
)

// Message is a message that an application publishes.
type Message struct {
	Exchange    string
	RoutingKey  string
	Queue       string        // where it must finally be consumed
	TTL         time.Duration // 0: none; below a millisecond: 0 ms
	Delay       time.Duration // by a delayed exchange; recorded as a TTL
	Wait        time.Duration // in the queue, before it is ready; recorded apart
	Group       string        // of messages; "": none
	Correlation string        // correlation-id of a plain message
	Priority    uint8
	Once        bool // all attempts have one message id, so that a queue can tell repetitions
	Size        int  // of the body, at least 12
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
	// Steady makes up for pauses: what the rate says was due meanwhile is published at once.
	Steady bool
	// Plain messages have no ids, and the check of their bodies finds less: they are no larger than they must be, and
	// cost the client little.
	Plain bool
	// Lost, if set, is called with the reason, which may be nil, when the connection is lost.
	Lost func(reason error)
	// Hold, if set, keeps the publisher from publishing what is not a repetition while it
	// returns true.
	Hold func() bool

	h       Recorder
	ch      Channel
	answers <-chan amqp.Confirmation
	closed  <-chan *amqp.Error
	epoch   int
	open    []attempt // published on this connection and not answered, oldest first
	again   []numbered
	urgent  int // of again: those that a lost connection left, which are published at once
	body    []byte
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
	pace := newPacer(p.Rate, p.Steady)
	defer pace.timer.Stop()
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
			turn = pace.always
		case p.holds():
			again = held.C
		default:
			turn = pace.turn()
		}
		select {
		case <-ctx.Done():
			p.lost(nil)
			return fmt.Errorf("publisher %s: %d messages not confirmed: %w", p.Name, len(p.again), ctx.Err())
		case err := <-p.closed:
			p.lost(err)
		case a, ok := <-p.answers:
			if !ok {
				p.lost(nil)
				continue
			}
			p.answer(a)
			for len(p.answers) > 0 { // which costs less than to select each
				p.answer(<-p.answers)
			}
		case <-again:
		case <-turn:
			for due := true; due; due = more && p.ch != nil && len(p.open) < p.Window && len(p.answers) == 0 && !p.holds() && pace.due() {
				if p.urgent == 0 {
					pace.took()
				}
				if m, ok := p.take(&more, next); ok {
					p.publish(ctx, m)
				}
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
	p.open = append(p.open, attempt{numbered: m, key: key})
	out := amqp.Publishing{DeliveryMode: amqp.Persistent, Priority: m.Priority}
	if p.Plain {
		p.body = Brief(p.body, key, m.Size) // the library copies it
		out.Body, out.CorrelationId = p.body, m.Correlation
	} else {
		out.Body = Body(key, m.Size)
		out.MessageId = strconv.FormatUint(key, 10)
		if out.CorrelationId = out.MessageId; m.Once { // records of ends have both
			out.MessageId = strconv.FormatUint(m.number, 10)
		}
	}
	if m.Group != "" || m.Wait > 0 || m.Delay > 0 {
		out.Headers = amqp.Table{}
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
	tag, err := p.ch.Publish(ctx, m.Exchange, m.RoutingKey, out)
	if err != nil {
		p.lost(nil)
		return
	}
	p.open[len(p.open)-1].tag = tag
}

// answer handles one confirm. The client library delivers confirms in the order of
// the publishes.
func (p *Publisher) answer(c amqp.Confirmation) {
	for i, a := range p.open {
		if a.tag != c.DeliveryTag {
			continue
		}
		if i == 0 { // as nearly always
			p.open = p.open[1:]
		} else {
			p.open = slices.Delete(p.open, i, i+1)
		}
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
	l, err := anyChannel(ctx, p.Dial, p.URIs, p.First+p.epoch)
	if err != nil {
		return err
	}
	p.epoch++
	answers, err := l.Confirms(p.Window)
	if err != nil {
		l.Abandon()
		return ctx.Err() // or try again: the node went away
	}
	p.ch, p.answers, p.closed = l, answers, l.Closed()
	return nil
}

// lost handles the answers that have still arrived, and keeps the remaining
// messages for repetition.
func (p *Publisher) lost(reason *amqp.Error) {
	if p.Lost != nil {
		p.Lost(why(reason, p.closed))
	}
	p.ch.Abandon()
	for a := range p.answers { // closed with the channel
		p.answer(a)
	}
	for _, a := range p.open {
		p.again = append(p.again, a.numbered)
	}
	p.open, p.ch, p.urgent = nil, nil, len(p.again)
}

func (p *Publisher) close() error {
	err := p.ch.Close()
	p.ch = nil
	if err != nil {
		return fmt.Errorf("publisher %s: close: %w", p.Name, err)
	}
	return nil
}

// why is the reason for which a channel was closed, which may wait in closed; nil if it is not known.
func why(reason *amqp.Error, closed <-chan *amqp.Error) error {
	if reason == nil {
		select {
		case reason = <-closed:
		default:
		}
	}
	if reason == nil {
		return nil
	}
	return reason
}

// pacer limits publishing to a rate.
type pacer struct {
	every  time.Duration // 0: no limit
	steady bool          // it catches up after a pause
	next   time.Time     // when the next message is due
	timer  *time.Timer
	always chan time.Time
}

func newPacer(perSecond int, steady bool) *pacer {
	p := &pacer{steady: steady, next: time.Now(), timer: time.NewTimer(0), always: make(chan time.Time)}
	close(p.always)
	if perSecond > 0 {
		p.every = time.Second / time.Duration(perSecond)
		p.next = p.next.Add(p.every)
	}
	return p
}

// due reports whether a message is, and turn is ready when one is.
func (p *pacer) due() bool { return p.every == 0 || !time.Now().Before(p.next) }

func (p *pacer) turn() <-chan time.Time {
	if p.due() {
		return p.always
	}
	p.timer.Reset(time.Until(p.next))
	return p.timer.C
}

// took says that the message that was due is published.
func (p *pacer) took() {
	if p.every == 0 {
		return
	}
	p.next = p.next.Add(p.every)
	if now := time.Now(); !p.steady && p.next.Before(now) {
		p.next = now.Add(p.every)
	}
}

// minBody is the smallest body: key, checksum.
const minBody = 12

// Body returns the body of an attempt: its key, a checksum of all the rest, and
// padding that depends on the key.
func Body(key uint64, size int) []byte {
	b := Brief(nil, key, size)
	for i := minBody; i < len(b); i++ {
		b[i] = byte(key>>(i%8)) ^ byte(i)
	}
	binary.BigEndian.PutUint32(b[8:], checksum(b))
	return b
}

// Brief is like Body, but nothing is known of its padding: neither it nor its check takes time. It is in the memory of
// an earlier one if that is large enough.
func Brief(b []byte, key uint64, size int) []byte {
	size = max(size, minBody)
	b = slices.Grow(b[:0], size)[:size]
	binary.BigEndian.PutUint64(b, key)
	binary.BigEndian.PutUint32(b[8:], headsum(b))
	return b
}

// Key returns the key in a body made by Body or Brief. ok is false if the body is damaged.
func Key(body []byte) (key uint64, ok bool) {
	if len(body) < minBody {
		return 0, false
	}
	if sum := binary.BigEndian.Uint32(body[8:]); sum != headsum(body) && sum != checksum(body) {
		return 0, false
	}
	return binary.BigEndian.Uint64(body), true
}

func checksum(b []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(b[:8]), crc32.IEEETable, b[minBody:])
}

// headsum is a checksum of the key and the length alone.
func headsum(b []byte) uint32 {
	const spread = 0x9e3779b97f4a7c15 // odd, with bits everywhere
	return uint32((binary.BigEndian.Uint64(b) ^ uint64(len(b))<<40) * spread >> 32)
}

// Recorder records what clients do and see. A *history.History is one.
type Recorder interface {
	// NextMessage numbers a message that is going to be published, in one attempt or several.
	NextMessage() uint64
	// Begin records a publish, and returns the key of the attempt, which is in its body.
	Begin(a history.Attempt) (key uint64)
	// End records the answer to it.
	End(key uint64, r history.Result)
	// Deliver records a delivery, and returns a number for Acked and Settled.
	Deliver(d history.Delivery) int
	// Acked records that acks of deliveries were sent; Settled that they are known to hold.
	Acked(deliveries []int)
	Settled(deliveries []int)
}
