package mgmt

import (
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// ports lists the ports at which this node listens, by protocol.
func (h healthChecks) ports() map[string][]int {
	all := map[string][]int{}
	for _, l := range h.node.Status().Listeners {
		_, text, _ := net.SplitHostPort(l.Address)
		if port, err := strconv.Atoi(text); err == nil {
			all[l.Protocol] = append(all[l.Protocol], port)
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
	w.answer(http.StatusServiceUnavailable, api.PortCheck{Status: "failed", Reason: "No active listener", Missing: port, Ports: open})
}

// protocolNames are other names of protocols.
var protocolNames = map[string]string{"amqp091": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl", "amqp091s": "amqp/ssl"}

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
