package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// Timing of verbs that wait.
const (
	awaitEvery = 200 * time.Millisecond
	awaitLimit = 120 // seconds
)

// checksPath is the path of the health checks.
const checksPath = "/api/health/checks/"

// operationVerbs are for operators of the cluster.
func operationVerbs() []verb {
	return []verb{
		{name: "list_nodes", about: "the nodes of the cluster", run: listNodes},
		{name: "drain", about: "prepares the node for a stop: disconnects clients and moves leaders", run: drain, timeout: awaitLimit},
		{name: "revive", about: "ends a drain without a stop", run: revive},
		{name: "await_startup", about: "waits until the node serves clients, at most 120 s", run: awaitStartup, timeout: awaitLimit},
		{name: "await_online_quorum_plus_one", about: "waits until the node can be stopped without a queue losing its majority, at most 120 s", run: awaitQuorum, timeout: awaitLimit},
		{name: "check_if_node_is_quorum_critical", about: "fails if a queue would lose its majority with the node", run: checkCritical},
		{name: "check_for_quorum_queues_without_an_elected_leader", about: "fails if a queue has no leader", run: checkLeaders},
		{name: "check_alarms", about: "fails if an alarm is in effect in the cluster", run: checkAlarms},
		{name: "check_local_alarms", about: "fails if an alarm is in effect at the node", run: checkLocalAlarms},
		{name: "check_certificate_expiration", about: "fails if a certificate that the node presents, or verifies others by, expires within --within N of --unit days, weeks, months or years", run: checkExpiration, options: []string{"within", "unit"}},
		{name: "check_quarantined_queues", about: "fails if a queue is quarantined on the node, which does not lead it because work for it has panicked", run: checkQuarantined},
		{name: "check_unproven_replicas", about: "fails if replicas on the node are being rebuilt: they do not vote until a leader has brought them up to date", run: checkUnproven},
		{name: "check_leaders_make_progress", about: "fails if work for a queue that the node leads makes no progress", run: checkProgress},
		{name: "release_quarantine", arguments: "QUEUE", least: 1, maxArguments: 1, about: "lets a queue that is quarantined on the node lead there again", run: releaseQuarantine},
		{name: "set_vm_memory_high_watermark", arguments: "FRACTION | absolute SIZE", least: 1, maxArguments: 2, about: "sets how much memory the node may use, until its next start: a fraction of the machine's, or a SIZE such as 2GiB", run: setMemoryLimit},
		{name: "set_disk_free_limit", arguments: "SIZE | mem_relative FRACTION", least: 1, maxArguments: 2, about: "sets how much of the node's disk must be free, until its next start: a SIZE such as 5GB, or a fraction of the machine's memory", run: setDiskLimit},
		{name: "quorum_status", arguments: "QUEUE", least: 1, maxArguments: 1, about: "status of each replica of a queue", run: quorumStatus},
		{name: "transfer_leadership", arguments: "QUEUE NODE", least: 2, maxArguments: 2, about: "makes a node the leader of a queue", run: transferLeadership},
		{
			name: "rebalance", arguments: "quorum|all", least: 1, maxArguments: 1, about: "spreads the leaders of queues over the nodes",
			run: rebalance, options: []string{"vhost-pattern", "queue-pattern"}, timeout: 600,
		},
	}
}

var nodeColumns = []column[api.Node]{
	{"name", "", func(n api.Node) any { return n.Name }},
	{"running", "is up", func(n api.Node) any { return n.Running }},
	{"being_drained", "is about to stop", func(n api.Node) any { return n.BeingDrained }},
	{"mem_used", "bytes", func(n api.Node) any { return n.MemoryUsed }},
	{"mem_limit", "from here on there is an alarm", func(n api.Node) any { return n.MemoryLimit }},
	{"mem_alarm", "", func(n api.Node) any { return n.MemoryAlarm }},
	{"disk_free", "bytes", func(n api.Node) any { return n.DiskFree }},
	{"disk_free_limit", "below it there is an alarm", func(n api.Node) any { return n.DiskFreeLimit }},
	{"disk_free_alarm", "", func(n api.Node) any { return n.DiskFreeAlarm }},
}

func listNodes(c *call) error {
	var rows []api.Node
	if err := c.get("/api/nodes", &rows); err != nil {
		return err
	}
	return list(c, "Listing nodes ...", nodeColumns, nil, len(nodeColumns), rows)
}

func drain(c *call) error {
	c.say("Draining node " + c.options.node + " ...")
	var d api.Drained
	if err := c.post("/api/quorate/drain", nil, &d); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(d)
	}
	c.fields("", field{"moved", d.Moved}, field{"left", d.Left})
	return nil
}

func revive(c *call) error {
	c.say("Reviving node " + c.options.node + " ...")
	return c.post("/api/quorate/revive", nil, nil)
}

// say prints a progress line.
func (c *call) say(line string) {
	if !c.options.quiet && !c.options.bare && c.options.formatter == "table" {
		fmt.Fprintln(c.out, line)
	}
}

// awaitStartup waits for a node that may not be listening yet.
func awaitStartup(c *call) error {
	return c.await(func() error { return c.get(checksPath+"ready-to-serve-clients", nil) })
}

func awaitQuorum(c *call) error {
	c.say(fmt.Sprintf("Will wait for a quorum + 1 of nodes to be online for all quorum queues, up to %d seconds ...", c.options.timeout))
	return c.await(func() error {
		_, err := c.check("node-is-quorum-critical")
		return err
	})
}

// await repeats a check until it passes, or time is up.
func (c *call) await(check func() error) error {
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
			return &exitError{exitTemporary, fmt.Errorf("time is up: %w", last)}
		case <-tick.C:
		}
	}
}

// check runs a health check. If that fails, so does the verb.
func (c *call) check(name string) (api.Check, error) {
	var result api.Check
	status, err := c.client.ask(c, http.MethodGet, checksPath+name, nil, &result, http.StatusServiceUnavailable)
	if err == nil && status == http.StatusServiceUnavailable {
		err = &exitError{exitFailed, fmt.Errorf("%s%s", result.Reason, about(result))}
	}
	return result, err
}

// maxNamed bounds how many queues an error names.
const maxNamed = 20

// about names the findings of a failed check.
func about(result api.Check) string {
	var names []string
	for _, q := range result.Queues {
		names = append(names, q.ReadableName)
	}
	for _, a := range result.Alarms {
		names = append(names, a.Resource+" on node "+a.Node)
	}
	if len(names) > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", len(names)-maxNamed))
	}
	if len(names) == 0 {
		return ""
	}
	return ": " + strings.Join(names, ", ")
}

// checked shows a check that has passed.
func (c *call) checked(name, line string) error {
	result, err := c.check(name)
	if err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(result)
	}
	c.say(line)
	return nil
}

func checkCritical(c *call) error {
	return c.checked("node-is-quorum-critical", "No queue would lose its majority if node "+c.options.node+" stopped")
}

func checkLeaders(c *call) error {
	return c.checked("quorum-queues-without-elected-leaders/all-vhosts", "All quorum queues have a leader")
}

func checkAlarms(c *call) error { return c.checked("alarms", "No alarm is in effect in the cluster") }

func checkLocalAlarms(c *call) error {
	return c.checked("local-alarms", "No alarm is in effect on node "+c.options.node)
}

func checkExpiration(c *call) error {
	if c.options.within == "" || c.options.unit == "" {
		return usageError("check_certificate_expiration needs --within N and --unit days, weeks, months or years")
	}
	within, unit := url.PathEscape(c.options.within), url.PathEscape(c.options.unit)
	return c.checked("certificate-expiration/"+within+"/"+unit, "No certificate of node "+c.options.node+" ends within "+c.options.within+" "+c.options.unit)
}

func checkQuarantined(c *call) error {
	return c.checked("quarantined-queues", "No queue is quarantined on node "+c.options.node)
}

func checkUnproven(c *call) error {
	return c.checked("unproven-replicas", "Every replica on node "+c.options.node+" can prove what it has acknowledged")
}

func checkProgress(c *call) error {
	return c.checked("leaders-make-progress", "The queues led by node "+c.options.node+" make progress")
}

func releaseQuarantine(c *call) error {
	return c.delete(path("quorate", "queues", c.options.vhost, c.words[0], "quarantine"))
}

// setLimit sets a limit of the node to a fraction of its memory, or to a size.
func (c *call) setLimit(name, value string, relative bool) error {
	to := api.Limit{Absolute: value}
	if relative {
		part, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return usageError("FRACTION is a number such as 0.4, not %q", value)
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
	return c.setLimit("vm_memory_high_watermark", value, relative)
}

func setDiskLimit(c *call) error {
	value, relative := c.words[0], len(c.words) == 2
	if relative {
		if value != "mem_relative" {
			return usageError("set_disk_free_limit takes SIZE or mem_relative FRACTION")
		}
		value = c.words[1]
	}
	return c.setLimit("disk_free_limit", value, relative)
}

var memberColumns = []column[api.Member]{
	{"node", "", func(m api.Member) any { return m.Node }},
	{"state", "leader, follower, candidate; noproc: no answer", func(m api.Member) any { return m.State }},
	{"membership", "voter or non_voter", func(m api.Member) any { return m.Membership }},
	{"term", "", func(m api.Member) any { return m.Term }},
	{"last_index", "of the log", func(m api.Member) any { return m.LastLogIndex }},
	{"commit_index", "", func(m api.Member) any { return m.CommitIndex }},
	{"applied_index", "", func(m api.Member) any { return m.LastApplied }},
	{"snapshot_index", "-1: none", func(m api.Member) any { return m.SnapshotIndex }},
	{"quarantined", "it must not lead", func(m api.Member) any { return m.Quarantined }},
}

func quorumStatus(c *call) error {
	var rows []api.Member
	if err := c.get(path("queues", "quorum", c.options.vhost, c.words[0], "status"), &rows); err != nil {
		return err
	}
	return list(c, "Status of quorum queue "+c.words[0]+" ...", memberColumns, nil, len(memberColumns), rows)
}

func transferLeadership(c *call) error {
	return c.put(path("quorate", "queues", c.options.vhost, c.words[0], "leader"), api.Transfer{Node: c.words[1]})
}

var balanceColumns = []column[api.NodeLeaders]{
	{"node", "", func(n api.NodeLeaders) any { return n.Node }},
	{"leaders", "queues it is to lead", func(n api.NodeLeaders) any { return n.Leaders }},
}

func rebalance(c *call) error {
	if w := c.words[0]; w != "quorum" && w != "all" {
		return usageError("rebalance takes quorum or all, not %q", w)
	}
	c.say("Rebalancing leaders ...")
	var r api.Rebalanced
	err := c.post("/api/quorate/rebalance", api.Rebalance{VHostPattern: c.options.vhostPattern, QueuePattern: c.options.queuePattern}, &r)
	if err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(r)
	}
	c.fields("", field{"moved", r.Moved}, field{"left", r.Left})
	return list(c, "Leaders by node:", balanceColumns, nil, len(balanceColumns), r.Nodes)
}
