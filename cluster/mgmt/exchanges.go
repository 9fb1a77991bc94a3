package mgmt

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// defaultName stands for the default exchange in paths, since that has no name.
const defaultName = "amq.default"

func defaultExchange(vhost string) api.Exchange {
	return api.Exchange{VHost: vhost, Type: catalog.Direct, Durable: true, Arguments: map[string]any{}, EffectiveDefinition: map[string]any{}}
}

// commandExchange exists without a record, like the default exchange.
func commandExchange(vhost string) api.Exchange {
	return api.Exchange{
		Name: catalog.CommandExchange, VHost: vhost, Type: "x-command", Durable: true,
		Arguments: map[string]any{}, EffectiveDefinition: map[string]any{},
	}
}

// describeExchange describes an exchange. byQueue holds the stats of its store.
func describeExchange(x *catalog.Exchange, byQueue map[fsm.QueueID]stats.Queue) api.Exchange {
	policies := x.EffectivePolicy()
	d := api.Exchange{
		Name: x.Name, VHost: x.VHost, Type: x.DeclaredType(), Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal,
		Arguments: tables.JSON(x.Arguments), Policy: policies.Policy, OperatorPolicy: policies.Operator,
		EffectiveDefinition: tables.JSON(policies.Definition),
	}
	if x.Store != nil {
		if f, ok := byQueue[x.Store.ID]; ok {
			d.DelayStats = &f.Delay
		}
	}
	return d
}

// exchanges serves exchanges, including what waits at delayed ones.
type exchanges struct {
	queues  Queues
	traffic Traffic
}

// add adds what is published to exchanges. one: there is one of them.
func (es exchanges) add(r *request, items []api.Exchange, one bool) {
	q := traffic.Query{Of: peerpb.TrafficRequest_EXCHANGES, One: one, Pairs: one, Listed: len(items) <= traffic.MaxListed}
	if one {
		q.Exchange = traffic.Exchange{VHost: items[0].VHost, Name: items[0].Name}
	}
	report := es.traffic.Traffic(r.Context(), trafficFor(r, q))
	for i := range items {
		x := &items[i]
		x.MessageStats = exchangeStats(report.Exchanges[traffic.Exchange{VHost: x.VHost, Name: x.Name}], report.Query)
	}
	if one {
		items[0].Incoming, items[0].Outgoing = withChannels(report, published), withQueues(r.view, report, published)
	}
}

// answer answers with one exchange.
func (es exchanges) answer(w *responder, r *request, x api.Exchange) {
	items := []api.Exchange{x}
	es.add(r, items, true)
	w.answer(http.StatusOK, items[0])
}

func (es exchanges) list(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	var items []api.Exchange
	var stores []fsm.QueueID // of delayed ones
	for _, vhost := range vhosts {
		for _, x := range r.view.Exchanges(vhost) {
			if x.Store != nil {
				stores = append(stores, x.Store.ID)
			}
		}
	}
	var byQueue map[fsm.QueueID]stats.Queue
	if len(stores) > 0 {
		byQueue = es.queues.Stats(r.Context(), stores...)
	}
	for _, vhost := range vhosts {
		first := len(items)
		items = append(items, defaultExchange(vhost))
		for _, x := range r.view.Exchanges(vhost) {
			items = append(items, describeExchange(x, byQueue))
		}
		items = append(items, commandExchange(vhost))
		slices.SortFunc(items[first:], func(a, b api.Exchange) int { return cmp.Compare(a.Name, b.Name) })
	}
	if q := r.URL.Query(); q.Get("disable_stats") != "true" && shows(q.Get("columns"), "message_stats") {
		es.add(r, items, false)
	}
	list(w, r, items)
}

// exchange returns the exchange named by a path; "" is the default one.
func (r *request) exchange() (name string, ok bool) {
	vhost, name := r.PathValue("vhost"), r.PathValue("name")
	if name == defaultName {
		return "", r.sees(vhost)
	}
	if name == catalog.CommandExchange {
		return name, r.sees(vhost)
	}
	_, ok = r.view.Exchange(vhost, name)
	return name, ok && r.sees(vhost)
}

func (es exchanges) get(w *responder, r *request) {
	vhost := r.PathValue("vhost")
	name, ok := r.exchange()
	switch {
	case !ok:
		w.notFound()
	case name == "":
		es.answer(w, r, defaultExchange(vhost))
	case name == catalog.CommandExchange:
		es.answer(w, r, commandExchange(vhost))
	default:
		x, _ := r.view.Exchange(vhost, name)
		var byQueue map[fsm.QueueID]stats.Queue
		if x.Store != nil {
			byQueue = es.queues.Stats(r.Context(), x.Store.ID)
		}
		es.answer(w, r, describeExchange(x, byQueue))
	}
}

// implicit is the binding of every queue to the default exchange.
func implicit(q *catalog.Queue) api.Binding {
	return api.Binding{
		VHost: q.VHost, Destination: q.Name, DestinationType: "queue", RoutingKey: q.Name,
		Arguments: map[string]any{}, PropertiesKey: url.QueryEscape(q.Name),
	}
}

func describeBinding(b *catalog.Binding) api.Binding {
	d := api.Binding{
		Source: b.Source, VHost: b.VHost, Destination: b.Destination, DestinationType: "queue",
		RoutingKey: b.RoutingKey, Arguments: tables.JSON(b.Arguments),
	}
	if b.ToExchange {
		d.DestinationType = "exchange"
	}
	d.PropertiesKey = propertiesKey(d)
	return d
}

// propertiesKey identifies a binding among those of one source and destination.
func propertiesKey(b api.Binding) string {
	switch {
	case len(b.Arguments) > 0:
		raw, _ := json.Marshal(b.Arguments) // ordered by key; it came from values that encode
		digest := sha256.Sum256(raw)
		return url.QueryEscape(b.RoutingKey) + "~" + base64.RawURLEncoding.EncodeToString(digest[:])[:6]
	case b.RoutingKey == "":
		return "~"
	}
	return url.QueryEscape(b.RoutingKey)
}

func answerBindings(w *responder, r *request, implied []api.Binding, bindings []*catalog.Binding) {
	list(w, r, append(implied, described(bindings, describeBinding)...))
}

func listBindings(w *responder, r *request) {
	vhosts, ok := w.vhosts(r)
	if !ok {
		return
	}
	var implied []api.Binding
	var bindings []*catalog.Binding
	for _, vhost := range vhosts {
		implied = append(implied, described(r.view.QueuesOf(vhost), implicit)...)
		bindings = append(bindings, r.view.Bindings(vhost)...)
	}
	answerBindings(w, r, implied, bindings)
}

func bindingsOfQueue(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	answerBindings(w, r, []api.Binding{implicit(q)}, r.view.BindingsTo(q.VHost, q.Name, false))
}

func bindingsFromExchange(w *responder, r *request) {
	vhost := r.PathValue("vhost")
	name, ok := r.exchange()
	if !ok {
		w.notFound()
		return
	}
	var implied []api.Binding
	if name == "" {
		implied = described(r.view.QueuesOf(vhost), implicit)
	}
	answerBindings(w, r, implied, r.view.BindingsFrom(vhost, name))
}

func bindingsToExchange(w *responder, r *request) {
	name, ok := r.exchange()
	if !ok {
		w.notFound()
		return
	}
	answerBindings(w, r, nil, r.view.BindingsTo(r.PathValue("vhost"), name, true))
}
