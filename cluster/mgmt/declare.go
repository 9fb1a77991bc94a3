package mgmt

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/tables"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// objectWait bounds how long a change of a queue, an exchange or a binding, and a publish, may take.
const objectWait = 20 * time.Second

// sessions serves changes of queues, exchanges and bindings, as a channel of the user would make
// them: with the user's permissions, and refused for the same reasons.
type sessions struct{ objects Objects }

// change opens the vhost of a path for the user, and answers with what do returns. created says
// what a success is answered with.
func (ss sessions) change(w *responder, r *request, created bool, do func(context.Context, Session) error) {
	ctx, cancel := context.WithTimeout(r.Context(), objectWait)
	defer cancel()
	s, err := ss.objects.Open(ctx, r.user.GetName(), r.PathValue("vhost"))
	if err != nil {
		w.failed(err)
		return
	}
	defer s.Close(ctx)
	w.changed(do(ctx, s), created)
}

// spec is what the bodies of declares of queues and exchanges have in common.
type spec struct {
	durable, autoDelete bool
	arguments           *fsm.Table
}

func (b body) spec() (s spec, err error) {
	if s.durable, err = b.flag("durable", true); err != nil {
		return s, err
	}
	if s.autoDelete, err = b.flag("auto_delete", false); err != nil {
		return s, err
	}
	arguments, err := b.object("arguments")
	if len(arguments) > 0 {
		s.arguments = tables.Of(arguments)
	}
	return s, err
}

// opens answers the request if the user does not see the vhost of the path.
func (w *responder) opens(r *request) bool {
	if !r.sees(r.PathValue("vhost")) {
		w.noVHost()
		return false
	}
	return true
}

// putQueue declares a queue: durable unless the body says otherwise.
func (ss sessions) putQueue(w *responder, r *request) {
	b, ok := w.bodyIn(r)
	if !ok {
		return
	}
	s, err := b.spec()
	if err != nil {
		w.failed(err)
		return
	}
	name := r.PathValue("name")
	_, known := r.view.Queue(r.PathValue("vhost"), name)
	ss.change(w, r, !known, func(ctx context.Context, x Session) error {
		_, err := x.DeclareQueue(ctx, fsm.QueueSpec{Name: name, Durable: s.durable, AutoDelete: s.autoDelete, Arguments: s.arguments})
		return err
	})
}

// condition is a condition in the query of a delete.
func (r *request) condition(name string) bool { return r.URL.Query().Get(name) == "true" }

func (ss sessions) deleteQueue(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	ss.change(w, r, false, func(ctx context.Context, s Session) error {
		_, err := s.DeleteQueue(ctx, q.Name, r.condition("if-unused"), r.condition("if-empty"))
		return err
	})
}

func (ss sessions) purge(w *responder, r *request) {
	q := w.queue(r)
	if q == nil {
		return
	}
	ss.change(w, r, false, func(ctx context.Context, s Session) error {
		_, err := s.PurgeQueue(ctx, q.Name)
		return err
	})
}

// putExchange declares an exchange: durable and direct unless the body says otherwise.
func (ss sessions) putExchange(w *responder, r *request) {
	b, ok := w.bodyIn(r)
	if !ok {
		return
	}
	s, err := b.spec()
	kind := catalog.Direct
	if err == nil && b["type"] != nil {
		kind, err = b.text("type")
	}
	internal := false
	if err == nil {
		internal, err = b.flag("internal", false)
	}
	if err != nil {
		w.failed(err)
		return
	}
	name, known := r.exchange()
	ss.change(w, r, !known, func(ctx context.Context, x Session) error {
		return x.DeclareExchange(ctx, fsm.ExchangeSpec{
			Name: name, Type: kind, Durable: s.durable, AutoDelete: s.autoDelete, Internal: internal, Arguments: s.arguments,
		})
	})
}

func (ss sessions) deleteExchange(w *responder, r *request) {
	name, ok := r.exchange()
	if !ok {
		w.notFound()
		return
	}
	ss.change(w, r, false, func(ctx context.Context, s Session) error {
		return s.DeleteExchange(ctx, name, r.condition("if-unused"))
	})
}

// ends are the ends of the bindings named by a path.
type ends struct {
	source, destination string
	toExchange          bool
}

// ends returns the ends of a path's bindings; ok is false if the user does not see both.
func (r *request) ends(toExchange bool) (e ends, ok bool) {
	vhost := r.PathValue("vhost")
	e = ends{r.PathValue("source"), r.PathValue("destination"), toExchange}
	if !r.sees(vhost) || !r.namesExchange(vhost, &e.source) {
		return e, false
	}
	if toExchange {
		return e, r.namesExchange(vhost, &e.destination)
	}
	_, ok = r.view.Queue(vhost, e.destination)
	return e, ok
}

// namesExchange reports whether there is an exchange of this name in a path, and replaces that of
// the default exchange.
func (r *request) namesExchange(vhost string, name *string) bool {
	if *name == defaultName {
		*name = ""
		return true
	}
	_, ok := r.view.Exchange(vhost, *name)
	return ok || *name == catalog.CommandExchange
}

// between lists the bindings between two ends.
func (r *request) between(e ends) (list []api.Binding, raw []*catalog.Binding) {
	vhost := r.PathValue("vhost")
	if e.source == "" && e.destination != "" && !e.toExchange {
		q, _ := r.view.Queue(vhost, e.destination)
		return []api.Binding{implicit(q)}, []*catalog.Binding{nil}
	}
	for _, b := range r.view.BindingsTo(vhost, e.destination, e.toExchange) {
		if b.Source == e.source {
			list, raw = append(list, describeBinding(b)), append(raw, b)
		}
	}
	return list, raw
}

// bindings serves the bindings between an exchange and a queue, or another exchange.
type bindings struct {
	sessions
	toExchange bool
}

func (bs bindings) list(w *responder, r *request) {
	e, ok := r.ends(bs.toExchange)
	if !ok {
		w.notFound()
		return
	}
	items, _ := r.between(e)
	list(w, r, items)
}

// find returns the binding of a path: the position in what between returns.
func (bs bindings) find(w *responder, r *request) (shown api.Binding, b *catalog.Binding, ok bool) {
	e, ok := r.ends(bs.toExchange)
	if !ok {
		w.notFound()
		return shown, nil, false
	}
	key := r.PathValue("properties")
	items, raw := r.between(e)
	for _, same := range []func(string) bool{
		func(k string) bool { return k == key },
		func(k string) bool { once, err := url.PathUnescape(k); return err == nil && once == key }, // the client has not encoded it
	} {
		for i := range items {
			if same(items[i].PropertiesKey) {
				return items[i], raw[i], true
			}
		}
	}
	w.notFound()
	return shown, nil, false
}

func (bs bindings) get(w *responder, r *request) {
	if shown, _, ok := bs.find(w, r); ok {
		w.answer(http.StatusOK, shown)
	}
}

// add makes a binding, and tells its place among those between its ends.
func (bs bindings) add(w *responder, r *request) {
	b, ok := w.body(r)
	if !ok {
		return
	}
	e, ok := r.ends(bs.toExchange)
	if !ok {
		w.notFound()
		return
	}
	key, err := b.text("routing_key")
	var arguments map[string]any
	if err == nil {
		arguments, err = b.object("arguments")
	}
	if err != nil {
		w.failed(err)
		return
	}
	to := fsm.BindSpec{Source: e.source, Destination: e.destination, ToExchange: e.toExchange, RoutingKey: key}
	if len(arguments) > 0 {
		to.Arguments = tables.Of(arguments)
	}
	place := propertiesKey(api.Binding{RoutingKey: key, Arguments: tables.JSON(to.Arguments)})
	w.Header().Set("Location", url.PathEscape(r.PathValue("destination"))+"/"+url.PathEscape(place))
	bs.change(w, r, true, func(ctx context.Context, s Session) error { return s.Bind(ctx, to) })
}

func (bs bindings) remove(w *responder, r *request) {
	shown, b, ok := bs.find(w, r)
	if !ok {
		return
	}
	gone := fsm.BindSpec{Source: shown.Source, Destination: shown.Destination, ToExchange: bs.toExchange, RoutingKey: shown.RoutingKey}
	if b != nil {
		gone.Arguments = b.Arguments
	}
	bs.change(w, r, false, func(ctx context.Context, s Session) error { return s.Unbind(ctx, gone) })
}

// publish publishes one message and answers once it is confirmed.
func (ss sessions) publish(w *responder, r *request) {
	b, ok := w.body(r, "properties", "routing_key", "payload", "payload_encoding")
	if !ok {
		return
	}
	vhost := r.PathValue("vhost")
	if !r.sees(vhost) {
		w.notFound()
		return
	}
	name, ok := r.exchange()
	if !ok {
		w.answer(http.StatusNotFound, api.Failure{Error: "not_found", Reason: "exchange_not_found"})
		return
	}
	m, err := b.outgoing()
	if err != nil {
		w.failed(err)
		return
	}
	if why := ss.objects.Blocked(); why != "" {
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: "publishing is blocked: " + why})
		return
	}
	m.Exchange = name
	ctx, cancel := context.WithTimeout(r.Context(), objectWait)
	defer cancel()
	routed, err := ss.objects.Publish(ctx, r.user.GetName(), vhost, m)
	switch refusal := (*fsm.Refusal)(nil); {
	case errors.As(err, &refusal) && refusal.Kind == fsm.Precondition:
		w.badRequest("406 PRECONDITION_FAILED - " + refusal.Text)
	case errors.As(err, &refusal) && refusal.Kind == fsm.Unavailable:
		w.answer(http.StatusServiceUnavailable, api.Failure{Error: "unavailable", Reason: refusal.Text})
	case err != nil:
		w.failed(err)
	default:
		w.answer(http.StatusOK, api.Published{Routed: routed})
	}
}

// outgoing reads a message from a body.
func (b body) outgoing() (m Outgoing, err error) {
	properties, list := b["properties"].([]any)
	if !list || len(properties) > 0 { // an empty list is no properties
		object, err := b.object("properties")
		if err != nil {
			return m, err
		}
		m.Properties = tables.Of(object)
	}
	if m.RoutingKey, err = b.text("routing_key"); err != nil {
		return m, err
	}
	payload, err := b.text("payload")
	if err != nil {
		return m, err
	}
	switch encoding := b.word("payload_encoding"); encoding {
	case "string":
		m.Body = []byte(payload)
	case "base64":
		if m.Body, err = base64.StdEncoding.DecodeString(payload); err != nil {
			err = fsm.Refuse(fsm.Precondition, "payload is not base64: "+err.Error())
		}
	default:
		err = fsm.Refuse(fsm.Precondition, "unsupported encoding: "+encoding)
	}
	return m, err
}
