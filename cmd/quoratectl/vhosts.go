package main

import (
	"fmt"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// vhostVerbs are about vhosts.
func vhostVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_vhosts", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the vhosts", columns: names(vhostColumns), run: listVHosts, also: ctl, example: "name description"},
		{name: "add_vhost", arguments: "NAME", least: 1, maxArguments: 1, about: "creates a vhost", run: addVHost, options: []option{descriptionOption, tagsOption}, also: ctl, example: "shop --description 'the shop'"},
		{name: "delete_vhost", arguments: "NAME", least: 1, maxArguments: 1, about: "deletes a vhost and everything in it", run: func(c *call) error { return c.delete(path("vhosts", c.words[0])) }, also: ctl, example: "shop"},
	}
}

var vhostColumns = []column[api.VHost]{
	{"name", "", func(v api.VHost) any { return v.Name }},
	{"description", "", func(v api.VHost) any { return v.Description }},
	{"tags", "", func(v api.VHost) any { return v.Tags }},
	{"cluster_state", "", func(v api.VHost) any { return v.ClusterState }},
}

func listVHosts(c *call) error {
	var rows []api.VHost
	if err := c.get(path("vhosts"), &rows); err != nil {
		return err
	}
	return list(c, "Listing vhosts ...", vhostColumns, c.words, 1, rows)
}

// addVHost creates a vhost. An existing one stays as it is.
func addVHost(c *call) error {
	var row api.VHost
	status, err := c.client.ask(c, http.MethodGet, path("vhosts", c.words[0]), nil, &row, http.StatusNotFound)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		return &exitError{exitFailed, fmt.Errorf("vhost %q already exists", c.words[0])}
	}
	return c.put(path("vhosts", c.words[0]), map[string]string{"description": c.option("description"), "tags": c.option("tags")})
}
