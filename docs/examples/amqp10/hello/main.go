// Command hello publishes a message and receives it, by AMQP 1.0.
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
	// A durable queue has a replica on up to three nodes.
	if err := queues.Declare(ctx, "greetings", nil); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/greetings", nil)
	if err != nil {
		return err
	}
	// Send returns once the message is accepted: a majority of the replicas has it on disk.
	if err := sender.Send(ctx, amqp.NewMessage([]byte("hello")), nil); err != nil {
		return err
	}
	receiver, err := s.NewReceiver(ctx, "/queues/greetings", nil)
	if err != nil {
		return err
	}
	m, err := receiver.Receive(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Printf("got %q\n", m.GetData())
	return receiver.AcceptMessage(ctx, m)
}
