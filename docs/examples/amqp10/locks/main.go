// Command locks renews the lock of a message while it works on it, and then settles it and learns that this took effect, by AMQP 1.0.
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
	if err := queues.Declare(ctx, "work", nil); err != nil {
		return err
	}
	sender, err := s.NewSender(ctx, "/queues/work", nil)
	if err != nil {
		return err
	}
	if err := sender.Send(ctx, amqp.NewMessage([]byte("job 1")), nil); err != nil {
		return err
	}
	jobs, err := s.NewReceiver(ctx, "/queues/work", &amqp.ReceiverOptions{
		Properties: map[string]any{"x-lock-duration": 30_000}, // milliseconds
	})
	if err != nil {
		return err
	}
	job, err := jobs.Receive(ctx, nil)
	if err != nil {
		return err
	}
	fmt.Printf("got %q\n", job.GetData())
	for _, step := range []struct{ verb, outcome string }{
		{"lock.renew", ""},
		{"message.settle", "ack"},
		{"lock.renew", ""}, // it is settled: there is no lock any more
	} {
		command, err := s.NewSender(ctx, "/exchanges/amq.quorate.command/"+step.verb, nil)
		if err != nil {
			return err
		}
		// The token names the delivery from any connection.
		m := &amqp.Message{ApplicationProperties: map[string]any{"x-lock-token": job.Annotations["x-opt-lock-token"]}, Data: [][]byte{{}}}
		if step.outcome != "" {
			m.ApplicationProperties["x-outcome"] = step.outcome
		}
		fmt.Printf("%s: %t\n", step.verb, command.Send(ctx, m, nil) == nil) // accepted: it is in effect
	}
	return nil
}
