// Command deadletters rejects a message that it cannot use, and reads it, with
// the reason, from the queue of dead letters.
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
	if _, err := ch.QueueDeclare("invoices.dead", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("invoices", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange":    "", // the default exchange: the key is the name of a queue
		"x-dead-letter-routing-key": "invoices.dead",
		"x-dead-letter-strategy":    "at-least-once", // a letter waits until a queue takes it
	}); err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", "invoices", false, false, amqp.Publishing{Body: []byte("no invoice")}); err != nil {
		return err
	}
	invoices, err := ch.Consume("invoices", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	// Reject says that the message failed; without requeue it is dead.
	if err := (<-invoices).Reject(false); err != nil {
		return err
	}
	dead, err := ch.Consume("invoices.dead", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	d := <-dead
	death := d.Headers["x-death"].([]any)[0].(amqp.Table)
	fmt.Printf("%q was %v in %v, %v time\n", d.Body, death["reason"], death["queue"], death["count"])
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
