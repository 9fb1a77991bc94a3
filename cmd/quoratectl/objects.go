package main

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"unicode/utf8"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// objectVerbs change queues.
func objectVerbs() []verb {
	ctl := []string{ctlName}
	arguments := option{name: "arguments", about: "`JSON` object of arguments"}
	return []verb{
		{name: "declare_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "declares a queue, durable and replicated unless an option says otherwise; does nothing if there is an equal one", run: declareQueue, options: []option{{"type", "`TYPE`, the argument x-queue-type: quorum or classic", ""}, {"transient", "in the memory of one node", ""}, {"auto-delete", "deleted with its last consumer", ""}, arguments}, example: "-p shop orders --arguments '{\"x-message-ttl\": 60000}'"},
		{name: "declare_exchange", arguments: "EXCHANGE [TYPE]", least: 1, maxArguments: 2, about: "declares an exchange, durable and of the type direct unless said otherwise; does nothing if there is an equal one", run: declareExchange, options: []option{{"transient", "not durable", ""}, {"auto-delete", "deleted with its last binding", ""}, {"internal", "closed to publishers", ""}, arguments}, example: "-p shop events topic"},
		{name: "bind", arguments: "EXCHANGE QUEUE [ROUTING_KEY]", least: 2, maxArguments: 3, about: "binds a queue, or an exchange, to an exchange", run: bind, options: []option{{"to-exchange", "QUEUE is the name of an exchange", ""}, arguments}, example: "-p shop events orders 'order.#'"},
		{name: "delete_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "deletes a queue with its messages", run: deleteQueue, also: ctl, options: []option{{"if-empty", "only if it has no messages, ready or not, and no dead letters on their way", ""}, {"if-unused", "only if it has no consumers", ""}}, example: "-p shop orders --if-unused"},
		{name: "purge_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "deletes the ready messages of a queue", run: purgeQueue, also: ctl, example: "-p shop orders"},
	}
}

func deleteQueue(c *call) error {
	q := url.Values{}
	for _, name := range []string{"if-empty", "if-unused"} {
		if c.given(name) {
			q.Set(name, "true")
		}
	}
	at := path("queues", c.options.vhost, c.words[0])
	if len(q) > 0 {
		at += "?" + q.Encode()
	}
	return c.delete(at)
}

func purgeQueue(c *call) error {
	return c.delete(path("queues", c.options.vhost, c.words[0], "contents"))
}

// object is the value of an option that is a JSON object; an empty one if it was not given.
func (c *call) object(name string) (map[string]any, error) {
	object := map[string]any{}
	if text := c.option(name); text != "" {
		if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
			return nil, usageError("--%s must be a JSON object, not %q", name, text)
		}
	}
	return object, nil
}

func declareQueue(c *call) error {
	arguments, err := c.object("arguments")
	if err != nil {
		return err
	}
	if kind := c.option("type"); kind != "" {
		arguments["x-queue-type"] = kind
	}
	return c.put(path("queues", c.options.vhost, c.words[0]), map[string]any{
		"durable": !c.given("transient"), "auto_delete": c.given("auto-delete"), "arguments": arguments,
	})
}

func declareExchange(c *call) error {
	arguments, err := c.object("arguments")
	if err != nil {
		return err
	}
	kind := "direct"
	if len(c.words) > 1 {
		kind = c.words[1]
	}
	return c.put(path("exchanges", c.options.vhost, c.words[0]), map[string]any{
		"type": kind, "durable": !c.given("transient"), "auto_delete": c.given("auto-delete"), "internal": c.given("internal"), "arguments": arguments,
	})
}

func bind(c *call) error {
	arguments, err := c.object("arguments")
	if err != nil {
		return err
	}
	to, key := "q", ""
	if c.given("to-exchange") {
		to = "e"
	}
	if len(c.words) > 2 {
		key = c.words[2]
	}
	return c.client.do(c, http.MethodPost, path("bindings", c.options.vhost, "e", c.words[0], to, c.words[1]), map[string]any{"routing_key": key, "arguments": arguments}, nil)
}

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
