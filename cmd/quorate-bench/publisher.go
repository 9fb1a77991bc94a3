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

// publisher publishes with confirms to one queue.
type publisher struct {
	id     uint32
	uri    string
	queue  string
	size   int
	window int // unconfirmed messages
	// more says whether message n, counted from 0, is to be published.
	more func(n uint64) bool
	// ttl, if set, draws how long a message lives.
	ttl func() time.Duration
	// taken, if set, gets the time each confirm took; only with a window of 1.
	taken *[]time.Duration
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
	answers := ch.NotifyPublish(make(chan amqp.Confirmation, p.window))
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	var sent, confirmed uint64
	body := make([]byte, p.size)
	for {
		var call time.Duration
		for sent-confirmed < uint64(p.window) && p.more(sent) {
			call = clock()
			if err := p.publish(ch, body, sent, call); err != nil {
				return confirmed, fmt.Errorf("publish: %w", err)
			}
			sent++
		}
		if sent == confirmed {
			return confirmed, ch.Close()
		}
		select {
		case a, ok := <-answers:
			if !ok {
				return confirmed, errors.Join(errClosed, reason(closed))
			}
			if !a.Ack {
				return confirmed, errNacked
			}
			confirmed++
			if p.taken != nil {
				*p.taken = append(*p.taken, clock()-call)
			}
		case <-ctx.Done():
			return confirmed, context.Cause(ctx)
		}
	}
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
	return ch.Publish("", p.queue, false, false, out)
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
