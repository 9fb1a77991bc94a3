// Command ages asks, as an autoscaler does, how much there is to do in a queue, and
// which tasks wait.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"

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
	if _, err := ch.QueueDeclare("tasks", true, false, false, false, amqp.Table{"x-age-header": "task"}); err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	for _, task := range []string{"mail", "mail", "thumbnail"} {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", "tasks", false, false,
			amqp.Publishing{Headers: amqp.Table{"task": task}, DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		if _, err := c.WaitContext(ctx); err != nil {
			return err
		}
	}
	var scaling struct {
		Backlog int     `json:"backlog"`
		Oldest  float64 `json:"oldest_ready_age_seconds"`
	}
	if err := get(ctx, api+"/api/queues/%2F/tasks/scaling", &scaling); err != nil {
		return err
	}
	fmt.Printf("%d to do, the oldest within a minute: %v\n", scaling.Backlog, scaling.Oldest < 60)
	var queue struct {
		ByHeader []struct {
			Value string `json:"value"`
			Ready int    `json:"messages_ready"`
		} `json:"by_header"`
	}
	if err := get(ctx, api+"/api/queues/%2F/tasks", &queue); err != nil {
		return err
	}
	for _, v := range queue.ByHeader {
		fmt.Printf("%s: %d\n", v.Value, v.Ready)
	}
	return ch.Close()
}

func get(ctx context.Context, at string, answer any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	r.SetBasicAuth("guest", "guest")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", at, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(answer)
}
