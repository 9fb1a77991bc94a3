package main

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// limitVerbs are about the limits of vhosts and users.
func limitVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "set_vhost_limits", arguments: "DEFINITION", least: 1, maxArguments: 1, about: "limits a vhost, by a JSON object", more: " Its keys are max-connections and max-queues; a negative number is no limit.", also: ctl, example: `-p shop '{"max-queues": 1000}'`, run: func(c *call) error {
			return setLimits(c, c.words[0], "vhost-limits", c.options.vhost)
		}},
		{name: "clear_vhost_limits", about: "removes all limits of a vhost", also: ctl, example: "-p shop", run: func(c *call) error {
			return clearLimits(c, "all", "vhost-limits", c.options.vhost)
		}},
		{name: "list_vhost_limits", arguments: "[NAME]", maxArguments: 1, about: "lists the limits of all vhosts, or of one", run: listVHostLimits, also: ctl, example: "shop"},
		{name: "set_user_limits", arguments: "NAME DEFINITION", least: 2, maxArguments: 2, about: "limits a user, by a JSON object", more: " Its keys are max-connections and max-channels; a negative number is no limit.", also: ctl, example: `ann '{"max-channels": 100}'`, run: func(c *call) error {
			return setLimits(c, c.words[1], "user-limits", c.words[0])
		}},
		{name: "clear_user_limits", arguments: "NAME LIMIT", least: 2, maxArguments: 2, about: "removes a limit of a user, or all of them (LIMIT is all)", also: ctl, example: "ann max-channels", run: func(c *call) error {
			return clearLimits(c, c.words[1], "user-limits", c.words[0])
		}},
		{name: "list_user_limits", arguments: "[NAME]", maxArguments: 1, about: "lists the limits of all users, or of one", run: listUserLimits, also: ctl, example: "ann"},
	}
}

// setLimits sets each limit of a JSON object.
func setLimits(c *call, definition, kind, of string) error {
	var limits map[string]json.RawMessage
	if err := json.Unmarshal([]byte(definition), &limits); err != nil {
		return &exitError{exitUsage, errNotJSON}
	}
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if err := c.put(path(kind, of, name), map[string]any{"value": limits[name]}); err != nil {
			return err
		}
	}
	return nil
}

// limitNames are the names of all limits.
var limitNames = map[string][]string{
	"vhost-limits": {"max-connections", "max-queues"},
	"user-limits":  {"max-connections", "max-channels"},
}

// clearLimits removes a limit, or all.
func clearLimits(c *call, which, kind, of string) error {
	names := []string{which}
	if which == "all" {
		names = limitNames[kind]
	}
	for _, name := range names {
		if err := c.delete(path(kind, of, name)); err != nil {
			return err
		}
	}
	return nil
}

func listVHostLimits(c *call) error {
	var rows []api.VHostLimits
	if err := c.get(path(append([]string{"vhost-limits"}, c.words...)...), &rows); err != nil {
		return err
	}
	limits := column[api.VHostLimits]{"limits", func(l api.VHostLimits) any { return l.Value }}
	return list(c, "Listing limits of vhosts ...", columnsOf("vhost limits", limits), nil, rows)
}

func listUserLimits(c *call) error {
	var rows []api.UserLimits
	if err := c.get(path(append([]string{"user-limits"}, c.words...)...), &rows); err != nil {
		return err
	}
	limits := column[api.UserLimits]{"limits", func(l api.UserLimits) any { return l.Value }}
	return list(c, "Listing limits of users ...", columnsOf("user limits", limits), nil, rows)
}
