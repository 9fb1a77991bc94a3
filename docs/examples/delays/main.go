// Command delays schedules two messages, takes one of them back, and waits for
// the other.
package main

import (
	"context"
	"errors"
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
	if err := ch.Confirm(false); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("reminders", true, false, false, false, nil); err != nil {
		return err
	}
	publish := func(exchange, key string, m amqp.Publishing) error {
		confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, exchange, key, false, false, m)
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("refused"))
		}
		return nil
	}
	start := time.Now()
	for _, name := range []string{"ann", "bob"} {
		if err := publish("", "reminders", amqp.Publishing{
			Headers: amqp.Table{"x-opt-delivery-delay": 1000, "x-schedule-id": name}, // milliseconds
			Body:    []byte("call " + name),
		}); err != nil {
			return err
		}
	}
	// An ack of the command: the message will never be delivered.
	if err := publish("amq.quorate.command", "schedule.cancel", amqp.Publishing{
		Headers: amqp.Table{"x-queue": "reminders", "x-schedule-id": "ann"},
	}); err != nil {
		return err
	}
	fmt.Println("ann is cancelled")
	reminders, err := ch.Consume("reminders", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	d := <-reminders
	fmt.Printf("%q, early: %t\n", d.Body, time.Since(start) < time.Second)
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
