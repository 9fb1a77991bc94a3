package mgmt

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strconv"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// compatibility is the version of RabbitMQ whose API this one follows.
const compatibility = "4.3.0"

// ratesMode is what the API calls counts of every kind of object.
const ratesMode = "basic"

// retention is for how long samples are kept, in seconds, by the kind of object.
var retention = map[string][]int{"global": {600}, "basic": {600}, "detailed": {600}}

// overview is the cluster as visible to a user.
type overview struct {
	node    Node
	queues  Queues
	traffic Traffic
	clients Connections
	// newType is the queue type of new vhosts.
	newType string
}

// get sums up the vhosts that the user may see.
func (ov overview) get(w *responder, r *request) {
	status := ov.node.Status()
	o := api.Overview{
		ManagementVersion: compatibility, RabbitMQVersion: compatibility, ProductName: "quorate", ProductVersion: ov.node.Version(),
		ClusterName: status.Cluster, Node: status.Node, DefaultQueueType: ov.newType,
		RatesMode: ratesMode, SampleRetention: retention, ErlangVersion: "0", ErlangFullVersion: "Go " + runtime.Version(),
		CryptoVersion: "crypto/tls of " + runtime.Version(), ClusterTags: map[string]string{}, NodeTags: map[string]string{}, OperatorPolicyUpdates: true,
	}
	o.Listeners, o.Contexts = listenersOf(&status)
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
				o.QueueTotals.Totals.Add(&f.QueueStats)
				o.QueueTotals.Expiry.Add(f.NextExpiryAt, f.Expiring)
				o.ObjectTotals.Consumers += f.Consumers
			} else {
				o.QueueTotals.Unknown++
			}
		}
	}
	for _, c := range (connections{all: ov.clients}).matching(r) {
		o.ObjectTotals.Connections++
		o.ObjectTotals.Channels += c.Channels
	}
	ov.addTraffic(r, &o, vhosts)
	w.answer(http.StatusOK, o)
}

// addTraffic adds what clients do: all of them with the monitoring tag, otherwise those of the
// vhosts that the user may see.
func (ov overview) addTraffic(r *request, o *api.Overview, vhosts []string) {
	report := ov.traffic.Traffic(r.Context(), sums(r))
	all := &report.All
	if !r.has(monitoring) {
		all = &traffic.Activity{}
		for _, vhost := range vhosts {
			all.Merge(report.VHosts[vhost])
		}
	}
	o.MessageStats = messageStats(all, report.Query, clusterCounters)
	o.QueueTotals.LengthDetails = lengthDetails(all, report.Query)
	c := &o.ChurnRates
	for _, x := range []struct {
		of      traffic.Counter
		total   *uint64
		details **api.Details
	}{
		{traffic.ConnectionCreated, &c.ConnectionCreated, &c.ConnectionCreatedDetails},
		{traffic.ConnectionClosed, &c.ConnectionClosed, &c.ConnectionClosedDetails},
		{traffic.ChannelCreated, &c.ChannelCreated, &c.ChannelCreatedDetails},
		{traffic.ChannelClosed, &c.ChannelClosed, &c.ChannelClosedDetails},
		{traffic.QueueDeclared, &c.QueueDeclared, &c.QueueDeclaredDetails},
		{traffic.QueueCreated, &c.QueueCreated, &c.QueueCreatedDetails},
		{traffic.QueueDeleted, &c.QueueDeleted, &c.QueueDeletedDetails},
	} {
		*x.total, *x.details = report.All.Total[x.of], details(&report.All, report.Query, x.of)
	}
}

// listenersOf describes the addresses at which a node listens; contexts are those for HTTP.
func listenersOf(s *api.Status) (list []api.NodeListener, contexts []api.Context) {
	list, contexts = []api.NodeListener{}, []api.Context{}
	for _, l := range s.Listeners {
		host, text, _ := net.SplitHostPort(l.Address)
		port, _ := strconv.Atoi(text)
		if at, err := netip.ParseAddr(host); err == nil {
			host = at.Unmap().String()
		}
		x := api.NodeListener{Node: s.Node, Protocol: l.Protocol, IPAddress: cmp.Or(host, "::"), Port: port, TLS: l.TLS, SocketOptions: map[string]any{}}
		list = append(list, x)
		if l.Protocol == "http" || l.Protocol == "https" {
			contexts = append(contexts, api.Context{
				Node: s.Node, Description: "HTTP API", Path: "/", IP: x.IPAddress, Port: text, TLS: strconv.FormatBool(l.TLS),
			})
		}
	}
	return list, contexts
}

// totals sums up the queues of one vhost.
func totals(v *catalog.View, vhost string, byQueue map[fsm.QueueID]stats.Queue) *api.Totals {
	t := &api.Totals{}
	for _, q := range v.QueuesOf(vhost) {
		if f, ok := byQueue[q.ID]; ok {
			t.Add(&f.QueueStats)
		} else {
			t.Unknown++
		}
	}
	return t
}
