package mgmt

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/url"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/catalog"
)

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
		RoutingKey: b.RoutingKey, Arguments: ObjectOf(b.Arguments),
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
	for _, b := range bindings {
		implied = append(implied, describeBinding(b))
	}
	list(w, r, implied)
}

func listBindings(w *responder, r *request) {
	vhosts, ok := r.vhosts()
	if !ok {
		w.notFound()
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
	answerBindings(w, r, implied, bindings)
}

func bindingsOfQueue(w *responder, r *request) {
	q, ok := r.view.Queue(r.PathValue("vhost"), r.PathValue("name"))
	if !ok || !r.sees(q.VHost) {
		w.notFound()
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
		for _, q := range r.view.QueuesOf(vhost) {
			implied = append(implied, implicit(q))
		}
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
