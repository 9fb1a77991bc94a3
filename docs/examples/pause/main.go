// Command pause stops handing out the messages of a queue, without stopping its
// consumers or its publishers, and goes on after half a second.
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
	if _, err := ch.QueueDeclare("refunds", true, false, false, false, nil); err != nil {
		return err
	}
	refunds, err := ch.Consume("refunds", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	c, err := client.New(ch)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := c.Pause(ctx, "refunds", "the bank is down", 500*time.Millisecond); err != nil {
		return err
	}
	fmt.Println("paused")
	if err := ch.PublishWithContext(ctx, "", "refunds", false, false, amqp.Publishing{Body: []byte("refund 7")}); err != nil {
		return err
	}
	d := <-refunds
	fmt.Printf("%q, early: %t\n", d.Body, time.Since(began) < 500*time.Millisecond)
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
