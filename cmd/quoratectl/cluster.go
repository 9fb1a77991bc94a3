package main

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// clusterVerbs show the cluster as a whole.
func clusterVerbs() []verb {
	ctl, diagnostics := []string{ctlName}, []string{diagnosticsName}
	both := []string{ctlName, diagnosticsName}
	return []verb{
		{name: "cluster_status", about: "shows the cluster: its nodes, versions, alarms and listeners", run: clusterStatus, also: both, live: true},
		{name: "set_cluster_name", arguments: "NAME", least: 1, maxArguments: 1, about: "sets the name under which the cluster is shown", more: " Nodes identify the cluster by the name in their settings, which does not change.", run: setClusterName, also: ctl, example: "east"},
		{name: "memory_breakdown", arguments: "[NODE]", maxArguments: 1, about: "shows what the memory of a node is used for", run: memoryBreakdown, also: diagnostics, live: true, example: "n1"},
		{name: "has_reached_target_cluster_size", about: "fails unless all nodes of the cluster are up", run: passes("reached-target-cluster-size", "All nodes of the cluster are up"), also: []string{upgradeName}},
		{name: "await_online_nodes", arguments: "COUNT", least: 1, maxArguments: 1, about: "waits until this many nodes are up, at most 120 s", run: awaitNodes, also: ctl, timeout: awaitLimit, example: "3 -t 300"},
		{name: "report", about: "shows everything that a bug report or question about a cluster should include", more: " It contains no passwords, password hashes or messages.", run: report, also: ctl, timeout: 300},
		{name: "listeners", about: "lists where the nodes listen", run: listListeners, also: diagnostics},
		{name: "alarms", about: "lists the alarms in effect in the cluster", run: listAlarms, also: diagnostics, live: true},
		{name: "server_version", about: "shows the node's version", run: version, also: diagnostics, twin: true},
		{name: "discover_peers", about: "lists the nodes of the cluster, and whether they are up", run: discoverPeers, also: diagnostics, twin: true},
		{name: "metadata_store_status", about: "shows who leads the catalog, and whether the node serves it", run: catalogStatus, also: diagnostics, live: true},
		{name: "resolve_hostname", arguments: "HOST", least: 1, maxArguments: 1, about: "shows the addresses that a name has on this machine", run: resolveHost, also: diagnostics, example: "localhost"},
		{name: "list_feature_flags", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the versions of the replicated state that the cluster has reached", run: listFlags, columns: flagColumns.names(), also: ctl, example: "name state"},
		{name: "enable_feature_flag", arguments: "NAME|all", least: 1, maxArguments: 1, about: "succeeds if the flag is enabled: flags are enabled automatically once all nodes support them", run: enableFlag, also: ctl, example: "all"},
		{name: "list_deprecated_features", about: "lists deprecated features, of which there are none", run: listDeprecated, also: both, twin: true},
	}
}

var flagColumns = columnsOf[api.FeatureFlag]("name state")
var listFlags = listing(flagColumns, "Listing feature flags ...", "feature-flags")

func enableFlag(c *call) error {
	return c.put(path("feature-flags", c.words[0], "enable"), map[string]string{"name": c.words[0]})
}

var listDeprecated = listing(columnsOf[api.DeprecatedFeature]("name"), "Listing deprecated features ...", "deprecated-features")

var listenerColumns = columnsOf("node protocol interface port tls speaks",
	column[api.NodeListener]{"interface", func(l api.NodeListener) any { return l.IPAddress }},
	column[api.NodeListener]{"speaks", func(l api.NodeListener) any { return strings.Join(l.Speaks, ", ") }},
)

func listListeners(c *call) error {
	var o api.Overview
	if err := c.get(path("overview"), &o); err != nil {
		return err
	}
	return list(c, "Listing listeners of node "+o.Node+" ...", listenerColumns, nil, o.Listeners)
}

var alarmColumns = columnsOf[api.Alarm]("node resource")

// alarmsOf reads the alarms of the cluster. A check that fails is an answer, too.
func alarmsOf(c *call) ([]api.Alarm, error) {
	var result api.Check
	_, err := c.client.ask(c, "GET", checksPath+"alarms", nil, &result, 503)
	return result.Alarms, err
}

func listAlarms(c *call) error {
	all, err := alarmsOf(c)
	if err != nil {
		return err
	}
	return list(c, "Listing alarms in effect in the cluster ...", alarmColumns, nil, all)
}

// clusterReport is cluster_status as JSON.
type clusterReport struct {
	Name    string             `json:"cluster_name"`
	Product string             `json:"product_version"`
	Nodes   []string           `json:"disk_nodes"`
	Running []string           `json:"running_nodes"`
	Alarms  []api.Alarm        `json:"alarms"`
	Local   []api.NodeListener `json:"listeners"`
	Flags   []api.FeatureFlag  `json:"feature_flags"`
}

func clusterStatus(c *call) error {
	var o api.Overview
	if err := c.get(path("overview"), &o); err != nil {
		return err
	}
	var nodes []api.Node
	if err := c.get(path("nodes"), &nodes); err != nil {
		return err
	}
	s := clusterReport{Name: o.ClusterName, Product: o.ProductVersion, Local: o.Listeners}
	for _, n := range nodes {
		if s.Nodes = append(s.Nodes, n.Name); n.Running {
			s.Running = append(s.Running, n.Name)
		}
	}
	var err error
	if s.Alarms, err = alarmsOf(c); err != nil {
		return err
	}
	if err := c.get(path("feature-flags"), &s.Flags); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(s)
	}
	if err := c.fields("Cluster status of node "+o.Node+" ...", field{"cluster_name", s.Name}, field{"product_version", s.Product},
		field{"nodes", strings.Join(s.Nodes, " ")}, field{"running_nodes", strings.Join(s.Running, " ")}); err != nil {
		return err
	}
	return cmp.Or(list(c, "Alarms:", alarmColumns, nil, s.Alarms), list(c, "Listeners of node "+o.Node+":", listenerColumns, nil, s.Local), list(c, "Feature flags:", flagColumns, nil, s.Flags))
}

// awaitNodes waits for a number of nodes.
func awaitNodes(c *call) error {
	want, err := countIn(c.words, 0, 0)
	if err != nil {
		return err
	}
	return await(c, func() error {
		var nodes []api.Node
		if err := c.get(path("nodes"), &nodes); err != nil {
			return err
		}
		up := uint64(0)
		for _, n := range nodes {
			if n.Running {
				up++
			}
		}
		if up < want {
			return fmt.Errorf("%d of %d nodes are up", up, want)
		}
		return nil
	})
}

// report shows what other verbs show, one after the other. What a node does not answer is said,
// and the rest follows.
func report(c *call) error {
	if c.options.formatter == "json" {
		return usageError("report is text")
	}
	for _, run := range []func(*call) error{
		status, clusterStatus, clockStatus, listNodes, listSettings, listReplicas, listVHosts, listConnections, listChannels, listUsers, listVHostLimits, listUserLimits,
	} {
		if err := run(c); err != nil {
			fmt.Fprintln(c.out, "Error:", err)
		}
		fmt.Fprintln(c.out)
	}
	var vhosts []api.VHost
	if err := c.get(path("vhosts")+"?disable_stats=true", &vhosts); err != nil {
		return err
	}
	for _, v := range vhosts {
		c.options.vhost = v.Name
		for _, run := range []func(*call) error{
			listQueues, listExchanges, listBindings, listConsumers, listPermissions, listTopicPermissions, listPolicies, listOperatorPolicies,
		} {
			if err := run(c); err != nil {
				fmt.Fprintln(c.out, "Error:", err)
			}
			fmt.Fprintln(c.out)
		}
	}
	return nil
}

var onlineColumns = columnsOf[api.Node]("name running")

var discoverPeers = listing(onlineColumns, "Listing the nodes of the cluster ...", "nodes")

func catalogStatus(c *call) error {
	var s api.Status
	if err := c.get("/api/quorate/status", &s); err != nil {
		return err
	}
	return c.show(map[string]any{"node": s.Node, "leader": s.CatalogLeader, "routes_fresh": s.RoutesFresh, "fsm_version": s.FSMVersion},
		"Status of the catalog on node "+s.Node+" ...", field{"leader", s.CatalogLeader}, field{"routes_fresh", s.RoutesFresh}, field{"fsm_version", s.FSMVersion})
}

func resolveHost(c *call) error {
	addresses, err := net.DefaultResolver.LookupHost(c, c.words[0])
	if err != nil {
		return &exitError{exitData, err}
	}
	return list(c, "Addresses of "+c.words[0]+" ...", columnsOf("address", column[string]{"address", func(a string) any { return a }}), nil, addresses)
}

func setClusterName(c *call) error {
	return c.put(path("cluster-name"), api.ClusterName{Name: c.words[0]})
}

// memoryBreakdown shows what is not 0, the largest first.
func memoryBreakdown(c *call) error {
	node := ""
	if len(c.words) > 0 {
		node = c.words[0]
	} else {
		var o api.Overview
		if err := c.get(path("overview"), &o); err != nil {
			return err
		}
		node = o.Node
	}
	var answer struct {
		Memory map[string]any `json:"memory"`
	}
	if err := c.get(path("nodes", node, "memory"), &answer); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(answer.Memory)
	}
	var rows []use
	for name, value := range answer.Memory {
		if bytes, ok := value.(float64); ok && bytes > 0 {
			rows = append(rows, use{name, int64(bytes)})
		}
	}
	slices.SortFunc(rows, func(a, b use) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) })
	return list(c, "Memory of node "+node+" ...", useColumns, nil, rows)
}

// use is something that memory is used for.
type use struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

var useColumns = columnsOf[use]("name bytes")

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
var listTokens = listing(tokenColumns, "Listing tokens ...", "quorate", "tokens")

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
