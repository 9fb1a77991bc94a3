// Command timeout has a receiver that forgets to accept: its message is released, and another receiver gets it, by AMQP 1.0.
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
	if err := queues.Declare(ctx, "jobs", nil); err != nil {
		return err
	}
	taken := make(chan amqp.DeliveryState, 1)
	forgetful, err := s.NewReceiver(ctx, "/queues/jobs", &amqp.ReceiverOptions{
		Properties:             map[string]any{"rabbitmq:consumer-timeout": 1000}, // milliseconds
		OnDeliveryStateChanged: func(_ *amqp.Message, state amqp.DeliveryState) { taken <- state },
	})
	if err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/jobs", nil)
	if err != nil {
		return err
	}
	if err := sender.Send(ctx, amqp.NewMessage([]byte("job 1")), nil); err != nil {
		return err
	}
	m, err := forgetful.Receive(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Printf("forgetful got %q\n", m.GetData())
	// A second later the broker releases the message. The link stays open.
	if _, ok := (<-taken).(*amqp.StateReleased); ok {
		fmt.Println("it is released")
	}
	careful, err := s.NewReceiver(ctx, "/queues/jobs", nil)
	if err != nil {
		return err
	}
	if m, err = careful.Receive(ctx, nil); err != nil {
		return err
	}
	fmt.Printf("careful got %q, first acquirer: %t\n", m.GetData(), m.Header.FirstAcquirer)
	return careful.AcceptMessage(ctx, m)
}
