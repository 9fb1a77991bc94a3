package catalog

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Delayed is the type of exchanges that hold messages back and then route them
// as an exchange of the type named by an argument does.
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

// storePrefix starts the names of stores; the name of the exchange follows.
const storePrefix = reserved + "delayed-"

// DeclaredType is the type that clients know the exchange by.
func (x *Exchange) DeclaredType() string { return x.declared.GetType() }

// routingType is the type by which an exchange routes that is declared so.
func routingType(d *logpb.DeclareExchange) string {
	if d.GetType() != Delayed {
		return d.GetType()
	}
	wrapped, _ := text(lookup(d.GetArguments(), delayedType))
	return wrapped
}

// MayBeUnroutable reports whether mandatory messages with a delay are taken in
// although they have nowhere to go yet.
func (x *Exchange) MayBeUnroutable() bool {
	s, _ := text(lookup(x.Arguments, delayedMandatory))
	return s == mandatoryNone
}

// checkDelayed refuses arguments that no delayed exchange can have.
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

// openTo finds a queue by name. To a user who has no right at all on an exchange
// its store is not there: it would tell that the exchange is, and delays.
func (v *View) openTo(ask access, vhost, name string) (*Queue, bool) {
	q, ok := v.Queue(vhost, name)
	if ok && q.StoreOf != "" && anyOf(ask, kindExchange, q.StoreOf) != nil {
		return nil, false
	}
	return q, ok
}

// checkOpen refuses to clients what only the broker does with a store.
func (q *Queue) checkOpen() error {
	if q.StoreOf != "" {
		return refuse(fsm.AccessRefused, "operation not permitted on internal %s", q)
	}
	return nil
}

// UseStore finds the store of an exchange for a client that wants to change what
// waits there, and must be allowed to write to the exchange.
func (v *View) UseStore(by Client, vhost, exchange string) (*Queue, error) {
	if err := v.CheckPublish(by.User, vhost, exchange); err != nil {
		return nil, err
	}
	return v.store(vhost, exchange)
}

// SeeStore is UseStore for a client that wants to look into it. Nobody publishes
// to an internal exchange, but what waits there can be seen.
func (v *View) SeeStore(by Client, vhost, exchange string) (*Queue, error) {
	if err := v.access(by.User, vhost)(Write, kindExchange, exchange); err != nil {
		return nil, err
	}
	return v.store(vhost, exchange)
}

func (v *View) store(vhost, exchange string) (*Queue, error) {
	x, ok := v.Exchange(vhost, exchange)
	if !ok || x.Store == nil {
		return nil, refuse(fsm.NotFoundKind, "no messages wait in %s", resource(kindExchange, vhost, exchange))
	}
	return x.Store, nil
}

// addStore makes the store of an exchange that delays and has none. members may
// be empty. r names the queue.
func (d *draft) addStore(vh *vhost, exchange string, members []uint32, r *logpb.CatalogResult) {
	x := vh.exchanges.At(exchange)
	if !x.Delays || x.Store != nil {
		return
	}
	group := d.nextFreeGroup()
	d.nextGroup = uint32(group) + 1
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

// storeID returns an id as id does. Ids of stores count down from the end of
// what the entry has: one command may make many.
func (d *draft) storeID() fsm.QueueID {
	d.stores++
	return fsm.QueueID(d.index<<16 | uint64(maxCommands-d.stores))
}

// placeStore chooses nodes for a store, other ones for each group. There is at
// least one node: it is where the command comes from.
func (d *draft) placeStore(group fsm.GroupID) (members []uint32) {
	nodes := d.Nodes()
	for i := range min(len(nodes), storeReplicas) {
		members = append(members, nodes[(int(group)+i)%len(nodes)].GetNumber())
	}
	return members
}

// forgetStore removes a store, which nothing is bound to.
func (d *draft) forgetStore(vh *vhost, q *Queue) {
	vh.queues = vh.queues.Without(q.Name)
	vh.matches = vh.matches.Without(q.ID)
	d.forgetQueue(q)
}

// storeSettings returns the settings of the exchange's store.
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

// storeOf finds the store of the exchange whose store q says it is.
func (v *View) storeOf(q *Queue) *Queue {
	if x, ok := v.Exchange(q.VHost, q.StoreOf); ok {
		return x.Store
	}
	return nil
}

// checkStore: an exchange that delays has a store, which is its own.
func (vh *vhost) checkStore(x *Exchange) error {
	switch q := x.Store; {
	case q == nil && x.Delays:
		return fmt.Errorf("%s delays and has no store", x)
	case q != nil && (q.StoreOf != x.Name || vh.queues.At(q.Name) != q || q.Exclusive || q.Local || !q.Durable):
		return fmt.Errorf("%s is no store of %s", q, x)
	}
	return nil
}
