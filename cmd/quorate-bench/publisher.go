package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	errNacked = errors.New("basic.nack")
	errClosed = errors.New("the broker closed the channel")
)

// publisher publishes with confirms, to its queues in turn.
type publisher struct {
	id     uint32
	uri    string
	queues []string
	size   int
	window int // unconfirmed messages
	// more says whether message n, counted from 0, is to be published.
	more func(n uint64) bool
	// ttl, if set, draws how long a message lives.
	ttl func() time.Duration
	// pace is the time from one publish to the next; 0: as fast as the window allows.
	pace time.Duration
	// taken, if set, gets the time from each publish to its confirm.
	taken *samples
	// gap is the longest time without a confirm, known when run has returned.
	gap time.Duration
}

// run publishes until more ends it, and returns how many were confirmed.
func (p *publisher) run(ctx context.Context) (uint64, error) {
	conn, ch, err := connect(p.uri, p.window > 1)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := ch.Confirm(false); err != nil {
		return 0, err
	}
	confirmed, err := p.drive(ctx, ch)
	if err == nil {
		err = ch.Close()
	}
	return confirmed, err
}

func (p *publisher) drive(ctx context.Context, ch *amqp.Channel) (confirmed uint64, err error) {
	answers := ch.NotifyPublish(make(chan amqp.Confirmation, p.window))
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	body, calls := make([]byte, p.size), make([]time.Duration, p.window)
	wake := time.NewTimer(0)
	defer wake.Stop()
	began := clock()
	last := began
	var sent uint64
	for more := p.more(0); ; {
		for more && sent-confirmed < uint64(p.window) && p.due(began, sent) <= clock() {
			call := clock()
			if err := p.publish(ch, body, sent, call); err != nil {
				return confirmed, fmt.Errorf("publish: %w", err)
			}
			calls[sent%uint64(p.window)] = call
			sent++
			more = p.more(sent)
		}
		if !more && sent == confirmed {
			return confirmed, nil
		}
		if more && sent-confirmed < uint64(p.window) {
			wake.Reset(p.due(began, sent) - clock())
		}
		select {
		case <-wake.C:
		case a, ok := <-answers:
			if !ok {
				return confirmed, errors.Join(errClosed, reason(closed))
			}
			if !a.Ack {
				return confirmed, errNacked
			}
			now := clock()
			if p.taken != nil {
				p.taken.add(now - calls[confirmed%uint64(p.window)])
			}
			confirmed++
			p.gap, last = max(p.gap, now-last), now
		case <-ctx.Done():
			return confirmed, context.Cause(ctx)
		}
	}
}

// due is when message n is published at the earliest.
func (p *publisher) due(began time.Duration, n uint64) time.Duration {
	return began + time.Duration(n)*p.pace
}

// publish writes body again: the client library copies it before it returns.
func (p *publisher) publish(ch *amqp.Channel, body []byte, n uint64, call time.Duration) error {
	out := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
	due := call
	if p.ttl != nil {
		ttl := p.ttl()
		due += ttl
		out.Expiration = strconv.FormatInt(ttl.Milliseconds(), 10)
	}
	stamp(body, p.id, n, call, due)
	return ch.Publish("", p.queues[n%uint64(len(p.queues))], false, false, out)
}

// reason is why a channel was closed; nil if it is not known.
func reason(closed <-chan *amqp.Error) error {
	select {
	case err := <-closed:
		if err != nil {
			return err
		}
	default:
	}
	return nil
}
