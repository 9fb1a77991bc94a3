// Command dispatch has a slow and a quick consumer at a queue that hands messages to the
// one that holds fewer.
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
	if _, err := ch.QueueDeclare("scans", true, false, false, false, amqp.Table{"x-dispatch": "least-loaded"}); err != nil {
		return err
	}
	if err := ch.Qos(100, 0, false); err != nil {
		return err
	}
	slow, err := ch.Consume("scans", "slow", false, false, false, false, nil)
	if err != nil {
		return err
	}
	quick, err := ch.Consume("scans", "quick", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for i := range 5 {
		err := ch.PublishWithContext(ctx, "", "scans", false, false, amqp.Publishing{Body: fmt.Appendf(nil, "image %d", i+1), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		select {
		case d := <-slow: // it works on it for long
			fmt.Printf("slow got %q\n", d.Body)
		case d := <-quick:
			fmt.Printf("quick got %q\n", d.Body)
			if err := d.Ack(false); err != nil {
				return err
			}
		}
	}
	return ch.Close()
}
