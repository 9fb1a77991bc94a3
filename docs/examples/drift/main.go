// Command drift has a new worker declare a queue with another limit than the old
// one, which is still running, in a vhost that adopts it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	if err := run(context.Background(), "amqp://guest:guest@127.0.0.1:5672/rollout", "http://127.0.0.1:15672/api"); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, uri, api string) error {
	if err := call(ctx, http.MethodPut, api+"/vhosts/rollout", `{"redeclare": "adopt"}`, nil); err != nil {
		return err
	}
	for _, worker := range []struct {
		name  string
		limit int
	}{{"worker 1", 1000}, {"worker 2", 5000}} {
		conn, err := amqp.DialConfig(uri, amqp.Config{Properties: amqp.Table{"connection_name": worker.name}})
		if err != nil {
			return err
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		if _, err := ch.QueueDeclare("parcels", true, false, false, false, amqp.Table{"x-max-length": worker.limit}); err != nil {
			return err // 406, if the vhost were strict
		}
	}
	var queue struct{ Arguments map[string]any }
	if err := call(ctx, http.MethodGet, api+"/queues/rollout/parcels", "", &queue); err != nil {
		return err
	}
	fmt.Println("parcels has", queue.Arguments["x-max-length"])
	var drift []struct {
		Client, Argument string
		Received         any
	}
	if err := call(ctx, http.MethodGet, api+"/drift/rollout", "", &drift); err != nil {
		return err
	}
	for _, d := range drift {
		fmt.Println(d.Client, "declares", d.Argument, d.Received)
	}
	return nil
}

// call makes a request of the HTTP API, and reads its answer unless out is nil.
func call(ctx context.Context, method, at, body string, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, at, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s", method, at, response.Status)
	case out == nil:
		return nil
	}
	return json.NewDecoder(response.Body).Decode(out)
}
