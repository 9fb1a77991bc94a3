package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
)

// Route appends to dst the queues that a message published to an exchange
// goes to. Each queue is appended at most once, and not if dst holds it
// already. An exchange that is missing is a refusal, on the way it is no
// destination.
//
// headers decodes the message's headers; it may be nil, is called at most
// once, and only if a headers exchange is on the way. Nothing is allocated
// if dst has room and no binding leads to another exchange.
func (v *View) Route(vhost, exchange, routingKey string, headers func() *fsm.Table, dst []*Queue) ([]*Queue, error) {
	keys := [1]string{routingKey}
	return v.RouteKeys(vhost, exchange, keys[:], headers, dst)
}

// RoutePublish is Route for a message with perhaps more routing keys, and says
// what the exchanges on the way allow.
func (v *View) RoutePublish(vhost, exchange, routingKey string, more []string, headers func() *fsm.Table, dst []*Queue) ([]*Queue, Ceilings, error) {
	if len(more) > 0 {
		return v.route(vhost, exchange, append([]string{routingKey}, more...), headers, dst)
	}
	keys := [1]string{routingKey}
	return v.route(vhost, exchange, keys[:], headers, dst)
}

// RouteKeys is Route for a message with several routing keys: it goes where
// any of them leads. An alternate exchange is used if none leads anywhere.
func (v *View) RouteKeys(vhost, exchange string, routingKeys []string, headers func() *fsm.Table, dst []*Queue) ([]*Queue, error) {
	dst, _, err := v.route(vhost, exchange, routingKeys, headers, dst)
	return dst, err
}

func (v *View) route(vhost, exchange string, routingKeys []string, headers func() *fsm.Table, dst []*Queue) ([]*Queue, Ceilings, error) {
	vh := v.vhosts.At(vhost)
	if vh == nil {
		return dst, Ceilings{}, noVhost(vhost)
	}
	r := router{vh: vh, queues: once[*Queue]{list: dst}}
	if exchange == "" {
		r.byName(routingKeys)
		return r.queues.list, Ceilings{}, nil
	}
	x := vh.exchanges.At(exchange)
	if x == nil {
		return dst, Ceilings{}, noExchange(vhost, exchange)
	}
	r.first = exchange
	r.visit(x, routingKeys, headers)
	for i := 0; i < len(r.further.list); i++ {
		if name := r.further.list[i]; name == "" {
			r.byName(routingKeys)
		} else if x := vh.exchanges.At(name); x != nil {
			r.visit(x, routingKeys, headers)
		}
	}
	return r.queues.list, r.ceilings(x, routingKeys, headers), nil
}

// router is the state of one walk from exchange to exchange. What the caller
// may have on its stack, keys and headers, is not part of it, so that it stays
// there.
type router struct {
	vh      *vhost
	decoded bool
	table   *fsm.Table // the message's headers, once decoded
	queues  once[*Queue]
	first   string       // the exchange published to
	further once[string] // the others, in the order of their discovery
	limited bool         // one of those visited has a TTL
}

// byName routes as the default exchange does: the routing key is the name of
// a queue.
func (r *router) byName(keys []string) {
	for _, key := range keys {
		if q, ok := r.vh.queues.Get(key); ok {
			r.queues.add(q)
		}
	}
}

// visit routes from one exchange.
func (r *router) visit(x *Exchange, keys []string, headers func() *fsm.Table) {
	found := false
	r.limited = r.limited || x.ttlPlusOne != 0
	switch x.Type {
	case Direct:
		for _, key := range keys {
			found = r.follow(x.direct.Match(key)) || found
		}
	case Fanout:
		found = r.follow(x.fanout)
	case Topic:
		for _, key := range keys {
			x.topic.Match(key, func(s route.Set[target]) { found = r.follow(s) || found })
		}
	case Headers:
		found = r.byHeaders(x, headers)
	}
	if !found && x.HasAlternate {
		r.exchange(x.Alternate)
	}
}

// follow takes all members of a set and reports whether there are any.
func (r *router) follow(s route.Set[target]) bool {
	// The members of a set differ: as long as there is nothing else, queues
	// need not be compared.
	alone := len(r.queues.list) == 0
	for t := range s.All() {
		switch {
		case t.queue == nil:
			r.exchange(t.exchange)
		case alone:
			r.queues.list = append(r.queues.list, t.queue)
		default:
			r.queues.add(t.queue)
		}
	}
	return s.Len() > 0
}

func (r *router) byHeaders(x *Exchange, headers func() *fsm.Table) (found bool) {
	if x.bindings.Len() == 0 {
		return false
	}
	if !r.decoded && headers != nil {
		r.table = headers()
	}
	r.decoded = true
	for b := range x.bindings.Values() {
		if !b.headers.Match((*messageHeaders)(r.table)) {
			continue
		}
		found = true
		if b.ToExchange {
			r.exchange(b.Destination)
		} else if q, ok := r.vh.queues.Get(b.Destination); ok {
			r.queues.add(q)
		}
	}
	return found
}

// exchange notes an exchange to visit, unless it was noted before.
func (r *router) exchange(name string) {
	if name != r.first {
		r.further.add(name)
	}
}

// messageHeaders looks up the headers of a message for a binding.
type messageHeaders fsm.Table

// Header finds a header by name.
func (h *messageHeaders) Header(name string) (route.Value, bool) {
	v := lookup((*fsm.Table)(h), name)
	if v == nil {
		return route.Value{}, false
	}
	return normal(v), true
}

// once is a list without repetitions.
type once[T comparable] struct {
	list  []T
	known map[T]struct{} // of list, once it is long
}

// shortList is the length up to which a list is searched by walking over it.
const shortList = 32

func (o *once[T]) add(v T) {
	if len(o.list) <= shortList {
		if !slices.Contains(o.list, v) {
			o.list = append(o.list, v)
		}
		return
	}
	if len(o.known) != len(o.list) {
		o.known = make(map[T]struct{}, 2*len(o.list))
		for _, had := range o.list {
			o.known[had] = struct{}{}
		}
	}
	if _, ok := o.known[v]; !ok {
		o.known[v] = struct{}{}
		o.list = append(o.list, v)
	}
}
