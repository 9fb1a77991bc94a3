package mgmt

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// consumers serves the consumers of queues.
type consumers struct {
	queues Queues
	node   Node
}

// list answers with the consumers of the queues that the user may see.
func (cs consumers) list(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	list(w, r, cs.of(r, vhosts))
}

// ofQueue answers with the consumers of one queue.
func (cs consumers) ofQueue(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return
	}
	list(w, r, cs.of(r, []string{q.VHost}, q.ID))
}

// of lists the consumers of the queues of vhosts; with ids, of these queues only.
func (cs consumers) of(r *request, vhosts []string, ids ...fsm.QueueID) (items []api.Consumer) {
	for _, c := range cs.queues.Consumers(r.Context(), ids...) {
		q, ok := r.view.QueueByID(c.Of)
		if !ok || !slices.Contains(vhosts, q.VHost) {
			continue
		}
		c.Queue = api.QueueName{Name: q.Name, VHost: q.VHost}
		c.Arguments = map[string]any{}
		switch {
		case !c.AckRequired:
			c.TimeoutSource = string(catalog.FromNobody)
		case c.OwnTimeout:
			c.TimeoutSource = string(catalog.FromConsumer)
			c.Arguments["x-consumer-timeout"] = c.Timeout
		default:
			c.TimeoutSource = string(r.view.TimeoutSource(q, cs.node.Defaults()))
		}
		if c.Priority != 0 {
			c.Arguments["x-priority"] = c.Priority
		}
		c.ConsumerTimeout = max(c.Timeout, 0)
		items = append(items, c.Consumer)
	}
	slices.SortFunc(items, func(a, b api.Consumer) int {
		return cmp.Or(cmp.Compare(a.Queue.VHost, b.Queue.VHost), cmp.Compare(a.Queue.Name, b.Queue.Name), cmp.Compare(a.Tag, b.Tag))
	})
	return items
}

// timeouts answers with the last consumer timeouts in the vhosts that the user may see.
func (cs consumers) timeouts(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	items := []api.ConsumerTimeout{}
	for _, t := range cs.queues.Timeouts(r.Context()) {
		if slices.Contains(vhosts, t.Queue.VHost) {
			items = append(items, t.ConsumerTimeout)
		}
	}
	list(w, r, items)
}

// timeoutsOfQueue answers with those of one queue.
func (cs consumers) timeoutsOfQueue(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return
	}
	items := []api.ConsumerTimeout{}
	for _, t := range cs.queues.Timeouts(r.Context()) {
		if t.Of == q.ID {
			items = append(items, t.ConsumerTimeout)
		}
	}
	list(w, r, items)
}
