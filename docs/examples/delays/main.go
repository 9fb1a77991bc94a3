// Command delays schedules two messages, takes one of them back, and waits for
// the other.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

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
	if _, err := ch.QueueDeclare("reminders", true, false, false, false, nil); err != nil {
		return err
	}
	c, err := client.New(ch)
	if err != nil {
		return err
	}
	start := time.Now()
	for _, name := range []string{"ann", "bob"} {
		message := amqp.Publishing{Body: []byte("call " + name)}
		if err := c.Schedule(ctx, "", "reminders", message, client.Scheduled{When: client.After(time.Second), ID: name}); err != nil {
			return err
		}
	}
	if err := c.Cancel(ctx, client.InQueue("reminders"), "ann"); err != nil {
		return err
	}
	fmt.Println("ann is cancelled") // and will never be delivered
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
