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
		{name: "list_connections", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the connections of clients to all nodes", columns: connectionColumns.names(), run: listConnections, also: ctl, live: true, example: "name user state"},
		{name: "list_channels", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the channels of clients at all nodes", columns: channelColumns.names(), run: listChannels, also: ctl, live: true, example: "name user messages_unacknowledged"},
		{name: "list_amqp10_sessions", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the sessions of AMQP 1.0 of clients at all nodes", columns: sessionColumns.names(), run: listSessions, also: ctl, live: true, example: "connection channel_number outgoing_links"},
		{name: "list_consumers", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the consumers of a vhost", columns: consumerColumns.names(), run: listConsumers, also: ctl, live: true, example: "-p shop queue_name consumer_tag messages_unacknowledged"},
		{name: "consumer_timeouts", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the last consumer timeouts in a vhost, the latest first", columns: timeoutColumns.names(), run: listTimeouts, live: true, example: "-p shop queue_name consumer_tag held_ms action"},
		{name: "drift", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists who declares queues and exchanges of a vhost with other arguments than they have, and is answered as if they were the same; the latest first", columns: driftColumns.names(), run: listDrifts, live: true, example: "-p shop name argument declared received user"},
		{name: "close_connection", arguments: "NAME REASON", least: 2, maxArguments: 2, about: "closes a connection; its client is told the reason", run: closeConnections("connections"), also: ctl, example: "'10.0.0.7:50000 -> 10.0.0.1:5672' maintenance"},
		{name: "close_all_connections", arguments: "REASON", least: 1, maxArguments: 1, about: "closes the connections to a vhost, or all", run: closeAllConnections, also: ctl,
			options: []option{{"global", "those to all vhosts", ""}, {"limit", "`NUMBER` of connections to close at most", ""}, {"per-connection-delay", "`MS` to wait between two", ""}}, example: "-p shop --limit 10 maintenance"},
		{name: "close_all_user_connections", arguments: "USER REASON", least: 2, maxArguments: 2, about: "closes all connections of a user", run: closeConnections("connections", "username"), also: ctl, example: "ann maintenance"},
	}
}

var connectionColumns = columnsOf("user peer_host peer_port state",
	column[api.Connection]{"held_memory", func(c api.Connection) any { return c.Held.Total }},
	column[api.Connection]{"held_channels", func(c api.Connection) any { return c.Held.Channels }},
	column[api.Connection]{"held_publishes", func(c api.Connection) any { return c.Held.Publishes }},
	column[api.Connection]{"held_answers", func(c api.Connection) any { return c.Held.Answers }},
)

var listConnections = listing(connectionColumns, "Listing connections ...", "connections")

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

var channelColumns = columnsOf("pid user consumer_count messages_unacknowledged",
	column[api.Channel]{"pid", func(c api.Channel) any { return c.Name }},
	column[api.Channel]{"connection", func(c api.Channel) any { return c.Connection.Name }},
)

var listChannels = listing(channelColumns, "Listing channels ...", "channels")

// sessionOf is a session of AMQP 1.0, and whose it is.
type sessionOf struct {
	api.Session
	Connection  string `json:"connection"`
	ContainerID string `json:"container_id"`
	User        string `json:"user"`
	VHost       string `json:"vhost"`
	Node        string `json:"node"`
}

var sessionColumns = columnsOf("connection user channel_number incoming_window remote_incoming_window outgoing_unsettled_deliveries incoming_link_count outgoing_link_count",
	column[sessionOf]{"incoming_link_count", func(s sessionOf) any { return len(s.IncomingLinks) }},
	column[sessionOf]{"outgoing_link_count", func(s sessionOf) any { return len(s.OutgoingLinks) }},
)

// listSessions asks for one connection after the other. One that is closed meanwhile has none.
func listSessions(c *call) error {
	var connections []api.Connection
	if err := c.get(path("connections"), &connections); err != nil {
		return err
	}
	rows := []sessionOf{}
	for _, of := range connections {
		if of.Protocol != api.AMQP10 {
			continue
		}
		var sessions []api.Session
		if err := c.get(path("connections", of.Name, "sessions"), &sessions); err != nil && exitCodeOf(err) != exitData {
			return err
		}
		for _, s := range sessions {
			rows = append(rows, sessionOf{s, of.Name, of.ContainerID, of.User, of.VHost, of.Node})
		}
	}
	return list(c, "Listing AMQP 1.0 sessions ...", sessionColumns, c.words, rows)
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
