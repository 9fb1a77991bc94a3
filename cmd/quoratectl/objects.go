package main

// objectVerbs change queues.
func objectVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "delete_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "deletes a queue with its messages", run: deleteQueue, also: ctl, example: "-p shop orders"},
		{name: "purge_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "deletes the ready messages of a queue", run: purgeQueue, also: ctl, example: "-p shop orders"},
	}
}

func deleteQueue(c *call) error { return c.delete(path("queues", c.options.vhost, c.words[0])) }

func purgeQueue(c *call) error {
	return c.delete(path("queues", c.options.vhost, c.words[0], "contents"))
}
