package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Timing of verbs that wait.
const (
	awaitEvery = 200 * time.Millisecond
	awaitLimit = 120 // seconds
)

// operationVerbs are for operators of the cluster.
func operationVerbs() []verb {
	ctl, queues, upgrade := []string{ctlName}, []string{queuesName}, []string{upgradeName}
	return []verb{
		{name: "list_nodes", about: "lists the nodes of the cluster", run: listNodes, live: true},
		{name: "drain", about: "prepares the node for a stop: disconnects clients and moves leaders", run: drain, timeout: awaitLimit, also: upgrade},
		{name: "revive", about: "ends a drain without a stop", run: revive, also: upgrade},
		{name: "await_startup", about: "waits until the node serves clients, at most 120 s", run: awaitStartup, timeout: awaitLimit, also: ctl, example: "-t 300"},
		{name: "await_online_quorum_plus_one", about: "waits until the node can be stopped without a queue losing its majority, at most 120 s", run: awaitQuorum, timeout: awaitLimit, also: upgrade, example: "-t 600"},
		{name: "release_quarantine", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lets a queue that is quarantined on the node lead there again", run: releaseQuarantine, example: "orders"},
		{name: "set_vm_memory_high_watermark", arguments: "FRACTION | absolute SIZE", least: 1, maxArguments: 2, about: "sets how much memory the node may use, until its next start", more: " FRACTION is a fraction of the machine's memory; a SIZE is, for example, 2GiB.", run: setMemoryLimit, also: ctl, example: "0.4"},
		{name: "set_disk_free_limit", arguments: "SIZE | mem_relative FRACTION", least: 1, maxArguments: 2, about: "sets how much of the node's disk must be free, until its next start", more: " A SIZE is, for example, 5GB; FRACTION is a fraction of the machine's memory.", run: setDiskLimit, also: ctl, example: "5GB"},
		{name: "quorum_status", arguments: "QUEUE", least: 1, maxArguments: 1, about: "shows the status of each replica of a queue", run: quorumStatus, also: queues, live: true, example: "orders"},
		{name: "transfer_leadership", arguments: "QUEUE NODE", least: 2, maxArguments: 2, about: "makes a node the leader of a queue", run: transferLeadership, also: queues, example: "orders n2"},
		{
			name: "force_checkpoint", about: "makes every replica of queues write a snapshot now; they normally do so when it is worthwhile",
			run: forceCheckpoint, options: []option{vhostPattern, queuePattern}, timeout: 600, also: queues, example: "--queue-pattern '^orders'",
		},
		{
			name: "rebalance", arguments: "quorum|all", least: 1, maxArguments: 1, about: "spreads the leaders of queues over the nodes",
			run: rebalance, options: []option{vhostPattern, queuePattern}, timeout: 600, also: queues, example: "quorum --vhost-pattern '^shop$'",
		},
	}
}

var nodeColumns = columnsOf("name running being_drained mem_used mem_limit mem_alarm held_memory disk_free disk_free_limit disk_free_alarm",
	column[api.Node]{"held_memory", func(n api.Node) any { return n.Held.Total }},
)

var listNodes = listing(nodeColumns, "Listing nodes ...", "nodes")

func drain(c *call) error {
	c.say("Draining node " + c.options.node + " ...")
	var d api.Drained
	if err := c.post("/api/quorate/drain", nil, &d); err != nil {
		return err
	}
	return c.show(d, "", field{"moved", d.Moved}, field{"left", d.Left})
}

func revive(c *call) error {
	c.say("Reviving node " + c.options.node + " ...")
	return c.post("/api/quorate/revive", nil, nil)
}

// awaitStartup waits for a node that may not be listening yet.
func awaitStartup(c *call) error {
	return await(c, func() error { return c.get(checksPath+"ready-to-serve-clients", nil) })
}

func awaitQuorum(c *call) error {
	c.say(fmt.Sprintf("Will wait for a quorum + 1 of nodes to be online for all quorum queues, up to %d seconds ...", c.options.timeout))
	return await(c, func() error {
		_, err := healthCheck(c, "node-is-quorum-critical")
		return err
	})
}

// await repeats a check until it passes, or time is up.
func await(c *call, check func() error) error {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	var last error
	for {
		err := check()
		switch {
		case err == nil:
			return nil
		case c.Err() == nil:
			last = err
		}
		if code := exitCodeOf(err); code == exitDenied || code == exitData {
			return err
		}
		select {
		case <-c.Done():
			return &exitError{exitTemporary, fmt.Errorf("timed out: %w", last)}
		case <-tick.C:
		}
	}
}

func releaseQuarantine(c *call) error {
	return c.delete(path("quorate", "queues", c.options.vhost, c.words[0], "quarantine"))
}

// setLimit sets a limit of the node to a fraction of its memory, or to a size.
func setLimit(c *call, name, value string, relative bool) error {
	to := api.Limit{Absolute: value}
	if relative {
		part, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return usageError("FRACTION must be a number such as 0.4, not %q", value)
		}
		to = api.Limit{Relative: &part}
	}
	return c.put(path("quorate", "limits", name), to)
}

func setMemoryLimit(c *call) error {
	value, relative := c.words[0], len(c.words) == 1
	if !relative {
		if value != "absolute" {
			return usageError("set_vm_memory_high_watermark takes FRACTION or absolute SIZE")
		}
		value = c.words[1]
	}
	return setLimit(c, "vm_memory_high_watermark", value, relative)
}

func setDiskLimit(c *call) error {
	value, relative := c.words[0], len(c.words) == 2
	if relative {
		if value != "mem_relative" {
			return usageError("set_disk_free_limit takes SIZE or mem_relative FRACTION")
		}
		value = c.words[1]
	}
	return setLimit(c, "disk_free_limit", value, relative)
}

var memberColumns = columnsOf("node state membership term last_index commit_index applied_index snapshot_index quarantined",
	column[api.Member]{"node", func(m api.Member) any { return m.Node }},
	column[api.Member]{"state", func(m api.Member) any { return m.State }},
	column[api.Member]{"membership", func(m api.Member) any { return m.Membership }},
	column[api.Member]{"term", func(m api.Member) any { return m.Term }},
	column[api.Member]{"last_index", func(m api.Member) any { return m.LastLogIndex }},
	column[api.Member]{"commit_index", func(m api.Member) any { return m.CommitIndex }},
	column[api.Member]{"applied_index", func(m api.Member) any { return m.LastApplied }},
	column[api.Member]{"snapshot_index", func(m api.Member) any { return m.SnapshotIndex }},
	column[api.Member]{"quarantined", func(m api.Member) any { return m.Quarantined }},
)

var quorumStatus = listing(memberColumns, "Status of quorum queue WORD ...", "queues", "quorum", "VHOST", "WORD", "status")

// forceCheckpoint has each queue that matches write a snapshot. One that fails does not keep the others
// from it.
func forceCheckpoint(c *call) error {
	pick, err := pickQueues(c, "")
	if err != nil {
		return err
	}
	var queues []api.Queue
	if err := c.get(path("queues")+"?disable_stats=true", &queues); err != nil {
		return err
	}
	var errs []error
	for _, q := range queues {
		if !q.Durable || q.Exclusive || !pick(q.VHost, q.Name) {
			continue
		}
		if err := c.post(path("queues", q.VHost, q.Name, "actions"), map[string]string{"action": "snapshot"}, nil); err != nil {
			errs = append(errs, fmt.Errorf("queue %s in vhost %s: %w", q.Name, q.VHost, err))
		}
	}
	return errors.Join(errs...)
}

func transferLeadership(c *call) error {
	return c.put(path("quorate", "queues", c.options.vhost, c.words[0], "leader"), api.Transfer{Node: c.words[1]})
}

var balanceColumns = columnsOf[api.NodeLeaders]("node leaders")

func rebalance(c *call) error {
	if w := c.words[0]; w != "quorum" && w != "all" {
		return usageError("rebalance takes quorum or all, not %q", w)
	}
	c.say("Rebalancing leaders ...")
	defer c.progress(leaderProgress(c))()
	var r api.Rebalanced
	err := c.post("/api/quorate/rebalance", api.Rebalance{VHostPattern: c.option("vhost-pattern"), QueuePattern: c.option("queue-pattern")}, &r)
	if err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(r)
	}
	c.fields("", field{"moved", r.Moved}, field{"left", r.Left})
	return list(c, "Leaders by node:", balanceColumns, nil, r.Nodes)
}
