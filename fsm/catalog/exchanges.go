package catalog

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
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

// predeclared are the exchanges of every vhost.
var predeclared = []*logpb.DeclareExchange{
	{Name: "amq.direct", Type: Direct, Durable: true},
	{Name: "amq.fanout", Type: Fanout, Durable: true},
	{Name: "amq.headers", Type: Headers, Durable: true},
	{Name: "amq.match", Type: Headers, Durable: true},
	{Name: "amq.rabbitmq.trace", Type: Topic, Durable: true, Internal: true},
	{Name: "amq.topic", Type: Topic, Durable: true},
}

// CommandExchange is there in every vhost without a record: what is published to
// it are commands to the broker.
const CommandExchange = "amq.quorate.command"

func noExchange(vhost, name string) error {
	return refuse(fsm.NotFoundKind, "no %s", resource(kindExchange, vhost, name))
}

func notOnDefault() error {
	return refuse(fsm.AccessRefused, "operation not permitted on the default exchange")
}

// CheckPublish refuses a publish to an exchange by a user. The default
// exchange has no record.
func (v *View) CheckPublish(user, vhost, exchange string) error {
	if err := v.access(user, vhost)(Write, kindExchange, exchange); err != nil || exchange == "" {
		return err
	}
	x, ok := v.Exchange(vhost, exchange)
	switch {
	case !ok:
		return noExchange(vhost, exchange)
	case x.Internal:
		return refuse(fsm.AccessRefused, "cannot publish to internal %s", x)
	}
	return nil
}

// CheckCommand refuses a publish to the command exchange by a user.
func (v *View) CheckCommand(user, vhost string) error {
	return v.access(user, vhost)(Write, kindExchange, CommandExchange)
}

// PassiveExchange answers a client that asks whether an exchange is there.
func (v *View) PassiveExchange(by Client, vhost, name string) error {
	if name == "" {
		return notOnDefault()
	}
	if err := v.mayAny(by.User, vhost, kindExchange, name); err != nil || name == CommandExchange {
		return err
	}
	if _, ok := v.Exchange(vhost, name); !ok {
		return noExchange(vhost, name)
	}
	return nil
}

// CheckDeclareExchange answers a declare as far as the view can: with the
// exchange that is there already and is equivalent, with a refusal, or with
// neither, when the exchange is to be created.
func (v *View) CheckDeclareExchange(by Client, d *logpb.DeclareExchange) (*Exchange, error) {
	x, err := v.checkDeclareExchange(v.access(by.User, d.GetVhost()), d)
	if x == nil && err == nil {
		where := resource(kindExchange, d.GetVhost(), d.GetName())
		if err = checkShort(where, d.GetArguments(), shortInExchanges); err == nil {
			err = v.checkExchangeIdle(where, d.GetArguments())
		}
	}
	return x, err
}

func (v *View) checkDeclareExchange(ask access, d *logpb.DeclareExchange) (*Exchange, error) {
	vhost, name := d.GetVhost(), d.GetName()
	if _, ok := v.VHost(vhost); !ok {
		return nil, noVhost(vhost)
	}
	if d.GetType() != Delayed && !slices.Contains(exchangeTypes, d.GetType()) {
		return nil, refuse(fsm.Precondition, "unknown exchange type '%s'", d.GetType())
	}
	if name == "" {
		return nil, notOnDefault()
	}
	if err := ask(Configure, kindExchange, name); err != nil {
		return nil, err
	}
	if x, ok := v.Exchange(vhost, name); ok {
		return x, x.equivalent(d)
	}
	if strings.HasPrefix(name, reserved) {
		return nil, refuse(fsm.AccessRefused, "exchange name '%s' contains reserved prefix 'amq.*'", name)
	}
	if err := checkName(kindExchange, name); err != nil {
		return nil, err
	}
	if err := checkExchangeTTL(resource(kindExchange, vhost, name), d.GetArguments()); err != nil {
		return nil, err
	}
	if _, err := hashOf(d); err != nil {
		return nil, err
	}
	if err := checkDelayed(vhost, d); err != nil {
		return nil, err
	}
	for _, argument := range []string{alternateExchange, deadLetterExchange} {
		further, given, err := exchangeArgument(argument, resource(kindExchange, vhost, name), d.GetArguments())
		if err != nil {
			return nil, err
		}
		if !given {
			continue
		}
		if err := ask(Read, kindExchange, name); err != nil {
			return nil, err
		}
		if err := ask(Write, kindExchange, further); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// declareExchange creates an exchange, or finds the one that is there.
func (d *draft) declareExchange(m *logpb.DeclareExchange) (*logpb.CatalogResult, error) {
	x, err := d.checkDeclareExchange(noAccess, m)
	if err != nil || x != nil {
		return &logpb.CatalogResult{}, err
	}
	vh, r := d.open(m.GetVhost()), &logpb.CatalogResult{Changed: true}
	vh.addExchange(m)
	d.addStore(vh, m.GetName(), m.GetStoreMembers(), r)
	vh.retime(vh.exchanges.At(m.GetName()), d.clock)
	return r, nil
}

// addExchange makes an exchange from a declare that has been checked.
func (vh *vhost) addExchange(m *logpb.DeclareExchange) {
	m = &logpb.DeclareExchange{
		Vhost: vh.row.GetName(), Name: m.GetName(), Type: m.GetType(),
		Durable: m.GetDurable(), AutoDelete: m.GetAutoDelete(), Internal: m.GetInternal(), Arguments: m.GetArguments(),
	}
	x := &Exchange{
		VHost: m.Vhost, Name: m.Name, Type: m.Type,
		Durable: m.Durable, AutoDelete: m.AutoDelete, Internal: m.Internal, Arguments: m.Arguments,
		declared: m,
	}
	x.Type = routingType(m)
	x.hash, _ = hashOf(m)
	x.setEffective()
	vh.exchanges = vh.exchanges.With(x.Name, vh.matchExchange(x))
}

// CheckDeleteExchange answers the delete of an exchange as far as the view
// can. exists false without an error: it was not there, which is fine.
func (v *View) CheckDeleteExchange(by Client, m *logpb.DeleteExchange) (exists bool, err error) {
	return v.checkDeleteExchange(v.access(by.User, m.GetVhost()), m)
}

func (v *View) checkDeleteExchange(ask access, m *logpb.DeleteExchange) (exists bool, err error) {
	vhost, name := m.GetVhost(), m.GetName()
	if name == "" {
		return false, notOnDefault()
	}
	if strings.HasPrefix(name, reserved) {
		return false, refuse(fsm.AccessRefused, "deletion of system %s not allowed", resource(kindExchange, vhost, name))
	}
	if err := ask(Configure, kindExchange, name); err != nil {
		return false, err
	}
	x, ok := v.Exchange(vhost, name)
	if ok && m.GetIfUnused() && x.bindings.Len() > 0 {
		return true, refuse(fsm.Precondition, "%s in use", x)
	}
	return ok, nil
}

// deleteExchange removes an exchange and its bindings.
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
func (d *draft) removeExchanges(vh *vhost, doomed []string, r *logpb.CatalogResult) {
	for len(doomed) > 0 {
		name := doomed[len(doomed)-1]
		doomed = doomed[:len(doomed)-1]
		x := vh.exchanges.At(name)
		if x == nil {
			continue
		}
		vh.exchanges, vh.active = vh.exchanges.Without(name), vh.active.Without(name)
		if x.Store != nil {
			d.forgetStore(vh, x.Store)
			r.Deleted = append(r.Deleted, uint64(x.Store.ID))
		}
		for b := range x.bindings.Values() {
			vh.forgetInbound(b)
		}
		doomed = append(doomed, vh.unbindAllTo(endpoint{name, true}, destination{exchange: name})...)
	}
	slices.Sort(r.Deleted)
}
