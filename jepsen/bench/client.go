package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sender is one publisher of a broker, used by one goroutine.
type sender interface {
	// publish sends a persistent message; the caller may reuse body when it returns. ttl 0: none.
	publish(queue string, body []byte, ttl time.Duration) error
	// answers has one answer for each message of a queue, in the order of publishing. It ends or
	// has a refusal when the broker is gone.
	answers() <-chan amqp.Confirmation
	// reason is why the broker refused or closed; nil if it is not known.
	reason() error
	// finish closes cleanly; drop closes whatever is still open.
	finish() error
	drop()
}

// receiver is one consumer of a broker. Deliveries carry body and tag.
type receiver interface {
	// deliveries is closed when the broker is gone.
	deliveries() <-chan amqp.Delivery
	// ack acks the delivery with this tag and all before it.
	ack(tag uint64) error
	reason() error
	finish() error
	drop()
}

// isNATS reports whether a broker speaks the protocol of NATS.
func isNATS(uri string) bool { return strings.HasPrefix(uri, "nats://") }

// openSender connects a publisher with at most window unanswered messages.
func openSender(uri string, window int) (sender, error) {
	if isNATS(uri) {
		return openStreamSender(uri, window)
	}
	conn, ch, err := connect(uri, window > 1)
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &channelSender{
		channel:  newChannel(conn, ch),
		confirms: ch.NotifyPublish(make(chan amqp.Confirmation, window)),
	}, nil
}

// openReceiver connects a consumer; shared, if set, is the connection to use.
func openReceiver(uri string, shared *amqp.Connection, queue string, prefetch int, args amqp.Table) (receiver, error) {
	if isNATS(uri) {
		return openStreamReceiver(uri, queue, prefetch)
	}
	var conn *amqp.Connection
	var ch *amqp.Channel
	var err error
	if shared != nil {
		ch, err = shared.Channel()
	} else {
		conn, ch, err = connect(uri, true)
	}
	if err != nil {
		return nil, err
	}
	in := &channelReceiver{channel: newChannel(conn, ch)}
	if err = ch.Qos(prefetch, 0, false); err == nil {
		in.from, err = ch.Consume(queue, "", false, false, false, false, args)
	}
	if err != nil {
		in.drop()
		return nil, err
	}
	return in, nil
}

// channel is an AMQP channel, with its connection unless that is shared.
type channel struct {
	conn   *amqp.Connection
	ch     *amqp.Channel
	closed <-chan *amqp.Error
}

func newChannel(conn *amqp.Connection, ch *amqp.Channel) channel {
	return channel{conn: conn, ch: ch, closed: ch.NotifyClose(make(chan *amqp.Error, 1))}
}

func (c *channel) reason() error { return reason(c.closed) }

func (c *channel) finish() error { return c.ch.Close() }

func (c *channel) drop() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
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

type channelSender struct {
	channel
	confirms <-chan amqp.Confirmation
}

func (o *channelSender) answers() <-chan amqp.Confirmation { return o.confirms }

// publish relies on the client library to copy the body before it returns.
func (o *channelSender) publish(queue string, body []byte, ttl time.Duration) error {
	out := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
	if ttl > 0 {
		out.Expiration = strconv.FormatInt(ttl.Milliseconds(), 10)
	}
	return o.ch.Publish("", queue, false, false, out)
}

type channelReceiver struct {
	channel
	from <-chan amqp.Delivery
}

func (i *channelReceiver) deliveries() <-chan amqp.Delivery { return i.from }

func (i *channelReceiver) ack(tag uint64) error { return i.ch.Ack(tag, true) }
