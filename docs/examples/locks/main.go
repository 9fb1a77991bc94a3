// Command locks renews the lock of a message while it works on it, and then
// settles it and learns that this took effect.
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
	if err := ch.Confirm(false); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("work", true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", "work", false, false, amqp.Publishing{Body: []byte("job 1")}); err != nil {
		return err
	}
	jobs, err := ch.Consume("work", "", false, false, false, false, amqp.Table{"x-lock-duration": 30000}) // milliseconds
	if err != nil {
		return err
	}
	job := <-jobs
	fmt.Printf("got %q\n", job.Body)
	command := func(verb string, headers amqp.Table) error {
		headers["x-delivery-tag"] = int64(job.DeliveryTag)
		done, err := ch.PublishWithDeferredConfirmWithContext(ctx, "amq.quorate.command", verb, false, false, amqp.Publishing{Headers: headers})
		if err == nil {
			fmt.Printf("%s: %t\n", verb, done.Wait())
		}
		return err
	}
	for _, step := range []struct {
		verb    string
		headers amqp.Table
	}{
		{"lock.renew", amqp.Table{}},
		{"message.settle", amqp.Table{"x-outcome": "ack"}},
		{"lock.renew", amqp.Table{}}, // it is settled: there is no lock any more
	} {
		if err := command(step.verb, step.headers); err != nil {
			return err
		}
	}
	return nil
}
