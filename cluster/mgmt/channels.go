package mgmt

import (
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/proto/peerpb"
)

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
	if vhost := r.PathValue("vhost"); vhost != "" && !r.sees(vhost) {
		w.notFound()
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
