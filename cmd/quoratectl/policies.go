package main

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// policyVerbs are the same for policies and for operator policies.
func policyVerbs() []verb {
	ctl := []string{ctlName}
	var all []verb
	for _, k := range []struct {
		name, names, what, where string
		list                     func(*call) error
	}{
		{"policy", "policies", "a policy", "policies", listPolicies},
		{"operator_policy", "operator_policies", "an operator policy", "operator-policies", listOperatorPolicies},
	} {
		set := func(c *call) error { return setPolicy(c, k.where) }
		clear := func(c *call) error { return c.delete(path(k.where, c.options.vhost, c.words[0])) }
		all = append(all,
			verb{name: "set_" + k.name, arguments: "NAME PATTERN DEFINITION", least: 3, maxArguments: 3, run: set, also: ctl,
				about: "sets " + k.what + " of a vhost, by a JSON object, for what has a name that matches a regular expression",
				options: []option{
					{"priority", "`NUMBER`; of several that match, the one with the highest is effective", "0"},
					{"apply-to", "`WHAT` it is for: all, queues, classic_queues, quorum_queues or exchanges", "all"},
				},
				example: `TTL '^orders' '{"message-ttl":60000}' --apply-to queues`},
			verb{name: "clear_" + k.name, arguments: "NAME", least: 1, maxArguments: 1, run: clear, also: ctl, about: "removes " + k.what + " of a vhost", example: "TTL"},
			verb{name: "list_" + k.names, run: k.list, also: ctl, about: "lists the " + strings.ReplaceAll(k.names, "_", " ") + " of a vhost", example: "-p shop"})
	}
	return all
}

func setPolicy(c *call, where string) error {
	if !json.Valid([]byte(c.words[2])) {
		return &exitError{exitData, errNotJSON}
	}
	priority, err := strconv.ParseInt(c.option("priority"), 10, 64)
	if err != nil {
		return usageError("--priority must be a whole number, not %q", c.option("priority"))
	}
	return c.put(path(where, c.options.vhost, c.words[0]), map[string]any{
		"pattern": c.words[1], "definition": json.RawMessage(c.words[2]), "priority": priority, "apply-to": c.option("apply-to"),
	})
}

var policyColumns = columnsOf[api.Policy]("vhost name pattern apply-to definition priority")

var (
	listPolicies         = listing(policyColumns, "Listing policies for vhost VHOST ...", "policies", "VHOST")
	listOperatorPolicies = listing(policyColumns, "Listing operator policies for vhost VHOST ...", "operator-policies", "VHOST")
)

// parameterVerbs are about runtime parameters.
func parameterVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_parameters", about: "lists the runtime parameters of a vhost", more: " They are its limits and its operator policies, which have verbs of their own.", run: listParameters, also: ctl, example: "-p shop"},
		{name: "set_parameter", arguments: "COMPONENT NAME VALUE", least: 3, maxArguments: 3, about: "is refused, and says what to use instead: components belong to plug-ins, and there are none", run: setParameter, also: ctl, example: "shovel s '{}'"},
		{name: "clear_parameter", arguments: "COMPONENT NAME", least: 2, maxArguments: 2, about: "is refused, and says what to use instead", also: ctl, example: "shovel s",
			run: func(c *call) error { return c.delete(path("parameters", c.words[0], c.options.vhost, c.words[1])) }},
		{name: "list_global_parameters", about: "lists the global parameters: values that belong to no vhost", run: listGlobalParameters, also: ctl},
		{name: "set_global_parameter", arguments: "NAME VALUE", least: 2, maxArguments: 2, about: "sets a global parameter, by a JSON value", run: setGlobalParameter, also: ctl, example: `owner '{"team":"east"}'`},
		{name: "clear_global_parameter", arguments: "NAME", least: 1, maxArguments: 1, about: "removes a global parameter", also: ctl, example: "owner",
			run: func(c *call) error { return c.delete(path("global-parameters", c.words[0])) }},
	}
}

var parameterColumns = columnsOf[api.Parameter]("component name value")

func listParameters(c *call) error {
	var all, rows []api.Parameter
	if err := c.get(path("parameters"), &all); err != nil {
		return err
	}
	for _, p := range all {
		if p.VHost == c.options.vhost {
			rows = append(rows, p)
		}
	}
	return list(c, "Listing runtime parameters for vhost "+c.options.vhost+" ...", parameterColumns, nil, rows)
}

func setParameter(c *call) error {
	if !json.Valid([]byte(c.words[2])) {
		return &exitError{exitData, errors.New("VALUE is not JSON")}
	}
	return c.put(path("parameters", c.words[0], c.options.vhost, c.words[1]), map[string]any{"value": json.RawMessage(c.words[2])})
}

var listGlobalParameters = listing(columnsOf[api.GlobalParameter]("name value"), "Listing global runtime parameters ...", "global-parameters")

func setGlobalParameter(c *call) error {
	if !json.Valid([]byte(c.words[1])) {
		return &exitError{exitData, errors.New("VALUE is not JSON")}
	}
	return c.put(path("global-parameters", c.words[0]), map[string]any{"value": json.RawMessage(c.words[1])})
}
