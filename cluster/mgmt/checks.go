package mgmt

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

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

// failing answers a check that fails if something was found, and names the queues that it is about, unless they are gone.
// of finds a queue; nil stands for the catalog.
func failing[T any](w *responder, found []T, reason string, of func(T) (*catalog.Queue, bool)) {
	c := api.Check{}
	for _, x := range found {
		c.Reason = reason
		if q, ok := of(x); ok {
			c.Queues = append(c.Queues, named(q))
		}
	}
	passed(w, c)
}

func itself(q *catalog.Queue) (*catalog.Queue, bool) { return q, true }

// queueOf is the queue of a group; nil: it is the catalog's.
func (r *request) queueOf(group uint32, vhost, name string) (*catalog.Queue, bool) {
	if group == 0 {
		return nil, true
	}
	return r.view.Queue(vhost, name)
}

// quarantineCheck fails if queues do not lead on this node because work for them has panicked here.
func (h healthChecks) quarantineCheck(w *responder, r *request) {
	failing(w, h.node.Quarantined(), "There are queues that are quarantined on the node", func(x api.Quarantine) (*catalog.Queue, bool) { return r.view.Queue(x.VHost, x.Name) })
}

// unprovenCheck fails if replicas on this node cannot prove what they acknowledged.
func (h healthChecks) unprovenCheck(w *responder, r *request) {
	failing(w, h.node.Unproven(), "There are replicas on the node that do not vote until they have been brought up to date",
		func(x api.Unproven) (*catalog.Queue, bool) { return r.queueOf(x.Group, x.VHost, x.Name) })
}

const replicasClosed = "There are replicas on the node that could not be opened"

// closedCheck fails if replicas on this node could not be opened.
func (h healthChecks) closedCheck(w *responder, r *request) {
	failing(w, h.node.Closed(), replicasClosed, func(x api.Closed) (*catalog.Queue, bool) { return r.view.Queue(x.VHost, x.Name) })
}

// parkedCheck fails if messages are parked in queues that this node leads. It is no
// alarm of the node: that waits for an operator, and may stay for days, while the node
// and the queue are well.
func (h healthChecks) parkedCheck(w *responder, r *request) {
	failing(w, h.node.Parked(), "There are parked messages in queues led by the node", r.view.QueueByID)
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

// progressCheck fails if queues that this node leads make no progress.
func (h healthChecks) progressCheck(w *responder, r *request) {
	failing(w, h.node.StalledQueues(), "There are queues led by the node that make no progress",
		func(x api.Standstill) (*catalog.Queue, bool) { return r.queueOf(x.Group, x.VHost, x.Name) })
}

// criticalCheck fails if queues, or the catalog, would lose their majority without this node.
func (h healthChecks) criticalCheck(w *responder, r *request) {
	if len(r.view.Nodes()) == 1 {
		w.answer(http.StatusOK, api.Check{Status: "ok", Reason: "single node cluster"})
		return
	}
	failing(w, h.cluster.QuorumCritical(r.Context()), "There are quorum queues that would lose their quorum if the target node is shut down", itself)
}

// leaderlessCheck fails if queues have no leader: in all vhosts or one, optionally only those whose
// names match a regular expression.
func (h healthChecks) leaderlessCheck(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
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
	failing(w, h.cluster.Leaderless(r.Context(), queues), "There are quorum queues without an elected leader", itself)
}

func named(q *catalog.Queue) api.Named {
	if q == nil {
		return api.Named{Name: "catalog", ReadableName: "the catalog", Type: "metadata_store"}
	}
	return api.Named{Name: q.Name, ReadableName: "queue '" + q.Name + "' in vhost '" + q.VHost + "'", VirtualHost: q.VHost, Type: q.Type()}
}

// ports lists the ports at which this node listens, by protocol.
func (h healthChecks) ports() map[string][]int {
	all := map[string][]int{}
	for _, l := range h.node.Status().Listeners {
		_, text, _ := net.SplitHostPort(l.Address)
		if port, err := strconv.Atoi(text); err == nil {
			all[l.Protocol] = append(all[l.Protocol], port)
			if slices.Contains(l.Speaks, api.AMQP10) {
				name := strings.Replace(l.Protocol, "amqp", "amqp10", 1)
				all[name] = append(all[name], port)
			}
		}
	}
	return all
}

// portCheck fails if the node does not listen at a port.
func (h healthChecks) portCheck(w *responder, r *request) {
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 1<<16-1 {
		w.badRequest("Invalid port")
		return
	}
	open := []int{}
	for _, ports := range h.ports() {
		open = append(open, ports...)
	}
	if slices.Contains(open, port) {
		w.answer(http.StatusOK, api.PortCheck{Status: "ok", Port: port})
		return
	}
	slices.Sort(open)
	open = slices.Compact(open)
	w.answer(http.StatusServiceUnavailable, api.PortCheck{Status: "failed", Reason: "No active listener", Missing: port, Ports: open})
}

// protocolNames are other names of protocols.
var protocolNames = map[string]string{"amqp091": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl", "amqp091s": "amqp/ssl", "amqp1.0": "amqp10", "amqp1-0": "amqp10"}

// protocolCheck fails if the node does not listen for one of several protocols, separated by commas.
func (h healthChecks) protocolCheck(w *responder, r *request) {
	open, c := h.ports(), api.ProtocolCheck{Status: "ok", Protocols: []string{}}
	for name := range strings.SplitSeq(r.PathValue("protocols"), ",") {
		protocol := strings.ToLower(strings.TrimSpace(name))
		if other, ok := protocolNames[protocol]; ok {
			protocol = other
		}
		if len(open[protocol]) == 0 {
			c.Missing = append(c.Missing, name)
		} else {
			c.Protocols = append(c.Protocols, name)
		}
	}
	if len(c.Missing) == 0 {
		w.answer(http.StatusOK, c)
		return
	}
	c.Status, c.Reason, c.Protocols = "failed", "No active listener", nil
	for protocol := range open {
		c.Protocols = append(c.Protocols, protocol)
	}
	slices.Sort(c.Protocols)
	w.answer(http.StatusServiceUnavailable, c)
}

// vhostCheck fails if the node cannot serve the vhosts: they are all up, or all down.
func (h healthChecks) vhostCheck(w *responder, r *request) {
	c := api.VHostCheck{Status: "ok"}
	if why := h.node.NotReady(); why != "" {
		c.Status, c.Reason = "failed", why
		c.VHosts, _ = r.vhosts()
		w.answer(http.StatusServiceUnavailable, c)
		return
	}
	w.answer(http.StatusOK, c)
}

// catalogCheck fails if the node has no catalog yet.
func (h healthChecks) catalogCheck(w *responder, r *request) {
	c := api.Check{}
	if !r.view.Initialized() {
		c.Reason = "the catalog is not initialized"
	}
	passed(w, c)
}

// aliveness says whether clients can work in a vhost.
func (h healthChecks) aliveness(w *responder, r *request) {
	if !r.sees(r.PathValue("vhost")) {
		w.notFound()
		return
	}
	h.readyCheck(w, r)
}

const day = 24 * time.Hour

// expiryUnits are the units of the check below.
var expiryUnits = map[string]time.Duration{
	"day": day, "days": day, "week": 7 * day, "weeks": 7 * day, "month": 365 * day / 12, "months": 365 * day / 12, "year": 365 * day, "years": 365 * day,
}

// maxWithin is the longest time ahead that can be checked.
const maxWithin = 200 * 365 * day

// expiryCheck fails if a certificate that the node presents, or one that it checks others by,
// expires within the time in the path.
func (h healthChecks) expiryCheck(w *responder, r *request) {
	within, err := strconv.Atoi(r.PathValue("within"))
	if err != nil || within < 0 {
		w.badRequest("Invalid expiration value.")
		return
	}
	unit, known := expiryUnits[strings.ToLower(r.PathValue("unit"))]
	if !known {
		w.badRequest("Time unit not recognised. Use: days, weeks, months, years.")
		return
	}
	end := time.Now().Add(time.Duration(min(within, int(maxWithin/unit))) * unit)
	c := api.Check{}
	for _, x := range h.node.Certificates() {
		own, theirs := x.Ends.Before(end), !x.AuthoritiesEnd.IsZero() && x.AuthoritiesEnd.Before(end)
		if !own && !theirs {
			continue
		}
		c.Reason = "Certificates expiring"
		e := api.Expiring{Node: h.node.Status().Node, Protocol: x.Protocol, File: x.File, AuthoritiesFile: x.AuthoritiesFile, Ends: []string{}, AuthoritiesEnd: []string{}}
		if own {
			e.Ends = append(e.Ends, x.Ends.UTC().Format(time.RFC3339))
		}
		if theirs {
			e.AuthoritiesEnd = append(e.AuthoritiesEnd, x.AuthoritiesEnd.UTC().Format(time.RFC3339))
		}
		c.Expired = append(c.Expired, e)
	}
	passed(w, c)
}
