// Command delays schedules two messages, takes one of them back, and waits for the other, by AMQP 1.0.
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
	if err := queues.Declare(ctx, "reminders", nil); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/reminders", nil)
	if err != nil {
		return err
	}
	start := time.Now()
	for _, name := range []string{"ann", "bob"} {
		m := amqp.NewMessage([]byte("call " + name))
		m.Annotations = amqp.Annotations{"x-opt-delivery-delay": 1000, "x-schedule-id": name} // milliseconds
		if err := sender.Send(ctx, m, nil); err != nil {
			return err
		}
	}
	cancel, err := s.NewSender(ctx, "/exchanges/amq.quorate.command/schedule.cancel", nil)
	if err != nil {
		return err
	}
	// The command is accepted: the message will never be delivered.
	if err := cancel.Send(ctx, &amqp.Message{
		ApplicationProperties: map[string]any{"x-queue": "reminders", "x-schedule-id": "ann"}, Data: [][]byte{{}},
	}, nil); err != nil {
		return err
	}
	fmt.Println("ann is cancelled")
	reminders, err := s.NewReceiver(ctx, "/queues/reminders", nil)
	if err != nil {
		return err
	}
	m, err := reminders.Receive(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Printf("%q, early: %t\n", m.GetData(), time.Since(start) < time.Second)
	return reminders.AcceptMessage(ctx, m)
}
