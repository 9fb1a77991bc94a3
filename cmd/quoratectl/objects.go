package main

import "net/url"

// objectVerbs change queues.
func objectVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
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
