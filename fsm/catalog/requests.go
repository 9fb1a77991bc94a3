package catalog

import (
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// The checks of client requests: permission, existence, equivalence. The broker
// calls the exported checks before it proposes anything; Apply calls the checks
// they are built on again, with noAccess.

// Client is the origin of a request: a user, and the connection that exclusive
// queues are compared with. Owner is compared only with that of exclusive
// queues.
type Client struct {
	User  string
	Owner Owner
}

// access returns what a user may do in a vhost, as of this View.
func (v *View) access(user, vhost string) access {
	return func(verb Verb, kind, name string) error {
		if kind == kindExchange && name == "" {
			name = defaultExchange
		}
		if v.May(user, vhost, verb, name) {
			return nil
		}
		return AccessRefused(user, vhost, verb, kind, name)
	}
}

// openTo finds a queue by name. For a user without any right on an exchange its
// store does not exist: it would reveal that the exchange exists and delays.
func (v *View) openTo(ask access, vhost, name string) (*Queue, bool) {
	q, ok := v.Queue(vhost, name)
	if ok && q.StoreOf != "" && anyOf(ask, kindExchange, q.StoreOf) != nil {
		return nil, false
	}
	return q, ok
}

// UseQueue finds a queue for a client that wants to purge it or inspect it
// (verb Read). The order of refusals: permission, existence, exclusive use,
// store. A user without the permission does not learn whether the queue is
// there.
func (v *View) UseQueue(by Client, verb Verb, vhost, name string) (*Queue, error) {
	if err := v.access(by.User, vhost)(verb, kindQueue, name); err != nil {
		return nil, err
	}
	q, err := v.ownQueue(by, vhost, name)
	if err == nil {
		err = q.checkOpen()
	}
	return q, err
}

// CheckRead refuses a user who may not read a queue.
func (v *View) CheckRead(user string, q *Queue) error {
	return v.access(user, q.VHost)(Read, kindQueue, q.Name)
}

// TakeFrom is UseQueue for a client that wants to take messages out.
func (v *View) TakeFrom(by Client, vhost, name string) (*Queue, error) {
	q, err := v.UseQueue(by, Read, vhost, name)
	if err == nil && q.Hold {
		return nil, refuse(fsm.AccessRefused, "%s is a hold queue: its messages cannot be consumed", q)
	}
	return q, err
}

// PassiveQueue finds a queue for a client that asks whether it exists. Any
// permission on the name is enough. The store of an exchange is found by
// whoever has a right on the exchange.
func (v *View) PassiveQueue(by Client, vhost, name string) (*Queue, error) {
	if err := v.mayAny(by.User, vhost, kindQueue, name); err != nil {
		return nil, err
	}
	return v.ownQueue(by, vhost, name)
}

// ownQueue finds a queue and refuses one that is exclusive to another
// connection. With that refusal the queue is returned, too.
func (v *View) ownQueue(by Client, vhost, name string) (*Queue, error) {
	q, ok := v.openTo(v.access(by.User, vhost), vhost, name)
	if !ok {
		return nil, noQueue(vhost, name)
	}
	return q, q.CheckOwner(by.Owner)
}

// mayAny refuses a user without any permission for a name.
func (v *View) mayAny(user, vhost, kind, name string) error {
	return anyOf(v.access(user, vhost), kind, name)
}

func anyOf(ask access, kind, name string) error {
	for _, verb := range []Verb{Write, Read} {
		if ask(verb, kind, name) == nil {
			return nil
		}
	}
	return ask(Configure, kind, name)
}

// UseStore finds the store of an exchange for a client that wants to change
// what waits there, which requires permission to write to the exchange.
func (v *View) UseStore(by Client, vhost, exchange string) (*Queue, error) {
	if err := v.CheckPublish(by.User, vhost, exchange); err != nil {
		return nil, err
	}
	return v.store(vhost, exchange)
}

// SeeStore is UseStore for a client that wants to inspect it. Nobody publishes
// to an internal exchange, but its waiting messages can be seen.
func (v *View) SeeStore(by Client, vhost, exchange string) (*Queue, error) {
	if err := v.access(by.User, vhost)(Write, kindExchange, exchange); err != nil {
		return nil, err
	}
	return v.store(vhost, exchange)
}

func (v *View) store(vhost, exchange string) (*Queue, error) {
	x, ok := v.Exchange(vhost, exchange)
	if !ok || x.Store == nil {
		return nil, refuse(fsm.NotFoundKind, "no messages are waiting in %s", resource(kindExchange, vhost, exchange))
	}
	return x.Store, nil
}

// CheckDeclareQueue answers a declare as far as the view can: with an
// equivalent queue that already exists, with a refusal, or with neither, if the
// queue is to be created. generated says that the broker made the name. d.Owner
// must be by.Owner if d is exclusive.
//
// With an error the queue may be returned, too: the one that is not equivalent.
// What is checked here only, and not by Apply: permissions, short strings,
// retries, and names of arguments, also of a queue that exists.
func (v *View) CheckDeclareQueue(by Client, d *logpb.DeclareQueue, generated bool) (*Queue, error) {
	return v.checkQueueAnew(v.access(by.User, d.GetVhost()), d, generated)
}

func (v *View) checkQueueAnew(ask access, d *logpb.DeclareQueue, generated bool) (*Queue, error) {
	q, err := v.checkDeclareQueue(ask, d, generated)
	where := resource(kindQueue, d.GetVhost(), d.GetName())
	if err == nil && (q == nil || len(q.Drift(v, d)) > 0) {
		if err = checkShort(where, d.GetArguments(), shortInQueues); err == nil {
			err = checkRetry(where, d.GetArguments())
		}
	}
	var had *fsm.Table
	if q != nil {
		had = q.Arguments
	}
	if err == nil {
		err = declareQueue.checkNames(where, d.GetArguments(), had)
	}
	return q, err
}

// checkDeclareQueue is what Apply checks as well. Apply gives generated as true
// for any name that mayBeGenerated. The order of the checks is visible to
// clients; see DESIGN.md.
func (v *View) checkDeclareQueue(ask access, d *logpb.DeclareQueue, generated bool) (*Queue, error) {
	vhost, name := d.GetVhost(), d.GetName()
	if _, ok := v.VHost(vhost); !ok {
		return nil, noVhost(vhost)
	}
	q, exists := v.openTo(ask, vhost, name)
	err := ask(Configure, kindQueue, name)
	if !generated && strings.HasPrefix(name, reserved) && (!exists || err != nil) {
		// Only users who may declare it learn whether it exists.
		return nil, refuse(fsm.AccessRefused, "queue name '%s' contains reserved prefix 'amq.*'", name)
	}
	if err != nil {
		return nil, err
	}
	if exists {
		if err := q.checkOpen(); err != nil {
			return nil, err
		}
		return q, q.checkRedeclare(v, ask, d)
	}
	if err := checkName(kindQueue, name); err != nil {
		return nil, err
	}
	if err := checkExits(ask, vhost, name, d.GetArguments()); err != nil {
		return nil, err
	}
	if err := v.ValidateQueueArguments(vhost, name, d.GetArguments()); err != nil {
		return nil, err
	}
	return nil, v.checkQueueLimit(vhost, name)
}

// checkExits refuses a user who may not move messages out of the queue, or
// not to the exchanges that its arguments name.
func checkExits(ask access, vhost, name string, args *fsm.Table) error {
	for _, argument := range []string{deadLetterExchange, forwardArgument} {
		target, given, err := exchangeArgument(argument, resource(kindQueue, vhost, name), args)
		if err != nil {
			return err
		}
		if !given {
			continue
		}
		if err := ask(Read, kindQueue, name); err != nil {
			return err
		}
		if err := ask(Write, kindExchange, target); err != nil {
			return err
		}
	}
	if lookup(args, sentRefusedArgument) == nil {
		return nil
	}
	if err := ask(Read, kindQueue, name); err != nil {
		return err
	}
	return ask(Write, kindExchange, "") // by which that queue is reached
}

// CheckDeleteQueue answers the delete of a queue as far as the view can. A nil
// queue without an error did not exist, which is not a failure. If-unused and
// if-empty are checked by the queue's machine.
func (v *View) CheckDeleteQueue(by Client, vhost, name string) (*Queue, error) {
	if err := v.access(by.User, vhost)(Configure, kindQueue, name); err != nil {
		return nil, err
	}
	q, ok := v.openTo(v.access(by.User, vhost), vhost, name)
	if !ok {
		return nil, nil
	}
	if err := q.checkOpen(); err != nil {
		return nil, err
	}
	return q, q.CheckOwner(by.Owner)
}

// CheckPublish refuses a publish to an exchange by a user. The default exchange
// has no record. Topic permissions are checked separately, see TopicRule.
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

// PassiveExchange answers a client that asks whether an exchange exists.
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

// CheckDeclareExchange answers a declare as far as the view can: with an
// equivalent exchange that already exists, with a refusal, or with neither, if
// the exchange is to be created. What is checked here only, and not by Apply:
// permissions, short strings, the idle time, and names of arguments, also of an
// exchange that exists.
func (v *View) CheckDeclareExchange(by Client, d *logpb.DeclareExchange) (*Exchange, error) {
	return v.checkExchangeAnew(v.access(by.User, d.GetVhost()), d)
}

func (v *View) checkExchangeAnew(ask access, d *logpb.DeclareExchange) (*Exchange, error) {
	x, err := v.checkDeclareExchange(ask, d)
	where := resource(kindExchange, d.GetVhost(), d.GetName())
	if err == nil && (x == nil || len(x.Drift(v, d)) > 0) {
		if err = checkShort(where, d.GetArguments(), shortInExchanges); err == nil {
			err = v.checkExchangeIdle(where, d.GetArguments())
		}
	}
	var had *fsm.Table
	if x != nil {
		had = x.Arguments
	}
	if err == nil {
		err = declareExchange.checkNames(where, d.GetArguments(), had)
	}
	return x, err
}

func (v *View) checkDeclareExchange(ask access, d *logpb.DeclareExchange) (*Exchange, error) {
	vhost, name := d.GetVhost(), d.GetName()
	if _, ok := v.VHost(vhost); !ok {
		return nil, noVhost(vhost)
	}
	if known := d.GetType() == Delayed || slices.Contains(exchangeTypes, d.GetType()); name != CommandExchange && (!known || d.GetType() == Filter && v.FSMVersion() < filters) {
		return nil, fsm.Refuse(fsm.Precondition, fsm.UnknownExchangeType(d.GetType()))
	}
	if name == "" {
		return nil, notOnDefault()
	}
	if err := ask(Configure, kindExchange, name); err != nil {
		return nil, err
	}
	if x, ok := v.Exchange(vhost, name); ok {
		return x, x.checkRedeclare(v, ask, d)
	}
	if strings.HasPrefix(name, reserved) {
		return nil, refuse(fsm.AccessRefused, "exchange name '%s' contains reserved prefix 'amq.*'", name)
	}
	if err := checkName(kindExchange, name); err != nil {
		return nil, err
	}
	return nil, checkExchangeArguments(ask, d)
}

// checkExchangeArguments refuses arguments that no exchange of this type can
// have, and a user who may not route messages on as they say.
func checkExchangeArguments(ask access, d *logpb.DeclareExchange) error {
	vhost, name := d.GetVhost(), d.GetName()
	if err := checkExchangeTTL(resource(kindExchange, vhost, name), d.GetArguments()); err != nil {
		return err
	}
	if _, err := hashOf(d); err != nil {
		return err
	}
	if routingType(d) == Filter && (!d.GetInternal() || d.GetType() == Delayed) {
		return refuse(fsm.Precondition, "an exchange of type %s must be internal, and cannot be delayed", Filter)
	}
	if err := checkDelayed(vhost, d); err != nil {
		return err
	}
	for _, argument := range []string{alternateExchange, deadLetterExchange} {
		further, given, err := exchangeArgument(argument, resource(kindExchange, vhost, name), d.GetArguments())
		if err != nil {
			return err
		}
		if !given {
			continue
		}
		if err := ask(Read, kindExchange, name); err != nil {
			return err
		}
		if err := ask(Write, kindExchange, further); err != nil {
			return err
		}
	}
	return nil
}

// CheckDeleteExchange answers the delete of an exchange as far as the view can.
// exists false without an error: it did not exist, which is not a failure.
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

// CheckBind answers a bind as far as the view can. exists: the binding already
// exists. The checks that Apply repeats are mayBind and checkBind; it does not
// check the names of arguments.
func (v *View) CheckBind(by Client, m *logpb.Bind) (exists bool, err error) {
	if err := v.mayChangeBinding(by, m); err != nil {
		return false, err
	}
	if _, ok := v.openTo(v.access(by.User, m.GetVhost()), m.GetVhost(), m.GetDestination()); !ok && !m.GetToExchange() {
		return false, noQueue(m.GetVhost(), m.GetDestination())
	}
	return v.checkBindAnew(m)
}

func (v *View) checkBindAnew(m *logpb.Bind) (exists bool, err error) {
	exists, err = v.checkBind(m)
	if x, ok := v.Exchange(m.GetVhost(), m.GetSource()); ok && err == nil {
		err = checkBindingNames(x.Type, resource("binding of exchange", m.GetVhost(), m.GetSource()), m.GetArguments())
	}
	return exists, err
}

// CheckImport answers a declare or a bind of somebody who may do everything, for definitions that
// are imported: like CheckDeclareQueue, CheckDeclareExchange and CheckBind, without permissions.
// Queues may have names that a broker has generated. Other commands are fine.
func (v *View) CheckImport(c *logpb.CatalogCommand) (exists bool, err error) {
	switch m := c.GetBody().(type) {
	case *logpb.CatalogCommand_DeclareQueue:
		q, err := v.checkQueueAnew(noAccess, m.DeclareQueue, v.mayBeGenerated(m.DeclareQueue.GetName()))
		return q != nil, err
	case *logpb.CatalogCommand_DeclareExchange:
		x, err := v.checkExchangeAnew(noAccess, m.DeclareExchange)
		return x != nil, err
	case *logpb.CatalogCommand_Bind:
		if err := v.mayBind(noAccess, m.Bind); err != nil {
			return false, err
		}
		return v.checkBindAnew(m.Bind)
	}
	return false, nil
}

// CheckUnbind answers an unbind as far as the view can. exists false without an
// error: there is no such binding, which is not a failure.
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

// mayBind refuses bindings of the default exchange, and users who may not write
// to the destination or read from the source.
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

// checkBind is CheckBind without permissions. An existing binding is found
// before its key and arguments are checked. Restore calls it, too.
func (v *View) checkBind(m *logpb.Bind) (exists bool, err error) {
	vh := v.vhost(m.GetVhost())
	if vh == nil {
		return false, noVhost(m.GetVhost())
	}
	if m.GetToExchange() {
		switch to := vh.exchanges.at(m.GetDestination()); {
		case to == nil:
			return false, noExchange(m.GetVhost(), m.GetDestination())
		case to.Type == Filter:
			return false, refuse(fsm.Precondition, "%s takes messages of queues that forward to it only", to)
		}
	} else if vh.queues.At(m.GetDestination()) == nil {
		return false, noQueue(m.GetVhost(), m.GetDestination())
	}
	x := vh.exchanges.at(m.GetSource())
	if x == nil {
		return false, noExchange(m.GetVhost(), m.GetSource())
	}
	if _, ok := x.bindings.Get(bindingKey(m)); ok {
		return true, nil
	}
	return false, checkBinding(x.Type, m)
}

// checkQueueLimit refuses another queue in a vhost that has reached its limit.
// Requires: the vhost is there. Only a limit given to the vhost counts, see
// limits.of.
func (v *View) checkQueueLimit(vhost, name string) error {
	limit, ok := v.limits.of(limited{false, vhost, MaxQueues})
	if !ok {
		return nil
	}
	return v.vhost(vhost).checkQueueCount(name, limit)
}

// MayPutPolicy refuses a policy whose keys would route messages where its
// author could not route them by a declare: that requires write on the
// exchange, and read on the source of the messages. A policy also applies to
// later declarations, so read must cover every name that its pattern may match.
//
// Only proposers call it. Keys in movers count by what the policy applies to:
// those of queues unless it is for exchanges only, those of exchanges unless it
// is for queues only. A routing key alone needs read as well, but no write.
func (v *View) MayPutPolicy(author string, m *logpb.PutPolicy) error {
	ask, to := v.access(author, m.GetVhost()), m.GetApplyTo()
	for _, of := range []struct {
		kind    string
		concern bool
		keys    []string
	}{{kindQueue, to != applyExchanges, movers.queues}, {kindExchange, to == applyExchanges || to == applyAll, movers.exchanges}} {
		moves := false
		for _, key := range of.keys {
			target := lookup(m.GetDefinition(), key)
			if target == nil || !of.concern {
				continue
			}
			moves = true
			if name, ok := text(target); ok && strings.HasSuffix(key, "-exchange") {
				if err := ask(Write, kindExchange, name); err != nil {
					return err
				}
			}
		}
		if p, ok := v.Permission(author, m.GetVhost()); moves && !(ok && covers(p.Read, m.GetPattern())) {
			return AccessRefused(author, m.GetVhost(), Read, of.kind, m.GetPattern())
		}
	}
	return nil
}
