// Command prefetch has a consumer that sets no limit, at a queue that sets one: what
// it leaves goes to another one.
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
	if _, err := ch.QueueDeclare("renders", true, false, false, false, amqp.Table{"x-max-prefetch": 2}); err != nil {
		return err
	}
	greedy, err := ch.Consume("renders", "greedy", false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for i := range 3 {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "renders", false, false,
			amqp.Publishing{Body: fmt.Appendf(nil, "frame %d", i+1), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		if _, err := c.WaitContext(ctx); err != nil {
			return err
		}
	}
	var held amqp.Delivery
	for range 2 {
		held = <-greedy
		fmt.Printf("greedy got %q\n", held.Body)
	}
	other, err := ch.Consume("renders", "other", false, false, false, false, nil)
	if err != nil {
		return err
	}
	d := <-other
	fmt.Printf("other got %q\n", d.Body)
	if err := d.Ack(false); err != nil {
		return err
	}
	if err := held.Ack(true); err != nil {
		return err
	}
	return ch.Close()
}
