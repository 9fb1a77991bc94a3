package stats

import (
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// TestAddDeaths: what died counts for the queue, its vhost and the node; for the node only if the queue
// is gone.
func TestAddDeaths(t *testing.T) {
	var c catalog.Catalog
	c.Apply(1, &logpb.CatalogEntry{Version: 1, Commands: []*logpb.CatalogCommand{
		{Body: &logpb.CatalogCommand_RegisterNode{RegisterNode: &logpb.RegisterNode{Name: "n1", Incarnation: []byte("1")}}},
		{Body: &logpb.CatalogCommand_PutVhost{PutVhost: &logpb.PutVhost{Name: "v"}}},
		{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{Vhost: "v", Name: "q", Durable: true, Members: []uint32{1}, Arguments: &fsm.Table{}}}},
	}})
	q, ok := c.View().Queue("v", "q")
	if !ok {
		t.Fatal("there is no queue")
	}
	tr := &Traffic{c: TrafficConfig{Catalog: &c, Table: traffic.NewTable()}}
	tr.addDeaths(map[fsm.QueueID]group.Died{q.ID: {Expired: 3, DeadLettered: 2}, q.ID + 1: {Expired: 10, DeadLettered: 20}})
	report := traffic.NewReport(&traffic.Query{})
	for _, of := range []peerpb.TrafficRequest_Of{peerpb.TrafficRequest_SUMS, peerpb.TrafficRequest_QUEUES} {
		report.Add("n1", tr.c.Table.Answer(&traffic.Query{Of: of}))
	}
	if a := report.All.Total; a[traffic.Expired] != 13 || a[traffic.DeadLettered] != 22 {
		t.Errorf("the node has %v", a)
	}
	if v := report.VHosts["v"]; len(report.VHosts) != 1 || v.Total[traffic.Expired] != 3 || v.Total[traffic.DeadLettered] != 2 {
		t.Errorf("the vhosts have %v", report.VHosts)
	}
	if a := report.Queues[q.ID]; len(report.Queues) != 1 || a.Total[traffic.Expired] != 3 || a.Total[traffic.DeadLettered] != 2 {
		t.Errorf("the queues have %v", report.Queues)
	}
}

// TestTimes: of all queues the first expiry, the most overdue deadline and the log that is the furthest
// ahead are shown.
func TestTimes(t *testing.T) {
	at := func(now fsm.Time, ttl uint64) *queue.Machine {
		m := queue.New("q", 1)
		m.Apply(fsm.Meta{Index: 1, Now: now}, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: 1, TtlPlusOne: ttl}}, &fsm.Effects{})
		return m
	}
	var times metrics.Times
	for _, m := range []*queue.Machine{at(1000, 0), at(1000, 1001), at(1000, 501), at(2300, 5001)} {
		s := group.StatsOf(m)
		addTimes(&times, &s, 2100)
	}
	if want := (metrics.Times{NextExpiry: 1500, TickLag: 600, Ahead: 200}); times != want {
		t.Errorf("%+v, want %+v", times, want)
	}
	times = metrics.Times{}
	s := group.StatsOf(at(1000, 0))
	if addTimes(&times, &s, 2000); times != (metrics.Times{}) {
		t.Errorf("a queue without deadlines: %+v", times)
	}
}

// TestMembers: a replica counts once, by what it is.
func TestMembers(t *testing.T) {
	var m metrics.Members
	for _, p := range []replica.Progress{
		{Role: "leader", Voter: true}, {Role: "follower", Voter: true}, {Role: "follower", Voter: true}, {Role: "follower"},
		{Role: "candidate", Voter: true}, {Role: "shutdown"}, {},
	} {
		addMember(&m, &p)
	}
	if want := (metrics.Members{Leaders: 1, Followers: 2, Learners: 1, Candidates: 1, Stopped: 2}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}
