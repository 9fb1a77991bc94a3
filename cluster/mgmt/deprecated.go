package mgmt

import (
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
)

// deprecated serves what RabbitMQ deprecates and quorate serves for good.
type deprecated struct{ clients Connections }

var (
	transientQueues = feature("transient_nonexcl_queues", "queues that are neither durable nor exclusive")
	sharedPrefetch  = feature("global_qos", "basic.qos with global: one limit for all consumers of a channel")
)

func feature(name, about string) api.DeprecatedFeature {
	return api.DeprecatedFeature{Name: name, Phase: "permitted_by_default", State: "permitted", ProvidedBy: "quorate", About: about}
}

func (deprecated) list(w *responder, r *request) {
	list(w, r, []api.DeprecatedFeature{sharedPrefetch, transientQueues})
}

// used lists those that are in use at present.
func (d deprecated) used(w *responder, r *request) {
	items := []api.DeprecatedFeature{}
	if slices.ContainsFunc(d.clients.Channels(r.Context()), func(c api.Channel) bool { return c.SharedPrefetch > 0 }) {
		items = append(items, sharedPrefetch)
	}
	if slices.ContainsFunc(r.view.Queues(), func(q *catalog.Queue) bool { return !q.Durable && !q.Exclusive }) {
		items = append(items, transientQueues)
	}
	list(w, r, items)
}
