package mgmt

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// closedBy is the default reason for closing a connection.
const closedBy = "Closed via management plugin"

// connections serves the client connections.
type connections struct{ all Connections }

// matching lists the requested connections that the user may see: of all vhosts, one vhost or one
// user; all of them, or only the user's own without the monitoring tag.
func (cs connections) matching(r *request) (all []api.Connection) {
	return cs.named(r, r.PathValue("name"))
}

// named is matching with the name of a connection; empty: of all.
func (cs connections) named(r *request, name string) (all []api.Connection) {
	vhost, user := r.PathValue("vhost"), r.PathValue("user")
	for _, c := range cs.all.Connections(r.Context()) {
		if (name == "" || c.Name == name) && (vhost == "" || c.VHost == vhost) && (user == "" || c.User == user) &&
			r.seesClient(c.User) {
			all = append(all, c)
		}
	}
	return all
}

func (cs connections) list(w *responder, r *request) {
	if _, ok := w.vhosts(r); ok {
		list(w, r, cs.matching(r))
	}
}

func (cs connections) get(w *responder, r *request) {
	if found := cs.matching(r); len(found) == 1 {
		w.answer(http.StatusOK, found[0])
		return
	}
	w.notFound()
}

// closeAll closes one connection, or all of a user: the caller's own, or anyone's for an
// administrator.
func (cs connections) closeAll(w *responder, r *request) {
	me, of := r.user.GetName(), r.PathValue("user")
	found := cs.matching(r)
	if len(found) == 0 && of == "" {
		w.notFound()
		return
	}
	others := of != "" && of != me || slices.ContainsFunc(found, func(c api.Connection) bool { return c.User != me })
	if others && !r.has(administrator) {
		w.unauthorized("not_authorised", levels[administrator].reason)
		return
	}
	for _, c := range found {
		if _, err := cs.all.CloseConnection(r.Context(), c, cmp.Or(r.Header.Get("X-Reason"), closedBy)); err != nil {
			w.failed(err)
			return
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

// sessions shows the sessions of a connection of AMQP 1.0, with their links.
func (cs connections) sessions(w *responder, r *request) {
	found := cs.named(r, r.PathValue("connection"))
	switch {
	case len(found) != 1:
		w.notFound()
	case found[0].Protocol != api.AMQP10:
		w.badRequest("connection does not use AMQP 1.0")
	default:
		all, err := cs.all.SessionsOf(r.Context(), found[0])
		if err != nil {
			w.failed(err)
			return
		}
		list(w, r, all)
	}
}

// channels serves the channels of clients, with what they have done.
type channels struct {
	all       Connections
	traffic   Traffic
	consumers consumers
}

// matching lists the requested channels that the user may see: of all connections, a vhost or a
// connection; all of them, or only the user's own without the monitoring tag.
func (cs channels) matching(r *request) (all []api.Channel) {
	name, vhost, connection := r.PathValue("name"), r.PathValue("vhost"), r.PathValue("connection")
	for _, c := range cs.all.Channels(r.Context()) {
		if (name == "" || c.Name == name) && (vhost == "" || c.VHost == vhost) && (connection == "" || c.Connection.Name == connection) &&
			r.seesClient(c.User) {
			all = append(all, c)
		}
	}
	return all
}

func (cs channels) list(w *responder, r *request) {
	if _, ok := w.vhosts(r); !ok {
		return
	}
	items := cs.matching(r)
	if r.PathValue("connection") != "" && len(items) == 0 && len((connections{cs.all}).named(r, r.PathValue("connection"))) == 0 {
		w.notFound()
		return
	}
	if q := r.URL.Query(); q.Get("disable_stats") != "true" && shows(q.Get("columns"), "message_stats") {
		report := cs.traffic.Traffic(r.Context(), trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_CHANNELS, Listed: len(items) <= traffic.MaxListed}))
		for i := range items {
			items[i].MessageStats = messageStats(report.Channels[items[i].Name], report.Query, channelCounters)
		}
	}
	list(w, r, items)
}

// get shows one channel, with its consumers.
func (cs channels) get(w *responder, r *request) {
	found := cs.matching(r)
	if len(found) != 1 {
		w.notFound()
		return
	}
	ch := found[0]
	report := cs.traffic.Traffic(r.Context(), trafficFor(r, traffic.Query{Of: peerpb.TrafficRequest_CHANNELS, One: true, Pairs: true, Channel: ch.Name}))
	ch.MessageStats = messageStats(report.Channels[ch.Name], report.Query, channelCounters)
	ch.Publishes, ch.Deliveries = withExchanges(report), withQueues(r.view, report, consumeCounters)
	ch.ConsumerDetails = []api.Consumer{}
	for _, c := range cs.consumers.of(r, []string{ch.VHost}) {
		if at, ok := c.Channel.(api.ChannelDetails); ok && at.Name == ch.Name {
			ch.ConsumerDetails = append(ch.ConsumerDetails, c)
		}
	}
	w.answer(http.StatusOK, ch)
}

// consumers serves the consumers of queues.
type consumers struct {
	queues Queues
	node   Node
}

// list answers with the consumers of the queues that the user may see.
func (cs consumers) list(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	list(w, r, cs.of(r, vhosts))
}

// ofQueue answers with the consumers of one queue.
func (cs consumers) ofQueue(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
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
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	cs.listTimeouts(w, r, func(t *stats.Timeout) bool { return slices.Contains(vhosts, t.Queue.VHost) })
}

// drifts answers with what was declared otherwise in the vhosts that the user may see.
func (cs consumers) drifts(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	list(w, r, slices.DeleteFunc(cs.queues.Drifts(r.Context()), func(d api.Drift) bool { return !slices.Contains(vhosts, d.VHost) }))
}

// timeoutsOfQueue answers with those of one queue.
func (cs consumers) timeoutsOfQueue(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	cs.listTimeouts(w, r, func(t *stats.Timeout) bool { return t.Of == q.ID })
}

func (cs consumers) listTimeouts(w *responder, r *request, wanted func(t *stats.Timeout) bool) {
	var items []api.ConsumerTimeout
	for _, t := range cs.queues.Timeouts(r.Context()) {
		if wanted(&t) {
			items = append(items, t.ConsumerTimeout)
		}
	}
	list(w, r, items)
}
