package main

import (
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// tokenVerbs manage join tokens.
func tokenVerbs() []verb {
	return []verb{{
		name: "token", about: "manages the tokens that let nodes join, each once",
		verbs: []verb{
			{name: "create", about: "prints a token, which cannot be shown again", run: createToken, example: "--for-node n4 --ttl 1h", options: []option{
				{"ttl", "`TIME` for which it is valid, from 1s to 168h", "10m"},
				{"for-node", "`NODE` that alone may use it", ""},
			}},
			{name: "list", about: "lists tokens, when they expire and who has used them", run: listTokens, live: true},
			{name: "revoke", arguments: "ID", least: 1, maxArguments: 1, about: "revokes a token", run: func(c *call) error { return c.delete(path("quorate", "tokens", c.words[0])) }, example: "7f3a"},
		},
	}}
}

var tokenColumns = columnsOf[api.JoinToken]("id node used_by ttl")

func listTokens(c *call) error {
	var all []api.JoinToken
	if err := c.get(path("quorate", "tokens"), &all); err != nil {
		return err
	}
	return list(c, "Listing tokens ...", tokenColumns, nil, all)
}

// createToken prints only the token, so that a program may read it.
func createToken(c *call) error {
	ttl, err := time.ParseDuration(c.option("ttl"))
	if err != nil {
		return usageError("--ttl must be a duration such as 10m, not %q", c.option("ttl"))
	}
	var made api.JoinToken
	if err := c.post(path("quorate", "tokens"), api.NewJoinToken{TTL: ttl.Milliseconds(), Node: c.option("for-node")}, &made); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(made)
	}
	fmt.Fprintln(c.out, made.Token)
	return nil
}
