package catalog

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// Binding is the record of a binding.
//
// It never changes, and is shared by its source and its destination. What it
// leads to is looked up by name when it is made; see table.
type Binding struct {
	// VHost is that of both ends: bindings do not leave their vhost
	VHost string
	// Source is an exchange that is there, never the default one
	Source      string
	Destination string
	// ToExchange: Destination is an exchange, otherwise a queue
	ToExchange bool
	// RoutingKey: a key, a topic pattern or a weight, by the type of the source
	RoutingKey string
	// Arguments: as given, nil: none; they matter to headers exchanges, and to
	// identity
	Arguments *fsm.Table

	// bound: what a snapshot holds of the binding; the other fields are derived
	// from it
	bound   *logpb.Bind
	key     string        // unique within the source
	headers route.Headers // of a headers exchange; zero for others
}

// endpoint names where a binding ends, within a vhost. A queue and an exchange
// may have the same name. It names, so the record behind it can be replaced.
type endpoint struct {
	name       string
	isExchange bool
}

func (b *Binding) end() endpoint { return endpoint{b.Destination, b.ToExchange} }

// compareBindings orders the bindings of one vhost. Two bindings of one source
// with equal keys are the same binding. The order is total: two different
// bindings of a vhost never compare equal, so lists and snapshots are the same
// on every replica.
func compareBindings(a, b *Binding) int {
	if c := cmp.Compare(a.Source, b.Source); c != 0 {
		return c
	}
	if a.ToExchange != b.ToExchange {
		if b.ToExchange {
			return -1
		}
		return 1
	}
	if c := cmp.Compare(a.Destination, b.Destination); c != 0 {
		return c
	}
	if c := cmp.Compare(a.RoutingKey, b.RoutingKey); c != 0 {
		return c
	}
	return cmp.Compare(a.key, b.key)
}

// newBinding makes a binding from a bind that has been checked. m is copied
// down to its arguments, which are shared. vhost is given apart, since it is
// the vhost it is found in that counts. headers is set by bind, which knows the
// type of the source.
func newBinding(vhost string, m *logpb.Bind) *Binding {
	m = &logpb.Bind{
		Vhost: vhost, Source: m.GetSource(), Destination: m.GetDestination(), ToExchange: m.GetToExchange(),
		RoutingKey: m.GetRoutingKey(), Arguments: m.GetArguments(),
	}
	b := &Binding{
		VHost: m.Vhost, Source: m.Source, Destination: m.Destination, ToExchange: m.ToExchange,
		RoutingKey: m.RoutingKey, Arguments: m.Arguments,
		bound: m, key: bindingKey(m),
	}
	return b
}

// bind adds a binding that is new. Its source must be there. to is what b leads
// to, which is there. It costs O(log n), and for types that choose one
// destination O(destinations).
func (xs *exchanges) bind(b *Binding, to destination) {
	x := *xs.at(b.Source)
	if x.Type == Headers {
		b.headers, _ = headersOf(b.Arguments)
	}
	x.table = x.table.with(x.Type, b, to)
	x.bindings = x.bindings.With(b.key, b)
	xs.put(&x)
	xs.inbound = xs.inbound.With(b.end(), xs.inboundAt(b.end()).With(b, struct{}{}))
}

// unbind removes a binding. It reports whether its source, an auto-delete
// exchange, has no other and must go. Requires: b is the record that its source
// has, and to what it leads to, the same queue record that bind was given;
// otherwise the table keeps the old one.
func (xs *exchanges) unbind(b *Binding, to destination) (last bool) {
	xs.forgetInbound(b)
	return xs.forgetOutbound(b, to)
}

// unbindAllTo removes all bindings that end at one place. It returns the
// sources that must go for it: auto-delete exchanges without a binding left.
// The doomed are still there, without bindings, in no particular order, each
// once: only the removal of its last binding makes one doomed. to is as in
// unbind. It costs O(bindings to end), not O(exchanges).
func (xs *exchanges) unbindAllTo(end endpoint, to destination) (doomed []string) {
	bindings := xs.inboundAt(end)
	xs.inbound = xs.inbound.Without(end)
	for b := range bindings.All() {
		if xs.forgetOutbound(b, to) {
			doomed = append(doomed, b.Source)
		}
	}
	return doomed
}

// inboundAt are the bindings that end at one place. Empty if there are none, or
// nothing of that name.
func (xs *exchanges) inboundAt(end endpoint) route.Map[*Binding, struct{}] { return xs.inbound.At(end) }

// forgetInbound removes a binding from those of its destination.
func (xs *exchanges) forgetInbound(b *Binding) {
	if left := xs.inboundAt(b.end()).Without(b); left.Len() > 0 {
		xs.inbound = xs.inbound.With(b.end(), left)
	} else {
		xs.inbound = xs.inbound.Without(b.end())
	}
}

// forgetOutbound removes a binding from its source, as unbind does. inbound is
// left to the caller.
func (xs *exchanges) forgetOutbound(b *Binding, to destination) (last bool) {
	old := xs.at(b.Source)
	if old == nil {
		return false // it went before, in the same removal
	}
	x := *old
	x.table = x.table.without(x.Type, b, to)
	x.bindings = x.bindings.Without(b.key)
	xs.put(&x)
	return x.AutoDelete && x.bindings.Len() == 0
}

// checkBinding refuses routing keys and arguments that an exchange of this type
// cannot work with. The values of m's destination and source are not looked at.
// Hash exchanges other than ConsistentHash, and fanout exchanges, take any key
// and ignore it.
func checkBinding(exchangeType string, m *logpb.Bind) error {
	if len(m.GetRoutingKey()) > maxName {
		return refuse(fsm.Precondition, "routing keys may have at most %d bytes", maxName)
	}
	switch exchangeType {
	case Topic:
		if n := route.Hashes(m.GetRoutingKey()); n > route.MaxHashes {
			return refuse(fsm.Precondition, "Topic binding key '%s' uses %d '#' wildcards, at most %d are allowed",
				m.GetRoutingKey(), n, route.MaxHashes)
		}
	case Headers:
		_, err := headersOf(m.GetArguments())
		return err
	case ConsistentHash:
		_, err := weightOf(m.GetRoutingKey())
		return err
	case Filter:
		switch program, ok := text(lookup(m.GetArguments(), filterProgram)); {
		case m.GetToExchange():
			return refuse(fsm.Precondition, "an exchange of type %s leads to queues only", Filter)
		case !ok || len(program) > maxProgram:
			return refuse(fsm.Precondition, "a binding of an exchange of type %s has a text of at most %d bytes as '%s'", Filter, maxProgram, filterProgram)
		}
	}
	return nil
}

const (
	filterProgram = "x-filter-program"
	maxProgram    = 16 << 10
)

// Program is what a binding of an exchange of type Filter says; empty: nothing, or it is
// that of another one.
func (b *Binding) Program() []byte { return lookup(b.Arguments, filterProgram).GetStr() }

// headersOf returns the condition that binding arguments make. Without x-match
// all fields must match. The result is of normal values, whose texts share
// memory with args.
func headersOf(args *fsm.Table) (route.Headers, error) {
	mode := "all"
	if v := lookup(args, "x-match"); v != nil {
		var ok bool
		if mode, ok = text(v); !ok {
			return route.Headers{}, refuse(fsm.Precondition, "Invalid x-match field type %s (value %s); expected longstr", typeName(v), render(v))
		}
	}
	fields := make([]route.Field, len(args.GetFields()))
	for i, f := range args.GetFields() {
		fields[i] = route.Field{Name: f.GetName(), Value: headerValue(f.GetValue())}
	}
	h, ok := route.NewHeaders(mode, fields)
	if !ok {
		return h, refuse(fsm.Precondition, "Invalid x-match field value \"%s\"; expected all, any, all-with-x, or any-with-x", mode)
	}
	return h, nil
}

// bindingKey identifies a binding within its source. Arguments count as a
// set of fields: their order does not matter, their types do.
//
// Lengths stand before texts, so that no two bindings can give one key.
// Encoding is canonical: the same on every replica and after every restart.
// Fields of the same name keep their order, as lookup takes the first.
func bindingKey(m *logpb.Bind) string {
	kind := byte('q')
	if m.GetToExchange() {
		kind = 'x'
	}
	key := make([]byte, 0, 3+len(m.GetDestination())+len(m.GetRoutingKey()))
	key = binary.AppendUvarint(append(key, kind), uint64(len(m.GetDestination())))
	key = append(key, m.GetDestination()...)
	key = binary.AppendUvarint(key, uint64(len(m.GetRoutingKey())))
	key = append(key, m.GetRoutingKey()...)
	fields := slices.Clone(m.GetArguments().GetFields())
	slices.SortStableFunc(fields, func(a, b *logpb.Field) int { return cmp.Compare(a.GetName(), b.GetName()) })
	if len(fields) > 0 {
		key = append(key, encoded(&fsm.Table{Fields: fields})...)
	}
	return string(key)
}
