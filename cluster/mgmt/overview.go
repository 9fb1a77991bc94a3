package mgmt

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
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
	numbers := ov.queues.Numbers(r.Context(), true, summedUp...)
	vhosts, _ := r.vhosts()
	for _, vhost := range vhosts {
		o.ObjectTotals.Exchanges += 1 + len(r.view.Exchanges(vhost)) // the default one has no record
		for q := range r.view.EachQueueOf(vhost) {
			o.ObjectTotals.Queues++
			n := numbers.Of(q.ID)
			if n == nil {
				o.QueueTotals.Unknown++
				continue
			}
			addNumbers(&o.QueueTotals.Totals, n)
			o.ObjectTotals.Consumers += n[consumerCount]
			if n[nextExpiry] != 0 {
				at := int64(n[nextExpiry])
				o.QueueTotals.Expiry.Add(&at, numbers.Expiring(q.ID))
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
		x := api.NodeListener{Node: s.Node, Protocol: l.Protocol, IPAddress: cmp.Or(host, "::"), Port: port, TLS: l.TLS, Speaks: l.Speaks, SocketOptions: map[string]any{}}
		list = append(list, x)
		if l.Protocol == "http" || l.Protocol == "https" {
			contexts = append(contexts, api.Context{
				Node: s.Node, Description: "HTTP API", Path: "/", IP: x.IPAddress, Port: text, TLS: strconv.FormatBool(l.TLS),
			})
		}
	}
	return list, contexts
}

// Places in summedUp.
const (
	consumerCount = iota
	nextExpiry
	inTotals // from here on: those of addNumbers
)

// summedUp are the numbers of queues of which there are sums.
var summedUp = []string{
	"consumers", "next_expiry_at",
	"messages", "messages_ready", "messages_unacknowledged", "messages_scheduled", "messages_delayed", "message_bytes_delayed", "messages_dlx",
	"messages_dlx_waiting", "message_bytes", "message_bytes_dlx",
}

// addNumbers adds those of a queue.
func addNumbers(t *api.Totals, numbers []uint64) {
	for i, to := range [...]*uint64{
		&t.Messages, &t.Ready, &t.Unacknowledged, &t.Scheduled, &t.Delayed, &t.DelayedBytes, &t.DeadLetters, &t.DeadWaiting, &t.Bytes, &t.DeadLetterBytes,
	} {
		*to += numbers[inTotals+i]
	}
}

// totals sums up the queues of one vhost.
func totals(v *catalog.View, vhost string, numbers *stats.Numbers) *api.Totals {
	t := &api.Totals{}
	for q := range v.EachQueueOf(vhost) {
		if n := numbers.Of(q.ID); n != nil {
			addNumbers(t, n)
		} else {
			t.Unknown++
		}
	}
	return t
}

// inspection serves what the node reports about itself.
type inspection struct{ node Node }

func (i inspection) status(w *responder, _ *request) {
	w.answer(http.StatusOK, i.node.Status())
}

func (i inspection) clock(w *responder, _ *request) {
	w.answer(http.StatusOK, i.node.Clock())
}

func (i inspection) version(w *responder, _ *request) {
	w.answer(http.StatusOK, api.Version{ProductVersion: i.node.Version()})
}

func (i inspection) replicas(w *responder, r *request) {
	q := r.URL.Query()
	w.answer(http.StatusOK, orEmpty(i.node.ReplicasOf(q.Get("name"), q.Get("hash") != "false")))
}

// profile serves Go's profiles: cpu (for ?seconds=30), trace, and the named ones, such as heap and
// goroutine.
func (inspection) profile(w *responder, r *request) {
	switch name := r.PathValue("profile"); name {
	case "cpu":
		pprof.Profile(w, r.Request)
	case "trace":
		pprof.Trace(w, r.Request)
	default:
		pprof.Handler(name).ServeHTTP(w, r.Request)
	}
}

func (i inspection) barrier(w *responder, r *request) {
	if err := i.node.Barrier(r.Context()); err != nil {
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: err.Error()})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func whoami(w *responder, r *request) {
	w.answer(http.StatusOK, api.Whoami{Name: r.user.GetName(), Tags: orEmpty(r.user.GetTags()), IsInternalUser: true})
}

// ahead serves what comes next: in all queues that the user may see, and in each.
type ahead struct{ queues Queues }

// sum answers with the counts of all queues.
func (a ahead) sum(w *responder, r *request) {
	all := a.queues.Ahead(r.Context())
	t := api.Time{CountedAt: int64(all.At), Within: make([]api.TimeWithin, len(all.Within))}
	for i, ms := range all.Within {
		t.Within[i].WithinMS = ms
	}
	vhosts, _ := r.vhosts()
	for _, vhost := range vhosts {
		for _, q := range all.View.QueuesOf(vhost) {
			x, ok := all.Of[q.ID]
			if !ok {
				t.Unknown++
				continue
			}
			t.Queues++
			t.AtLeast = t.AtLeast || x.AtLeast
			for i := range t.Within {
				addTime(&t.Within[i].TimeCounts, all, x, i)
			}
		}
	}
	t.AtLeast = t.AtLeast || t.Unknown > 0
	t.Next = nextOf(all, func(i int) api.TimeCounts { return t.Within[i].TimeCounts })
	w.answer(http.StatusOK, t)
}

// list answers with the queues in which something comes within a day, those first in which it comes first.
func (a ahead) list(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	all := a.queues.Ahead(r.Context())
	items := []api.QueueTime{}
	for _, vhost := range vhosts {
		for _, q := range all.View.QueuesOf(vhost) {
			if x, ok := all.Of[q.ID]; ok {
				if row := timeOf(all, q, x); row.Day != (api.TimeCounts{}) {
					items = append(items, row)
				}
			}
		}
	}
	slices.SortStableFunc(items, func(a, b api.QueueTime) int { return cmp.Compare(a.NextAt, b.NextAt) })
	list(w, r, items)
}

// timeOf is what comes next in a queue.
func timeOf(all *stats.Ahead, q *catalog.Queue, x *peerpb.QueueTime) api.QueueTime {
	return api.QueueTime{
		VHost: q.VHost, Name: q.Name, Exchange: q.StoreOf, NextAt: x.NextAt, AtLeast: x.AtLeast,
		Next: nextOf(all, func(i int) (c api.TimeCounts) {
			addTime(&c, all, x, i)
			return c
		}),
	}
}

// nextOf takes the counts of a minute, an hour and a day.
func nextOf(all *stats.Ahead, counts func(i int) api.TimeCounts) (n api.Next) {
	for span, to := range map[time.Duration]*api.TimeCounts{time.Minute: &n.Minute, time.Hour: &n.Hour, day: &n.Day} {
		*to = counts(slices.Index(all.Within, uint64(span.Milliseconds())))
	}
	return n
}

// addTime adds what comes in a queue within one of the times that were asked about.
func addTime(to *api.TimeCounts, all *stats.Ahead, x *peerpb.QueueTime, i int) {
	at := func(counts []uint64) uint64 {
		if i < len(counts) {
			return counts[i]
		}
		return 0
	}
	to.Expire += at(x.Expire)
	if x.DeadLetters {
		to.DeadLetter += at(x.Expire)
	}
	to.Fire, to.TimeOut, to.Unlock = to.Fire+at(x.Fire), to.TimeOut+at(x.TimeOut), to.Unlock+at(x.Unlock)
	to.Retry, to.Return = to.Retry+at(x.Retry), to.Return+at(x.Return)
	if x.DeletedAt != 0 && x.DeletedAt <= int64(all.At)+int64(all.Within[i]) {
		to.Delete++
	}
}

// featureFlags lists the versions of the replicated state that the cluster has reached.
func featureFlags(w *responder, r *request) {
	var items []api.FeatureFlag
	for version := uint32(1); version <= r.view.FSMVersion(); version++ {
		items = append(items, api.FeatureFlag{
			Name: fmt.Sprintf("fsm_version_%d", version), State: "enabled", Stability: "required", ProvidedBy: "quorate",
			About: fmt.Sprintf("version %d of the replicated state", version),
		})
	}
	list(w, r, items)
}

// nothing answers a list of what there is none of: extensions of the API.
func nothing(w *responder, r *request) { list(w, r, []struct{}{}) }

// enableFlag succeeds for flags that are enabled: they are so once all nodes know them.
func enableFlag(w *responder, r *request) {
	name := r.PathValue("name")
	var version uint32
	if _, err := fmt.Sscanf(name, "fsm_version_%d", &version); name != "all" && (err != nil || name != fmt.Sprintf("fsm_version_%d", version) || version < 1) {
		w.notFound()
		return
	}
	if version > r.view.FSMVersion() {
		w.badRequest("unsupported: not all nodes support " + name)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// node shows one node.
func (o operations) node(w *responder, r *request) {
	if n := w.node(r, o.cluster); n != nil {
		w.answer(http.StatusOK, n)
	}
}

// node finds the node that a path names, or answers the request; nil: it did.
func (w *responder) node(r *request, in Cluster) *api.Node {
	all := in.Nodes(r.Context())
	i := slices.IndexFunc(all, func(n api.Node) bool { return n.Name == r.PathValue("node") })
	if i < 0 {
		w.notFound()
		return nil
	}
	return &all[i]
}

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
