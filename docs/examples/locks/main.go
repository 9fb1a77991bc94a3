// Command locks holds the lock of a message while it works on it, and then
// settles it and learns that this took effect.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/amqp/client"
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
	if _, err := ch.QueueDeclare("work", true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", "work", false, false, amqp.Publishing{Body: []byte("job 1")}); err != nil {
		return err
	}
	c, err := client.New(ch)
	if err != nil {
		return err
	}
	jobs, err := ch.Consume("work", "", false, false, false, false, amqp.Table{"x-lock-duration": 30000}) // milliseconds
	if err != nil {
		return err
	}
	job := c.Message(<-jobs)
	held, err := job.Hold(ctx, 0) // renewed from now on, for 30 s each time
	if err != nil {
		return err
	}
	fmt.Printf("got %q, held: %t\n", job.Delivery.Body, work(held) == nil)
	if err := job.Ack(ctx); err != nil {
		return err
	}
	fmt.Println("done, again:", errors.Is(job.Ack(ctx), client.ErrLockLost)) // it is settled: there is no lock any more
	return nil
}

// work takes its time. Its context is cancelled if somebody else may get the message.
func work(ctx context.Context) error { return ctx.Err() }
