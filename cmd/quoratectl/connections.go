package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// connectionVerbs are about clients.
func connectionVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_connections", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the connections of clients to all nodes", columns: names(connectionColumns), run: listConnections, also: ctl, live: true, example: "name user state"},
		{name: "list_channels", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the channels of clients at all nodes", columns: names(channelColumns), run: listChannels, also: ctl, live: true, example: "name user messages_unacknowledged"},
		{name: "list_consumers", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the consumers of a vhost", columns: names(consumerColumns), run: listConsumers, also: ctl, live: true, example: "-p shop queue_name consumer_tag messages_unacknowledged"},
		{name: "consumer_timeouts", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the last consumer timeouts in a vhost, the latest first", columns: names(timeoutColumns), run: listTimeouts, live: true, example: "-p shop queue_name consumer_tag held_ms action"},
		{name: "close_connection", arguments: "NAME REASON", least: 2, maxArguments: 2, about: "closes a connection; its client is told the reason", run: closeConnections("connections"), also: ctl, example: "'10.0.0.7:50000 -> 10.0.0.1:5672' maintenance"},
		{name: "close_all_connections", arguments: "REASON", least: 1, maxArguments: 1, about: "closes the connections to a vhost, or all", run: closeAllConnections, also: ctl,
			options: []option{{"global", "those to all vhosts", ""}, {"limit", "`NUMBER` of connections to close at most", ""}, {"per-connection-delay", "`MS` to wait between two", ""}}, example: "-p shop --limit 10 maintenance"},
		{name: "close_all_user_connections", arguments: "USER REASON", least: 2, maxArguments: 2, about: "closes all connections of a user", run: closeConnections("connections", "username"), also: ctl, example: "ann maintenance"},
	}
}

var connectionColumns = []column[api.Connection]{
	{"user", "", func(c api.Connection) any { return c.User }},
	{"peer_host", "", func(c api.Connection) any { return c.PeerHost }},
	{"peer_port", "", func(c api.Connection) any { return c.PeerPort }},
	{"state", "running or closing", func(c api.Connection) any { return c.State }},
	{"name", "", func(c api.Connection) any { return c.Name }},
	{"user_provided_name", "", func(c api.Connection) any { return c.UserProvidedName }},
	{"node", "it is connected to", func(c api.Connection) any { return c.Node }},
	{"vhost", "", func(c api.Connection) any { return c.VHost }},
	{"channels", "open", func(c api.Connection) any { return c.Channels }},
	{"channel_max", "", func(c api.Connection) any { return c.ChannelMax }},
	{"frame_max", "", func(c api.Connection) any { return c.FrameMax }},
	{"timeout", "heartbeat, in s", func(c api.Connection) any { return c.Heartbeat }},
	{"connected_at", "ms since 1970", func(c api.Connection) any { return c.ConnectedAt }},
	{"auth_mechanism", "", func(c api.Connection) any { return c.AuthMechanism }},
	{"ssl", "", func(c api.Connection) any { return c.TLS }},
	{"recv_oct", "octets", func(c api.Connection) any { return c.ReceivedBytes }},
	{"send_oct", "octets", func(c api.Connection) any { return c.SentBytes }},
	{"send_pend", "octets that wait to be sent", func(c api.Connection) any { return c.PendingBytes }},
	{"held_memory", "bytes that the node holds in memory for it", func(c api.Connection) any { return c.Held.Total }},
	{"held_channels", "of held_memory: incomplete messages, methods that wait, transactions", func(c api.Connection) any { return c.Held.Channels }},
	{"held_publishes", "of held_memory: without a final result", func(c api.Connection) any { return c.Held.Publishes }},
	{"held_answers", "of held_memory: answers and deliveries that are not written yet", func(c api.Connection) any { return c.Held.Answers }},
	{"client_properties", "", func(c api.Connection) any { return c.ClientProperties }},
}

func listConnections(c *call) error {
	return listAt(c, path("connections"), "Listing connections ...", connectionColumns, c.words, 4)
}

// closeConnections deletes what the first word names, with the second as reason.
func closeConnections(at ...string) func(*call) error {
	return func(c *call) error {
		if slices.Contains(at, "username") {
			var u api.User // those who may not read users learn nothing about them
			if status, err := c.client.ask(c, http.MethodGet, path("users", c.words[0]), nil, &u, http.StatusNotFound); err == nil && status == http.StatusNotFound {
				return noUser(c.words[0])
			}
		}
		c.client.reason = c.words[1]
		return c.delete(path(append(at, c.words[0])...))
	}
}

var channelColumns = []column[api.Channel]{
	{"pid", "its name: CONNECTION (NUMBER)", func(c api.Channel) any { return c.Name }},
	{"user", "", func(c api.Channel) any { return c.User }},
	{"consumer_count", "", func(c api.Channel) any { return c.Consumers }},
	{"messages_unacknowledged", "deliveries", func(c api.Channel) any { return c.Unacknowledged }},
	{"name", "", func(c api.Channel) any { return c.Name }},
	{"number", "", func(c api.Channel) any { return c.Number }},
	{"connection", "its name", func(c api.Channel) any { return c.Connection.Name }},
	{"node", "it is connected to", func(c api.Channel) any { return c.Node }},
	{"vhost", "", func(c api.Channel) any { return c.VHost }},
	{"state", "running or closing", func(c api.Channel) any { return c.State }},
	{"prefetch_count", "of each consumer; 0: no limit", func(c api.Channel) any { return c.Prefetch }},
	{"global_prefetch_count", "of all together; 0: no limit", func(c api.Channel) any { return c.SharedPrefetch }},
	{"messages_unconfirmed", "publishes, in confirm mode", func(c api.Channel) any { return c.Unconfirmed }},
	{"messages_uncommitted", "publishes, in a transaction", func(c api.Channel) any { return c.Uncommitted }},
	{"acks_uncommitted", "settlements, in a transaction", func(c api.Channel) any { return c.Unsettled }},
	{"confirm", "", func(c api.Channel) any { return c.Confirm }},
	{"transactional", "", func(c api.Channel) any { return c.Transactional }},
}

func listChannels(c *call) error {
	return listAt(c, path("channels"), "Listing channels ...", channelColumns, c.words, 4)
}

// closeAllConnections closes connections one after the other.
func closeAllConnections(c *call) error {
	limit, delay := 0, 0
	for name, to := range map[string]*int{"limit": &limit, "per-connection-delay": &delay} {
		if !c.given(name) {
			continue
		}
		n, err := strconv.Atoi(c.option(name))
		if err != nil || n < 0 {
			return usageError("--%s must be a whole number from 0, not %q", name, c.option(name))
		}
		*to = n
	}
	at := path("vhosts", c.options.vhost, "connections")
	if c.given("global") {
		at = path("connections")
	}
	var rows []api.Connection
	if err := c.get(at, &rows); err != nil {
		return err
	}
	if limit > 0 {
		rows = rows[:min(limit, len(rows))]
	}
	c.client.reason = c.words[0]
	closed := 0
	end := c.progress(func() string { return fmt.Sprintf("%d of %d connections closed", c.moved.Load(), len(rows)) })
	defer end()
	for _, row := range rows {
		if err := c.client.do(c, http.MethodDelete, path("connections", row.Name), nil, nil); err != nil && exitCodeOf(err) != exitData {
			return err // what is not there any more is closed
		}
		closed++
		c.moved.Add(1)
		select {
		case <-c.Done():
			return &exitError{exitTemporary, fmt.Errorf("timed out: %d of %d connections were closed", closed, len(rows))}
		case <-time.After(time.Duration(delay) * time.Millisecond):
		}
	}
	c.say(fmt.Sprintf("Closed %d connections", closed))
	return nil
}
