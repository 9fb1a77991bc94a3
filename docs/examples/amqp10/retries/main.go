// Command retries fails at a message until its queue gives up: the pause grows each time, and the third failure makes it a dead letter, by AMQP 1.0.
package main

import (
	"context"
	"fmt"
	"log"

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
	if err := queues.Declare(ctx, "payments.dead", nil); err != nil {
		return err
	}
	if err := queues.Declare(ctx, "payments", map[string]any{
		"x-queue-type":              "quorum", // tells how often a message has failed
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "payments.dead",
		"x-delivery-limit":          2, // failures after which it may be delivered again
		"x-delayed-retry-type":      "failed",
		"x-delayed-retry-strategy":  "exponential",
		"x-delayed-retry-min":       200, // milliseconds, then 400, 800 …
	}); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/payments", nil)
	if err != nil {
		return err
	}
	if err := sender.Send(ctx, amqp.NewMessage([]byte("pay 7")), nil); err != nil {
		return err
	}
	payments, err := s.NewReceiver(ctx, "/queues/payments", nil)
	if err != nil {
		return err
	}
	for range 3 {
		m, err := payments.Receive(ctx, nil)
		if err != nil {
			return err
		}
		fmt.Printf("%q, failures so far: %d\n", m.GetData(), m.Header.DeliveryCount)
		// A failure; ReleaseMessage would be none.
		if err := payments.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true}); err != nil {
			return err
		}
	}
	dead, err := s.NewReceiver(ctx, "/queues/payments.dead", nil)
	if err != nil {
		return err
	}
	m, err := dead.Receive(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Printf("%q: %v\n", m.GetData(), m.Annotations["x-first-death-reason"])
	return dead.AcceptMessage(ctx, m)
}
