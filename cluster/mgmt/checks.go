package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/pattern"
)

// passed answers a health check: without a reason, it has passed.
func passed(w *responder, c api.Check) {
	status := http.StatusOK
	if c.Status = "ok"; c.Reason != "" {
		c.Status, status = "failed", http.StatusServiceUnavailable
	}
	w.answer(status, c)
}

// healthChecks serve monitoring.
type healthChecks struct {
	node    Node
	cluster Cluster
}

// readyCheck passes as well while replicas are closed, and says so: their queues have other ones.
func (h healthChecks) readyCheck(w *responder, _ *request) {
	if why := h.node.NotReady(); why != "" || len(h.node.Closed()) == 0 {
		passed(w, api.Check{Reason: why})
		return
	}
	w.answer(http.StatusOK, api.Check{Status: "ok", Reason: replicasClosed})
}

func (h healthChecks) aliveCheck(w *responder, _ *request) {
	passed(w, api.Check{Reason: h.node.Dead()})
}

func (h healthChecks) alarmCheck(w *responder, r *request) {
	c := api.Check{Alarms: h.cluster.Alarms(r.Context())}
	if len(c.Alarms) > 0 {
		c.Reason = "There are alarms in effect in the cluster"
	}
	passed(w, c)
}

func (h healthChecks) localAlarmCheck(w *responder, _ *request) {
	c, status := api.Check{}, h.node.Status()
	for _, a := range status.Alarms {
		c.Alarms = append(c.Alarms, api.Alarm{Node: status.Node, Resource: a})
		c.Reason = "There are alarms in effect on the node"
	}
	passed(w, c)
}

// nodeAlarmCheck fails if there are alarms at a node: the check of old scripts.
func (h healthChecks) nodeAlarmCheck(w *responder, r *request) {
	name := r.PathValue("node")
	if !r.hasNode(name) {
		w.notFound()
		return
	}
	c := api.Check{}
	for _, a := range h.cluster.Alarms(r.Context()) {
		if a.Node == name {
			c.Alarms, c.Reason = append(c.Alarms, a), "There are alarms in effect on the node"
		}
	}
	passed(w, c)
}

// appendNamed adds a queue to a list, unless the queue is gone.
func (r *request) appendNamed(list []api.Named, vhost, name string) []api.Named {
	if q, ok := r.view.Queue(vhost, name); ok {
		list = append(list, named(q))
	}
	return list
}

// quarantineCheck fails if queues do not lead on this node because work for them has panicked here.
func (h healthChecks) quarantineCheck(w *responder, r *request) {
	c := api.Check{}
	for _, x := range h.node.Quarantined() {
		c.Reason = "There are queues that are quarantined on the node"
		c.Queues = r.appendNamed(c.Queues, x.VHost, x.Name)
	}
	passed(w, c)
}

// unprovenCheck fails if replicas on this node cannot prove what they acknowledged.
func (h healthChecks) unprovenCheck(w *responder, r *request) {
	c := api.Check{}
	for _, x := range h.node.Unproven() {
		c.Reason = "There are replicas on the node that do not vote until they have been brought up to date"
		if x.Group == 0 {
			c.Queues = append(c.Queues, catalogNamed)
		} else {
			c.Queues = r.appendNamed(c.Queues, x.VHost, x.Name)
		}
	}
	passed(w, c)
}

const replicasClosed = "There are replicas on the node that could not be opened"

// closedCheck fails if replicas on this node could not be opened.
func (h healthChecks) closedCheck(w *responder, r *request) {
	c := api.Check{}
	for _, x := range h.node.Closed() {
		c.Reason = replicasClosed
		c.Queues = r.appendNamed(c.Queues, x.VHost, x.Name)
	}
	passed(w, c)
}

// parkedCheck fails if messages are parked in queues that this node leads. It is no
// alarm of the node: that waits for an operator, and may stay for days, while the node
// and the queue are well.
func (h healthChecks) parkedCheck(w *responder, r *request) {
	c := api.Check{}
	for _, id := range h.node.Parked() {
		c.Reason = "There are parked messages in queues led by the node"
		if q, ok := r.view.QueueByID(id); ok {
			c.Queues = append(c.Queues, named(q))
		}
	}
	passed(w, c)
}

// sizeCheck fails if nodes of the cluster are down: as many as there are, there should be.
func (h healthChecks) sizeCheck(w *responder, r *request) {
	c := api.SizeCheck{Status: "ok", Size: len(r.view.Nodes())}
	for _, n := range r.view.Nodes() {
		if h.cluster.Online(n.GetName()) {
			c.Running++
		}
	}
	status := http.StatusOK
	if c.Running < c.Size {
		c.Status, c.Reason, status = "failed", "cluster has fewer running nodes than its target size", http.StatusServiceUnavailable
	}
	w.answer(status, c)
}

// limitCheck fails if the node takes no more connections of clients.
func (h healthChecks) limitCheck(w *responder, _ *request) {
	s := h.node.Status()
	c, status := api.LimitCheck{Status: "ok", Current: s.Connections, Limit: s.MaxConnections}, http.StatusOK
	if c.Current >= c.Limit {
		c.Status, c.Reason, status = "failed", "node connection limit is reached", http.StatusServiceUnavailable
	}
	w.answer(status, c)
}

// catalogNamed is the catalog in lists of queues.
var catalogNamed = api.Named{Name: "catalog", ReadableName: "the catalog", Type: "metadata_store"}

// progressCheck fails if queues that this node leads make no progress.
func (h healthChecks) progressCheck(w *responder, r *request) {
	c := api.Check{}
	for _, x := range h.node.StalledQueues() {
		c.Reason = "There are queues led by the node that make no progress"
		if x.Group == 0 {
			c.Queues = append(c.Queues, catalogNamed)
		} else {
			c.Queues = r.appendNamed(c.Queues, x.VHost, x.Name)
		}
	}
	passed(w, c)
}

// criticalCheck fails if queues, or the catalog, would lose their majority without this node.
func (h healthChecks) criticalCheck(w *responder, r *request) {
	if len(r.view.Nodes()) == 1 {
		w.answer(http.StatusOK, api.Check{Status: "ok", Reason: "single node cluster"})
		return
	}
	c := api.Check{}
	for _, q := range h.cluster.QuorumCritical(r.Context()) {
		c.Reason = "There are quorum queues that would lose their quorum if the target node is shut down"
		if q == nil {
			c.Queues = append(c.Queues, catalogNamed)
			continue
		}
		c.Queues = append(c.Queues, named(q))
	}
	passed(w, c)
}

// leaderlessCheck fails if queues have no leader: in all vhosts or one, optionally only those whose
// names match a regular expression.
func (h healthChecks) leaderlessCheck(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
		return
	}
	names, err := pattern.Compile(r.PathValue("pattern"))
	if err != nil {
		w.badRequest("pattern should be regular expression but is invalid: " + err.Error())
		return
	}
	var queues []*catalog.Queue
	for _, vhost := range vhosts {
		for _, q := range r.view.QueuesOf(vhost) {
			if names.Match(q.Name) {
				queues = append(queues, q)
			}
		}
	}
	c := api.Check{}
	for _, q := range h.cluster.Leaderless(r.Context(), queues) {
		c.Reason = "There are quorum queues without an elected leader"
		c.Queues = append(c.Queues, named(q))
	}
	passed(w, c)
}

func named(q *catalog.Queue) api.Named {
	return api.Named{Name: q.Name, ReadableName: "queue '" + q.Name + "' in vhost '" + q.VHost + "'", VirtualHost: q.VHost, Type: q.Type()}
}
