// Command expiry lets a message expire into a dead-letter queue.
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
	if _, err := ch.QueueDeclare("expired", true, false, false, false, nil); err != nil {
		return err
	}
	// What expires here goes to "expired" through the default exchange.
	if _, err := ch.QueueDeclare("offers", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "expired",
	}); err != nil {
		return err
	}
	// Each message has its own TTL; the second does not wait for the first.
	for _, ttl := range []string{"2000", "500"} {
		if err := ch.PublishWithContext(ctx, "", "offers", false, false,
			amqp.Publishing{Expiration: ttl, Body: []byte("lives " + ttl + " ms")}); err != nil {
			return err
		}
	}
	dead, err := ch.Consume("expired", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for range 2 {
		d := <-dead
		death := d.Headers["x-death"].([]any)[0].(amqp.Table)
		fmt.Printf("%q: %v in queue %v\n", d.Body, death["reason"], death["queue"])
		if err := d.Ack(false); err != nil {
			return err
		}
	}
	return ch.Close()
}
