// Command hello publishes a message with a confirm and consumes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := run(context.Background(), "amqp://guest:guest@127.0.0.1:5672/", "amqp://guest:guest@127.0.0.1:5673/", "amqp://guest:guest@127.0.0.1:5674/"); err != nil {
		log.Fatal(err)
	}
}

// dial connects to the first node that is there.
func dial(uris []string) (conn *amqp.Connection, err error) {
	for _, uri := range uris {
		if conn, err = amqp.Dial(uri); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func run(ctx context.Context, uris ...string) error {
	conn, err := dial(uris)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	// A durable queue has a replica on up to three nodes.
	if _, err := ch.QueueDeclare("greetings", true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "greetings", false, false,
		amqp.Publishing{Body: []byte("hello")})
	if err != nil {
		return err
	}
	// Confirmed: a majority of the replicas has it on disk.
	if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
		return errors.Join(err, errors.New("not confirmed"))
	}
	deliveries, err := ch.Consume("greetings", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	d := <-deliveries
	fmt.Printf("got %q\n", d.Body)
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}
