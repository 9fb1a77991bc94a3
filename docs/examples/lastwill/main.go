// Command lastwill deletes a queue that still has messages, and reads them from
// the queue that they are left to.
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
	if _, err := ch.QueueDeclare("printing.unfinished", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("printing", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange":    "", // the default exchange: the key is the name of a queue
		"x-dead-letter-routing-key": "printing.unfinished",
		"x-dead-letter-on-delete":   true,
	}); err != nil {
		return err
	}
	for _, job := range []string{"job 1", "job 2"} {
		if err := ch.PublishWithContext(ctx, "", "printing", false, false, amqp.Publishing{Body: []byte(job)}); err != nil {
			return err
		}
	}
	jobs, err := ch.Consume("printing", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	fmt.Printf("began %q\n", (<-jobs).Body) // what nobody has acknowledged is left, too
	if _, err := ch.QueueDelete("printing", false, false, false); err != nil {
		return err
	}
	unfinished, err := ch.Consume("printing.unfinished", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for range 2 {
		d := <-unfinished
		fmt.Printf("%q: %v\n", d.Body, d.Headers["x-last-death-reason"])
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return ch.Close()
}
