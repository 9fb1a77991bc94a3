package main

import (
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// queueVerbs list what is in vhosts.
func queueVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost", columns: queueColumns.names(), run: listQueues, also: ctl, live: true, example: "-p shop name messages_ready leader --watch 2"},
		{name: "list_unresponsive_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost whose leader does not answer", columns: unansweredColumns.names(), run: listUnresponsive, also: ctl, live: true, example: "name state"},
		{name: "time", arguments: "[COLUMN ...]", maxArguments: -1, about: "shows what comes next in all queues: how much expires, dies, fires, times out, is retried and returns within a minute, an hour and a day", columns: nextColumns.names(), run: showTime, live: true, example: "event minute hour"},
		{name: "time_of_queues", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queues of a vhost in which something comes within a day, those first in which it comes first", columns: queueTimeColumns.names(), run: listTimes, live: true, example: "-p shop name next_at expire_minute fire_minute"},
		{name: "queue_timers", arguments: "QUEUE", least: 1, maxArguments: 1, about: "shows what a queue waits for: its next scheduled message, the next that expires, its own end, and its consumers' deadlines", run: queueTimers, live: true, example: "orders"},
		{name: "list_policies_that_match", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lists the policies of a vhost whose pattern matches a queue, the effective one first", run: listMatching, also: []string{ctlName, diagnosticsName}, example: "orders"},
		{name: "list_exchanges", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the exchanges of a vhost", columns: exchangeColumns.names(), run: listExchanges, also: ctl, live: true, example: "name type"},
		{name: "list_bindings", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the bindings of a vhost", columns: bindingColumns.names(), run: listBindings, also: ctl, example: "source_name destination_name routing_key"},
	}
}

// messageVerbs are about messages.
func messageVerbs() []verb {
	return append([]verb{
		{name: "peek", arguments: "QUEUE [STATE [AFTER]]", least: 1, maxArguments: 3, about: "shows up to 50 messages without changing anything", more: " STATE is ready, unacked, scheduled, delayed, deferred or parked, AFTER the number of the last one shown.", run: peek, also: []string{queuesName}, example: "orders ready 4711"},
		{name: "list_deferred", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lists messages that consumers of a queue have put aside, with their tokens", run: listDeferred, example: "orders"},
		{name: "list_groups", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the groups of messages of a queue, and who holds them", columns: groupColumns.names(), run: listGroups, options: []option{queueOption}, live: true, example: "--queue orders id held messages"},
		{name: "kick", arguments: "QUEUE [COUNT]", least: 1, maxArguments: 2, about: "retries delayed messages of a queue at once, those due next first; without COUNT all of them", run: wake("kick"), example: "orders 3"},
		{name: "unpark", arguments: "QUEUE [COUNT]", least: 1, maxArguments: 2, about: "makes parked messages of a queue ready, those parked first before others; without COUNT all of them", more: " Their failed deliveries count anew.", run: wake("unpark"), example: "orders 3"},
		{name: "pause_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "hands the consumers of a queue nothing until they are resumed", more: " Publishes, expiry, timeouts and settlements go on. A queue that is paused gets another reason and end.", run: pausing("pause"), options: []option{{"reason", "`TEXT` that says why, at most 255 bytes", ""}, {"for", "resumes them by itself after `MILLISECONDS`", ""}}, example: "orders --reason 'database is down' --for 600000"},
		{name: "resume_queue", arguments: "QUEUE", least: 1, maxArguments: 1, about: "ends a pause of a queue", more: " One that a policy asks for stays.", run: pausing("resume"), example: "orders"},
	}, append(takeVerbs(), delayedVerbs()...)...)
}

var queueColumns = columnsOf[api.Queue]("name messages")

// listQueues asks for the columns that it shows: a row has a hundred.
var listQueues = func(c *call) error {
	names := splitNames(c.words)
	if len(names) == 0 {
		for _, x := range queueColumns.shown {
			names = append(names, x.name)
		}
	}
	at := path("queues", c.options.vhost) + "?columns=" + url.QueryEscape(strings.Join(names, ","))
	return listAt(c, at, "Listing queues for vhost "+c.options.vhost+" ...", queueColumns, c.words)
}

var unansweredColumns = columnsOf[api.Queue]("name")

func listUnresponsive(c *call) error {
	var rows []api.Queue
	if err := c.get(path("queues", c.options.vhost)+"?filter=leaderless", &rows); err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(q api.Queue) bool { return q.QueueStats != nil })
	return list(c, "Listing unresponsive queues for vhost "+c.options.vhost+" ...", unansweredColumns, c.words, rows)
}

var messageColumns = columnsOf[api.PeekedMessage]("number state exchange routing_key redelivered expires_at due_at properties payload_bytes payload_encoding payload")

func peek(c *call) error {
	query := url.Values{}
	for i, name := range []string{"state", "after"} {
		if len(c.words) > i+1 {
			query.Set(name, c.words[i+1])
		}
	}
	var page api.PeekPage
	if err := c.get(path("queues", c.options.vhost, c.words[0], "messages", "peek")+"?"+query.Encode(), &page); err != nil {
		return err
	}
	return list(c, "Messages of queue "+c.words[0]+" ...", messageColumns, nil, page.Items)
}

var consumerColumns = columnsOf("queue_name consumer_tag ack_required prefetch_count active activity_status messages_unacknowledged oldest_unacked_age_ms timed_out late_acks lock_duration_ms lock_mode",
	column[api.Consumer]{"queue_name", func(x api.Consumer) any { return x.Queue.Name }},
	column[api.Consumer]{"late_acks", func(x api.Consumer) any { return x.LateAcksTotal }},
	column[api.Consumer]{"late_settlements", func(x api.Consumer) any { return x.LateSettlementsTotal }},
)

var listConsumers = listing(consumerColumns, "Listing consumers in vhost VHOST ...", "consumers", "VHOST")

var timeoutColumns = columnsOf("at queue_name consumer_tag messages held_ms timeout_ms action",
	column[api.ConsumerTimeout]{"queue_name", func(x api.ConsumerTimeout) any { return x.Queue.Name }},
)

var listTimeouts = listing(timeoutColumns, "Listing consumer timeouts in vhost VHOST ...", "quorate", "timeouts", "VHOST")

var driftColumns = columnsOf[api.Drift]("kind name argument declared received adopted user client times last_at")

var listDrifts = listing(driftColumns, "Listing drifted declares in vhost VHOST ...", "drift", "VHOST")

var exchangeColumns = columnsOf("name type",
	column[api.Exchange]{"messages_delayed", func(x api.Exchange) any {
		if x.DelayStats == nil {
			return nil
		}
		return x.DelayStats.Delayed
	}},
)

var listExchanges = listing(exchangeColumns, "Listing exchanges for vhost VHOST ...", "exchanges", "VHOST")

var bindingColumns = columnsOf("source_name source_kind destination_name destination_kind routing_key arguments",
	column[api.Binding]{"source_name", func(b api.Binding) any { return b.Source }},
	column[api.Binding]{"source_kind", func(api.Binding) any { return "exchange" }},
	column[api.Binding]{"destination_name", func(b api.Binding) any { return b.Destination }},
	column[api.Binding]{"destination_kind", func(b api.Binding) any { return b.DestinationType }},
)

var listBindings = listing(bindingColumns, "Listing bindings for vhost VHOST ...", "bindings", "VHOST")

var groupColumns = columnsOf[api.Group]("id held consumer_tag session locked_until remaining_ms messages messages_unacknowledged oldest state_bytes state_set_at state_until")

func listGroups(c *call) error {
	queue, err := c.queue()
	if err != nil {
		return err
	}
	var all []api.Group
	for after := ""; ; {
		var page api.GroupPage
		q := url.Values{"limit": {"1000"}, "after": {after}}
		if err := c.get(path("queues", c.options.vhost, queue, "groups")+"?"+q.Encode(), &page); err != nil {
			return err
		}
		if all, after = append(all, page.Items...), page.Next; after == "" {
			return list(c, "Listing groups of queue "+queue+" ...", groupColumns, c.words, all)
		}
	}
}
