// Command redrive puts a dead letter back where it came from, once what was wrong
// is right.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := run(context.Background(), "amqp://guest:guest@127.0.0.1:5672/", "http://127.0.0.1:15672"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri, api string) error {
	conn, err := amqp.Dial(uri)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("parcels.dead", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare("parcels", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parcels.dead",
	}); err != nil {
		return err
	}
	parcels, err := ch.Consume("parcels", "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := ch.PublishWithContext(ctx, "", "parcels", false, false, amqp.Publishing{Body: []byte("to Atlantis")}); err != nil {
		return err
	}
	d := <-parcels
	if err := d.Reject(false); err != nil { // there is no such place
		return err
	}
	for { // now there is
		redriven, err := redrive(ctx, api+"/api/queues/%2F/parcels.dead/redrive", `{"reason": "rejected", "source": "parcels"}`)
		if err != nil {
			return err
		}
		if strings.HasPrefix(redriven, `{"messages":1,`) {
			break
		}
	}
	d = <-parcels
	fmt.Printf("%q, redriven: %v\n", d.Body, d.Headers["x-redriven"])
	if err := d.Ack(false); err != nil {
		return err
	}
	return ch.Close()
}

func redrive(ctx context.Context, at, which string) (answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, strings.NewReader(which))
	if err != nil {
		return "", err
	}
	r.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}
