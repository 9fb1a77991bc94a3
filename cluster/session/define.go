package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Requests of a session's client about exchanges, queues and bindings are answered once all nodes that may route know of
// the change.

// change makes a change, unless made finds in a view that it has been made: then it waits for the other nodes.
func (s *Session) change(ctx context.Context, what string, c *logpb.CatalogCommand, made func(v *catalog.View) (bool, error)) (changed bool, err error) {
	v, fresh := s.conn.in.node.TryFresh(ctx)
	is, err := made(v)
	if err != nil {
		return false, err
	}
	if is && fresh {
		s.conn.in.node.Converge(ctx)
		return false, nil
	}
	_, err = s.propose(ctx, what, c)
	return err == nil, err
}

// DeclareExchange creates an exchange, or checks the existing one.
func (s *Session) DeclareExchange(ctx context.Context, spec fsm.ExchangeSpec) error {
	if spec.Passive {
		return s.conn.in.node.Confirm(ctx, fmt.Sprintf("find exchange '%s' in vhost '%s'", spec.Name, s.conn.vhost), func(v *catalog.View) (bool, error) {
			err := v.PassiveExchange(s.conn.by(), s.conn.vhost, spec.Name)
			return err == nil, err
		})
	}
	d := &logpb.DeclareExchange{
		Vhost: s.conn.vhost, Name: spec.Name, Type: spec.Type, Durable: spec.Durable,
		AutoDelete: spec.AutoDelete, Internal: spec.Internal, Arguments: spec.Arguments,
	}
	var drift []catalog.Difference
	_, err := s.change(ctx, fmt.Sprintf("declare exchange '%s' in vhost '%s'", spec.Name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareExchange{DeclareExchange: d}},
		func(v *catalog.View) (bool, error) {
			there, err := v.CheckDeclareExchange(s.conn.by(), d)
			if there != nil && err == nil {
				s.conn.in.config.Uses.Used(there)
				drift = there.Drift(v, d)
			}
			if d.Type == catalog.Delayed {
				d.StoreMembers = s.conn.in.queues.Placer.Place(&logpb.DeclareQueue{})
			}
			return there != nil, err
		})
	if err == nil {
		s.conn.in.Drifts.note(s, drifted{exchange: spec.Name}, spec.Name, drift, false)
	}
	return err
}

// DeleteExchange removes an exchange. It is no error if there is none.
func (s *Session) DeleteExchange(ctx context.Context, name string, ifUnused bool) error {
	m := &logpb.DeleteExchange{Vhost: s.conn.vhost, Name: name, IfUnused: ifUnused}
	_, err := s.change(ctx, fmt.Sprintf("delete exchange '%s' in vhost '%s'", name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteExchange{DeleteExchange: m}},
		func(v *catalog.View) (bool, error) {
			exists, err := v.CheckDeleteExchange(s.conn.by(), m)
			return !exists, err
		})
	return err
}

func (s *Session) bind(spec fsm.BindSpec) *logpb.Bind {
	return &logpb.Bind{
		Vhost: s.conn.vhost, Source: spec.Source, Destination: spec.Destination,
		ToExchange: spec.ToExchange, RoutingKey: spec.RoutingKey, Arguments: spec.Arguments,
	}
}

// Bind creates a binding. It is no error if it exists.
func (s *Session) Bind(ctx context.Context, spec fsm.BindSpec) error {
	m := s.bind(spec)
	changed, err := s.change(ctx, fmt.Sprintf("bind to exchange '%s' in vhost '%s'", spec.Source, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: m}},
		func(v *catalog.View) (bool, error) {
			exists, err := v.CheckBind(s.conn.by(), m)
			if exists && err == nil {
				s.conn.in.config.Uses.Ends(m)
			}
			return exists, err
		})
	if changed {
		s.used(ctx, m)
	}
	return err
}

// used tells a queue that expires when idle that its bindings have changed, which counts as use. If
// the notice is lost, the queue is no worse off than before.
func (s *Session) used(ctx context.Context, m *logpb.Bind) {
	q, ok := s.conn.in.node.View().Queue(m.Vhost, m.Destination)
	if m.ToExchange || !ok || s.conn.in.node.View().Settings(q, s.conn.in.config.Defaults).AutoDeleteOnIdle == 0 {
		return
	}
	if _, err := s.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH, Touch: &logpb.Touch{IdleOnly: true}}); err != nil {
		s.conn.in.node.Logger.Debug("queue not notified of a new binding", "queue", q.Name, "vhost", q.VHost, "error", err)
	}
}

// Unbind removes a binding. It is no error if there is none.
func (s *Session) Unbind(ctx context.Context, spec fsm.BindSpec) error {
	m := s.bind(spec)
	changed, err := s.change(ctx, fmt.Sprintf("unbind from exchange '%s' in vhost '%s'", spec.Source, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Unbind{Unbind: m}},
		func(v *catalog.View) (bool, error) {
			exists, err := v.CheckUnbind(s.conn.by(), m)
			return !exists, err
		})
	if changed {
		s.used(ctx, m)
	}
	return err
}

// Bindings returns the bindings with the ends and the routing key of a spec. A queue has its implicit one to the default
// exchange.
func (s *Session) Bindings(ctx context.Context, of fsm.BindSpec) (list []fsm.BindSpec, err error) {
	v := s.conn.in.node.FreshView(ctx)
	if of.Source == "" {
		if _, ok := v.Queue(s.conn.vhost, of.Destination); ok && !of.ToExchange && of.RoutingKey == of.Destination {
			list = append(list, fsm.BindSpec{Destination: of.Destination, RoutingKey: of.RoutingKey})
		}
		return list, nil
	}
	for _, b := range v.BindingsTo(s.conn.vhost, of.Destination, of.ToExchange) {
		if b.Source == of.Source && b.RoutingKey == of.RoutingKey {
			of.Arguments = b.Arguments
			list = append(list, of)
		}
	}
	return list, nil
}

// DeclareQueue creates a queue and waits until it has a leader, or reports on the existing one. A
// declare renews the queue's lease, a passive declare only that of a local queue.
func (s *Session) DeclareQueue(ctx context.Context, spec fsm.QueueSpec) (fsm.QueueInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, queues.LeaderWait)
	defer cancel()
	if _, replies := fsm.ReplySuffix(spec.Name); replies || spec.Name == fsm.ReplyQueue {
		return s.replies.declare(ctx, spec.Name)
	}
	if spec.Passive {
		return s.passiveQueue(ctx, spec.Name)
	}
	generated := spec.Name == ""
	if generated && spec.Prefix != "" {
		spec.Name = spec.Prefix + randomName()
	} else if generated {
		prefix, given, err := catalog.NamePrefix(spec.Arguments)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		spec.Name, generated = prefix+randomName(), !given
	}
	for {
		q, created, err := s.declare(ctx, spec, generated)
		if err != nil {
			return fsm.QueueInfo{}, err
		}
		s.countDeclared(created)
		if created {
			return fsm.QueueInfo{Name: q.Name, Created: true}, s.conn.in.queues.Leaders.Await(ctx, q)
		}
		s.conn.in.config.Uses.Sources(q)
		info, gone, err := s.touch(ctx, q)
		if err != nil || !gone {
			return info, err
		}
		// The queue has ended; it is created again once its record is gone.
		if err := s.conn.in.queues.Leaders.AwaitGone(ctx, q); err != nil {
			return fsm.QueueInfo{}, err
		}
	}
}

// countDeclared counts a declaration.
func (s *Session) countDeclared(created bool) {
	s.conn.in.Traffic.Count(traffic.QueueDeclared)
	if created {
		s.conn.in.Traffic.Count(traffic.QueueCreated)
	}
}

// passiveQueue reports on a queue that must exist.
func (s *Session) passiveQueue(ctx context.Context, name string) (fsm.QueueInfo, error) {
	_, info, err := s.findQueue(ctx, name)
	return info, err
}

// DescribeQueue describes a queue that must exist.
func (s *Session) DescribeQueue(ctx context.Context, name string) (fsm.QueueDetails, error) {
	q, info, err := s.findQueue(ctx, name)
	if err != nil {
		return fsm.QueueDetails{}, err
	}
	leader, _, _ := s.conn.in.queues.Routes.Route(q).Leader()
	return fsm.QueueDetails{
		QueueInfo: info, VHost: q.VHost, Type: q.Type(), Durable: q.Durable, Exclusive: q.Exclusive, AutoDelete: q.AutoDelete,
		Arguments: s.conn.in.node.View().Arguments(q), Leader: leader, Replicas: q.MemberNames(s.conn.in.node.View()),
	}, nil
}

// findQueue finds a queue that must exist, and counts what is in it.
func (s *Session) findQueue(ctx context.Context, name string) (q *catalog.Queue, info fsm.QueueInfo, err error) {
	err = s.conn.in.node.Confirm(ctx, fmt.Sprintf("find queue '%s' in vhost '%s'", name, s.conn.vhost), func(v *catalog.View) (found bool, err error) {
		q, err = v.PassiveQueue(s.conn.by(), s.conn.vhost, name)
		return err == nil, err
	})
	if err != nil {
		return nil, info, err
	}
	ask := s.conn.in.queues.Count
	if q.Local && s.conn.in.node.View().Settings(q, s.conn.in.config.Defaults).Expires != 0 {
		ask = s.touch // the peer renews the leases of queues that are not replicated
	}
	info, gone, err := ask(ctx, q)
	if gone {
		// A client that is told that there is no queue must find none: publishes are routed by the
		// view.
		err = s.conn.in.queues.Leaders.AwaitGone(ctx, q)
	}
	if gone && err == nil {
		err = queues.NoQueue(q)
	}
	return q, info, err
}

// randomName returns a unique name of 22 characters.
func randomName() string {
	raw := make([]byte, 16)
	if _, err := rand.Read(raw); err != nil {
		panic(err) // the random source of the system does not fail
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// declare finds or creates the record of a queue, which may get other arguments if its vhost adopts them.
func (s *Session) declare(ctx context.Context, spec fsm.QueueSpec, generated bool) (q *catalog.Queue, created bool, err error) {
	d := &logpb.DeclareQueue{
		Vhost: s.conn.vhost, Name: spec.Name, Durable: spec.Durable, Exclusive: spec.Exclusive,
		AutoDelete: spec.AutoDelete, Arguments: spec.Arguments,
		Local: spec.Exclusive || !spec.Durable,
	}
	if spec.Exclusive {
		d.Owner = s.conn.owner().Proto()
		s.conn.in.owners.add(s.conn)
	}
	d.Members = s.conn.in.queues.Placer.Place(d)
	v, fresh := s.conn.in.node.TryFresh(ctx)
	v.DecideType(d, "")
	if q, err = v.CheckDeclareQueue(s.conn.by(), d, generated); err != nil {
		return q, false, err
	}
	var drift []catalog.Difference
	if q != nil {
		drift = q.Drift(v, d)
	}
	if q != nil && fresh && (len(drift) == 0 || !q.Adopts(v, d, s.conn.in.node.Stamp())) {
		s.conn.in.Drifts.note(s, drifted{queue: q.ID}, q.Name, drift, false)
		s.conn.in.node.Converge(ctx)
		return q, false, nil
	}
	r, err := s.propose(ctx, fmt.Sprintf("declare queue '%s' in vhost '%s'", spec.Name, s.conn.vhost),
		&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: d}})
	if err != nil {
		return nil, false, err
	}
	q, ok := s.conn.in.node.View().QueueByID(fsm.QueueID(r.Queue))
	if !ok {
		return s.declare(ctx, spec, generated) // deleted at the same moment
	}
	if !r.Changed && len(drift) == 0 {
		drift = q.Drift(s.conn.in.node.View(), d) // another client was faster
	}
	created = r.Changed && !r.Adopted
	if !created {
		s.conn.in.Drifts.note(s, drifted{queue: q.ID}, q.Name, drift, r.Adopted)
	}
	return q, created, nil
}

// touch renews the lease of a queue and counts its messages and consumers. gone: it has ended.
func (s *Session) touch(ctx context.Context, q *catalog.Queue) (info fsm.QueueInfo, gone bool, err error) {
	if c := s.conn.in.node.View().Settings(q, s.conn.in.config.Defaults); c.Expires == 0 && c.AutoDeleteOnIdle == 0 {
		return s.conn.in.queues.Count(ctx, q)
	}
	k, err := s.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_TOUCH})
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
func (s *Session) DeleteQueue(ctx context.Context, name string, ifUnused, ifEmpty bool) (uint64, error) {
	var q *catalog.Queue
	err := s.conn.in.node.Confirm(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", name, s.conn.vhost), func(v *catalog.View) (gone bool, err error) {
		q, err = v.CheckDeleteQueue(s.conn.by(), s.conn.vhost, name)
		return q == nil && err == nil, err
	})
	if q == nil || err != nil {
		return 0, err
	}
	removed := uint64(0)
	k, err := s.streams.do(ctx, q, &logpb.Command{
		Kind: logpb.Command_DELETE, Delete: &logpb.Delete{IfUnused: ifUnused, IfEmpty: ifEmpty},
	})
	switch {
	case err != nil && (ifUnused || ifEmpty || s.conn.in.node.View().HasWill(q)):
		return 0, err
	case err != nil:
		// Without a leader the record is removed all the same; the replicas follow.
	case k.Refused != nil:
		return 0, k.Refused
	default:
		removed = k.Result.Count
	}
	if err == nil && (k.Result.Until != 0 || k.Result.Code == fsm.Gone && s.conn.in.node.View().HasWill(q)) {
		s.awaitWill(ctx, q) // its leader removes the record
	} else {
		err = s.conn.in.node.RemoveRecord(ctx, q)
	}
	if err == nil {
		s.conn.in.Traffic.Count(traffic.QueueDeleted)
	}
	s.audit(self.Removal(q, 0), nil, err)
	return removed, err
}

// awaitWill waits until what was left of a deleted queue is dead-lettered, so that its name is free. If that takes
// longer, the queue is deleted all the same.
func (s *Session) awaitWill(ctx context.Context, q *catalog.Queue) {
	ctx, cancel := context.WithTimeout(ctx, queues.LeaderWait)
	defer cancel()
	if s.conn.in.queues.Leaders.AwaitGone(ctx, q) == nil {
		s.conn.in.node.Converge(ctx)
	}
}

// PurgeQueue removes the ready messages of a queue.
func (s *Session) PurgeQueue(ctx context.Context, name string) (uint64, error) {
	q, err := s.conn.in.node.FreshView(ctx).UseQueue(s.conn.by(), catalog.Read, s.conn.vhost, name)
	if err != nil {
		return 0, err
	}
	k, err := s.streams.do(ctx, q, &logpb.Command{Kind: logpb.Command_PURGE})
	if err != nil {
		return 0, err
	}
	return k.Result.Count, k.Refused
}

// propose proposes a request of the session's client.
func (s *Session) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	r, err := s.conn.in.node.Propose(ctx, what, c)
	s.audit(c, r, err)
	return r, err
}

// audit records a definition that the session's client has changed, or may have changed.
func (s *Session) audit(c *logpb.CatalogCommand, r *logpb.CatalogResult, err error) {
	log := s.conn.in.config.Audit
	if log == nil || s.conn.audited || r != nil && (r.Refusal != 0 || !r.Changed) {
		return
	}
	e := audit.Event{Kind: audit.Definition, User: s.conn.user, Origin: audit.Origin{Protocol: s.conn.protocol}, Outcome: audit.OK}
	if at, ok := s.client.(located); ok {
		connection, _, _, client := at.Where()
		e.Origin.Connection, e.Origin.Address = connection, client.String()
	}
	if err != nil {
		e.Outcome, e.Reason = audit.Failed, err.Error()
	}
	e.Action, e.Target = actionOf(c)
	log.Write(e)
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
