package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// The exchange types.
const (
	Direct  = "direct"
	Fanout  = "fanout"
	Topic   = "topic"
	Headers = "headers"

	// These give each message to one destination; see route.go.
	ConsistentHash = "x-consistent-hash"
	ModulusHash    = "x-modulus-hash"
	Random         = "x-random"
	LocalRandom    = "x-local-random"

	// Filter makes copies as the programs of its bindings say, which the catalog does not
	// read; see Message.Filter. It is internal, and leads to queues only.
	Filter = "x-filter"
)

var exchangeTypes = []string{Direct, Fanout, Topic, Headers, ConsistentHash, ModulusHash, Random, LocalRandom, Filter}

// ExchangeTypes lists the types of exchanges.
func ExchangeTypes() []string { return append(slices.Clone(exchangeTypes), Delayed) }

// predeclared are the exchanges of every vhost. Their idle time is always 0, as
// their names are reserved, and clients cannot delete them.
var predeclared = []*logpb.DeclareExchange{
	{Name: "amq.direct", Type: Direct, Durable: true},
	{Name: "amq.fanout", Type: Fanout, Durable: true},
	{Name: "amq.headers", Type: Headers, Durable: true},
	{Name: "amq.match", Type: Headers, Durable: true},
	{Name: "amq.rabbitmq.trace", Type: Topic, Durable: true, Internal: true},
	{Name: "amq.topic", Type: Topic, Durable: true},
}

// CommandExchange has no record. Its name is reserved, so none can be declared
// over it. Nothing can be bound to it or from it, and publishing to it needs no
// right: what a command does is checked.
const CommandExchange = fsm.CommandExchange

func noExchange(vhost, name string) error {
	return refuse(fsm.NotFoundKind, "no %s", resource(kindExchange, vhost, name))
}

func notOnDefault() error {
	return refuse(fsm.AccessRefused, "operation not permitted on the default exchange")
}

// Exchange is the record of an exchange and its bindings as a source.
//
// The exported fields but Type, Delays, Store, Alternate and HasAlternate are
// what was declared. The effective settings (Delays, Alternate, HasAlternate,
// ttl and idle) are derived from declared and match by setEffective; table and
// hash are derived from the bindings and declared. A snapshot holds declared
// and the bindings, Restore computes the rest.
//
// A record never changes: a bind, an unbind, a policy or a store replaces it by
// a copy, which shares the maps. Others refer to an exchange by name for that
// reason.
type Exchange struct {
	// VHost is the name of its vhost.
	VHost string
	Name  string
	Type  string // decides how it routes; see DeclaredType
	// Durable: kept and compared, without effect: an exchange that is not
	// durable stays until it is deleted, too
	Durable bool
	// AutoDelete: removed with its last binding as a source; never before it
	// had one
	AutoDelete bool
	// Internal: clients must not publish to it; it takes what bindings lead to
	// it
	Internal bool
	// Arguments are as declared; nil: none. Shared with declared. Those without a meaning are
	// kept, too.
	Arguments *fsm.Table
	// Delays: messages with a delay wait in Store and are routed when due.
	Delays bool
	// Store holds messages that wait, even after Delays has been unset; nil: it
	// was never set. Delays ⇒ Store ≠ nil. Store.StoreOf = Name; it is
	// replicated and durable, and ends with the exchange.
	Store *Queue
	// Alternate is the exchange for messages that have no destination here, by
	// argument or policy. It may be "", the default exchange, or name an
	// exchange that is not there: then such messages have no destination.
	// HasAlternate is false if there is none.
	Alternate    string
	HasAlternate bool

	// declared: never nil; what a snapshot holds of the exchange
	declared *logpb.DeclareExchange
	// match: the policies that win for it; revision is always 0. Kept by
	// policies.applyTo.
	match    policyMatch
	ttl      fsm.Optional[fsm.Millis]    // limits the TTL of messages that pass the exchange; not given: no limit
	idle     fsm.Millis                  // deleted after this time without use; 0: never; at most MaxTTL
	bindings route.Map[string, *Binding] // by Binding.key, as a source

	// table: of the type by which it routes; empty for Headers, which walk over
	// bindings
	table table
	hash  hashInput // of a consistent hash exchange; zero for others
}

// Bindings gives the bindings that begin at the exchange, in no order.
func (x *Exchange) Bindings() iter.Seq[*Binding] { return x.bindings.Values() }

// String names the exchange in texts for clients.
func (x *Exchange) String() string { return resource("exchange", x.VHost, x.Name) }

// setEffective computes the effective settings of an exchange. The argument
// wins, except for the TTL, where the smallest counts. A policy limits the TTL
// of an exchange only if it applies to exchanges alone: a policy for queues
// that does not specify apply-to must not limit messages that merely pass an
// exchange of a similar name.
//
// It changes x in place, so x must not be in a View yet. Requires: declared and
// match are set. It depends on nothing else, in particular not on the settings
// of the cluster, so a changed setting does not change exchanges that exist.
func (x *Exchange) setEffective() {
	x.Alternate, x.HasAlternate = text(lookup(x.Arguments, alternateExchange))
	if !x.HasAlternate {
		x.Alternate, x.HasAlternate = text(lookup(x.match.definition(), alternateExchange))
	}
	x.Delays = x.declared.GetType() == Delayed || lookup(x.Arguments, delayedExchange).GetInt() != 0 ||
		lookup(x.match.definition(), "delayed-message").GetInt() != 0
	x.ttl = optional(lookup(x.Arguments, exchangeTTL))
	for _, p := range []*Policy{x.match.policy, x.match.operator} {
		if p != nil && p.ApplyTo == applyExchanges {
			x.ttl = x.ttl.Least(optional(lookup(p.Definition, "message-ttl")))
		}
	}
	x.idle = x.idleTime()
}

// exchanges are those of one vhost with their bindings, and the last use of
// those that are deleted when idle. The caller resolves the destination of a
// binding.
//
// Invariants:
//
//	each exchange is stored under its name
//	a binding is in the bindings of its source and in inbound of its end, both of
//	which exist; no list in inbound is empty
//	lastUse has exactly the exchanges with idle ≠ 0, and no instant after the clock
type exchanges struct {
	// exchangeRows: by name; without the default exchange and CommandExchange
	exchangeRows route.Map[string, *Exchange]
	// inbound: the bindings by where they end, each as the same record as in
	// its source. Not in snapshots: Restore builds it from the bindings.
	inbound route.Map[endpoint, route.Map[*Binding, struct{}]]
	// lastUse: beside the record, so that a touch does not replace the record;
	// its own section of the snapshot
	lastUse route.Map[string, fsm.Time]
}

// at returns an exchange; nil: there is none of this name.
func (xs *exchanges) at(name string) *Exchange { return xs.exchangeRows.At(name) }

// len is the number of exchanges.
func (xs *exchanges) len() int { return xs.exchangeRows.Len() }

// values iterates over the exchanges in no particular order.
func (xs *exchanges) values() iter.Seq[*Exchange] { return xs.exchangeRows.Values() }

// list returns the exchanges by name. It sorts: O(n log n).
func (xs *exchanges) list() []*Exchange {
	return sorted(xs.exchangeRows, func(a, b *Exchange) int { return cmp.Compare(a.Name, b.Name) })
}

// put adds an exchange, or replaces its record. lastUse stays as it was: a
// change of idle must be followed by retime.
func (xs *exchanges) put(x *Exchange) { xs.exchangeRows = xs.exchangeRows.With(x.Name, x) }

// remove removes an exchange and all of its bindings. It returns the sources
// that must therefore be removed. Requires: x is the present record. The caller
// removes the doomed, in any order: each removal only takes bindings away, so
// the same exchanges go.
func (xs *exchanges) remove(x *Exchange) (doomed []string) {
	xs.exchangeRows, xs.lastUse = xs.exchangeRows.Without(x.Name), xs.lastUse.Without(x.Name)
	for b := range x.bindings.Values() {
		xs.forgetInbound(b)
	}
	return xs.unbindAllTo(endpoint{x.Name, true}, destination{exchange: x.Name})
}

// check is given the name of the vhost, and a function that resolves
// destinations.
func (xs *exchanges) check(vhost string, lead func(*Binding) (destination, bool)) error {
	bindings := 0
	for name, x := range xs.exchangeRows.All() {
		if x.Name != name || x.VHost != vhost || !slices.Contains(exchangeTypes, x.Type) {
			return fmt.Errorf("%s of type %q stands under %q in %q", x, x.Type, name, vhost)
		}
		for key, b := range x.bindings.All() {
			if err := xs.checkBinding(x, b, key, lead); err != nil {
				return err
			}
		}
		if err := x.checkTable(lead); err != nil {
			return err
		}
		bindings += x.bindings.Len()
	}
	for end, list := range xs.inbound.All() {
		bindings -= list.Len()
		if list.Len() == 0 {
			return fmt.Errorf("%q has an empty list of bindings", end.name)
		}
	}
	if bindings != 0 {
		return fmt.Errorf("%d more bindings by source than by destination", bindings)
	}
	return nil
}

// checkBinding checks one of the bindings of x.
func (xs *exchanges) checkBinding(x *Exchange, b *Binding, key string, lead func(*Binding) (destination, bool)) error {
	if b.key != key || b.Source != x.Name || bindingKey(b.bound) != key {
		return fmt.Errorf("%s has a binding of %q under %q", x, b.Source, key)
	}
	if _, there := lead(b); !there {
		return fmt.Errorf("%s is bound to %q, which is not there", x, b.Destination)
	}
	if _, ok := xs.inbound.At(b.end()).Get(b); !ok {
		return fmt.Errorf("binding of %s to %q is not known there", x, b.Destination)
	}
	return nil
}

// declareExchange creates an exchange, or finds the one that is there.
//
// It performs DeclareExchange. If an equivalent exchange exists, nothing
// changes, not even its last use. Ensures: an exchange that delays has a store,
// whose id the answer names in Added.
func (d *draft) declareExchange(m *logpb.DeclareExchange) (*logpb.CatalogResult, error) {
	x, err := d.checkDeclareExchange(noAccess, m)
	if err != nil || x != nil {
		return &logpb.CatalogResult{}, err
	}
	vh, r := d.open(m.GetVhost()), &logpb.CatalogResult{Changed: true}
	vh.addExchange(m)
	d.addStore(vh, m.GetName(), m.GetStoreMembers(), r)
	vh.exchanges.retime(vh.exchanges.at(m.GetName()), d.clock)
	return r, nil
}

// deleteExchange removes an exchange and its bindings. It performs
// DeleteExchange. If-unused counts bindings as a source only.
func (d *draft) deleteExchange(m *logpb.DeleteExchange) (*logpb.CatalogResult, error) {
	exists, err := d.checkDeleteExchange(noAccess, m)
	if err != nil || !exists {
		return &logpb.CatalogResult{}, err
	}
	r := &logpb.CatalogResult{Changed: true}
	d.removeExchanges(d.open(m.GetVhost()), []string{m.GetName()}, r)
	return r, nil
}

// removeExchanges removes exchanges, their bindings and what waits in them, and
// the exchanges that end with these. Names that are not there are left out. r
// names the queues that went.
//
// Requires: vh is open. doomed is used up. Each exchange is removed once,
// however often it is named, so the loop ends even if bindings form a cycle.
// The set of removed exchanges does not depend on the order; r.Deleted is
// sorted so that the answer does not, either.
func (d *draft) removeExchanges(vh *vhost, doomed []string, r *logpb.CatalogResult) {
	for len(doomed) > 0 {
		name := doomed[len(doomed)-1]
		doomed = doomed[:len(doomed)-1]
		x := vh.exchanges.at(name)
		if x == nil {
			continue
		}
		if x.Store != nil {
			d.forgetQueue(vh, x.Store)
			r.Deleted = append(r.Deleted, uint64(x.Store.ID))
		}
		doomed = append(doomed, vh.exchanges.remove(x)...)
		d.forgetObject(vh, endpoint{name, true}, r)
	}
	slices.Sort(r.Deleted)
}

// bind makes a binding, or finds the one that is there. It performs Bind.
// Making a binding is a use of the exchanges at both ends, and of those the
// queue is bound to already.
func (d *draft) bind(m *logpb.Bind) (*logpb.CatalogResult, error) {
	if err := d.mayBind(noAccess, m); err != nil {
		return nil, err
	}
	exists, err := d.checkBind(m)
	if err != nil || exists {
		return &logpb.CatalogResult{}, err
	}
	vh := d.open(m.GetVhost())
	vh.addBinding(m)
	vh.exchanges.touchEnds(m, d.clock)
	return &logpb.CatalogResult{Changed: true}, nil
}

// unbind removes a binding. One that is not there is fine. It performs Unbind.
// An auto-delete source that loses its last binding goes, and with it what this
// leaves without a binding.
func (d *draft) unbind(m *logpb.Bind) (*logpb.CatalogResult, error) {
	if err := d.mayBind(noAccess, m); err != nil {
		return nil, err
	}
	b, ok := d.binding(m)
	if !ok {
		return &logpb.CatalogResult{}, nil
	}
	vh := d.open(m.GetVhost())
	r := &logpb.CatalogResult{Changed: true}
	vh.exchanges.touchEnds(m, d.clock)
	if to, _ := vh.lead(b); vh.exchanges.unbind(b, to) {
		d.removeExchanges(vh, []string{b.Source}, r)
	}
	return r, nil
}

// touchExchange notes that an exchange was in use. It performs TouchExchange. A
// use is never later than the clock, and never moves the last use back. A touch
// that is not news opens no vhost.
func (d *draft) touchExchange(m *logpb.TouchExchange) (*logpb.CatalogResult, error) {
	at := min(fsm.Time(m.GetAt()), d.clock)
	vh := d.vhost(m.GetVhost())
	if vh == nil {
		return &logpb.CatalogResult{}, nil
	}
	if last, ends := vh.exchanges.lastUsed(m.GetName()); !ends || at <= last {
		return &logpb.CatalogResult{}, nil
	}
	return &logpb.CatalogResult{Changed: d.open(m.GetVhost()).exchanges.touch(m.GetName(), at)}, nil
}

// expireExchange removes an exchange, unless it was in use too lately.
//
// It performs ExpireExchange. Both m.At and the clock must have reached
// IdleEnd: a proposer whose clock is ahead removes nothing early, and a use
// that was noted before this entry keeps the exchange.
func (d *draft) expireExchange(m *logpb.ExpireExchange) (*logpb.CatalogResult, error) {
	x, ok := d.Exchange(m.GetVhost(), m.GetName())
	if !ok || x.idle == 0 {
		return &logpb.CatalogResult{}, nil
	}
	if last, _ := d.vhost(m.GetVhost()).exchanges.lastUsed(x.Name); x.IdleEnd(last) > min(fsm.Time(m.GetAt()), d.clock) {
		return &logpb.CatalogResult{}, nil
	}
	r := &logpb.CatalogResult{Changed: true}
	d.removeExchanges(d.open(m.GetVhost()), []string{x.Name}, r)
	return r, nil
}

// addStore makes the store of an exchange that delays and has none. members may
// be empty. r names the queue. Requires: vh is open and has the exchange.
// Members that checkPlacement refuses are replaced and cause no error. The
// store does not count against the vhost's limit of queues.
func (d *draft) addStore(vh *vhost, exchange string, members []uint32, r *logpb.CatalogResult) {
	x := vh.exchanges.at(exchange)
	if !x.Delays || x.Store != nil {
		return
	}
	group := d.newGroup()
	m := &logpb.DeclareQueue{
		Vhost: x.VHost, Name: storePrefix + x.Name, Durable: true, Members: members, StoreOf: x.Name,
	}
	if d.checkPlacement(m) != nil {
		m.Members = d.placeStore(group)
	}
	q := newQueue(m, d.storeID(), group)
	d.addQueue(q, 0)
	r.Added = append(r.Added, uint64(q.ID))
}

// placeStore chooses nodes for a store, other ones for each group. There is at
// least one node: it is where the command comes from. It does not weigh load:
// consecutive groups begin at consecutive nodes, in the order of their numbers,
// which is the same on every replica.
func (d *draft) placeStore(group fsm.GroupID) (members []uint32) {
	nodes := d.Nodes()
	for i := range min(len(nodes), storeReplicas) {
		members = append(members, nodes[(int(group)+i)%len(nodes)].GetNumber())
	}
	return members
}

// Delayed is the type of exchanges that hold messages back and then route them
// as an exchange of the type named by an argument does. It is never the Type of
// a record, which is the type that is wrapped, but its DeclaredType.
const Delayed = "x-delayed-message"

// Arguments of delayed exchanges.
const (
	delayedType          = "x-delayed-type"
	delayedExchange      = "x-delayed-exchange" // true: delays whatever the type
	delayedMandatory     = "x-delayed-mandatory"
	deadLetterExchange   = "x-dead-letter-exchange"
	deadLetterRoutingKey = "x-dead-letter-routing-key"

	mandatoryNone     = "none"
	mandatoryBindings = "bindings"
)

var delayedArguments = []string{delayedType, delayedExchange, delayedMandatory, deadLetterExchange, deadLetterRoutingKey}

// storeReplicas is how many nodes hold a store whose nodes nobody has chosen.
const storeReplicas = 3

// storePrefix starts the names of stores; the name of the exchange follows. The
// name may thus be longer than a short string. Clients cannot declare it, as it
// is reserved.
const storePrefix = reserved + "delayed-"

// DeclaredType is the type that clients know the exchange by.
func (x *Exchange) DeclaredType() string { return x.declared.GetType() }

// routingType is the type by which an exchange routes that is declared so. An
// argument that is missing or no text gives "", which checkDelayed refuses.
func routingType(d *logpb.DeclareExchange) string {
	if d.GetType() != Delayed {
		return d.GetType()
	}
	wrapped, _ := text(lookup(d.GetArguments(), delayedType))
	return wrapped
}

// MayBeUnroutable reports whether mandatory messages with a delay are taken in
// although they have nowhere to go yet. By default, as with bindings, they must
// have a destination when published.
func (x *Exchange) MayBeUnroutable() bool {
	s, _ := text(lookup(x.Arguments, delayedMandatory))
	return s == mandatoryNone
}

// checkDelayed refuses arguments that no delayed exchange can have. It also
// checks exchanges of other types, which delayedExchange or a policy may make
// delay.
func checkDelayed(vhost string, d *logpb.DeclareExchange) error {
	if !slices.Contains(exchangeTypes, routingType(d)) {
		return refuse(fsm.Precondition, "Invalid argument, '%s' must be an existing exchange type", delayedType)
	}
	where := resource(kindExchange, vhost, d.GetName())
	for _, a := range []argument{
		{delayedExchange, true, boolean},
		{delayedMandatory, true, oneOf("invalid_delayed_mandatory", mandatoryNone, mandatoryBindings)},
		{deadLetterExchange, true, longstr},
		{deadLetterRoutingKey, true, longstr},
	} {
		if v := lookup(d.GetArguments(), a.name); v != nil {
			if reason := a.check(v); reason != "" {
				return invalidArgument(a.name, where, reason)
			}
		}
	}
	return nil
}

// checkOpen refuses to clients what only the broker does with a store. Apply
// asks it as well: a command by id could name a store.
func (q *Queue) checkOpen() error {
	if q.StoreOf != "" {
		return refuse(fsm.AccessRefused, "operation not permitted on internal %s", q)
	}
	return nil
}

// storeSettings returns the settings of the exchange's store.
//
// They come from the exchange's policies and arguments, and from no node's
// defaults. revision is passed on. No message is lost at a limit: the publish
// is refused (REJECT_PUBLISH), and deliveries are not limited (-1). The result
// is new.
func (x *Exchange) storeSettings(revision uint64) *logpb.QueueConfig {
	policies := x.match.definition()
	c := &logpb.QueueConfig{
		DelayedStore: true, DeliveryLimit: -1, Overflow: logpb.QueueConfig_REJECT_PUBLISH, Revision: revision,
		MaxLengthPlusOne:      stored(lookup(policies, "delayed-max-length")),
		MaxLengthBytesPlusOne: stored(lookup(policies, "delayed-max-length-bytes")),
	}
	c.DeadLetterExchange, c.DeadLetter = text(lookup(x.Arguments, deadLetterExchange))
	c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = text(lookup(x.Arguments, deadLetterRoutingKey))
	return c
}
