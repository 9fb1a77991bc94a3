package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

var (
	errNotJSON    = errors.New("DEFINITION is not JSON")
	errNoPassword = errors.New("no password was given, neither as an argument nor on the standard input")
)

// accountVerbs are about users and their permissions.
func accountVerbs() []verb {
	return []verb{
		{name: "list_users", about: "users and their tags", run: listUsers},
		{name: "add_user", arguments: "NAME [PASSWORD]", least: 1, maxArguments: 2, about: "creates a user without tags; the password can be given on standard input", run: addUser},
		{name: "delete_user", arguments: "NAME", least: 1, maxArguments: 1, about: "deletes a user and its permissions", run: func(c *call) error { return c.delete(path("users", c.words[0])) }},
		{name: "change_password", arguments: "NAME [PASSWORD]", least: 1, maxArguments: 2, about: "gives a user another password", run: changePassword},
		{name: "set_user_tags", arguments: "NAME [TAG ...]", least: 1, maxArguments: -1, about: "replaces a user's tags: administrator, monitoring, policymaker, management, impersonator", run: setUserTags},
		{name: "list_permissions", about: "what users may do in a vhost", run: listPermissions},
		{name: "list_user_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "what a user may do, by vhost", run: listUserPermissions},
		{name: "set_permissions", arguments: "NAME CONFIGURE WRITE READ", least: 4, maxArguments: 4, about: "sets what a user may do in a vhost, by three patterns", run: setPermissions},
		{name: "list_topic_permissions", about: "routing keys to which users are restricted at topic exchanges of a vhost", run: listTopicPermissions},
		{name: "list_user_topic_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "those of a user, by vhost", run: listUserTopicPermissions},
		{name: "set_topic_permissions", arguments: "NAME EXCHANGE WRITE READ", least: 4, maxArguments: 4, about: "restricts a user's routing keys at a topic exchange, by two patterns", run: setTopicPermissions},
		{name: "clear_topic_permissions", arguments: "NAME [EXCHANGE]", least: 1, maxArguments: 2, about: "lifts the restrictions of one topic exchange, or of all in a vhost", run: clearTopicPermissions},
		{name: "clear_permissions", arguments: "NAME", least: 1, maxArguments: 1, about: "removes all permissions of a user in a vhost", run: func(c *call) error { return c.delete(path("permissions", c.options.vhost, c.words[0])) }},
	}
}

var userColumns = []column[api.User]{
	{"user", "", func(u api.User) any { return u.Name }},
	{"tags", "", func(u api.User) any { return u.Tags }},
}

func listUsers(c *call) error {
	var rows []api.User
	if err := c.get(path("users"), &rows); err != nil {
		return err
	}
	return list(c, "Listing users ...", userColumns, nil, len(userColumns), rows)
}

// password is the second argument, or the first line of the standard input.
func (c *call) password() (string, error) {
	if len(c.words) > 1 {
		return c.words[1], nil
	}
	line, err := bufio.NewReader(c.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", &exitError{exitUsage, errNoPassword}
	}
	return line, nil
}

// user reads a user's record. found is false, without an error, if there is none.
func (c *call) user(name string) (u api.User, found bool, err error) {
	err = c.get(path("users", name), &u)
	var e *exitError
	if errors.As(err, &e) && e.code == exitData {
		return u, false, nil
	}
	return u, err == nil, err
}

// mustUser is user, but it is an error if there is none.
func (c *call) mustUser(name string) (api.User, error) {
	u, found, err := c.user(name)
	if err == nil && !found {
		err = &exitError{exitData, fmt.Errorf("no user %q", name)}
	}
	return u, err
}

func addUser(c *call) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	if _, found, err := c.user(c.words[0]); err != nil || found {
		if found {
			err = fmt.Errorf("user %q already exists", c.words[0])
		}
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{"password": password, "tags": []string{}})
}

func changePassword(c *call) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	u, err := c.mustUser(c.words[0])
	if err != nil {
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{"password": password, "tags": u.Tags})
}

func setUserTags(c *call) error {
	u, err := c.mustUser(c.words[0])
	if err != nil {
		return err
	}
	return c.put(path("users", c.words[0]), map[string]any{
		"password_hash": u.PasswordHash, "hashing_algorithm": u.HashingAlgorithm, "tags": c.words[1:],
	})
}

var permissionColumns = []column[api.Permission]{
	{"user", "", func(p api.Permission) any { return p.User }},
	{"vhost", "", func(p api.Permission) any { return p.VHost }},
	{"configure", "", func(p api.Permission) any { return p.Configure }},
	{"write", "", func(p api.Permission) any { return p.Write }},
	{"read", "", func(p api.Permission) any { return p.Read }},
}

func listPermissions(c *call) error {
	var rows []api.Permission
	if err := c.get(path("vhosts", c.options.vhost, "permissions"), &rows); err != nil {
		return err
	}
	return list(c, "Listing permissions for vhost "+c.options.vhost+" ...", permissionColumns, []string{"user", "configure", "write", "read"}, 0, rows)
}

func listUserPermissions(c *call) error {
	var rows []api.Permission
	if err := c.get(path("users", c.words[0], "permissions"), &rows); err != nil {
		return err
	}
	return list(c, "Listing permissions for user "+c.words[0]+" ...", permissionColumns, []string{"vhost", "configure", "write", "read"}, 0, rows)
}

func setPermissions(c *call) error {
	return c.put(path("permissions", c.options.vhost, c.words[0]), map[string]string{
		"configure": c.words[1], "write": c.words[2], "read": c.words[3],
	})
}

var topicPermissionColumns = []column[api.TopicPermission]{
	{"user", "", func(p api.TopicPermission) any { return p.User }},
	{"vhost", "", func(p api.TopicPermission) any { return p.VHost }},
	{"exchange", "", func(p api.TopicPermission) any { return p.Exchange }},
	{"write", "", func(p api.TopicPermission) any { return p.Write }},
	{"read", "", func(p api.TopicPermission) any { return p.Read }},
}

func listTopicPermissions(c *call) error {
	var rows []api.TopicPermission
	if err := c.get(path("vhosts", c.options.vhost, "topic-permissions"), &rows); err != nil {
		return err
	}
	return list(c, "Listing topic permissions for vhost "+c.options.vhost+" ...", topicPermissionColumns, []string{"user", "exchange", "write", "read"}, 0, rows)
}

func listUserTopicPermissions(c *call) error {
	var rows []api.TopicPermission
	if err := c.get(path("users", c.words[0], "topic-permissions"), &rows); err != nil {
		return err
	}
	return list(c, "Listing topic permissions for user "+c.words[0]+" ...", topicPermissionColumns, []string{"vhost", "exchange", "write", "read"}, 0, rows)
}

func setTopicPermissions(c *call) error {
	return c.put(path("topic-permissions", c.options.vhost, c.words[0]), map[string]string{
		"exchange": c.words[1], "write": c.words[2], "read": c.words[3],
	})
}

func clearTopicPermissions(c *call) error {
	return c.delete(path(append([]string{"topic-permissions", c.options.vhost}, c.words...)...))
}
