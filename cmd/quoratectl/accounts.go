package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var (
	errNotJSON    = errors.New("DEFINITION is not JSON")
	errNoPassword = errors.New("no password was given, neither as an argument nor on the standard input")
)

// accountVerbs are about users and their permissions.
func accountVerbs() []verb {
	ctl := []string{ctlName}
	return []verb{
		{name: "list_users", about: "lists users and their tags", run: listUsers, also: ctl},
		{name: "add_user", arguments: "NAME [PASSWORD]", least: 1, maxArguments: 2, about: "creates a user without tags", more: fromInput, run: addUser, also: ctl, example: "ann secret"},
		{name: "delete_user", arguments: "NAME", least: 1, maxArguments: 1, about: "deletes a user and its permissions", run: deleteUser, also: ctl, example: "ann"},
		{name: "change_password", arguments: "NAME [PASSWORD]", least: 1, maxArguments: 2, about: "changes the password of a user", more: fromInput, run: changePassword, also: ctl, example: "ann other"},
		{name: "set_user_tags", arguments: "NAME [TAG ...]", least: 1, maxArguments: -1, about: "replaces a user's tags", more: " Tags are administrator, monitoring, policymaker, management and impersonator.", run: setUserTags, also: ctl, example: "ann monitoring policymaker"},
		{name: "authenticate_user", arguments: "NAME [PASSWORD]", least: 1, maxArguments: 2, about: "fails unless a user has the password", more: fromInput, run: authenticateUser, also: ctl, example: "ann secret"},
		{name: "clear_password", arguments: "NAME", least: 1, maxArguments: 1, about: "removes a user's password, so that nobody can log in with one", run: clearPassword, also: ctl, example: "ann"},
		{name: "hash_password", arguments: "[PASSWORD]", maxArguments: 1, about: "shows the hash of a password, for a definitions file", more: fromInput + " It is made with SHA-256; a node replaces it by a better one at the user's first login.", run: hashPassword, also: ctl, example: "secret"},
		{name: "list_permissions", about: "lists what users may do in a vhost", run: listPermissions, also: ctl, example: "-p shop"},
		{name: "list_user_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "lists what a user may do, by vhost", run: listUserPermissions, also: ctl, example: "ann"},
		{name: "set_permissions", arguments: "NAME CONFIGURE WRITE READ", least: 4, maxArguments: 4, about: "sets what a user may do in a vhost, by three regular expressions", run: setPermissions, also: ctl, example: "-p shop ann '' '^orders' '^orders'"},
		{name: "set_permissions_globally", arguments: "NAME CONFIGURE WRITE READ", least: 4, maxArguments: 4, about: "sets what a user may do in every vhost there is, by three regular expressions", run: setPermissionsGlobally, also: ctl, example: "ann '' '.*' '.*'"},
		{name: "clear_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "removes all permissions of a user in a vhost", run: func(c *call) error { return c.delete(path("permissions", c.options.vhost, c.words[0])) }, also: ctl, example: "-p shop ann"},
		{name: "list_topic_permissions", about: "lists the routing keys to which users are restricted at topic exchanges of a vhost", run: listTopicPermissions, also: ctl, example: "-p shop"},
		{name: "list_user_topic_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "lists the routing keys to which a user is restricted, by vhost", run: listUserTopicPermissions, also: ctl, example: "ann"},
		{name: "set_topic_permissions", arguments: "NAME EXCHANGE WRITE READ", least: 4, maxArguments: 4, about: "restricts a user's routing keys at a topic exchange, by two regular expressions", run: setTopicPermissions, also: ctl, example: "ann amq.topic '^{username}\\.' '.*'"},
		{name: "clear_topic_permissions", arguments: "NAME [EXCHANGE]", least: 1, maxArguments: 2, about: "lifts the restrictions of one topic exchange, or of all in a vhost", run: clearTopicPermissions, also: ctl, example: "ann amq.topic"},
	}
}

// fromInput is how passwords are kept from the list of processes.
const fromInput = " A password that is not given as an argument is the first line of the standard input, where other users of the machine cannot see it."

var userColumns = columnsOf("user tags",
	column[api.User]{"user", func(u api.User) any { return u.Name }},
)

var listUsers = listing(userColumns, "Listing users ...", "users")

// readPassword is the second argument, or the first line of the standard input.
func readPassword(c *call) (string, error) {
	if len(c.words) > 1 {
		return c.words[1], nil
	}
	return passwordFromInput(c)
}

func passwordFromInput(c *call) (string, error) {
	line, err := bufio.NewReader(c.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", &exitError{exitUsage, errNoPassword}
	}
	return line, nil
}

// findUser reads a user's record. found is false, without an error, if there is none.
func findUser(c *call, name string) (u api.User, found bool, err error) {
	status, err := c.client.ask(c, http.MethodGet, path("users", name), nil, &u, http.StatusNotFound)
	return u, err == nil && status != http.StatusNotFound, err
}

// mustUser is user, but it is an error if there is none.
func mustUser(c *call, name string) (api.User, error) {
	u, found, err := findUser(c, name)
	if err == nil && !found {
		err = noUser(name)
	}
	return u, err
}

func noUser(name string) error { return &exitError{exitNoUser, fmt.Errorf("no user %q", name)} }

func deleteUser(c *call) error {
	if _, err := mustUser(c, c.words[0]); err != nil {
		return err
	}
	return c.delete(path("users", c.words[0]))
}

func addUser(c *call) error {
	password, err := readPassword(c)
	if err != nil {
		return err
	}
	if _, found, err := findUser(c, c.words[0]); err != nil || found {
		if found {
			err = fmt.Errorf("user %q already exists", c.words[0])
		}
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{"password": password, "tags": []string{}})
}

func changePassword(c *call) error {
	password, err := readPassword(c)
	if err != nil {
		return err
	}
	u, err := mustUser(c, c.words[0])
	if err != nil {
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{"password": password, "tags": u.Tags})
}

func setUserTags(c *call) error {
	u, err := mustUser(c, c.words[0])
	if err != nil {
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{
		"password_hash": u.PasswordHash, "hashing_algorithm": u.HashingAlgorithm, "tags": c.words[1:],
	})
}

var listPermissions = listing(columnsOf[api.Permission]("user configure write read"), "Listing permissions for vhost VHOST ...", "vhosts", "VHOST", "permissions")

var listUserPermissions = listing(columnsOf[api.Permission]("vhost configure write read"), "Listing permissions for user WORD ...", "users", "WORD", "permissions")

func setPermissions(c *call) error {
	return c.put(path("permissions", c.options.vhost, c.words[0]), map[string]string{
		"configure": c.words[1], "write": c.words[2], "read": c.words[3],
	})
}

var listTopicPermissions = listing(columnsOf[api.TopicPermission]("user exchange write read"), "Listing topic permissions for vhost VHOST ...", "vhosts", "VHOST", "topic-permissions")

var listUserTopicPermissions = listing(columnsOf[api.TopicPermission]("vhost exchange write read"), "Listing topic permissions for user WORD ...", "users", "WORD", "topic-permissions")

func setTopicPermissions(c *call) error {
	return c.put(path("topic-permissions", c.options.vhost, c.words[0]), map[string]string{
		"exchange": c.words[1], "write": c.words[2], "read": c.words[3],
	})
}

func clearTopicPermissions(c *call) error {
	return c.delete(path(append([]string{"topic-permissions", c.options.vhost}, c.words...)...))
}

// authenticateUser logs in as the user. One without a tag is told so, which takes the password.
func authenticateUser(c *call) error {
	password, err := readPassword(c)
	if err != nil {
		return err
	}
	as, refusal := *c.client, api.Failure{}
	as.user, as.password = c.words[0], password
	status, err := as.ask(c, http.MethodGet, path("whoami"), nil, &refusal, http.StatusUnauthorized)
	if err != nil {
		return err
	}
	if status == http.StatusUnauthorized && refusal.Reason != "Not management user" {
		return &exitError{exitDenied, fmt.Errorf("user %q is not authenticated: %s", c.words[0], refusal.Reason)}
	}
	c.say("Success")
	return nil
}

func clearPassword(c *call) error {
	u, err := mustUser(c, c.words[0])
	if err != nil {
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{"password_hash": "", "tags": u.Tags})
}

// hashPassword makes the hash that RabbitMQ's definitions have: a salt of 4 bytes, and the SHA-256
// of it and the password.
func hashPassword(c *call) error {
	password := ""
	if len(c.words) > 0 {
		password = c.words[0]
	} else {
		var err error
		if password, err = passwordFromInput(c); err != nil {
			return err
		}
	}
	var salt [4]byte
	rand.Read(salt[:])
	sum := sha256.Sum256(append(salt[:], password...))
	_, err := fmt.Fprintln(c.out, base64.StdEncoding.EncodeToString(append(salt[:], sum[:]...)))
	return err
}

func setPermissionsGlobally(c *call) error {
	if _, err := mustUser(c, c.words[0]); err != nil {
		return err
	}
	var vhosts []api.VHost
	if err := c.get(path("vhosts")+"?disable_stats=true", &vhosts); err != nil {
		return err
	}
	for _, v := range vhosts {
		c.options.vhost = v.Name
		if err := setPermissions(c); err != nil {
			return fmt.Errorf("vhost %q: %w", v.Name, err)
		}
	}
	return nil
}

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
	limits := column[api.VHostLimits]{"limits", func(l api.VHostLimits) any { return l.Value }}
	return listAt(c, path(append([]string{"vhost-limits"}, c.words...)...), "Listing limits of vhosts ...", columnsOf("vhost limits", limits), nil)
}

func listUserLimits(c *call) error {
	limits := column[api.UserLimits]{"limits", func(l api.UserLimits) any { return l.Value }}
	return listAt(c, path(append([]string{"user-limits"}, c.words...)...), "Listing limits of users ...", columnsOf("user limits", limits), nil)
}
