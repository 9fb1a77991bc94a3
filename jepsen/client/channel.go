package client

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Channel is what publishers and consumers use of a broker: a connection with one channel of AMQP 0-9-1, or one session of
// AMQP 1.0. Messages, deliveries and answers have the form of 0-9-1 in both.
type Channel interface {
	amqp.Acknowledger
	// Confirms has publishes confirmed, in answers, which is closed with the channel.
	Confirms(window int) (answers <-chan amqp.Confirmation, err error)
	// Publish returns the tag by which the message is answered.
	Publish(ctx context.Context, exchange, key string, m amqp.Publishing) (tag uint64, err error)
	// Subscribe consumes from several queues. Deliveries come in one channel until ended is closed.
	Subscribe(queues []string, tag func(queue string) string, prefetch int, arguments amqp.Table, ended <-chan struct{}) (<-chan amqp.Delivery, error)
	// Cancel ends a subscription; what was on its way still arrives.
	Cancel(tag string) error
	// Closed gets the reason when the broker ends the channel.
	Closed() <-chan *amqp.Error
	// Close ends it in order, so that all acks are known to hold.
	Close() error
	// Abandon drops it.
	Abandon()
}

// Scheme10 begins the URI of a broker with which AMQP 1.0 is spoken.
const Scheme10 = "amqp10://"

// SchemeBus begins the URI of a listener for programs of Azure Service Bus: the addresses of its queues are their names.
const SchemeBus = "servicebus://"

// In10 is the URI by which AMQP 1.0 is spoken with the broker of another URI.
func In10(uri string) string { return Scheme10 + strings.TrimPrefix(uri, "amqp://") }

// Open connects to a broker, in the protocol that its URI names.
func Open(ctx context.Context, dial Dialer, uri string) (Channel, error) {
	if address, ok := strings.CutPrefix(uri, Scheme10); ok {
		return dial10(ctx, dial, address, "/queues/")
	}
	if address, ok := strings.CutPrefix(uri, SchemeBus); ok {
		return dial10(ctx, dial, address, "")
	}
	conn, err := connect(ctx, dial, uri, amqp.Config{})
	if err != nil {
		return nil, err
	}
	return channelOf(conn, false)
}

// channelOf opens a channel on a connection, which is closed with it unless it is shared.
func channelOf(conn *amqp.Connection, shared bool) (Channel, error) {
	l := &channel091{conn: conn, shared: shared}
	var err error
	if l.Channel, err = conn.Channel(); err != nil {
		l.Abandon()
		return nil, err
	}
	return l, nil
}

// channel091 is a channel of AMQP 0-9-1.
type channel091 struct {
	*amqp.Channel
	conn   *amqp.Connection
	shared bool
}

func (l *channel091) Confirms(window int) (<-chan amqp.Confirmation, error) {
	if err := l.Confirm(false); err != nil {
		return nil, err
	}
	return l.NotifyPublish(make(chan amqp.Confirmation, window)), nil
}

func (l *channel091) Publish(ctx context.Context, exchange, key string, m amqp.Publishing) (tag uint64, err error) {
	tag = l.GetNextPublishSeqNo()
	return tag, l.PublishWithContext(ctx, exchange, key, false, false, m)
}

func (l *channel091) Subscribe(queues []string, tag func(queue string) string, prefetch int, arguments amqp.Table, ended <-chan struct{}) (<-chan amqp.Delivery, error) {
	if err := l.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	return Subscribe(l.Channel, queues, tag, arguments, ended)
}

func (l *channel091) Cancel(tag string) error { return l.Channel.Cancel(tag, false) }

func (l *channel091) Closed() <-chan *amqp.Error { return l.NotifyClose(make(chan *amqp.Error, 1)) }

func (l *channel091) Close() error {
	if err := l.Channel.Close(); err != nil || l.shared {
		return err
	}
	return l.conn.Close()
}

func (l *channel091) Abandon() {
	if !l.shared {
		_ = l.conn.CloseDeadline(time.Now().Add(closeTimeout))
	}
}
