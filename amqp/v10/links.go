package v10

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// link is one link of a session, by the client's handle.
type link struct {
	handle uint32
	name   string
	// ended: the server has detached it. What still comes for it is ignored until the client's detach.
	ended bool
	in    *incomingLink // nil: it is another one, or ended
	out   *outgoingLink // likewise
}

// incomingLink is a link on which the client publishes.
type incomingLink struct {
	session  *session
	handle   uint32
	to       address
	isRelay  bool // messages say where they go
	assembly assembly

	// Under counts.mu.
	credit receiving
	gone   bool
}

// attach answers an attach. An error ends the session.
func (s *session) attach(a *wire.Attach) (next func(), err *wire.Error) {
	switch {
	case a.Handle > s.handleMax:
		return nil, wire.Errorf(wire.ConditionFraming, "handle %d exceeds handle-max %d", a.Handle, s.handleMax)
	case s.links[a.Handle] != nil:
		return nil, wire.Errorf(wire.ConditionHandleInUse, "handle %d is in use", a.Handle)
	}
	l := &link{handle: a.Handle, name: a.Name}
	s.links[a.Handle] = l
	if e := refuseAttach(a); e != nil {
		s.refuseLink(l, a, e)
		return nil, nil
	}
	if a.Role {
		return s.attachOutgoing(l, a), nil
	}
	return s.attachIncoming(l, a), nil
}

// refuseAttach returns why a link of no kind is to be had.
func refuseAttach(a *wire.Attach) *wire.Error {
	_, coordinates := a.Target.(*wire.Coordinator)
	unsettled := a.Unsettled.Walk()
	switch {
	case !a.Role && coordinates:
		return wire.Errorf(wire.ConditionNotImplemented, "Transactions not supported")
	case unsettled.Next(), a.IncompleteUnsettled:
		return wire.Errorf(wire.ConditionNotImplemented, "Link recovery not supported")
	}
	return nil
}

// attachIncoming opens a link on which the client publishes.
func (s *session) attachIncoming(l *link, a *wire.Attach) (next func()) {
	in := &incomingLink{session: s, handle: l.handle, assembly: assembly{mode: a.SndSettleMode, limit: s.conn.Config().MaxMessageSize}}
	if e := in.aim(a.Target); e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	return func() {
		err := s.mayPublish(in)
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state != sessionOpen {
			return
		}
		if err != nil {
			s.refuseLink(l, a, s.refusal("attach", err))
			return
		}
		l.in = in
		s.conn.out.push(s.channel, &wire.Attach{
			Name: a.Name, Handle: a.Handle, Role: true, SndSettleMode: a.SndSettleMode, Source: a.Source, Target: a.Target,
			MaxMessageSize: uint64(s.conn.Config().MaxMessageSize),
		})
		s.counts.begin(in, a.InitialDeliveryCount.Or(0))
	}
}

// aim sets where the link's messages go.
func (l *incomingLink) aim(t wire.Composite) *wire.Error {
	target, ok := t.(*wire.Target)
	switch {
	case !ok:
		return wire.Errorf(wire.ConditionInvalidField, "target is null")
	case target.Dynamic:
		return wire.Errorf(wire.ConditionNotImplemented, "Dynamic target not supported")
	case !target.Address.Present:
		l.isRelay = true
		return nil
	}
	if l.to, ok = parseAddress(target.Address.Value); !ok {
		return wire.Errorf(wire.ConditionInvalidField, "bad target address string: '%s'", target.Address.Value)
	}
	return nil
}

// mayPublish returns why a link may not be opened. It blocks.
func (s *session) mayPublish(l *incomingLink) error {
	if l.isRelay {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
	defer cancel()
	if l.to.isQueue() {
		_, err := s.broker.DeclareQueue(ctx, fsm.QueueSpec{Name: l.to.key, Passive: true})
		r := new(fsm.Refusal)
		// Others may publish to an exclusive queue.
		if err != nil && !(errors.As(err, &r) && r.Kind == fsm.Locked) {
			return err
		}
	}
	p := fsm.Publish{Exchange: l.to.exchange, RoutingKey: l.to.key}
	err := s.broker.Admit(&p)
	if errors.Is(err, fsm.ErrNotFresh) {
		if err = s.broker.Refresh(ctx); err == nil {
			p.Fresh = true
			err = s.broker.Admit(&p)
		}
	}
	return err
}

// refusal returns what the client sees of an error, which is reported and logged if need be.
func (s *session) refusal(method string, err error) *wire.Error {
	if isInternal(err) && s.conn.Context().Err() == nil {
		s.conn.Log.Error("method failed", slog.Int("channel", int(s.channel)), slog.String("method", method), slog.Any("error", err))
	}
	e := protocolError(err)
	if e.Condition == wire.ConditionUnauthorized {
		s.conn.Refused(method, e.Description)
	}
	return e
}

// refuseLink answers an attach with a link that has nothing at the server's end, and ends it.
func (s *session) refuseLink(l *link, a *wire.Attach, e *wire.Error) {
	answer := &wire.Attach{Name: a.Name, Handle: a.Handle, Role: !a.Role, SndSettleMode: a.SndSettleMode, RcvSettleMode: a.RcvSettleMode}
	if a.Role {
		answer.Target = a.Target
		answer.InitialDeliveryCount = wire.Some[uint32](0)
	} else {
		answer.Source = a.Source
	}
	s.conn.out.push(s.channel, answer)
	s.detach(l, e)
}

// detach ends a link with an error.
func (s *session) detach(l *link, e *wire.Error) {
	if l.ended {
		return
	}
	s.conn.Log.Info("link error", slog.Int("channel", int(s.channel)), slog.String("link", l.name), slog.Any("error", e))
	s.drop(l)
	l.ended = true
	if l.out != nil {
		s.broker.Drop(l.out.consumer)
		s.giveBack(l.out)
		l.out = nil
	}
	s.conn.out.pushOutcomes(&s.publisher.outcomes, &wire.Detach{Handle: l.handle, Closed: true, Error: e})
}

// drop drops what a link has at this end.
func (s *session) drop(l *link) {
	if in := l.in; in != nil {
		s.memory.Add(-in.assembly.size())
		in.assembly.drop()
		s.counts.end(in)
		l.in = nil
	}
}

// detached answers the client's detach.
func (s *session) detached(d *wire.Detach) (next func()) {
	l := s.links[d.Handle]
	if l == nil {
		return nil
	}
	if d.Error != nil {
		s.conn.Log.Info("link ended by the client", slog.Int("channel", int(s.channel)), slog.String("link", l.name), slog.Any("error", d.Error))
	}
	delete(s.links, d.Handle)
	answer := &wire.Detach{Handle: d.Handle, Closed: d.Closed}
	switch {
	case l.ended:
	case l.out != nil:
		return s.cancel(l.out, answer)
	default:
		s.drop(l)
		s.conn.out.pushOutcomes(&s.publisher.outcomes, answer)
	}
	return nil
}

// takeFlow takes in a flow. An error ends the session.
func (s *session) takeFlow(f *wire.Flow) *wire.Error {
	if err := s.counts.takeFlow(f, f.Echo && !f.Handle.Present); err != nil || !f.Handle.Present {
		return err
	}
	l := s.links[f.Handle.Value]
	if l == nil {
		return unattached(f.Handle.Value)
	}
	if l.out != nil { // on another link the client says what it has
		s.counts.credit(l.out, f)
		s.broker.Credit(l.out.consumer, fsm.Flow{DeliveryCount: f.DeliveryCount.Value, Credit: f.LinkCredit.Value, Drain: f.Drain, Echo: f.Echo})
	}
	return nil
}

func unattached(handle uint32) *wire.Error {
	return wire.Errorf(wire.ConditionUnattachedHandle, "Unattached link handle: %d", handle)
}

// receive takes in a frame of a delivery. An error ends the session.
func (s *session) receive(t *wire.Transfer, payload []byte) (next func(), err *wire.Error) {
	if !s.counts.transfer() {
		return nil, wire.Errorf(wire.ConditionWindowViolation, "a transfer beyond the incoming-window")
	}
	l := s.links[t.Handle]
	switch {
	case l == nil || l.in == nil && !l.ended:
		return nil, unattached(t.Handle)
	case l.ended:
		s.counts.grant(nil)
		return nil, nil
	}
	in := l.in
	before := in.assembly.size()
	message, done, err := in.assembly.add(t, payload)
	if n := in.assembly.size() - before; n <= 0 {
		s.memory.Add(n)
	} else if over := s.memory.Take(n); over != nil {
		s.memory.Add(n) // what drop gives back
		err = wire.Errorf(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over))
	}
	if err == nil && done && !s.counts.complete(in) {
		err = wire.Errorf(wire.ConditionTransferLimit, "a message beyond the link-credit")
	}
	if err == nil && message != nil {
		next, err = s.publisher.publish(l, message)
	}
	if err != nil {
		s.detach(l, err)
	}
	s.counts.grant(l.in)
	return next, nil
}

// copies returns the routing keys of the annotation x-cc.
func copies(annotations wire.MapBytes) (keys []string, err *wire.Error) {
	v, ok := annotations.Get("x-cc")
	if !ok {
		return nil, nil
	}
	for w := v.Walk(); v.Type == wire.List && w.Next(); {
		if w.Value.Type != wire.String || len(w.Value.Bytes()) > maxName {
			v.Type = wire.Null
			break
		}
		keys = append(keys, string(w.Value.Bytes()))
	}
	if v.Type != wire.List {
		return nil, wire.Errorf(wire.ConditionInvalidField, "x-cc is not a list of strings")
	}
	return slices.Compact(keys), nil
}
