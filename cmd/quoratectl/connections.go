package main

import (
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// connectionVerbs are about clients.
func connectionVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_connections", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the connections of clients to all nodes", columns: names(connectionColumns), run: listConnections, also: ctl, live: true, example: "name user state"},
		{name: "list_consumers", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the consumers of a vhost", columns: names(consumerColumns), run: listConsumers, also: ctl, live: true, example: "-p shop queue_name consumer_tag messages_unacknowledged"},
		{name: "close_connection", arguments: "NAME REASON", least: 2, maxArguments: 2, about: "closes a connection; its client is told the reason", run: closeConnections("connections"), also: ctl, example: "'10.0.0.7:50000 -> 10.0.0.1:5672' maintenance"},
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
	{"client_properties", "", func(c api.Connection) any { return c.ClientProperties }},
}

func listConnections(c *call) error {
	var rows []api.Connection
	if err := c.get(path("connections"), &rows); err != nil {
		return err
	}
	return list(c, "Listing connections ...", connectionColumns, c.words, 4, rows)
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
