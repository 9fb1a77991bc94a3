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
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// defaultName is how paths call the default exchange, which has no name.
const defaultName = "amq.default"

func defaultExchange(vhost string) api.Exchange {
	return api.Exchange{VHost: vhost, Type: catalog.Direct, Durable: true, Arguments: map[string]any{}, EffectiveDefinition: map[string]any{}}
}

// commandExchange is there without a record, as the default one is.
func commandExchange(vhost string) api.Exchange {
	return api.Exchange{
		Name: catalog.CommandExchange, VHost: vhost, Type: "x-command", Durable: true,
		Arguments: map[string]any{}, EffectiveDefinition: map[string]any{},
	}
}

// describeExchange shows an exchange. byQueue has the stats of its store.
func describeExchange(x *catalog.Exchange, byQueue map[fsm.QueueID]stats.Queue) api.Exchange {
	policies := x.EffectivePolicy()
	d := api.Exchange{
		Name: x.Name, VHost: x.VHost, Type: x.DeclaredType(), Durable: x.Durable, AutoDelete: x.AutoDelete, Internal: x.Internal,
		Arguments: ObjectOf(x.Arguments), Policy: policies.Policy, OperatorPolicy: policies.Operator,
		EffectiveDefinition: ObjectOf(policies.Definition),
	}
	if x.Store != nil {
		if f, ok := byQueue[x.Store.ID]; ok {
			d.DelayStats = &f.Delay
		}
	}
	return d
}

func (s *Server) listExchanges(w http.ResponseWriter, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		s.notFound(w)
		return
	}
	var items []api.Exchange
	var byQueue map[fsm.QueueID]stats.Queue
	for _, vhost := range vhosts {
		first := len(items)
		items = append(items, defaultExchange(vhost))
		for _, x := range r.view.Exchanges(vhost) {
			if x.Store != nil && byQueue == nil {
				byQueue = s.node.QueueStats(r.Context())
			}
			items = append(items, describeExchange(x, byQueue))
		}
		items = append(items, commandExchange(vhost))
		slices.SortFunc(items[first:], func(a, b api.Exchange) int { return cmp.Compare(a.Name, b.Name) })
	}
	list(s, w, r, items)
}

// exchange returns the exchange that a path names; "" is the default one.
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

func (s *Server) getExchange(w http.ResponseWriter, r *request) {
	vhost := r.PathValue("vhost")
	name, ok := r.exchange()
	switch {
	case !ok:
		s.notFound(w)
	case name == "":
		s.answer(w, http.StatusOK, defaultExchange(vhost))
	case name == catalog.CommandExchange:
		s.answer(w, http.StatusOK, commandExchange(vhost))
	default:
		x, _ := r.view.Exchange(vhost, name)
		var byQueue map[fsm.QueueID]stats.Queue
		if x.Store != nil {
			byQueue = s.node.QueueStats(r.Context(), x.Store.ID)
		}
		s.answer(w, http.StatusOK, describeExchange(x, byQueue))
	}
}

// implicit is the binding that every queue has to the default exchange.
func implicit(q *catalog.Queue) api.Binding {
	return api.Binding{
		VHost: q.VHost, Destination: q.Name, DestinationType: "queue", RoutingKey: q.Name,
		Arguments: map[string]any{}, PropertiesKey: url.QueryEscape(q.Name),
	}
}

func describeBinding(b *catalog.Binding) api.Binding {
	d := api.Binding{
		Source: b.Source, VHost: b.VHost, Destination: b.Destination, DestinationType: "queue",
		RoutingKey: b.RoutingKey, Arguments: ObjectOf(b.Arguments),
	}
	if b.ToExchange {
		d.DestinationType = "exchange"
	}
	d.PropertiesKey = propertiesKey(d)
	return d
}

// propertiesKey names a binding among those of one source and destination.
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

func (s *Server) answerBindings(w http.ResponseWriter, r *request, implied []api.Binding, bindings []*catalog.Binding) {
	for _, b := range bindings {
		implied = append(implied, describeBinding(b))
	}
	list(s, w, r, implied)
}

func (s *Server) listBindings(w http.ResponseWriter, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		s.notFound(w)
		return
	}
	var implied []api.Binding
	var bindings []*catalog.Binding
	for _, vhost := range vhosts {
		for _, q := range r.view.QueuesOf(vhost) {
			implied = append(implied, implicit(q))
		}
		bindings = append(bindings, r.view.Bindings(vhost)...)
	}
	s.answerBindings(w, r, implied, bindings)
}

func (s *Server) bindingsOfQueue(w http.ResponseWriter, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		s.notFound(w)
		return
	}
	s.answerBindings(w, r, []api.Binding{implicit(q)}, r.view.BindingsTo(q.VHost, q.Name, false))
}

func (s *Server) bindingsFromExchange(w http.ResponseWriter, r *request) {
	vhost := r.PathValue("vhost")
	name, ok := r.exchange()
	if !ok {
		s.notFound(w)
		return
	}
	var implied []api.Binding
	if name == "" {
		for _, q := range r.view.QueuesOf(vhost) {
			implied = append(implied, implicit(q))
		}
	}
	s.answerBindings(w, r, implied, r.view.BindingsFrom(vhost, name))
}

func (s *Server) bindingsToExchange(w http.ResponseWriter, r *request) {
	name, ok := r.exchange()
	if !ok {
		s.notFound(w)
		return
	}
	s.answerBindings(w, r, nil, r.view.BindingsTo(r.PathValue("vhost"), name, true))
}
