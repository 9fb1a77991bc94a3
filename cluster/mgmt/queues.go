package mgmt

import (
	"net/http"
	"slices"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// queues serves queues, with the stats reported by their leaders.
type queues struct {
	queues  Queues
	node    Node
	cluster Cluster
	traffic Traffic
}

func (qs queues) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	q := r.URL.Query()
	var byQueue map[fsm.QueueID]stats.Queue
	var report *traffic.Report
	if q.Get("disable_stats") != "true" || q.Get("enable_queue_totals") == "true" {
		byQueue = qs.queues.Stats(r.Context())
	}
	if q.Get("disable_stats") != "true" && shows(q.Get("columns"), "message_stats", "messages_details", "messages_ready_details", "messages_unacknowledged_details") {
		report = qs.traffic.Traffic(r.Context(), traffic.Query{Of: peerpb.TrafficRequest_QUEUES})
	}
	var items []api.Queue
	for _, vhost := range vhosts {
		for _, q := range r.view.QueuesOf(vhost) {
			d := qs.describe(r.view, q, byQueue)
			addQueueTraffic(&d, report, q.ID)
			items = append(items, d)
		}
	}
	list(w, r, items)
}

func (qs queues) get(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return
	}
	d := qs.describe(r.view, q, qs.queues.Stats(r.Context(), q.ID))
	of := traffic.Query{Of: peerpb.TrafficRequest_QUEUES, One: true, Queue: q.ID}
	addQueueTraffic(&d, qs.traffic.Traffic(r.Context(), trafficFor(r, of)), q.ID)
	w.answer(http.StatusOK, d)
}

// addQueueTraffic adds what clients do with a queue; report nil: nothing is added.
func addQueueTraffic(d *api.Queue, report *traffic.Report, id fsm.QueueID) {
	if report == nil || d.QueueStats == nil {
		return
	}
	a := report.Queues[id]
	d.MessageStats, d.LengthDetails = messageStats(a, report.Query, queueCounters), lengthDetails(a, report.Query)
}

// shows reports whether a list of columns, which is all of them if it is empty, has one of these
// objects or something within.
func shows(columns string, objects ...string) bool {
	for column := range strings.SplitSeq(columns, ",") {
		object, _, _ := strings.Cut(column, ".")
		if columns == "" || slices.Contains(objects, object) {
			return true
		}
	}
	return false
}

func (qs queues) describe(v *catalog.View, q *catalog.Queue, byQueue map[fsm.QueueID]stats.Queue) api.Queue {
	policies, settings := v.EffectivePolicy(q), v.Settings(q, qs.node.Defaults())
	d := api.Queue{
		Name: q.Name, VHost: q.VHost, Type: q.Type(), Durable: q.Durable, AutoDelete: q.AutoDelete, Exclusive: q.Exclusive,
		Arguments: ObjectOf(q.Arguments), Policy: policies.Policy, OperatorPolicy: policies.Operator,
		EffectiveDefinition: ObjectOf(policies.Definition),
		DeliveryLimit:       settings.DeliveryLimit, DeadLetterStrategy: strategy(settings),
		Internal: q.StoreOf != "", State: "running", Members: []string{}, Online: []string{},
	}
	for _, number := range v.Members(q) {
		n, ok := v.Node(number)
		if !ok {
			continue
		}
		d.Members = append(d.Members, n.GetName())
		if qs.cluster.Online(n.GetName()) {
			d.Online = append(d.Online, n.GetName())
		}
	}
	switch {
	case len(d.Online) == 0:
		d.State = "down"
	case 2*len(d.Online) <= len(d.Members):
		d.State = "minority"
	}
	if f, ok := byQueue[q.ID]; ok {
		f.SettingsApplied = f.Revision >= settings.Revision
		d.Leader, d.Node, d.QueueStats = &f.Leader, f.Leader, &f.QueueStats
	} else if len(d.Members) > 0 {
		d.Node = d.Members[0]
	}
	return d
}

// strategy is how a queue's dead letters are sent.
func strategy(c *logpb.QueueConfig) string {
	if !c.GetDeadLetter() {
		return "disabled"
	}
	return strings.ReplaceAll(strings.ToLower(c.GetDeadLetterStrategy().String()), "_", "-")
}
