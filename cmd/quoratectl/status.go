package main

import (
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
		{name: "list_replicas", arguments: "[COLUMN ...]", maxArguments: -1, about: "lists the queue replicas on the node", columns: names(replicaColumns), run: listReplicas, live: true, example: "vhost name term applied_index state_hash"},
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

var peerColumns = []column[api.Peer]{
	{"node", "name", func(p api.Peer) any { return p.Node }},
	{"address", "of its peer listener", func(p api.Peer) any { return p.Address }},
	{"alive", "is up", func(p api.Peer) any { return p.Alive }},
	{"linked", "can be sent to now", func(p api.Peer) any { return p.Linked }},
	{"round_trip_us", "of the last ping", func(p api.Peer) any { return p.RoundTripMicro }},
	{"backlog_bytes", "that wait to be sent", func(p api.Peer) any { return p.BacklogBytes }},
}

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
	if len(s.Quarantined) > 0 {
		if err := list(c, "Queues that are quarantined on the node:", quarantineColumns, nil, len(quarantineColumns), s.Quarantined); err != nil {
			return err
		}
	}
	if shown := s.Unproven[:min(len(s.Unproven), maxUnproven)]; len(shown) > 0 {
		if err := list(c, "Replicas on the node that do not vote until they have been brought up to date:", unprovenColumns, nil, len(unprovenColumns), shown); err != nil {
			return err
		}
	}
	if shown := s.Closed[:min(len(s.Closed), maxUnproven)]; len(shown) > 0 {
		if err := list(c, "Replicas on the node that could not be opened:", closedColumns, nil, len(closedColumns), shown); err != nil {
			return err
		}
	}
	if len(s.StalledQueues) > 0 {
		if err := list(c, "Queues led by the node whose work makes no progress:", standstillColumns, nil, len(standstillColumns), s.StalledQueues); err != nil {
			return err
		}
	}
	if len(s.Resignations) > 0 {
		if err := list(c, "Leaderships given up last:", resignationColumns, nil, len(resignationColumns), s.Resignations); err != nil {
			return err
		}
	}
	if len(s.Peers) == 0 {
		return nil
	}
	return list(c, "Other nodes:", peerColumns, nil, len(peerColumns), s.Peers)
}

// listenersOf formats a node's listeners as one line.
func listenersOf(s api.Status) string {
	var all []string
	for _, l := range s.Listeners {
		all = append(all, l.Protocol+"="+l.Address)
	}
	return strings.Join(all, " ")
}

// heldOf formats what is held in memory for clients as one line.
func heldOf(h api.HeldMemory) string {
	return fmt.Sprintf("%d (channels %d, publishes %d, answers %d, http %d)", h.Total, h.Channels, h.Publishes, h.Answers, h.HTTP)
}

var quarantineColumns = []column[api.Quarantine]{
	{"vhost", "of the queue", func(q api.Quarantine) any { return q.VHost }},
	{"name", "of the queue", func(q api.Quarantine) any { return q.Name }},
	{"group", "number of its raft group", func(q api.Quarantine) any { return q.Group }},
	{"doing", "what panicked", func(q api.Quarantine) any { return q.Doing }},
	{"panic", "its words", func(q api.Quarantine) any { return q.Panic }},
	{"term", "of the raft group then", func(q api.Quarantine) any { return q.Term }},
	{"index", "last entry applied by then", func(q api.Quarantine) any { return q.Index }},
	{"stopped", "until the node is started again", func(q api.Quarantine) any { return q.Stopped }},
}

// maxUnproven is how many replicas the status shows: a lost folder is one cause for all of them.
const maxUnproven = 20

var closedColumns = []column[api.Closed]{
	{"vhost", "of the queue", func(x api.Closed) any { return x.VHost }},
	{"name", "of the queue", func(x api.Closed) any { return x.Name }},
	{"group", "number of its raft group", func(x api.Closed) any { return x.Group }},
	{"attempts", "that have failed", func(x api.Closed) any { return x.Attempts }},
	{"reason", "why the last one failed", func(x api.Closed) any { return x.Reason }},
}

var unprovenColumns = []column[api.Unproven]{
	{"vhost", "of the queue", func(u api.Unproven) any { return u.VHost }},
	{"name", "of the queue; none: the catalog", func(u api.Unproven) any { return u.Name }},
	{"group", "number of its raft group", func(u api.Unproven) any { return u.Group }},
	{"stuck", "most replicas cannot prove anything: see recover", func(u api.Unproven) any { return u.Stuck }},
	{"reason", "why it cannot prove what it acknowledged", func(u api.Unproven) any { return u.Reason }},
}

var standstillColumns = []column[api.Standstill]{
	{"vhost", "of the queue", func(s api.Standstill) any { return s.VHost }},
	{"name", "of the queue; none: the catalog", func(s api.Standstill) any { return s.Name }},
	{"reason", "what waits", func(s api.Standstill) any { return s.Reason }},
	{"for_ms", "without progress", func(s api.Standstill) any { return s.ForMS }},
	{"keeps", "why the leader does not give way", func(s api.Standstill) any { return s.Keeps }},
	{"last", "entry in the log", func(s api.Standstill) any { return s.Last }},
	{"commit", "last entry committed", func(s api.Standstill) any { return s.Commit }},
	{"applied", "last entry applied", func(s api.Standstill) any { return s.Applied }},
}

var resignationColumns = []column[api.Resignation]{
	{"vhost", "of the queue", func(r api.Resignation) any { return r.VHost }},
	{"name", "of the queue", func(r api.Resignation) any { return r.Name }},
	{"reason", "what waited", func(r api.Resignation) any { return r.Reason }},
	{"for_ms", "without progress", func(r api.Resignation) any { return r.ForMS }},
	{"at_ms", "when, in ms since 1970", func(r api.Resignation) any { return r.AtMS }},
}

var clockColumns = []column[api.PeerClock]{
	{"node", "name", func(p api.PeerClock) any { return p.Node }},
	{"known", "its clock has been read", func(p api.PeerClock) any { return p.Known }},
	{"offset_ms", "ahead of this node's wall clock", func(p api.PeerClock) any { return p.OffsetMS }},
	{"round_trip_us", "of the reading", func(p api.PeerClock) any { return p.RoundTripMicro }},
	{"age_ms", "of the newest reading", func(p api.PeerClock) any { return p.AgeMS }},
}

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
	if len(s.Peers) == 0 {
		return nil
	}
	return list(c, "Clocks of the other nodes:", clockColumns, nil, len(clockColumns), s.Peers)
}

var replicaColumns = []column[api.Replica]{
	{"vhost", "of the queue", func(r api.Replica) any { return r.VHost }},
	{"name", "of the queue", func(r api.Replica) any { return r.Name }},
	{"leader", "this replica leads", func(r api.Replica) any { return r.Leader }},
	{"leader_node", "node that leads", func(r api.Replica) any { return r.LeaderNode }},
	{"quarantined", "it must not lead", func(r api.Replica) any { return r.Quarantined }},
	{"term", "of its raft group", func(r api.Replica) any { return r.Term }},
	{"applied_index", "last entry applied", func(r api.Replica) any { return r.AppliedIndex }},
	{"state_hash", "equal on all replicas at equal entries", func(r api.Replica) any { return r.StateHash }},
	{"group", "number of its raft group", func(r api.Replica) any { return r.Group }},
	{"queue_id", "number of the queue", func(r api.Replica) any { return r.QueueID }},
}

func listReplicas(c *call) error {
	replicas, err := replicas(c)
	if err != nil {
		return err
	}
	return list(c, "Listing replicas ...", replicaColumns, c.words, len(replicaColumns), replicas)
}

func replicas(c *call) (list []api.Replica, err error) {
	return list, c.get("/api/quorate/replicas", &list)
}

var settingColumns = []column[api.Setting]{
	{"name", "", func(s api.Setting) any { return s.Name }},
	{"value", "", func(s api.Setting) any { return s.Value }},
	{"default", "", func(s api.Setting) any { return s.Default }},
	{"low", "", func(s api.Setting) any { return s.Low }},
	{"high", "", func(s api.Setting) any { return s.High }},
	{"about", "", func(s api.Setting) any { return s.About }},
}

func listSettings(c *call) error {
	return listAt(c, "/api/quorate/settings", "Listing settings of the cluster ...", settingColumns, nil, len(settingColumns))
}

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
