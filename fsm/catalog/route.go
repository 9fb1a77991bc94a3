package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
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
	// Filter collects the copies that an exchange of type Filter makes, which are not
	// among the queues, and reports whether there are any. It is called once for each
	// such exchange on the way. nil: they make none.
	Filter func(*Exchange) bool
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
	again   bool         // for limits alone
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
	case Filter:
		found = r.again || m.Filter != nil && m.Filter(x)
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

// The arguments of a consistent hash exchange.
const (
	hashHeader   = "hash-header"
	hashProperty = "hash-property"
)

// The properties that hash-property can name, and three that it cannot.
const (
	PropertyMessageID     = "message_id"
	PropertyAppID         = "app_id"
	PropertyCorrelationID = "correlation_id"
	PropertyTimestamp     = "timestamp"
	PropertyReplyTo       = "reply_to"
	PropertyPriority      = "priority"
	// PropertyGroup is the header that names the group of a message, a text or a
	// whole number, or what has its place in another protocol.
	PropertyGroup = "x-group-id"
)

// hashInput is what a consistent hash exchange hashes: the routing key if
// neither is set. Invariant: header and property are not both set; property is
// empty or one of the properties above. An empty header name counts as none.
type hashInput struct{ header, property string }

// hashOf returns what the arguments of a consistent hash exchange say. Other
// exchanges hash nothing. They are checked when an exchange is declared, so
// later calls cannot fail.
func hashOf(d *logpb.DeclareExchange) (hashInput, error) {
	if routingType(d) != ConsistentHash {
		return hashInput{}, nil
	}
	where := resource(kindExchange, d.GetVhost(), d.GetName())
	header, isHeader, err := exchangeArgument(hashHeader, where, d.GetArguments())
	if err != nil {
		return hashInput{}, err
	}
	property, isProperty, err := exchangeArgument(hashProperty, where, d.GetArguments())
	switch {
	case err != nil:
		return hashInput{}, err
	case isHeader && isProperty:
		return hashInput{}, refuse(fsm.Precondition, "hash-header and hash-property are mutually exclusive")
	case !isProperty, property == PropertyMessageID, property == PropertyCorrelationID, property == PropertyTimestamp:
		return hashInput{header: header, property: property}, nil
	}
	return hashInput{}, refuse(fsm.Precondition, "Unsupported property: %s", property)
}

// weightOf reads the binding key of a consistent hash exchange. 1 ≤ weight ≤
// route.MaxWeight without an error.
func weightOf(key string) (uint64, error) {
	n, err := strconv.ParseInt(key, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, refuse(fsm.Precondition, "The binding key must be an integer: %q", key)
	case n <= 0:
		return 0, refuse(fsm.Precondition, "The binding key must be greater than 0")
	case n > route.MaxWeight:
		return 0, refuse(fsm.Precondition, "The binding key must be at most %d", route.MaxWeight)
	}
	return uint64(n), nil
}

// weightIn returns the weight of a binding with this key in the table of a source
// of a type.
func weightIn(kind, key string) uint64 {
	if kind != ConsistentHash {
		return 1
	}
	n, _ := weightOf(key) // checked before it was bound
	return n
}

// key tells the destinations of one exchange apart. It is its name in the
// table, and the order of those decides what is chosen: it must not change
// between versions. A queue and an exchange of one name differ.
func (t destination) key() string {
	if t.queue != nil {
		return "q" + t.queue.Name
	}
	return "x" + t.exchange
}

// byChoice routes from an exchange that gives each message to one destination,
// or to one for each routing key.
//
// It reports whether there was a destination; false leads to the alternate
// exchange. That is so without bindings, and for LocalRandom if no queue is
// local and no binding leads to an exchange.
func (r *router) byChoice(x *Exchange, m *Message) bool {
	if x.table.choice.Len() == 0 {
		return false
	}
	switch x.Type {
	case ModulusHash:
		for _, key := range m.Keys {
			r.take(x.table.choice.At(route.HashString(key)))
		}
	case Random:
		return r.take(x.table.choice.At(x.chance(m)))
	case LocalRandom:
		return r.take(x.table.choice.AtOf(x.chance(m), func(t destination) bool {
			return t.queue == nil || m.Local != nil && m.Local(t.queue)
		}))
	default:
		r.byHash(x, m)
	}
	return true
}

// byHash routes from a consistent hash exchange that has a binding. A header or
// property that the message does not have counts as empty text, so all such
// messages go to one destination. The result depends on the message and the
// bindings alone, on every node.
func (r *router) byHash(x *Exchange, m *Message) {
	switch {
	case x.hash.header != "":
		v, _ := r.headers(m).Header(x.hash.header)
		r.take(x.table.choice.Pick(v.Hash()))
	case x.hash.property != "":
		var text []byte
		if m.Property != nil {
			text = m.Property(x.hash.property)
		}
		r.take(x.table.choice.Pick(route.HashBytes(text)))
	default:
		for _, key := range m.Keys {
			r.take(x.table.choice.Pick(route.HashString(key)))
		}
	}
}

// chance is the message's, but not the same for each exchange on its way. If it
// were, an exchange behind another would only ever get chances that chose that
// one, and use a part of its destinations.
func (x *Exchange) chance(m *Message) uint64 { return m.Chance ^ route.HashString(x.Name) }

// take takes one destination, if there is one.
func (r *router) take(t destination, ok bool) bool {
	switch {
	case !ok:
	case t.queue == nil:
		r.exchange(t.exchange)
	default:
		r.queues.add(t.queue)
	}
	return ok
}

// destination is where a binding leads: a queue, or the exchange of that name.
//
// Exactly one of both is set. Queues are records, which saves a look-up per
// message; exchanges are names, since their records are replaced by each bind.
type destination struct {
	// queue: the record that the vhost has; nil: an exchange
	queue *Queue
	// exchange is empty if it is a queue
	exchange string
}

// table is what the bindings of an exchange make of its type: it finds the
// destinations of a message. Headers exchanges have none, and walk over their
// bindings.
//
// Invariant: the part of the exchange's type has each destination as often as
// there are bindings to it, under their keys or with their weights; the others
// are empty.
//
// It is derived: no snapshot holds it, Restore makes it again from the
// bindings, and the order in which they were made does not show.
type table struct {
	// direct: by routing key
	direct route.Direct[destination]
	// topic: by pattern
	topic route.Topic[destination]
	// fanout: whatever the key
	fanout route.Set[destination]
	// choice: by destination.key, for the four types that choose one
	choice route.Rendezvous[destination]
}

// with returns the table of an exchange of a type with one more binding.
// Requires: b passed checkBinding for the type, and is not in the table yet.
func (t table) with(kind string, b *Binding, to destination) table {
	switch kind {
	case Direct:
		t.direct = t.direct.With(b.RoutingKey, to)
	case Fanout:
		t.fanout = t.fanout.With(to)
	case Topic:
		t.topic = t.topic.With(b.RoutingKey, to)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		t.choice = t.choice.With(to.key(), to, weightIn(kind, b.RoutingKey))
	}
	return t
}

// without is the inverse of with. Requires: b is in the table with this
// destination.
func (t table) without(kind string, b *Binding, to destination) table {
	switch kind {
	case Direct:
		t.direct = t.direct.Without(b.RoutingKey, to, 1)
	case Fanout:
		t.fanout = t.fanout.Without(to, 1)
	case Topic:
		t.topic = t.topic.Without(b.RoutingKey, to, 1)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		t.choice = t.choice.Without(to.key(), weightIn(kind, b.RoutingKey))
	}
	return t
}

// place is a destination under a key.
type place struct {
	key string
	to  destination
}

// checkTable compares the bindings of an exchange with what they were made into.
func (x *Exchange) checkTable(lead func(*Binding) (destination, bool)) error {
	times, keys := map[place]int{}, map[string]int{}
	for b := range x.bindings.Values() {
		to, _ := lead(b)
		at := place{b.RoutingKey, to}
		if x.Type == Fanout {
			at.key = ""
		}
		if times[at] == 0 {
			keys[at.key]++
		}
		times[at]++
	}
	direct, topic, fanout := 0, 0, 0
	switch x.Type {
	case Direct:
		direct = len(keys)
	case Topic:
		topic = len(keys)
	case Fanout:
		fanout = len(times)
	}
	if x.table.direct.Len() != direct || x.table.topic.Len() != topic || x.table.fanout.Len() != fanout {
		return fmt.Errorf("%s: tables of %d, %d, %d members, want %d, %d, %d", x,
			x.table.direct.Len(), x.table.topic.Len(), x.table.fanout.Len(), direct, topic, fanout)
	}
	for at, n := range times { // det: any broken place will do
		if set, all := x.table.under(x.Type, at.key); all && (set.Times(at.to) != n || set.Len() != keys[at.key]) {
			return fmt.Errorf("%s has key %q %d times, its table has it %d times", x, at.key, n, set.Times(at.to))
		}
	}
	return x.checkChoice(times)
}

// under returns the destinations under a key of an exchange of a type. ok
// false: the type has no keys. A pattern of a topic exchange is looked up, not
// matched.
func (t *table) under(kind, key string) (set route.Set[destination], ok bool) {
	switch kind {
	case Direct:
		return t.direct.Match(key), true
	case Topic:
		return t.topic.Under(key), true
	case Fanout:
		return t.fanout, true
	}
	return set, false
}

// checkChoice compares the weights of destinations with their bindings.
func (x *Exchange) checkChoice(times map[place]int) error {
	weights := map[string]uint64{}
	switch x.Type {
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		for at, n := range times { // det: a sum
			weights[at.to.key()] += uint64(n) * weightIn(x.Type, at.key)
		}
	}
	for name, want := range weights { // det: any broken place will do
		if _, weight := x.table.choice.Under(name); weight != want {
			return fmt.Errorf("%s: %q has weight %d, its bindings have %d", x, name, weight, want)
		}
	}
	if x.table.choice.Len() != len(weights) {
		return fmt.Errorf("%s: a table of %d destinations, its bindings have %d", x, x.table.choice.Len(), len(weights))
	}
	return nil
}
