package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// statusVerbs show how the node is.
func statusVerbs() []verb {
	return []verb{
		{name: "ping", about: "fails unless the node answers and serves clients", run: ping, also: []string{ctlName, diagnosticsName}},
		{name: "version", about: "shows the node's version", run: version, also: []string{ctlName}},
		{name: "status", about: "shows the node, its alarms, and the other nodes as it sees them", run: status, also: []string{ctlName, diagnosticsName}, live: true},
		{name: "clock_status", about: "shows the node's clock against the other nodes' clocks", run: clockStatus, live: true},
		{name: "list_replicas", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queue replicas on the node", columns: replicaColumns.names(), run: listReplicas, live: true, example: "vhost name term applied_index state_hash"},
		{name: "list_cluster_settings", about: "lists the settings of the whole cluster", run: listSettings},
		{name: "set_cluster_setting", arguments: "NAME VALUE", least: 2, maxArguments: 2, about: "sets a setting of the whole cluster", run: setSetting, example: "max_clock_skew 250"},
		{name: "clear_cluster_setting", arguments: "NAME", least: 1, maxArguments: 1, about: "resets a setting of the whole cluster to the program's default", run: clearSetting, example: "max_clock_skew"},
	}
}

func ping(c *call) error {
	if err := c.get("/api/health/checks/ready-to-serve-clients", nil); err != nil {
		return err
	}
	if c.options.titled() {
		fmt.Fprintln(c.out, "Ping succeeded")
	}
	return nil
}

func version(c *call) error {
	var v api.Version
	if err := c.get("/api/version", &v); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(v)
	}
	fmt.Fprintln(c.out, v.ProductVersion)
	return nil
}

var peerColumns = columnsOf[api.Peer]("node address alive linked round_trip_us backlog_bytes")

func status(c *call) error {
	var s api.Status
	if err := c.get("/api/quorate/status", &s); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(s)
	}
	alarms := "none"
	if len(s.Alarms) > 0 {
		alarms = strings.Join(s.Alarms, ", ")
	}
	c.fields("Status of node "+s.Node+" ...", field{"cluster_name", s.Cluster}, field{"product_version", s.ProductVersion},
		field{"fsm_version", s.FSMVersion},
		field{"ready", s.Ready}, field{"not_ready", s.NotReady}, field{"uptime", (time.Duration(s.UptimeMS) * time.Millisecond).Round(time.Second)},
		field{"data_dir", s.DataDir}, field{"listeners", listenersOf(s)}, field{"alarms", alarms}, field{"held_memory", heldOf(s.Held)}, field{"catalog_leader", s.CatalogLeader}, field{"routes_fresh", s.RoutesFresh},
		field{"queues", s.Queues}, field{"replicas", s.Replicas}, field{"leaders", s.Leaders}, field{"quarantined", len(s.Quarantined)},
		field{"resignations_total", s.ResignationsTotal}, field{"unproven", len(s.Unproven)}, field{"closed", len(s.Closed)})
	return cmp.Or(
		listSome(c, "Queues that are quarantined on the node:", quarantineColumns, s.Quarantined),
		listSome(c, "Replicas on the node that do not vote until they have been brought up to date:", unprovenColumns, s.Unproven[:min(len(s.Unproven), maxUnproven)]),
		listSome(c, "Replicas on the node that could not be opened:", closedColumns, s.Closed[:min(len(s.Closed), maxUnproven)]),
		listSome(c, "Queues led by the node whose work makes no progress:", standstillColumns, s.StalledQueues),
		listSome(c, "Leaderships given up last:", resignationColumns, s.Resignations),
		listSome(c, "Other nodes:", peerColumns, s.Peers),
	)
}

// listenersOf formats a node's listeners as one line.
func listenersOf(s api.Status) string {
	var all []string
	for _, l := range s.Listeners {
		text := l.Protocol + "=" + l.Address
		if len(l.Speaks) > 0 {
			text += " (" + strings.Join(l.Speaks, ", ") + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// heldOf formats what is held in memory for clients as one line.
func heldOf(h api.HeldMemory) string {
	return fmt.Sprintf("%d (channels %d, publishes %d, answers %d, http %d)", h.Total, h.Channels, h.Publishes, h.Answers, h.HTTP)
}

var quarantineColumns = columnsOf[api.Quarantine]("vhost name group doing panic term index stopped")

// maxUnproven is how many replicas the status shows: a lost folder is one cause for all of them.
const maxUnproven = 20

var closedColumns = columnsOf[api.Closed]("vhost name group attempts reason")

var unprovenColumns = columnsOf[api.Unproven]("vhost name group stuck reason")

var standstillColumns = columnsOf[api.Standstill]("vhost name reason for_ms keeps last commit applied")

var resignationColumns = columnsOf[api.Resignation]("vhost name reason for_ms at_ms")

var clockColumns = columnsOf[api.PeerClock]("node known offset_ms round_trip_us age_ms")

func clockStatus(c *call) error {
	var s api.Clock
	if err := c.get("/api/quorate/clock", &s); err != nil {
		return err
	}
	if c.options.formatter == "json" {
		return c.json(s)
	}
	c.fields("Clock of node "+s.Node+" ...", field{"now_ms", s.NowMS}, field{"offset_ms", s.OffsetMS}, field{"max_skew_ms", s.MaxSkewMS},
		field{"skewed", s.Skewed}, field{"sampled", s.Sampled}, field{"agreed", s.Agreed}, field{"jumps_refused", s.JumpsRefused})
	return listSome(c, "Clocks of the other nodes:", clockColumns, s.Peers)
}

var replicaColumns = columnsOf[api.Replica]("vhost name leader leader_node quarantined term applied_index state_hash group queue_id")
var listReplicas = listing(replicaColumns, "Listing replicas ...", "quorate", "replicas")

const replicasPath = "/api/quorate/replicas"

var settingColumns = columnsOf[api.Setting]("name value default low high about")
var listSettings = listing(settingColumns, "Listing settings of the cluster ...", "quorate", "settings")

func setSetting(c *call) error {
	n, err := strconv.ParseInt(c.words[1], 10, 64)
	if err != nil {
		return usageError("VALUE must be a whole number, not %q", c.words[1])
	}
	return c.put(path("quorate", "settings", c.words[0]), api.SettingValue{Value: &n})
}

func clearSetting(c *call) error {
	return c.delete(path("quorate", "settings", c.words[0]))
}
