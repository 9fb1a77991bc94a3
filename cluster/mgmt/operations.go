package mgmt

import (
	"errors"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/pattern"
)

// operations serves what operators do with nodes and leaders.
type operations struct {
	cluster   Cluster
	local     Node
	placement Placement
	resources Resources
}

func (o operations) nodes(w *responder, r *request) {
	list(w, r, o.cluster.Nodes(r.Context()))
}

// setLimit changes a limit of this node.
func (o operations) setLimit(w *responder, r *request) {
	var to api.Limit
	if w.read(r, &to) {
		w.changed(o.resources.SetLimit(r.PathValue("name"), to), false)
	}
}

// members lists the replicas of a queue.
func (o operations) members(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
		return
	}
	w.answer(http.StatusOK, o.cluster.Members(r.Context(), q))
}

// transfer makes a node the leader of a queue.
func (o operations) transfer(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok {
		w.notFound()
		return
	}
	var to api.Transfer
	if !w.read(r, &to) {
		return
	}
	w.changed(o.placement.TransferLeadership(r.Context(), q, to.Node), false)
}

// liftQuarantine allows a queue to lead on this node again.
func (o operations) liftQuarantine(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok {
		w.notFound()
		return
	}
	w.changed(o.local.LiftQuarantine(q), false)
}

// rebalanceAll spreads the leaderships of all queues.
func (o operations) rebalanceAll(w *responder, r *request) {
	_, err := o.placement.Rebalance(r.Context(), nil, nil)
	w.changed(err, false)
}

// rebalance spreads the leaderships of the queues that match patterns.
func (o operations) rebalance(w *responder, r *request) {
	var which api.Rebalance
	if !w.read(r, &which) {
		return
	}
	vhosts, err := pattern.Compile(which.VHostPattern)
	queues, queueErr := pattern.Compile(which.QueuePattern)
	if err := errors.Join(err, queueErr); err != nil {
		w.badRequest("pattern should be regular expression but is invalid: " + err.Error())
		return
	}
	done, err := o.placement.Rebalance(r.Context(), vhosts, queues)
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, done)
}

func (o operations) drain(w *responder, r *request) {
	d, err := o.placement.Drain(r.Context())
	if err != nil {
		w.failed(err)
		return
	}
	w.answer(http.StatusOK, d)
}

func (o operations) revive(w *responder, r *request) {
	w.changed(o.placement.Revive(r.Context()), false)
}
