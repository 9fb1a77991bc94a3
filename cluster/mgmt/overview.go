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

// overview is the cluster as visible to a user.
type overview struct {
	node   Node
	queues Queues
}

// get sums up the vhosts that the user may see.
func (ov overview) get(w *responder, r *request) {
	status := ov.node.Status()
	o := api.Overview{
		ManagementVersion: compatibility, RabbitMQVersion: compatibility, ProductName: "quorate", ProductVersion: ov.node.Version(),
		ClusterName: status.Cluster, Node: status.Node, DefaultQueueType: queueType,
	}
	for _, name := range catalog.ExchangeTypes() {
		o.ExchangeTypes = append(o.ExchangeTypes, api.ExchangeType{Name: name, Enabled: true})
	}
	byQueue := ov.queues.Stats(r.Context())
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
	w.answer(http.StatusOK, o)
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
