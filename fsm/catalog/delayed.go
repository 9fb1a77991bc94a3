package catalog

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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
