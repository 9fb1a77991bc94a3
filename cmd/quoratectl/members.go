package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// memberVerbs change where the replicas of queues are.
func memberVerbs() []verb {
	patterns, queues := []option{vhostPattern, queuePattern}, []string{queuesName}
	return []verb{
		{name: "add_member", arguments: "QUEUE NODE", least: 2, maxArguments: 2, about: "adds a replica of a queue on a node", timeout: 60, also: queues, example: "orders n4",
			run: func(c *call) error {
				defer c.progress(memberProgress(c, c.words[0], c.words[1]))()
				return c.post(path("queues", "quorum", c.options.vhost, c.words[0], "replicas", "add"), api.ReplicaNode{Node: c.words[1]}, nil)
			}},
		{name: "delete_member", arguments: "QUEUE NODE", least: 2, maxArguments: 2, about: "removes a queue's replica from a node, with its data", timeout: 60, also: queues, example: "orders n4",
			run: func(c *call) error {
				return c.client.do(c, http.MethodDelete, path("queues", "quorum", c.options.vhost, c.words[0], "replicas", "delete"), api.ReplicaNode{Node: c.words[1]}, nil)
			}},
		{name: "grow", arguments: "NODE all|even", least: 2, maxArguments: 2, about: "adds a replica of queues on a node: of all queues, or of those with an even number of replicas",
			options: patterns, also: queues, example: "n4 all --queue-pattern '^orders'", timeout: 600, run: func(c *call) error {
				defer c.progress(queueProgress(c, "have a replica on "+c.words[0], func(q *api.Queue) bool { return slices.Contains(q.Members, c.words[0]) }))()
				return changeMembers(c, http.MethodPost, path("queues", "quorum", "replicas", "on", c.words[0], "grow"), api.Selection{Strategy: c.words[1]})
			}},
		{name: "shrink", arguments: "NODE", least: 1, maxArguments: 1, about: "removes all replicas from a node, except those that are the only one of their queue",
			options: patterns, also: queues, example: "n4", timeout: 600, run: func(c *call) error {
				defer c.progress(queueProgress(c, "have no replica on "+c.words[0], func(q *api.Queue) bool { return !slices.Contains(q.Members, c.words[0]) }))()
				return changeMembers(c, http.MethodDelete, path("queues", "quorum", "replicas", "on", c.words[0], "shrink"), api.Selection{})
			}},
		{name: "grow_to_count", arguments: "COUNT", least: 1, maxArguments: 1, about: "adds replicas to queues with fewer than this many, as far as nodes are up",
			options: patterns, also: queues, example: "3", timeout: 600, run: func(c *call) error {
				count, err := strconv.Atoi(c.words[0])
				if err != nil {
					return usageError("COUNT must be a whole number, not %q", c.words[0])
				}
				defer c.progress(queueProgress(c, "have "+c.words[0]+" replicas", func(q *api.Queue) bool { return len(q.Members) >= count }))()
				return changeMembers(c, http.MethodPost, path("queues", "quorum", "replicas", "grow-to-count"), api.Selection{Count: count})
			}},
		{name: "forget_cluster_node", arguments: "NODE", least: 1, maxArguments: 1, about: "removes a node that has stopped for good, and its replicas",
			run: forgetNode, also: []string{ctlName}, example: "n4"},
	}
}

// forgetNode removes a node. In the API that is idempotent; here an unknown name is more likely a
// mistake.
func forgetNode(c *call) error {
	var nodes []api.Node
	if err := c.get(path("nodes"), &nodes); err != nil {
		return err
	}
	if !slices.ContainsFunc(nodes, func(n api.Node) bool { return n.Name == c.words[0] }) {
		return &exitError{exitData, fmt.Errorf("no node %q", c.words[0])}
	}
	return c.delete(path("nodes", c.words[0]))
}

var changeColumns = columnsOf[api.MemberChange]("vhost name size result")

// changeMembers changes members of the queues selected by the options.
func changeMembers(c *call, method, path string, which api.Selection) error {
	which.VHostPattern, which.QueuePattern = c.option("vhost-pattern"), c.option("queue-pattern")
	var changes []api.MemberChange
	if err := c.client.do(c, method, path, which, &changes); err != nil {
		return err
	}
	if err := list(c, "Changing members of queues ...", changeColumns, nil, changes); err != nil {
		return err
	}
	failed := slices.DeleteFunc(slices.Clone(changes), func(m api.MemberChange) bool { return m.Result == "ok" })
	if len(failed) > 0 {
		return &exitError{exitFailed, fmt.Errorf("%d of %d queues could not be changed", len(failed), len(changes))}
	}
	return nil
}
