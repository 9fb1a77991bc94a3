// Command watermill publishes and subscribes with Watermill's AMQP package, and refuses a message
// more often than any default limit allows: with the queues that it declares itself, untyped ones,
// and with quorum queues.
//
// Its arguments are the address of a node and the beginning of all names. It prints "ok" at the
// end, and leaves without closing: Close of this version hangs if the client library learns of the
// end of the connection in the meantime.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

func main() {
	for _, kind := range []string{"untyped", "quorum"} {
		if err := run("amqp://guest:guest@"+os.Args[1]+"/", os.Args[2], kind); err != nil {
			fmt.Fprintln(os.Stderr, kind, err)
			os.Exit(1)
		}
	}
	fmt.Println("ok")
}

// texts leaves out headers that are no texts: the default marshaler fails at them, and a message
// that comes again from a quorum queue has x-acquired-count.
type texts struct{ amqp.DefaultMarshaler }

func (m texts) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	for name, value := range d.Headers {
		if _, ok := value.(string); !ok {
			delete(d.Headers, name)
		}
	}
	return m.DefaultMarshaler.Unmarshal(d)
}

// run uses queues that name no type, as Watermill's do, or queues of a type.
func run(uri, prefix, kind string) error {
	config := amqp.NewDurablePubSubConfig(uri, func(topic string) string { return topic + "_billing" })
	config.Publish.ConfirmDelivery = true
	if kind == "quorum" {
		config.Queue.Arguments = amqp091.Table{"x-queue-type": kind}
		config.Marshaler = texts{}
	}
	subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	topic := fmt.Sprint(prefix, ".events.", kind)
	messages, err := subscriber.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
	if err != nil {
		return err
	}
	const count, refusals = 50, 30
	for i := range count {
		if err := publisher.Publish(topic, message.NewMessage(fmt.Sprint(i), []byte("event"))); err != nil {
			return err
		}
	}
	for i := range count {
		for refused := 0; ; refused++ {
			m, ok := <-messages
			if !ok || m.UUID != fmt.Sprint(i) {
				return fmt.Errorf("message %v instead of %d, open: %t", m, i, ok)
			}
			if i == 0 && refused < refusals {
				m.Nack()
				continue
			}
			m.Ack()
			break
		}
	}
	return nil
}
