package mgmt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
)

// operator is what a node pretends to be for operators.
type operator struct {
	world     *world
	draining  bool
	markFails error
	critical  []string // queues of the vhost /; empty: the catalog
	leaders   []string // queues that have one
	alarms    []api.Alarm
	moved     string // what was asked of the node last

	quarantined string // queue of the vhost /; empty: none
	still       string // likewise
	unproven    []api.Unproven
	closed      []api.Closed
	parked      []fsm.QueueID
}

func (o *operator) Nodes(context.Context) []api.Node {
	return []api.Node{{Name: "n1", Type: "disc", Running: true, BeingDrained: o.draining, MemoryUsed: 1, MemoryLimit: 2, DiskFree: 3, DiskFreeLimit: 4, DiskFreeAlarm: true, NodeProcess: api.NodeProcess{UptimeMS: 7}}}
}

func (o *operator) Backup(_ context.Context, to io.Writer, rate int64) error {
	_, err := fmt.Fprintf(to, "a backup at %d bytes per second", rate)
	return err
}

func (o *operator) Restore(_ context.Context, from io.Reader) (api.Restored, error) {
	n, err := io.Copy(io.Discard, from)
	return api.Restored{Messages: uint64(n)}, err
}

func (o *operator) Export(_ context.Context, to io.Writer, vhost, queue string, rate int64) error {
	if rate == 7 {
		return fsm.Refuse(fsm.NotFoundKind, "it has ended")
	}
	_, err := fmt.Fprintf(to, "%s of %s at %d bytes per second", queue, vhost, rate)
	return err
}

func (o *operator) Import(_ context.Context, from io.Reader, vhost, queue string, id []byte) (api.Restored, error) {
	n, err := io.Copy(io.Discard, from)
	return api.Restored{Queues: 1, Messages: uint64(n), Had: uint64(len(id))}, err
}

func (o *operator) CheckLines(from io.Reader) (uint64, error) {
	n, err := io.Copy(io.Discard, from)
	return uint64(n), err
}

func (o *operator) SetLimit(name string, to api.Limit) error {
	if name != "disk_free_limit" {
		return fsm.Refuse(fsm.NotFoundKind, "no limit")
	}
	o.moved = name + " " + to.Absolute
	return nil
}

func TestLimits(t *testing.T) {
	w := newWorld(t)
	const path = "/api/quorate/limits/"
	w.check(
		want{"mona", "PUT", path + "disk_free_limit", `{"absolute":"5GB"}`, 401, "…"},
		want{"root", "PUT", path + "disk_free_limit", `{"absolute":"5GB"}`, 204, ""},
		want{"root", "PUT", path + "disk_free_limit", `{"absolut":"5GB"}`, 400, "…not_json"},
		want{"root", "PUT", path + "none", `{"relative":0.5}`, 404, "…"},
	)
	if w.operator.moved != "disk_free_limit 5GB" {
		t.Errorf("set: %s", w.operator.moved)
	}
}

func (o *operator) Quarantined() []api.Quarantine {
	if o.quarantined == "" {
		return nil
	}
	return []api.Quarantine{{VHost: "/", Name: o.quarantined}}
}

func (o *operator) StalledQueues() []api.Standstill {
	if o.still == "" {
		return nil
	}
	return []api.Standstill{{Reason: "catalog"}, {VHost: "/", Name: o.still, Group: 1}, {VHost: "/", Name: "deleted since", Group: 2}}
}

func (o *operator) LiftQuarantine(q *catalog.Queue) error {
	if q.Name != o.quarantined {
		return fsm.Refuse(fsm.Precondition, "the queue is not quarantined on this node")
	}
	o.quarantined = ""
	return nil
}

func TestQuarantine(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	w.queue("/", "b", false)
	const check, queue = "/api/health/checks/quarantined-queues", "/api/quorate/queues/%2F/a/quarantine"
	w.check(want{"maggie", "GET", check, "", 200, `{"status":"ok"}`})
	w.operator.quarantined = "a"
	w.check(
		want{"", "GET", check, "", 401, "…"},
		want{"maggie", "GET", check, "", 503, `{"status":"failed","reason":"There are queues that are quarantined on the node",` +
			`"queues":[{"name":"a","readable_name":"queue 'a' in vhost '/'","virtual_host":"/","type":"quorum"}]}`},
		want{"polly", "DELETE", queue, "", 401, "…"},
		want{"root", "DELETE", "/api/quorate/queues/%2F/none/quarantine", "", 404, "…"},
		want{"root", "DELETE", "/api/quorate/queues/%2F/b/quarantine", "", 400, "…not quarantined"},
		want{"root", "DELETE", queue, "", 204, ""},
		want{"maggie", "GET", check, "", 200, `{"status":"ok"}`},
	)
}

func (o *operator) Unproven() []api.Unproven { return o.unproven }

func TestUnprovenReplicas(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	const check = "/api/health/checks/unproven-replicas"
	w.check(want{"maggie", "GET", check, "", 200, `{"status":"ok"}`})
	w.operator.unproven = []api.Unproven{{}, {VHost: "/", Name: "a", Group: 1}, {VHost: "/", Name: "gone", Group: 2}}
	w.check(
		want{"", "GET", check, "", 401, "…"},
		want{"maggie", "GET", check, "", 503, `{"status":"failed","reason":"There are replicas on the node that do not vote until they have been brought up to date",` +
			`"queues":[{"name":"catalog","readable_name":"the catalog","virtual_host":"","type":"metadata_store"},` +
			`{"name":"a","readable_name":"queue 'a' in vhost '/'","virtual_host":"/","type":"quorum"}]}`},
	)
}

func (o *operator) Parked() []fsm.QueueID { return o.parked }

func TestParkedMessages(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	q, _ := w.View().Queue("/", "a")
	const check = "/api/health/checks/parked-messages"
	w.check(want{"maggie", "GET", check, "", 200, `{"status":"ok"}`})
	w.operator.parked = []fsm.QueueID{q.ID, 99}
	w.check(
		want{"", "GET", check, "", 401, "…"},
		want{"maggie", "GET", check, "", 503, `{"status":"failed","reason":"There are parked messages in queues led by the node",` +
			`"queues":[{"name":"a","readable_name":"queue 'a' in vhost '/'","virtual_host":"/","type":"quorum"}]}`},
	)
}

func (o *operator) Closed() []api.Closed { return o.closed }

func TestClosedReplicas(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	const check, ready = "/api/health/checks/closed-replicas", "/api/health/checks/ready-to-serve-clients"
	w.check(want{"maggie", "GET", check, "", 200, `{"status":"ok"}`}, want{"", "GET", ready, "", 200, `{"status":"ok"}`})
	w.operator.closed = []api.Closed{{VHost: "/", Name: "a", Group: 1}, {VHost: "/", Name: "gone", Group: 2}}
	w.check(
		want{"", "GET", check, "", 401, "…"},
		want{"", "GET", ready, "", 200, `{"status":"ok","reason":"There are replicas on the node that could not be opened"}`},
		want{"maggie", "GET", check, "", 503, `{"status":"failed","reason":"There are replicas on the node that could not be opened",` +
			`"queues":[{"name":"a","readable_name":"queue 'a' in vhost '/'","virtual_host":"/","type":"quorum"}]}`},
	)
}

func TestProgress(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	const check = "/api/health/checks/leaders-make-progress"
	w.check(want{"maggie", "GET", check, "", 200, `{"status":"ok"}`})
	w.operator.still = "a"
	w.check(
		want{"", "GET", check, "", 401, "…"},
		want{"maggie", "GET", check, "", 503, `{"status":"failed","reason":"There are queues led by the node that make no progress",` +
			`"queues":[{"name":"catalog","readable_name":"the catalog","virtual_host":"","type":"metadata_store"},` +
			`{"name":"a","readable_name":"queue 'a' in vhost '/'","virtual_host":"/","type":"quorum"}]}`},
	)
}

func (o *operator) Alarms(context.Context) []api.Alarm { return o.alarms }

func (o *operator) Drain(context.Context) (api.Drained, error) {
	o.draining = o.markFails == nil
	return api.Drained{Node: "n1", Moved: 3, Left: 1}, o.markFails
}

func (o *operator) Revive(context.Context) error {
	o.draining = false
	return nil
}

func (o *operator) QuorumCritical(context.Context) (list []*catalog.Queue) {
	for _, name := range o.critical {
		q, _ := o.world.View().Queue("/", name)
		list = append(list, q)
	}
	return list
}

func (o *operator) Leaderless(_ context.Context, queues []*catalog.Queue) []*catalog.Queue {
	return slices.DeleteFunc(queues, func(q *catalog.Queue) bool { return slices.Contains(o.leaders, q.Name) })
}

func (o *operator) Members(context.Context, *catalog.Queue) []api.Member {
	if o.world.members != nil {
		return o.world.members
	}
	return []api.Member{{Node: "n1", State: "leader", Membership: "voter", LastLogIndex: 7, LastWritten: 7, LastApplied: 6, CommitIndex: 6, SnapshotIndex: -1, Term: 2}}
}

func (o *operator) Rebalance(_ context.Context, vhosts, queues *pattern.Pattern) (api.Rebalanced, error) {
	o.moved = "all"
	if vhosts != nil {
		o.moved = vhosts.String() + " " + queues.String()
	}
	return api.Rebalanced{Moved: 2, Nodes: []api.NodeLeaders{{Node: "n1", Leaders: 1}}}, nil
}

func (o *operator) TransferLeadership(_ context.Context, q *catalog.Queue, to string) error {
	switch to {
	case "n1":
		return fsm.Refuse(fsm.Precondition, "already_leader")
	case "n3":
		return errors.New("node 'n3' is down, or is not up to date")
	}
	o.moved = q.Name + " to " + to
	return nil
}

func TestDrain(t *testing.T) {
	w := newWorld(t)
	const path = "/api/quorate/"
	w.check(
		want{"mona", "POST", path + "drain", "", 401, "…"},
		want{"root", "GET", "/api/config/effective", "", 200, `{"node_name":"n1"}`},
		want{"mona", "GET", "/api/config/effective", "", 401, "…"},
		want{"root", "GET", "/api/nodes?columns=name,running&name=n1", "", 200, `[{"name":"n1","running":true}]`},
		want{"root", "GET", "/api/nodes?page=2&page_size=100", "", 400, "…page_out_of_range"},
		want{"root", "GET", "/api/nodes", "", 200, `[{"name":"n1","type":"disc","running":true,"answers":false,"being_drained":false,"mem_used":1,"mem_limit":2,"mem_alarm":false,"disk_free":3,"disk_free_limit":4,"disk_free_alarm":true,"held_memory":{"channels":0,"publishes":0,"answers":0,"total":0},"uptime":7,"os_pid":"","processors":0,"run_queue":0,"fd_used":0,"fd_total":0,"proc_used":0,"proc_total":0,"gc_num":0,"gc_bytes_reclaimed":0,"context_switches":0,"io_read_bytes":0,"io_write_bytes":0,"rates_mode":"","enabled_plugins":null,"partitions":null,"replicas":0,"leaders":0,"learners":0,"io_sync_avg_time":0,"clock_offset_ms":0,"certificates":null}]`},
		want{"maggie", "GET", "/api/nodes", "", 401, "…"},
		want{"root", "POST", path + "drain", "", 200, `{"node":"n1","moved":3,"left":1}`},
		want{"mona", "GET", "/api/nodes", "", 200, `…"being_drained":true`},
		want{"", "GET", "/api/health/checks/ready-to-serve-clients", "", 503, `{"status":"failed","reason":"the node is in maintenance mode"}`},
		want{"", "GET", "/api/health/checks/is-in-service", "", 503, `…maintenance`},
		want{"root", "POST", path + "revive", "", 204, ""},
		want{"", "GET", "/api/health/checks/is-in-service", "", 200, `{"status":"ok"}`},
	)
	w.operator.markFails = errors.New("no majority")
	w.check(want{"root", "POST", path + "drain", "", 503, `{"error":"unavailable","reason":"no majority"}`})
}

func TestChecks(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a", false)
	w.queue("/", "b", false)
	w.operator.leaders = []string{"a"}
	const path, leaderless = "/api/health/checks/", "/api/health/checks/quorum-queues-without-elected-leaders"
	w.check(
		want{"maggie", "GET", path + "node-is-quorum-critical", "", 200, `{"status":"ok"}`},
		want{"maggie", "GET", path + "alarms", "", 200, `{"status":"ok"}`},
		want{"", "GET", path + "alarms", "", 401, "…"},
		want{"maggie", "GET", leaderless + "/all-vhosts", "", 503, `…"name":"b","readable_name":"queue 'b' in vhost '/'","virtual_host":"/","type":"quorum"}]`},
		want{"maggie", "GET", leaderless + "/vhost/%2F/pattern/%5Ea", "", 200, `{"status":"ok"}`},
		want{"maggie", "GET", leaderless + "/vhost/hidden", "", 404, "…"},
		want{"root", "GET", leaderless + "/all-vhosts/pattern/%28", "", 400, "…pattern should be regular expression"},
	)
	w.operator.critical = []string{"a", ""}
	w.operator.alarms = []api.Alarm{{Node: "n2", Resource: "clock_skew"}}
	w.check(
		want{"maggie", "GET", path + "node-is-quorum-critical", "", 503, `…"name":"a"`},
		want{"maggie", "GET", path + "node-is-quorum-critical", "", 503, `…"type":"metadata_store"`},
		want{"maggie", "GET", path + "alarms", "", 503,
			`{"status":"failed","reason":"There are alarms in effect in the cluster","alarms":[{"node":"n2","resource":"clock_skew"}]}`},
		want{"maggie", "GET", "/api/healthchecks/node", "", 200, `{"status":"ok"}`},
		want{"maggie", "GET", "/api/healthchecks/node/n1", "", 200, `{"status":"ok"}`},
		want{"maggie", "GET", "/api/healthchecks/node/n2", "", 503, `…"alarms":[{"node":"n2","resource":"clock_skew"}]}`},
		want{"maggie", "GET", "/api/healthchecks/node/n9", "", 404, notThere},
	)
}

func TestLeaders(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "a/b", false)
	const queue = "/api/quorate/queues/%2F/a%2Fb/leader"
	w.check(
		want{"maggie", "GET", "/api/queues/quorum/%2F/a%2Fb/status", "", 200, `[{"Node Name":"n1","Raft State":"leader","Membership":"voter",` +
			`"Last Log Index":7,"Last Written":7,"Last Applied":6,"Commit Index":6,"Snapshot Index":-1,"Term":2}]`},
		want{"maggie", "GET", "/api/queues/quorum/%2F/none/status", "", 404, "…"},
		want{"root", "PUT", queue, `{"node":"n1"}`, 400, "…already_leader"},
		want{"root", "PUT", queue, `{"node":"n3"}`, 503, "…not up to date"},
		want{"root", "PUT", queue, `{"nod":"n3"}`, 400, "…not_json"},
		want{"root", "PUT", "/api/quorate/queues/%2F/none/leader", `{"node":"n3"}`, 404, "…"},
		want{"polly", "PUT", queue, `{"node":"n2"}`, 401, "…"},
		want{"root", "PUT", queue, `{"node":"n2"}`, 204, ""},
	)
	if w.operator.moved != "a/b to n2" {
		t.Errorf("moved: %s", w.operator.moved)
	}
	w.check(
		want{"root", "POST", "/api/quorate/rebalance", `{"vhost_pattern":"^v","queue_pattern":"q"}`, 200,
			`{"moved":2,"left":0,"nodes":[{"node":"n1","leaders":1}]}`},
		want{"root", "POST", "/api/quorate/rebalance", `{"queue_pattern":"("}`, 400, "…pattern should be"},
	)
	if w.operator.moved != "^v q" {
		t.Errorf("rebalanced: %s", w.operator.moved)
	}
	w.check(want{"root", "POST", "/api/rebalance/queues", "", 204, ""})
	if w.operator.moved != "all" {
		t.Errorf("rebalanced: %s", w.operator.moved)
	}
}

func TestQueueLines(t *testing.T) {
	w := newWorld(t)
	w.queue("/", "q", false)
	const at = "/api/quorate/queues/%2F/q/"
	w.check(
		want{"mona", "POST", at + "export", "", 401, "…"},
		want{"mona", "POST", at + "import", "{}", 401, "…"},
		want{"root", "POST", at + "export?rate=5", "", 200, "q of / at 5 bytes per second"},
		want{"root", "POST", at + "export?rate=0", "", 400, `…rate must be a number of bytes per second from 1 to 1099511627776"}`},
		want{"root", "POST", at + "export?rate=7", "", 404, `{"error":"not_found","reason":"it has ended"}`},
		want{"root", "POST", "/api/quorate/queues/%2F/none/export", "", 404, `…queue_not_found"}`},
		want{"root", "POST", "/api/quorate/queues/%2F/none/import", "{}", 404, `…queue_not_found"}`},
		want{"root", "POST", at + "import?id=0g", "{}", 400, `…id must have at most 128 hexadecimal digits"}`},
		want{"root", "POST", at + "import?id=0a0b", "{}", 200, `{"definitions":0,"queues":1,"messages":2,"already_there":2,"refused":0}`},
		want{"root", "POST", at + "import?id=0a0b&check=true", "{}", 200, `{"definitions":0,"queues":0,"messages":2,"already_there":0,"refused":0}`},
	)
}
