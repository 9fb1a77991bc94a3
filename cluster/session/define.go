package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// definer serves the requests of a session's client about exchanges, queues and bindings. It
// answers once all nodes that may route know of the change.
type definer struct {
	conn     *Connection
	calls    *calls
	streams  *streams
	replies  *replies
	node     *self.Node
	uses     *expiry.Uses
	log      *audit.Log // nil: nothing is audited
	defaults catalog.Defaults
}

// DeclareExchange creates an exchange, or checks the existing one.
func (x *definer) DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error {
	if spec.Passive {
		return x.node.Confirm(ctx, fmt.Sprintf("find exchange '%s' in vhost '%s'", spec.Name, x.conn.vhost), func(v *catalog.View) (bool, error) {
			err := v.PassiveExchange(x.conn.by(), x.conn.vhost, spec.Name)
			return err == nil, err
		})
	}
	v, fresh := x.node.TryFresh(ctx)
	d := &logpb.DeclareExchange{
		Vhost: x.conn.vhost, Name: spec.Name, Type: spec.Type, Durable: spec.Durable,
		AutoDelete: spec.AutoDelete, Internal: spec.Internal, Arguments: spec.Arguments,
	}
	there, err := v.CheckDeclareExchange(x.conn.by(), d)
	if there != nil && err == nil {
		x.uses.Used(there)
	}
	if err != nil {
		return err
	}
	if there != nil && fresh {
		x.node.Converge(ctx)
		return nil
	}
	if d.Type == catalog.Delayed {
		d.StoreMembers = x.conn.in.queues.Placer.Place(&logpb.DeclareQueue{})
	}
	_, err = x.propose(ctx, fmt.Sprintf("declare exchange '%s' in vhost '%s'", spec.Name, x.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}})
	return err
}

// DeleteExchange removes an exchange. It is no error if there is none.
func (x *definer) DeleteExchange(ctx context.Context, name string, ifUnused bool) error {
	m := &logpb.DeleteExchange{Vhost: x.conn.vhost, Name: name, IfUnused: ifUnused}
	v, fresh := x.node.TryFresh(ctx)
	exists, err := v.CheckDeleteExchange(x.conn.by(), m)
	if err != nil {
		return err
	}
	if !exists && fresh {
		x.node.Converge(ctx)
		return nil
	}
	_, err = x.propose(ctx, fmt.Sprintf("delete exchange '%s' in vhost '%s'", name, x.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: m}})
	return err
}

func (x *definer) bind(spec fsm.BindSpec) *logpb.Bind {
	return &logpb.Bind{
		Vhost: x.conn.vhost, Source: spec.Source, Destination: spec.Destination,
		ToExchange: spec.ToExchange, RoutingKey: spec.RoutingKey, Arguments: spec.Arguments,
	}
}

// Bind creates a binding. It is no error if it exists.
func (x *definer) Bind(ctx context.Context, spec fsm.BindSpec) error {
	m := x.bind(spec)
	v, fresh := x.node.TryFresh(ctx)
	exists, err := v.CheckBind(x.conn.by(), m)
	if err != nil {
		return err
	}
	if exists {
		x.uses.Ends(m)
	}
	if exists && fresh {
		x.node.Converge(ctx)
		return nil
	}
	_, err = x.propose(ctx, fmt.Sprintf("bind to exchange '%s' in vhost '%s'", spec.Source, x.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: m}})
	if err == nil {
		x.used(ctx, m)
	}
	return err
}

// used tells a queue that expires when idle that its bindings have changed, which counts as use. If
// the notice is lost, the queue is no worse off than before.
func (x *definer) used(ctx context.Context, m *logpb.Bind) {
	q, ok := x.node.View().Queue(m.Vhost, m.Destination)
	if m.ToExchange || !ok || x.node.View().Settings(q, x.defaults).AutoDeleteOnIdle == 0 {
		return
	}
	if _, err := x.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{IdleOnly: true}}); err != nil {
		x.node.Logger.Debug("queue not notified of a new binding", "queue", q.Name, "vhost", q.VHost, "error", err)
	}
}

// Unbind removes a binding. It is no error if there is none.
func (x *definer) Unbind(ctx context.Context, spec fsm.BindSpec) error {
	m := x.bind(spec)
	v, fresh := x.node.TryFresh(ctx)
	exists, err := v.CheckUnbind(x.conn.by(), m)
	if err != nil {
		return err
	}
	if !exists && fresh {
		x.node.Converge(ctx)
		return nil
	}
	_, err = x.propose(ctx, fmt.Sprintf("unbind from exchange '%s' in vhost '%s'", spec.Source, x.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: m}})
	if err == nil {
		x.used(ctx, m)
	}
	return err
}

// DeclareQueue creates a queue and waits until it has a leader, or reports on the existing one. A
// declare renews the queue's lease, a passive declare only that of a local queue.
func (x *definer) DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, queues.LeaderWait)
	defer cancel()
	if _, replies := fsm.ReplySuffix(spec.Name); replies || spec.Name == fsm.ReplyQueue {
		return x.replies.declare(ctx, spec.Name)
	}
	if spec.Passive {
		return x.passiveQueue(ctx, spec.Name)
	}
	generated := spec.Name == ""
	if generated {
		prefix, given, err := catalog.NamePrefix(spec.Arguments)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		spec.Name, generated = prefix+randomName(), !given
	}
	for {
		q, created, err := x.declare(ctx, spec, generated)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		x.countDeclared(created)
		if created {
			return fsm.QueueInfo{Name: q.Name}, x.conn.in.queues.Leaders.Await(ctx, q)
		}
		x.uses.Sources(q)
		info, gone, err := x.touch(ctx, q)
		if err != nil || !gone {
			return info, err
		}
		// The queue has ended; it is created again once its record is gone.
		if err := x.conn.in.queues.Leaders.AwaitGone(ctx, q); err != nil {
			return fsm.QueueInfo{}, err
		}
	}
}

// countDeclared counts a declaration.
func (x *definer) countDeclared(created bool) {
	x.conn.in.Traffic.Count(traffic.QueueDeclared)
	if created {
		x.conn.in.Traffic.Count(traffic.QueueCreated)
	}
}

// passiveQueue reports on a queue that must exist.
func (x *definer) passiveQueue(ctx context.Context, name string) (fsm.QueueInfo, error) {
	var q *catalog.Queue
	err := x.node.Confirm(ctx, fmt.Sprintf("find queue '%s' in vhost '%s'", name, x.conn.vhost), func(v *catalog.View) (found bool, err error) {
		q, err = v.PassiveQueue(x.conn.by(), x.conn.vhost, name)
		return err == nil, err
	})
	if err != nil {
		return fsm.QueueInfo{}, err
	}
	ask := x.conn.in.queues.Count
	if q.Local && x.node.View().Settings(q, x.defaults).Expires != 0 {
		ask = x.touch // the peer renews the leases of queues that are not replicated
	}
	info, gone, err := ask(ctx, q)
	if gone {
		// A client that is told that there is no queue must find none: publishes are routed by the
		// view.
		err = x.conn.in.queues.Leaders.AwaitGone(ctx, q)
	}
	if gone && err == nil {
		err = queues.NoQueue(q)
	}
	return info, err
}

// randomName returns a unique name of 22 characters.
func randomName() string {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		panic(err) // the random source of the system does not fail
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// declare finds or creates the record of a queue.
func (x *definer) declare(ctx context.Context, spec fsm.QueueSpec, generated bool) (q *catalog.Queue, created bool, err error) {
	d := &logpb.DeclareQueue{
		Vhost: x.conn.vhost, Name: spec.Name, Durable: spec.Durable, Exclusive: spec.Exclusive,
		AutoDelete: spec.AutoDelete, Arguments: spec.Arguments,
		Local: spec.Exclusive || !spec.Durable,
	}
	if spec.Exclusive {
		d.Owner = x.conn.owner().Proto()
		x.conn.in.owners.add(x.conn)
	}
	d.Members = x.conn.in.queues.Placer.Place(d)
	v, fresh := x.node.TryFresh(ctx)
	v.DecideType(d, "")
	if q, err = v.CheckDeclareQueue(x.conn.by(), d, generated); err != nil {
		return q, false, err
	}
	if q != nil && fresh {
		x.node.Converge(ctx)
		return q, false, nil
	}
	r, err := x.propose(ctx, fmt.Sprintf("declare queue '%s' in vhost '%s'", spec.Name, x.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
	if err != nil {
		return nil, false, err
	}
	q, ok := x.node.View().QueueByID(fsm.QueueID(r.Queue))
	if !ok {
		return x.declare(ctx, spec, generated) // deleted at the same moment
	}
	return q, r.Changed, nil
}

// touch renews the lease of a queue and counts its messages and consumers. gone: it has ended.
func (x *definer) touch(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	if c := x.node.View().Settings(q, x.defaults); c.Expires == 0 && c.AutoDeleteOnIdle == 0 {
		return x.conn.in.queues.Count(ctx, q)
	}
	k, err := x.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH})
	if err != nil {
		return info, false, err
	}
	r := k.Result
	if r.Code == fsm.Gone {
		return info, true, nil
	}
	return fsm.QueueInfo{Name: q.Name, Ready: r.Count, Consumers: r.Consumers}, false, k.Refused
}

// DeleteQueue deletes a queue, on condition that it is unused or empty if so requested, and removes
// its record.
func (x *definer) DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error) {
	var q *catalog.Queue
	err := x.node.Confirm(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", name, x.conn.vhost), func(v *catalog.View) (gone bool, err error) {
		q, err = v.CheckDeleteQueue(x.conn.by(), x.conn.vhost, name)
		return q == nil && err == nil, err
	})
	if q == nil || err != nil {
		return 0, err
	}
	removed := uint64(0)
	k, err := x.streams.do(ctx, q, &logpb.Command{
		Kind: logpb.Command_DELETE, Delete: &logpb.Delete{IfUnused: ifUnused, IfEmpty: ifEmpty},
	})
	switch {
	case err != nil && (ifUnused || ifEmpty):
		return 0, err
	case err != nil:
		// Without a leader the record is removed all the same; the replicas follow.
	case k.Refused != nil:
		return 0, k.Refused
	default:
		removed = k.Result.Count
	}
	if err = x.node.RemoveRecord(ctx, q); err == nil {
		x.conn.in.Traffic.Count(traffic.QueueDeleted)
	}
	x.audit(self.Removal(q, 0), nil, err)
	return removed, err
}

// PurgeQueue removes the ready messages of a queue.
func (x *definer) PurgeQueue(ctx context.Context, name string) (uint64, error) {
	q, err := x.node.FreshView(ctx).UseQueue(x.conn.by(), catalog.Read, x.conn.vhost, name)
	if err != nil {
		return 0, err
	}
	k, err := x.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_PURGE})
	if err != nil {
		return 0, err
	}
	return k.Result.Count, k.Refused
}

// propose proposes a request of the session's client.
func (x *definer) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	r, err := x.node.Propose(ctx, what, c)
	x.audit(c, r, err)
	return r, err
}

// audit records a definition that the session's client has changed, or may have changed.
func (x *definer) audit(c *logpb.CatalogCommand, r *logpb.CatalogResult, err error) {
	log := x.log
	if log == nil || x.conn.audited || r != nil && (r.Refusal != 0 || !r.Changed) {
		return
	}
	e := audit.Event{Kind: audit.Definition, User: x.conn.user, Origin: x.origin(), Outcome: audit.OK}
	if err != nil {
		e.Outcome, e.Reason = audit.Failed, err.Error()
	}
	e.Action, e.Target = actionOf(c)
	log.Write(e)
}

// origin returns where the session's client is.
func (x *definer) origin() audit.Origin {
	o := audit.Origin{Protocol: "amqp"}
	if at, ok := x.calls.client.(located); ok {
		connection, _, client := at.Where()
		o.Connection, o.Address = connection, client.String()
	}
	return o
}

// actionOf returns the method behind a command and the object it is applied to.
func actionOf(c *logpb.CatalogCommand) (action string, object map[string]string) {
	switch m := c.Body.(type) {
	case *logpb.CatalogCommand_DeclareExchange:
		return "exchange.declare", map[string]string{"vhost": m.DeclareExchange.GetVhost(), "exchange": m.DeclareExchange.GetName()}
	case *logpb.CatalogCommand_DeleteExchange:
		return "exchange.delete", map[string]string{"vhost": m.DeleteExchange.GetVhost(), "exchange": m.DeleteExchange.GetName()}
	case *logpb.CatalogCommand_DeclareQueue:
		return "queue.declare", map[string]string{"vhost": m.DeclareQueue.GetVhost(), "queue": m.DeclareQueue.GetName()}
	case *logpb.CatalogCommand_DeleteQueue:
		return "queue.delete", map[string]string{"vhost": m.DeleteQueue.GetVhost(), "queue": m.DeleteQueue.GetName()}
	case *logpb.CatalogCommand_Bind:
		return ends("bind", m.Bind)
	case *logpb.CatalogCommand_Unbind:
		return ends("unbind", m.Unbind)
	}
	return "change", nil
}

// ends returns the two ends of a binding.
func ends(verb string, m *logpb.Bind) (action string, object map[string]string) {
	kind := "queue"
	if m.GetToExchange() {
		kind = "exchange"
	}
	object = map[string]string{"vhost": m.GetVhost(), "source": m.GetSource(), "destination": m.GetDestination(), "routing_key": m.GetRoutingKey()}
	return kind + "." + verb, object
}
