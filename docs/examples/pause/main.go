// Command pause stops handing out the messages of a queue, without stopping its
// consumers or its publishers, and goes on after half a second.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := run(context.Background(), "amqp://guest:guest@127.0.0.1:5672/"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri string) error {
	conn, err := amqp.Dial(uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("refunds", true, false, false, false, nil); err != nil {
		return err
	}
	refunds, err := ch.Consume("refunds", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	// A command is confirmed when it has taken effect.
	began := time.Now()
	paused, err := ch.PublishWithDeferredConfirmWithContext(ctx, "amq.quorate.command", "queue.pause", true, false,
		amqp.Publishing{Headers: amqp.Table{"x-queue": "refunds", "x-reason": "the bank is down", "x-duration": 500}})
	if err != nil {
		return err
	}
	ok, err := paused.WaitContext(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("paused: %t\n", ok)
	if err := ch.PublishWithContext(ctx, "", "refunds", false, false, amqp.Publishing{Body: []byte("refund 7")}); err != nil {
		return err
	}
	d := <-refunds
	fmt.Printf("%q, early: %t\n", d.Body, time.Since(began) < 500*time.Millisecond)
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
