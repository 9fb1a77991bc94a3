package main

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// vhostVerbs are about vhosts.
func vhostVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_vhosts", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the vhosts", columns: vhostColumns.names(), run: listVHosts, also: ctl, example: "name description"},
		{name: "add_vhost", arguments: "NAME", least: 1, maxArguments: 1, about: "creates a vhost", run: addVHost, options: []option{descriptionOption, tagsOption, queueTypeOption, redeclareOption}, also: ctl, example: "shop --description 'the shop'"},
		{name: "update_vhost_metadata", arguments: "NAME", least: 1, maxArguments: 1, about: "changes the description, the tags or the settings of a vhost; what is not given is left unchanged", run: updateVHost, options: []option{descriptionOption, tagsOption, queueTypeOption, redeclareOption}, also: ctl, example: "shop --tags production,eu"},
		{name: "set_vhost_tags", arguments: "NAME [TAG ...]", least: 1, maxArguments: -1, about: "replaces the tags of a vhost", run: setVHostTags, also: ctl, example: "shop production"},
		{name: "enable_vhost_deletion_protection", arguments: "NAME", least: 1, maxArguments: 1, about: "protects a vhost from deletion", also: ctl, example: "shop",
			run: func(c *call) error { return c.post(path("vhosts", c.words[0], "deletion", "protection"), nil, nil) }},
		{name: "disable_vhost_deletion_protection", arguments: "NAME", least: 1, maxArguments: 1, about: "lifts the protection of a vhost from deletion", also: ctl, example: "shop",
			run: func(c *call) error { return c.delete(path("vhosts", c.words[0], "deletion", "protection")) }},
		{name: "delete_vhost", arguments: "NAME", least: 1, maxArguments: 1, about: "deletes a vhost and everything in it", run: func(c *call) error { return c.delete(path("vhosts", c.words[0])) }, also: ctl, example: "shop"},
	}
}

var vhostColumns = columnsOf[api.VHost]("name")
var listVHosts = listing(vhostColumns, "Listing vhosts ...", "vhosts")

// vhostExists reports whether a vhost exists.
func vhostExists(c *call, name string) (bool, error) {
	var row api.VHost
	status, err := c.client.ask(c, http.MethodGet, path("vhosts", name), nil, &row, http.StatusNotFound)
	return status == http.StatusOK, err
}

// vhostOf reads the options that describe a vhost.
func vhostOf(c *call) (map[string]any, error) {
	described := map[string]any{}
	for _, name := range []string{"description", "tags", "redeclare"} {
		if c.given(name) {
			described[name] = c.option(name)
		}
	}
	switch kind := c.option("default-queue-type"); kind {
	case "":
	case "classic", "quorum":
		described["default_queue_type"] = kind
	default:
		return nil, usageError("--default-queue-type must be classic or quorum, not %q", kind)
	}
	if mode := c.option("redeclare"); c.given("redeclare") && !slices.Contains([]string{"strict", "relaxed", "adopt"}, mode) {
		return nil, usageError("--redeclare must be strict, relaxed or adopt, not %q", mode)
	}
	return described, nil
}

// addVHost creates a vhost. An existing one stays as it is.
func addVHost(c *call) error {
	described, err := vhostOf(c)
	if err != nil {
		return err
	}
	exists, err := vhostExists(c, c.words[0])
	switch {
	case err != nil:
		return err
	case exists:
		return &exitError{exitFailed, fmt.Errorf("vhost %q already exists", c.words[0])}
	}
	return c.put(path("vhosts", c.words[0]), described)
}

// changeVHost changes a vhost that exists.
func changeVHost(c *call, to map[string]any) error {
	exists, err := vhostExists(c, c.words[0])
	switch {
	case err != nil:
		return err
	case !exists:
		return &exitError{exitData, fmt.Errorf("no vhost %q", c.words[0])}
	}
	return c.put(path("vhosts", c.words[0]), to)
}

func updateVHost(c *call) error {
	described, err := vhostOf(c)
	if err != nil {
		return err
	}
	return changeVHost(c, described)
}

func setVHostTags(c *call) error { return changeVHost(c, map[string]any{"tags": c.words[1:]}) }
