package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
)

// Message is what exchanges need to know about a message.
//
// It is the caller's: a walk reads it and keeps nothing of it.
type Message struct {
	// Keys are the routing keys: the message is routed by each of them. An
	// alternate exchange is used if none of them leads to a destination.
	Keys []string
	// Headers decodes the message's headers. It may be nil, and is called at
	// most once, only if an exchange on the way needs them.
	Headers func() *fsm.Table
	// Property returns the text of a property that hashProperties names, nil if
	// the message has none. It may be nil. Its result is not retained.
	Property func(name string) []byte
	// Chance is the random number for exchanges that choose at random: any 64
	// bits; equal ones choose alike. It comes with the message because routing
	// has no randomness of its own.
	Chance uint64
	// Delayed: the message waits in the first delayed exchange on each of its
	// routes, whose store is then among the queues.
	Delayed bool
	// Passed collects the exchanges on the way that are deleted when idle. It
	// may be nil.
	Passed func(*Exchange)
	// Local says which queues are on the publisher's node; nil: none is.
	Local func(*Queue) bool
}

// Route appends to dst the queues to which a message published to an exchange
// goes, and returns the TTL limits set by the exchanges on the way. Each queue
// is appended at most once, and not if dst already holds it. A missing exchange
// is a refusal if it was published to; further on it is no destination.
//
// Nothing is allocated if dst has capacity and no binding leads to another
// exchange. m is not retained.
//
// On a refusal dst is returned as it was. No queues without a refusal: the
// message is unroutable. The order of what is appended means nothing, it
// differs between processes. An exchange is visited once, even if bindings make
// a circle; ways are followed breadth first, so the walk ends after at most all
// exchanges of the vhost.
//
// An alternate exchange gets the message if the exchange itself found no
// destination, even if other exchanges on the way have; a destination that is
// an exchange counts as found, wherever it leads.
func (vs *vhosts) Route(vhost, exchange string, m *Message, dst []*Queue) ([]*Queue, Ceilings, error) {
	vh := vs.vhost(vhost)
	if vh == nil {
		return dst, Ceilings{}, noVhost(vhost)
	}
	r := router{vh: vh, queues: once[*Queue]{list: dst}}
	if exchange == "" {
		r.byName(m.Keys)
		return r.queues.list, Ceilings{}, nil
	}
	x := vh.exchanges.at(exchange)
	if x == nil {
		return dst, Ceilings{}, noExchange(vhost, exchange)
	}
	r.first = exchange
	r.pass(x, m)
	for i := 0; i < len(r.further.list); i++ {
		if name := r.further.list[i]; name == "" {
			r.byName(m.Keys)
		} else if x := vh.exchanges.at(name); x != nil {
			r.pass(x, m)
		}
	}
	return r.queues.list, r.ceilings(x, m), nil
}

// router is the state of one walk from exchange to exchange. The message is not
// part of it, so that it can stay on the caller's stack.
//
// It lives for one call of Route. It only reads vh.
type router struct {
	vh      *vhost
	decoded bool
	table   *fsm.Table // the message's headers, once decoded
	// queues begins with what dst held
	queues  once[*Queue]
	first   string       // the exchange published to
	further once[string] // the others, in the order of their discovery
	limited bool         // one of those visited has a TTL
}

// byName routes as the default exchange does: the routing key is the name of a
// queue. Stores are left out: their names must not be a way around their
// exchanges.
func (r *router) byName(keys []string) {
	for _, key := range keys {
		if q, ok := r.vh.queues.Get(key); ok && q.StoreOf == "" {
			r.queues.add(q)
		}
	}
}

// pass is visit for a message that is actually published.
func (r *router) pass(x *Exchange, m *Message) {
	if x.idle != 0 && m.Passed != nil {
		m.Passed(x)
	}
	r.visit(x, m)
}

// visit routes from one exchange. Requires: x is in r.vh. It notes what x leads
// to and follows nothing, so that it does not recurse. A message that waits in
// x's store goes no further now: it is routed when it is due.
func (r *router) visit(x *Exchange, m *Message) {
	found := false
	r.limited = r.limited || x.ttl.Given
	if m.Delayed && x.Delays {
		r.queues.add(x.Store)
		return
	}
	switch x.Type {
	case Direct:
		for _, key := range m.Keys {
			found = r.follow(x.table.direct.Match(key)) || found
		}
	case Fanout:
		found = r.follow(x.table.fanout)
	case Topic:
		for _, key := range m.Keys {
			x.table.topic.Match(key, func(s route.Set[destination]) { found = r.follow(s) || found })
		}
	case Headers:
		found = r.byHeaders(x, m)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		found = r.byChoice(x, m)
	}
	if !found && x.HasAlternate {
		r.exchange(x.Alternate)
	}
}

// follow takes all members of a set and reports whether there are any.
func (r *router) follow(s route.Set[destination]) bool {
	// The members of a set are distinct: while there are no others, queues need
	// not be compared.
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

// headers returns the headers of the message. They are decoded at most once per
// Route, and only for an exchange that asks. A message without headers has a
// nil table, in which nothing is found.
func (r *router) headers(m *Message) *messageHeaders {
	if !r.decoded && m.Headers != nil {
		r.table = m.Headers()
	}
	r.decoded = true
	return (*messageHeaders)(r.table)
}

// byHeaders routes from a headers exchange: O(bindings), as each is a condition
// of its own. found: one of them matched.
func (r *router) byHeaders(x *Exchange, m *Message) (found bool) {
	if x.bindings.Len() == 0 {
		return false
	}
	headers := r.headers(m)
	for b := range x.bindings.Values() {
		if !b.headers.Match(headers) {
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

// exchange adds an exchange to visit, unless it was added before.
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
	return headerValue(v), true
}

// once is a list without repetitions.
//
// Invariant: known is nil as long as add has not met a list longer than
// shortList; from then on it has exactly the elements of list.
type once[T comparable] struct {
	list  []T
	known map[T]struct{} // of list, once it is long
}

// shortList is the length up to which a list is searched by walking over it.
const shortList = 32

// add appends v unless it is there. O(1) for long lists, O(shortList) for short
// ones, which allocate nothing but what append does.
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
