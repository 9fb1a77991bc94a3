package mgmt

import (
	"net/http"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// queues serves queues, with the stats reported by their leaders.
type queues struct {
	queues  Queues
	node    Node
	cluster Cluster
}

func (qs queues) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	q := r.URL.Query()
	var byQueue map[fsm.QueueID]stats.Queue
	if q.Get("disable_stats") != "true" || q.Get("enable_queue_totals") == "true" {
		byQueue = qs.queues.Stats(r.Context())
	}
	var items []api.Queue
	for _, vhost := range vhosts {
		for _, q := range r.view.QueuesOf(vhost) {
			items = append(items, qs.describe(r.view, q, byQueue))
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
	w.answer(http.StatusOK, qs.describe(r.view, q, qs.queues.Stats(r.Context(), q.ID)))
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
