// Command expiry lets a message expire into a dead-letter queue, by AMQP 1.0.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/quorate/quorate/docs/examples/amqp10/management"
)

func main() {
	if err := run(context.Background(), "amqp://guest:guest@127.0.0.1:5672"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	conn, err := amqp.Dial(ctx, uri, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	s, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	queues, err := management.Open(ctx, s)
	if err != nil {
		return err
	}
	if err := queues.Declare(ctx, "expired", nil); err != nil {
		return err
	}
	// What expires here goes to "expired" through the default exchange.
	if err := queues.Declare(ctx, "offers", map[string]any{
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "expired",
	}); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/offers", nil)
	if err != nil {
		return err
	}
	// Each message has its own TTL; the second does not wait for the first.
	for _, ttl := range []time.Duration{2 * time.Second, 500 * time.Millisecond} {
		m := amqp.NewMessage(fmt.Appendf(nil, "lives %d ms", ttl.Milliseconds()))
		m.Header = &amqp.MessageHeader{Durable: true, TTL: ttl}
		if err := sender.Send(ctx, m, nil); err != nil {
			return err
		}
	}
	dead, err := s.NewReceiver(ctx, "/queues/expired", nil)
	if err != nil {
		return err
	}
	for range 2 {
		m, err := dead.Receive(ctx, nil)
		if err != nil {
			return err
		}
		fmt.Printf("%q: %v in queue %v\n", m.GetData(), m.Annotations["x-first-death-reason"], m.Annotations["x-first-death-queue"])
		if err := dead.AcceptMessage(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
