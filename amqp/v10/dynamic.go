package v10

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Capabilities of a terminus that is dynamic.
const (
	temporaryQueue = "temporary-queue"
	volatileQueue  = "rabbitmq:volatile-queue"
)

// linkDetach is the expiry policy of what ends with its link.
const linkDetach = "link-detach"

// maxNames is how long the names of a container and a link may be together to be a part of a queue's name, in bytes.
const maxNames = 150

// dynamicNodes are what clients have made for their links, by attaching to a node that is dynamic. Its session's gate is held,
// or busy is set.
type dynamicNodes struct {
	session *session
	queues  map[string]bool // that are to be deleted
}

func (d *dynamicNodes) init(s *session) { d.session, d.queues = s, map[string]bool{} }

// attachSource opens a link on which the client receives, from a node that is made for it.
func (d *dynamicNodes) attachSource(l *link, a *wire.Attach) (next func()) {
	s := d.session
	source := a.Source
	settled := a.SndSettleMode == sendSettled && source.ExpiryPolicy == linkDetach && source.Durable == 0 && source.Timeout == 0
	switch {
	case source.Address.Present:
		s.refuseLink(l, a, errDynamicAddress)
	case isTemporary(source.Capabilities):
		return d.make(l, a, func(address string, properties wire.MapBytes) func() {
			b, made := *a, *source
			made.Address, made.Durable, made.ExpiryPolicy, made.Timeout = wire.Some(address), 0, linkDetach, 0
			made.DynamicNodeProperties, made.Capabilities = properties, []string{temporaryQueue}
			b.Source = &made
			return s.attachOutgoing(l, &b)
		})
	case slices.Contains(source.Capabilities, volatileQueue) && settled:
		return d.attachVolatile(l, a)
	default:
		s.refuseLink(l, a, notDynamic("source", source.Capabilities))
	}
	return nil
}

// attachTarget opens a link on which the client publishes, to a queue that is made for it.
func (d *dynamicNodes) attachTarget(l *link, a *wire.Attach, target *wire.Target) (next func()) {
	s := d.session
	switch {
	case target.Address.Present:
		s.refuseLink(l, a, errDynamicAddress)
	case !isTemporary(target.Capabilities):
		s.refuseLink(l, a, notDynamic("target", target.Capabilities))
	default:
		return d.make(l, a, func(address string, properties wire.MapBytes) func() {
			b, made := *a, *target
			made.Address, made.Durable, made.ExpiryPolicy, made.Timeout = wire.Some(address), 0, linkDetach, 0
			made.DynamicNodeProperties, made.Capabilities = properties, []string{temporaryQueue}
			b.Target = &made
			return s.attachIncoming(l, &b)
		})
	}
	return nil
}

var errDynamicAddress = wire.Errorf(wire.ConditionInvalidField, "a dynamic terminus has an address")

func notDynamic(terminus string, capabilities []string) *wire.Error {
	return wire.Errorf(wire.ConditionNotImplemented, "Dynamic %s not supported: %s", terminus, strings.Join(capabilities, ", "))
}

func isTemporary(capabilities []string) bool {
	return len(capabilities) == 0 || slices.Contains(capabilities, temporaryQueue)
}

// make returns the call that makes a queue for a link, and attaches it. attach is called with the gate held.
func (d *dynamicNodes) make(l *link, a *wire.Attach, attach func(address string, properties wire.MapBytes) func()) func() {
	s := d.session
	return func() {
		ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
		defer cancel()
		info, err := s.broker.DeclareQueue(ctx, fsm.QueueSpec{Prefix: temporaryPrefix(s.conn.containerID, a.Name), Exclusive: true})
		s.gate.Lock()
		next := func() {}
		switch {
		case err != nil && s.state == sessionOpen:
			s.refuseLink(l, a, s.refusal("attach", err))
		case err == nil:
			d.queues[info.Name] = true
			if s.state == sessionOpen {
				l.temporary, l.address = info.Name, wire.Some(queueAddress(info.Name))
				if more := attach(l.address.Value, temporaryProperties); more != nil {
					next = more
				}
			}
		}
		s.gate.Unlock()
		next()
	}
}

// temporaryPrefix returns what the name of a link's queue begins with.
func temporaryPrefix(container, link string) string {
	if len(container)+len(link) >= maxNames {
		return fsm.DynamicPrefix + ".gen-"
	}
	return strings.NewReplacer("\r", "", "\n", "").Replace(fsm.DynamicPrefix + "-" + container + "-" + link + "-")
}

// temporaryProperties are the properties of the node that is a temporary queue.
var temporaryProperties = func() wire.MapBytes {
	b := wire.AppendSymbol(wire.StartMap(nil), "lifetime-policy")
	b = wire.Append(b, &wire.DeleteOnClose{})
	b = wire.AppendSymbols(wire.AppendSymbol(b, "supported-dist-modes"), []string{"move"})
	return wire.EndMap(b, 0, 2)
}()

// detach returns the call that deletes the queue of a link, and answers the client's detach.
func (d *dynamicNodes) detach(l *link, answer *wire.Detach) func() {
	s := d.session
	if l.out != nil {
		s.broker.Drop(l.out.consumer)
		s.giveBack(l.out)
	}
	s.drop(l)
	return func() {
		d.delete(l.temporary)
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state == sessionOpen {
			s.conn.out.pushOutcomes(&s.publisher.outcomes, answer)
		}
	}
}

// deleteLater has the queue of a link that the server has ended deleted. The gate is held.
func (d *dynamicNodes) deleteLater(l *link) {
	if l.temporary == "" {
		return
	}
	c := &d.session.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		d.session.post(func() { d.delete(l.temporary) })
	}
}

// delete deletes queues that were there for links; without names, all that are left. A queue of which that fails is there
// until the connection ends. It blocks, and the gate is not held.
func (d *dynamicNodes) delete(queues ...string) {
	s := d.session
	ctx, cancel := context.WithTimeout(s.conn.ServerContext(), s.conn.Config().OperationTimeout)
	defer cancel()
	s.gate.Lock()
	if queues == nil {
		queues = slices.Collect(maps.Keys(d.queues))
	}
	for _, queue := range queues {
		delete(d.queues, queue)
	}
	s.gate.Unlock()
	for _, queue := range queues {
		if _, err := s.broker.DeleteQueue(ctx, queue, false, false); err != nil {
			s.conn.Log.Warn("temporary queue not deleted", slog.Int("channel", int(s.channel)), slog.String("queue", queue), slog.Any("error", err))
		}
	}
}

// attachVolatile opens a link for replies to the client's requests. There is no queue: what comes while the client has no
// credit is dropped.
func (d *dynamicNodes) attachVolatile(l *link, a *wire.Attach) (next func()) {
	s := d.session
	out := &outgoingLink{session: s, handle: l.handle, name: a.Name, form: plainForm{}, settled: true, limit: a.MaxMessageSize, own: new(sending)}
	s.counts.add(out)
	return func() {
		ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
		defer cancel()
		err := s.broker.Consume(ctx, fsm.ConsumeSpec{Queue: fsm.ReplyQueue, Number: out.consumer, Tag: a.Name, NoAck: true, Credit: true})
		b, source := *a, *a.Source
		source.Address = wire.Some(queueAddress(s.broker.ReplyNameOf(out.consumer)))
		b.Source = &source
		out.opened(l, &b, err)
	}
}

// isReply reports whether a message is to go to a requester, and its sender wants to know whether that is there.
func isReply(out *fsm.Publish) bool {
	_, is := fsm.ReplySuffix(out.RoutingKey)
	return is && out.Exchange == "" && out.Confirm
}

// findRequester finds out whether the requester that a message goes to is gone.
func (p *publisher) findRequester(out *fsm.Publish) bool {
	ctx, cancel := context.WithTimeout(p.session.conn.Context(), p.session.conn.Config().OperationTimeout)
	defer cancel()
	_, err := p.session.broker.DeclareQueue(ctx, fsm.QueueSpec{Name: out.RoutingKey, Passive: true})
	refusal := new(fsm.Refusal)
	out.RequesterGone = errors.As(err, &refusal) && refusal.Kind == fsm.NotFoundKind
	return true
}
