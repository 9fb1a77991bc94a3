package catalog

import (
	"errors"
	"strconv"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// The arguments of a consistent hash exchange.
const (
	hashHeader   = "hash-header"
	hashProperty = "hash-property"
)

// The properties that hash-property can name, and two that it cannot.
const (
	PropertyMessageID     = "message_id"
	PropertyAppID         = "app_id"
	PropertyCorrelationID = "correlation_id"
	PropertyTimestamp     = "timestamp"
	PropertyReplyTo       = "reply_to"
	PropertyPriority      = "priority"
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
