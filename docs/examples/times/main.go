// Command times publishes tasks as Celery does: headers say when a task is due and when
// it is too late, and the queue obeys them.
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
	if _, err := ch.QueueDeclare("tasks.late", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("tasks.later", true, false, false, false, amqp.Table{
		"x-delivery-time-header": "eta", "x-expiry-header": "expires",
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "tasks.late",
	}); err != nil {
		return err
	}
	later, err := ch.Consume("tasks.later", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	late, err := ch.Consume("tasks.late", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	eta := time.Now().Add(500 * time.Millisecond)
	for task, expires := range map[string]time.Time{"call ann": eta.Add(time.Hour), "call bob": eta.Add(-time.Millisecond)} {
		headers := amqp.Table{"eta": eta.Format(time.RFC3339Nano), "expires": expires.Format(time.RFC3339Nano)}
		if err := ch.PublishWithContext(ctx, "", "tasks.later", false, false, amqp.Publishing{Headers: headers, Body: []byte(task)}); err != nil {
			return err
		}
	}
	d := <-late
	fmt.Printf("%q would be too late\n", d.Body)
	if err := d.Ack(false); err != nil {
		return err
	}
	d = <-later
	fmt.Printf("%q, early: %v\n", d.Body, time.Now().Before(eta))
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
