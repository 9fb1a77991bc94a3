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

func (s *Server) listQueues(w http.ResponseWriter, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		s.notFound(w)
		return
	}
	q := r.URL.Query()
	var byQueue map[fsm.QueueID]stats.Queue
	if q.Get("disable_stats") != "true" || q.Get("enable_queue_totals") == "true" {
		byQueue = s.node.QueueStats(r.Context())
	}
	var items []api.Queue
	for _, vhost := range vhosts {
		for _, q := range r.view.QueuesOf(vhost) {
			items = append(items, s.describeQueue(r.view, q, byQueue))
		}
	}
	list(s, w, r, items)
}

func (s *Server) getQueue(w http.ResponseWriter, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		s.notFound(w)
		return
	}
	s.answer(w, http.StatusOK, s.describeQueue(r.view, q, s.node.QueueStats(r.Context(), q.ID)))
}

func (s *Server) describeQueue(v *catalog.View, q *catalog.Queue, byQueue map[fsm.QueueID]stats.Queue) api.Queue {
	policies, settings := v.EffectivePolicy(q), v.Settings(q, s.node.Defaults())
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
		if s.node.Online(n.GetName()) {
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
		f.SettingsInForce = f.Revision >= settings.Revision
		d.Leader, d.Node, d.QueueStats = &f.Leader, f.Leader, &f.QueueStats
	} else if len(d.Members) > 0 {
		d.Node = d.Members[0]
	}
	return d
}

// strategy is how the dead letters of a queue travel.
func strategy(c *logpb.QueueConfig) string {
	if !c.GetDeadLetter() {
		return "disabled"
	}
	return strings.ReplaceAll(strings.ToLower(c.GetDeadLetterStrategy().String()), "_", "-")
}
