// Command deadletters rejects a message that it cannot use, and reads it, with the reason, from the queue of dead letters, by AMQP 1.0.
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
	if err := queues.Declare(ctx, "invoices.dead", nil); err != nil {
		return err
	}
	if err := queues.Declare(ctx, "invoices", map[string]any{
		"x-dead-letter-exchange":    "", // the default exchange: the key is the name of a queue
		"x-dead-letter-routing-key": "invoices.dead",
		"x-dead-letter-strategy":    "at-least-once", // a letter waits until a queue takes it
	}); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/invoices", nil)
	if err != nil {
		return err
	}
	if err := sender.Send(ctx, amqp.NewMessage([]byte("no invoice")), nil); err != nil {
		return err
	}
	invoices, err := s.NewReceiver(ctx, "/queues/invoices", nil)
	if err != nil {
		return err
	}
	m, err := invoices.Receive(ctx, nil)
	if err != nil {
		return err
	}
	// What the rejection says goes with the dead letter.
	if err := invoices.RejectMessage(ctx, m, &amqp.Error{Condition: "app:unreadable", Description: "no amount"}); err != nil {
		return err
	}
	dead, err := s.NewReceiver(ctx, "/queues/invoices.dead", nil)
	if err != nil {
		return err
	}
	if m, err = dead.Receive(ctx, nil); err != nil {
		return err
	}
	fmt.Printf("%q was %v in %v: %v, %v\n", m.GetData(), m.Annotations["x-first-death-reason"], m.Annotations["x-first-death-queue"],
		m.Annotations["x-dead-letter-reason"], m.Annotations["x-dead-letter-description"])
	return dead.AcceptMessage(ctx, m)
}
