package main

import (
	"encoding/base64"
	"io"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// tryVerbs publish and get messages by hand.
func tryVerbs() []verb {
	return []verb{
		{name: "publish", arguments: "ROUTING_KEY [BODY]", least: 1, maxArguments: 2, about: "publishes a persistent message and waits until it is confirmed", more: " Without BODY it is read from the standard input. Without --exchange the routing key is the name of a queue. A message that reaches no queue is an error.", run: publish, options: []option{{"exchange", "`NAME` of the exchange; the default exchange", ""}, {"properties", "`JSON` object of properties", ""}}, example: "orders 'order 4711' --properties '{\"message_id\": \"4711\"}'"},
		{name: "get", arguments: "QUEUE [COUNT]", least: 1, maxArguments: 2, about: "shows messages of a queue, one unless COUNT says otherwise, and puts them back", more: " This counts as one more delivery. See peek, which changes nothing.", run: get, options: []option{{"remove", "acknowledges them, which removes them", ""}}, example: "orders 3 --remove"},
	}
}

func publish(c *call) error {
	given, err := c.object("properties")
	if err != nil {
		return err
	}
	var body []byte
	if len(c.words) > 1 {
		body = []byte(c.words[1])
	} else if body, err = io.ReadAll(c.in); err != nil {
		return err
	}
	if _, said := given["delivery_mode"]; !said {
		given["delivery_mode"] = 2
	}
	payload, encoding := string(body), "string"
	if !utf8.Valid(body) {
		payload, encoding = base64.StdEncoding.EncodeToString(body), "base64"
	}
	exchange := c.option("exchange")
	if exchange == "" {
		exchange = "amq.default"
	}
	var done api.Published
	if err := c.post(path("exchanges", c.options.vhost, exchange, "publish"), map[string]any{
		"properties": given, "routing_key": c.words[0], "payload": payload, "payload_encoding": encoding,
	}, &done); err != nil {
		return err
	}
	if !done.Routed {
		return &exitError{exitData, errUnrouted}
	}
	return nil
}

var gotColumns = columnsOf[api.Message]("routing_key exchange redelivered payload payload_encoding properties")

func get(c *call) error {
	count, err := countIn(c.words, 1, 1)
	if err != nil {
		return err
	}
	mode := "ack_requeue_true"
	if c.given("remove") {
		mode = "ack_requeue_false"
	}
	var got []api.Message
	if err := c.post(path("queues", c.options.vhost, c.words[0], "get"), map[string]any{"count": count, "ackmode": mode, "encoding": "auto"}, &got); err != nil {
		return err
	}
	return list(c, "Messages of queue "+c.words[0]+" ...", gotColumns, nil, got)
}
