package main

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

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
				return &exitError{exitData, fmt.Errorf("no user %q", c.words[0])}
			}
		}
		c.client.reason = c.words[1]
		return c.delete(path(append(at, c.words[0])...))
	}
}
