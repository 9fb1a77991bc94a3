// Command timeout has a consumer that forgets to ack: its message goes back to
// the queue, and another consumer gets it.
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
	if _, err := ch.QueueDeclare("jobs", true, false, false, false, nil); err != nil {
		return err
	}
	cancelled := ch.NotifyCancel(make(chan string, 1))
	forgetful, err := ch.Consume("jobs", "forgetful", false, false, false, false,
		amqp.Table{"x-consumer-timeout": 1000}) // milliseconds
	if err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", "jobs", false, false, amqp.Publishing{Body: []byte("job 1")}); err != nil {
		return err
	}
	fmt.Printf("forgetful got %q\n", (<-forgetful).Body)
	// A second later the consumer is cancelled. Its channel stays open.
	fmt.Printf("%s is cancelled\n", <-cancelled)
	careful, err := ch.Consume("jobs", "careful", false, false, false, false, nil)
	if err != nil {
		return err
	}
	d := <-careful
	fmt.Printf("careful got %q, redelivered: %t\n", d.Body, d.Redelivered)
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
