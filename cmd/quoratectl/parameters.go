package main

import (
	"encoding/json"
	"errors"

	"github.com/quorate/quorate/cluster/mgmt/api"
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

func listGlobalParameters(c *call) error {
	var rows []api.GlobalParameter
	if err := c.get(path("global-parameters"), &rows); err != nil {
		return err
	}
	return list(c, "Listing global runtime parameters ...", columnsOf[api.GlobalParameter]("name value"), nil, rows)
}

func setGlobalParameter(c *call) error {
	if !json.Valid([]byte(c.words[1])) {
		return &exitError{exitData, errors.New("VALUE is not JSON")}
	}
	return c.put(path("global-parameters", c.words[0]), map[string]any{"value": json.RawMessage(c.words[1])})
}
