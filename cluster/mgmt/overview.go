package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// compatibility is the version of RabbitMQ whose API this one follows.
const compatibility = "4.3.0"

// overview sums up the vhosts that the user may see.
func (s *Server) overview(w http.ResponseWriter, r *request) {
	status := s.node.Status()
	o := api.Overview{
		ManagementVersion: compatibility, RabbitMQVersion: compatibility, ProductName: "quorate", ProductVersion: s.node.Version(),
		ClusterName: status.Cluster, Node: status.Node, DefaultQueueType: queueType,
	}
	for _, name := range catalog.ExchangeTypes() {
		o.ExchangeTypes = append(o.ExchangeTypes, api.ExchangeType{Name: name, Enabled: true})
	}
	byQueue := s.node.QueueStats(r.Context())
	vhosts, _ := r.vhosts()
	for _, vhost := range vhosts {
		o.ObjectTotals.Exchanges += 1 + len(r.view.Exchanges(vhost)) // the default one has no record
		for _, q := range r.view.QueuesOf(vhost) {
			o.ObjectTotals.Queues++
			if f, ok := byQueue[q.ID]; ok {
				o.QueueTotals.Add(&f.QueueStats)
				o.ObjectTotals.Consumers += f.Consumers
			}
		}
	}
	s.answer(w, http.StatusOK, o)
}

// totals sums up the queues of one vhost.
func totals(v *catalog.View, vhost string, byQueue map[fsm.QueueID]stats.Queue) *api.Totals {
	t := &api.Totals{}
	for _, q := range v.QueuesOf(vhost) {
		if f, ok := byQueue[q.ID]; ok {
			t.Add(&f.QueueStats)
		}
	}
	return t
}
