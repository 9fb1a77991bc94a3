package main

import (
	"encoding/json"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// policyVerbs are the same for policies and for operator policies.
func policyVerbs() []verb {
	var all []verb
	for _, k := range []struct{ name, names, what, where string }{
		{"policy", "policies", "policy", "policies"},
		{"operator_policy", "operator_policies", "operator policy", "operator-policies"},
	} {
		set := func(c *call) error { return setPolicy(c, k.where) }
		clear := func(c *call) error { return c.delete(path(k.where, c.options.vhost, c.words[0])) }
		list := func(c *call) error { return listPolicies(c, k.where, k.what) }
		all = append(all,
			verb{name: "set_" + k.name, arguments: "NAME PATTERN DEFINITION", least: 3, maxArguments: 3, run: set, options: []string{"priority", "apply-to"},
				about: "sets a vhost's " + k.what + "; --priority N, --apply-to WHAT; DEFINITION is a JSON object"},
			verb{name: "clear_" + k.name, arguments: "NAME", least: 1, maxArguments: 1, run: clear, about: "removes it"},
			verb{name: "list_" + k.names, run: list, about: "those of a vhost"})
	}
	return all
}

func setPolicy(c *call, where string) error {
	if !json.Valid([]byte(c.words[2])) {
		return &exitError{exitData, errNotJSON}
	}
	priority, err := strconv.ParseInt(c.options.priority, 10, 64)
	if err != nil {
		return usageError("--priority is a whole number, not %q", c.options.priority)
	}
	return c.put(path(where, c.options.vhost, c.words[0]), map[string]any{
		"pattern": c.words[1], "definition": json.RawMessage(c.words[2]), "priority": priority, "apply-to": c.options.applyTo,
	})
}

var policyColumns = []column[api.Policy]{
	{"vhost", "", func(p api.Policy) any { return p.VHost }},
	{"name", "", func(p api.Policy) any { return p.Name }},
	{"pattern", "", func(p api.Policy) any { return p.Pattern }},
	{"apply-to", "", func(p api.Policy) any { return p.ApplyTo }},
	{"definition", "", func(p api.Policy) any { return p.Definition }},
	{"priority", "", func(p api.Policy) any { return p.Priority }},
}

func listPolicies(c *call, where, what string) error {
	var rows []api.Policy
	if err := c.get(path(where, c.options.vhost), &rows); err != nil {
		return err
	}
	title := "Listing policies for vhost "
	if what != "policy" {
		title = "Listing operator policies for vhost "
	}
	return list(c, title+c.options.vhost+" ...", policyColumns, nil, len(policyColumns), rows)
}
