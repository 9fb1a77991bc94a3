package main

import (
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// tokenVerbs manage join tokens.
func tokenVerbs() []verb {
	return []verb{{
		name: "token", arguments: "create | list | revoke ID", least: 1, maxArguments: 2,
		about: "tokens that let a node join, each once: create prints one, which cannot be shown again; --ttl TIME: its lifetime (10m; 1s to 168h), --for-node NODE: the only name that may use it; list shows when tokens expire and who has used them; revoke ID revokes one",
		run:   runToken, options: []string{"ttl", "for-node"},
	}}
}

var tokenColumns = []column[api.JoinToken]{
	{"id", "of the token", func(t api.JoinToken) any { return t.ID }},
	{"node", "the only name that it is good for", func(t api.JoinToken) any { return t.Node }},
	{"used_by", "node that it has let in", func(t api.JoinToken) any { return t.UsedBy }},
	{"ttl", "ms that are left", func(t api.JoinToken) any { return t.TTL }},
}

func runToken(c *call) error {
	what, rest := c.words[0], len(c.words)-1
	switch {
	case what == "create" && rest == 0:
		return createToken(c)
	case what == "list" && rest == 0:
		var all []api.JoinToken
		if err := c.get(path("quorate", "tokens"), &all); err != nil {
			return err
		}
		return list(c, "Listing tokens ...", tokenColumns, nil, len(tokenColumns), all)
	case what == "revoke" && rest == 1:
		return c.delete(path("quorate", "tokens", c.words[1]))
	}
	return usageError("token create, list or revoke ID")
}

// createToken prints only the token, so that a program may read it.
func createToken(c *call) error {
	ttl, err := time.ParseDuration(c.options.ttl)
	if err != nil {
		return usageError("--ttl is a time such as 10m, not %q", c.options.ttl)
	}
	var made api.JoinToken
	if err := c.post(path("quorate", "tokens"), api.NewJoinToken{TTL: ttl.Milliseconds(), Node: c.options.forNode}, &made); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(made)
	}
	fmt.Fprintln(c.out, made.Token)
	return nil
}
