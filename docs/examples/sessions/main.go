// Sessions prints the messages of two orders, each in its order.
package main

import (
	"context"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	conn, err := amqp.Dial("amqp://guest:guest@127.0.0.1:5672/")
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	ch, _ := conn.Channel()
	q, _ := ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-message-groups": true})
	for _, m := range [][2]string{{"7", "placed"}, {"8", "placed"}, {"7", "paid"}, {"8", "cancelled"}} {
		ch.PublishWithContext(context.Background(), "", q.Name, false, false, amqp.Publishing{Headers: amqp.Table{"x-group-id": m[0]}, Body: []byte(m[1])})
	}
	ch.Qos(1, 0, false)
	messages, _ := ch.Consume(q.Name, "worker", false, false, false, false, nil)
	for range 4 {
		m := <-messages
		fmt.Printf("order %v %s\n", m.Headers["x-group-id"], m.Body)
		m.Ack(false)
	}
}
