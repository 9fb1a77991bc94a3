// Command retries fails at a message until its queue gives up: the pause grows
// each time, and the third failure makes it a dead letter.
package main

import (
	"context"
	"fmt"
	"log"

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
	if _, err := ch.QueueDeclare("payments.dead", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("payments", true, false, false, false, amqp.Table{
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
	if err := ch.PublishWithContext(ctx, "", "payments", false, false, amqp.Publishing{Body: []byte("pay 7")}); err != nil {
		return err
	}
	payments, err := ch.Consume("payments", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	dead, err := ch.Consume("payments.dead", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case d := <-payments:
			failures, _ := d.Headers["x-delivery-count"].(int64) // absent: none
			fmt.Printf("%q, failures so far: %d\n", d.Body, failures)
			if err := d.Reject(true); err != nil { // a failure; a nack would be none
				return err
			}
		case d := <-dead:
			death := d.Headers["x-death"].([]any)[0].(amqp.Table)
			fmt.Printf("%q: %v\n", d.Body, death["reason"])
			if err := d.Ack(false); err != nil {
				return err
			}
			return ch.Close()
		}
	}
}
