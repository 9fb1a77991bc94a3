// Command sessions prints the messages of two orders, each in its order, by AMQP 1.0.
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
	if err := queues.Declare(ctx, "orders", map[string]any{"x-message-groups": true}); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/orders", nil)
	if err != nil {
		return err
	}
	for _, m := range [][2]string{{"7", "placed"}, {"8", "placed"}, {"7", "paid"}, {"8", "cancelled"}} {
		if err := sender.Send(ctx, &amqp.Message{
			Properties: &amqp.MessageProperties{GroupID: &m[0]}, Data: [][]byte{[]byte(m[1])},
		}, nil); err != nil {
			return err
		}
	}
	worker, err := s.NewReceiver(ctx, "/queues/orders", nil)
	if err != nil {
		return err
	}
	for range 4 {
		m, err := worker.Receive(ctx, nil)
		if err != nil {
			return err
		}
		fmt.Printf("order %s %s\n", *m.Properties.GroupID, m.GetData())
		if err := worker.AcceptMessage(ctx, m); err != nil {
			return err
		}
	}
	return nil
}
