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

	// These give each message to one destination; see choice.go.
	ConsistentHash = "x-consistent-hash"
	ModulusHash    = "x-modulus-hash"
	Random         = "x-random"
	LocalRandom    = "x-local-random"
)

var exchangeTypes = []string{Direct, Fanout, Topic, Headers, ConsistentHash, ModulusHash, Random, LocalRandom}

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
