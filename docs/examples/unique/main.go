// Command unique publishes a job three times while it waits or is being done, and
// once when it is done: it is done twice.
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
	if _, err := ch.QueueDeclare("thumbnails", true, false, false, false, amqp.Table{"x-unique": "header:picture"}); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	publish := func() error {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "thumbnails", false, false,
			amqp.Publishing{Headers: amqp.Table{"picture": "7.jpg"}, DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		ok, err := c.WaitContext(ctx)
		fmt.Printf("confirmed: %t\n", ok)
		return err
	}
	take := func() (amqp.Delivery, error) {
		d, ok, err := ch.Get("thumbnails", false)
		fmt.Printf("there: %t\n", ok)
		return d, err
	}
	if err := publish(); err != nil {
		return err
	}
	if err := publish(); err != nil { // it waits: not stored
		return err
	}
	job, err := take()
	if err != nil {
		return err
	}
	if err := publish(); err != nil { // it is being done: not stored
		return err
	}
	if _, err := take(); err != nil {
		return err
	}
	if err := job.Ack(false); err != nil {
		return err
	}
	if err := publish(); err != nil { // it is done: a job like any other
		return err
	}
	if job, err = take(); err != nil {
		return err
	}
	return job.Ack(false)
}
