package catalog

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/route"
	"github.com/quorate/quorate/proto/logpb"
)

// CheckBind answers a bind as far as the view can. exists: the binding is
// there already.
func (v *View) CheckBind(by Client, m *logpb.Bind) (exists bool, err error) {
	if err := v.mayChangeBinding(by, m); err != nil {
		return false, err
	}
	if _, ok := v.openTo(v.access(by.User, m.GetVhost()), m.GetVhost(), m.GetDestination()); !ok && !m.GetToExchange() {
		return false, noQueue(m.GetVhost(), m.GetDestination())
	}
	return v.checkBind(m)
}

// CheckUnbind answers an unbind as far as the view can. exists false without
// an error: there is no such binding, which is fine.
func (v *View) CheckUnbind(by Client, m *logpb.Bind) (exists bool, err error) {
	if err := v.mayChangeBinding(by, m); err != nil {
		return false, err
	}
	_, exists = v.binding(m)
	return exists, nil
}

func (v *View) mayChangeBinding(by Client, m *logpb.Bind) error {
	if err := v.mayBind(v.access(by.User, m.GetVhost()), m); err != nil {
		return err
	}
	if p := v.TopicRule(by.User, m.GetVhost(), m.GetSource()); p != nil {
		if err := p.Check(Read, m.GetRoutingKey()); err != nil {
			return err
		}
	}
	if q, ok := v.Queue(m.GetVhost(), m.GetDestination()); ok && !m.GetToExchange() {
		return q.CheckOwner(by.Owner)
	}
	return nil
}

// mayBind refuses bindings of the default exchange, and users who may not
// write the destination or read the source.
func (v *View) mayBind(ask access, m *logpb.Bind) error {
	kind := kindQueue
	if m.GetToExchange() {
		kind = kindExchange
	}
	if err := ask(Write, kind, m.GetDestination()); err != nil {
		return err
	}
	if m.GetSource() == "" || m.GetToExchange() && m.GetDestination() == "" {
		return notOnDefault()
	}
	if m.GetSource() == CommandExchange || m.GetToExchange() && m.GetDestination() == CommandExchange {
		return refuse(fsm.AccessRefused, "operation not permitted on %s", resource(kindExchange, m.GetVhost(), CommandExchange))
	}
	if q, ok := v.openTo(ask, m.GetVhost(), m.GetDestination()); ok && !m.GetToExchange() {
		if err := q.checkOpen(); err != nil {
			return err
		}
	}
	return ask(Read, kindExchange, m.GetSource())
}

// binding finds the binding that m describes.
func (v *View) binding(m *logpb.Bind) (*Binding, bool) {
	x, ok := v.Exchange(m.GetVhost(), m.GetSource())
	if !ok {
		return nil, false
	}
	return x.bindings.Get(bindingKey(m))
}

func (v *View) checkBind(m *logpb.Bind) (exists bool, err error) {
	vh := v.vhosts.At(m.GetVhost())
	if vh == nil {
		return false, noVhost(m.GetVhost())
	}
	if m.GetToExchange() {
		if vh.exchanges.At(m.GetDestination()) == nil {
			return false, noExchange(m.GetVhost(), m.GetDestination())
		}
	} else if vh.queues.At(m.GetDestination()) == nil {
		return false, noQueue(m.GetVhost(), m.GetDestination())
	}
	x := vh.exchanges.At(m.GetSource())
	if x == nil {
		return false, noExchange(m.GetVhost(), m.GetSource())
	}
	if _, ok := x.bindings.Get(bindingKey(m)); ok {
		return true, nil
	}
	return false, checkBinding(x.Type, m)
}

// checkBinding refuses routing keys and arguments that an exchange of this
// type cannot work with.
func checkBinding(exchangeType string, m *logpb.Bind) error {
	if len(m.GetRoutingKey()) > maxName {
		return refuse(fsm.Precondition, "routing keys have at most %d bytes", maxName)
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
	}
	return nil
}

// headersOf returns the condition that binding arguments make.
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
		fields[i] = route.Field{Name: f.GetName(), Value: normal(f.GetValue())}
	}
	h, ok := route.NewHeaders(mode, fields)
	if !ok {
		return h, refuse(fsm.Precondition, "Invalid x-match field value \"%s\"; expected all, any, all-with-x, or any-with-x", mode)
	}
	return h, nil
}

// bindingKey identifies a binding within its source. Arguments count as a
// set of fields: their order does not matter, their types do.
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

// bind makes a binding, or finds the one that is there.
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
	vh.touchEnds(m, d.clock)
	return &logpb.CatalogResult{Changed: true}, nil
}

// unbind removes a binding. One that is not there is fine.
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
	vh.touchEnds(m, d.clock)
	if vh.removeBinding(b) {
		d.removeExchanges(vh, []string{b.Source}, r)
	}
	return r, nil
}

// addBinding makes a binding that has been checked and is new.
func (vh *vhost) addBinding(m *logpb.Bind) {
	m = &logpb.Bind{
		Vhost: vh.row.GetName(), Source: m.GetSource(), Destination: m.GetDestination(), ToExchange: m.GetToExchange(),
		RoutingKey: m.GetRoutingKey(), Arguments: m.GetArguments(),
	}
	b := &Binding{
		VHost: m.Vhost, Source: m.Source, Destination: m.Destination, ToExchange: m.ToExchange,
		RoutingKey: m.RoutingKey, Arguments: m.Arguments,
		bound: m, key: bindingKey(m),
	}
	x := *vh.exchanges.At(b.Source)
	to := vh.destinationOf(b)
	switch x.Type {
	case Direct:
		x.direct = x.direct.With(b.RoutingKey, to)
	case Fanout:
		x.fanout = x.fanout.With(to)
	case Topic:
		x.topic = x.topic.With(b.RoutingKey, to)
	case Headers:
		b.headers, _ = headersOf(b.Arguments)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		x.choice = x.choice.With(to.key(), to, weightIn(&x, b))
	}
	x.bindings = x.bindings.With(b.key, b)
	vh.exchanges = vh.exchanges.With(x.Name, &x)
	vh.inbound = vh.inbound.With(b.end(), vh.inbound.At(b.end()).With(b, struct{}{}))
}

// destination returns where a binding leads. Its queue must be there.
func (vh *vhost) destinationOf(b *Binding) destination {
	if b.ToExchange {
		return destination{exchange: b.Destination}
	}
	return destination{queue: vh.queues.At(b.Destination)}
}

// unbindAllTo removes all bindings that end at one place. It returns the
// sources that must go for it: auto-delete exchanges without a binding left.
func (vh *vhost) unbindAllTo(end endpoint, to destination) (doomed []string) {
	bindings := vh.inbound.At(end)
	vh.inbound = vh.inbound.Without(end)
	for b := range bindings.All() {
		if vh.forgetOutbound(b, to) {
			doomed = append(doomed, b.Source)
		}
	}
	return doomed
}

// removeBinding removes a binding, whose queue must still be there. It reports
// whether its source, an auto-delete exchange, has no other and must go.
func (vh *vhost) removeBinding(b *Binding) (last bool) {
	vh.forgetInbound(b)
	return vh.forgetOutbound(b, vh.destinationOf(b))
}

// forgetInbound removes a binding from those of its destination.
func (vh *vhost) forgetInbound(b *Binding) {
	if left := vh.inbound.At(b.end()).Without(b); left.Len() > 0 {
		vh.inbound = vh.inbound.With(b.end(), left)
	} else {
		vh.inbound = vh.inbound.Without(b.end())
	}
}

// forgetOutbound removes a binding from its source, as removeBinding does.
func (vh *vhost) forgetOutbound(b *Binding, to destination) (last bool) {
	old := vh.exchanges.At(b.Source)
	if old == nil {
		return false // it went before, in the same removal
	}
	x := *old
	switch x.Type {
	case Direct:
		x.direct = x.direct.Without(b.RoutingKey, to, 1)
	case Fanout:
		x.fanout = x.fanout.Without(to, 1)
	case Topic:
		x.topic = x.topic.Without(b.RoutingKey, to, 1)
	case ConsistentHash, ModulusHash, Random, LocalRandom:
		x.choice = x.choice.Without(to.key(), weightIn(&x, b))
	}
	x.bindings = x.bindings.Without(b.key)
	vh.exchanges = vh.exchanges.With(x.Name, &x)
	return x.AutoDelete && x.bindings.Len() == 0
}
