package v10

import (
	"context"
	"errors"
	"log/slog"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// link is one link of a session, by the client's handle.
type link struct {
	handle  uint32
	name    string
	address wire.Optional[string] // of the server's end, as the client gave it, or as it is made
	held    int64                 // what the session's memory counts for it
	// ended: the server has detached it. What still comes for it is ignored until the client's detach.
	ended bool
	in    *incomingLink // nil: it is another one, or ended
	out   *outgoingLink // likewise
	pair  *pair         // nil: it is not one of a pair
	// temporary is the queue that is there for the link; empty: none.
	temporary string
	view      *Link // as its dialect sees it
}

// incomingLink is a link on which the client publishes.
type incomingLink struct {
	session  *session
	handle   uint32
	to       address
	isRelay  bool        // messages say where they go
	queue    fsm.QueueID // to which they go; 0: to an exchange
	assembly assembly

	takes Incoming
	pair  *pair // whose requests come on it; nil: it is for messages

	// Under counts.mu.
	announced bool // the client knows of its first credit
	credit    receiving
	gone      bool
}

// attach answers an attach. An error ends the session.
func (s *session) attach(a *wire.Attach) (next func(), err *wire.Error) {
	switch {
	case a.Handle > s.handleMax:
		return nil, wire.Errorf(wire.ConditionFraming, "handle %d exceeds handle-max %d", a.Handle, s.handleMax)
	case s.links[a.Handle] != nil:
		return nil, wire.Errorf(wire.ConditionHandleInUse, "handle %d is in use", a.Handle)
	}
	l := &link{handle: a.Handle, name: a.Name, address: addressOf(a)}
	l.view = &Link{session: s, link: l}
	s.links[a.Handle] = l
	if e := s.hold(l, a); e != nil {
		s.refuseLink(l, a, e)
		return nil, nil
	}
	if e := refuseAttach(a); e != nil {
		s.refuseLink(l, a, e)
		return nil, nil
	}
	return s.conn.side.Attach(&Attach{a, l.view}), nil
}

// linkBytes is about what a link costs, with names of the longest kind.
const linkBytes = 1 << 10

// hold counts the memory of a link. An error refuses it.
func (s *session) hold(l *link, a *wire.Attach) *wire.Error {
	n := int64(linkBytes)
	if a.Source != nil {
		n += int64(len(a.Source.Filter))
	}
	if over := s.memory.Take(n); over != nil {
		return wire.Errorf(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over))
	}
	l.held = n
	return nil
}

// refuseAttach returns why a link of no kind is to be had.
func refuseAttach(a *wire.Attach) *wire.Error {
	unsettled := a.Unsettled.Walk()
	switch {
	case len(a.Name) > maxName:
		return wire.Errorf(wire.ConditionInvalidField, "the name of the link is longer than %d bytes", maxName)
	case unsettled.Next(), a.IncompleteUnsettled:
		return wire.Errorf(wire.ConditionNotImplemented, "Link recovery not supported")
	}
	return nil
}

// attachIncoming opens a link on which the client publishes.
func (s *session) attachIncoming(l *link, a *wire.Attach) (next func()) {
	if t, ok := a.Target.(*wire.Target); ok && t.Dynamic && l.temporary == "" {
		return s.dynamic.attachTarget(l, a, t)
	}
	if _, coordinates := a.Target.(*wire.Coordinator); coordinates {
		s.refuseLink(l, a, wire.Errorf(wire.ConditionNotImplemented, "Transactions not supported"))
		return nil
	}
	in := &incomingLink{session: s, handle: l.handle, takes: &s.publisher, assembly: assembly{mode: a.SndSettleMode, limit: s.conn.Config().MaxMessageSize}}
	if e := in.aim(a.Target); e != nil {
		s.refuseLink(l, a, e)
		return nil
	}
	return func() {
		err := in.mayPublish()
		s.gate.Lock()
		defer s.gate.Unlock()
		if s.state != sessionOpen {
			return
		}
		if err == nil {
			err = s.publisher.lacksRight(in) // Renew does not know the link yet
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
		s.counts.begin(in, a.InitialDeliveryCount.Or(0), maxLinkCredit)
	}
}

// aim sets where the link's messages go.
func (l *incomingLink) aim(t wire.Composite) *wire.Error {
	target, ok := t.(*wire.Target)
	switch {
	case !ok:
		return wire.Errorf(wire.ConditionInvalidField, "target is null")
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
func (l *incomingLink) mayPublish() error {
	s := l.session
	if l.isRelay {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
	defer cancel()
	if l.to.isQueue() {
		id, err := s.broker.Watch(ctx, l.to.key)
		l.queue = id
		return err
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
	e := s.conn.side.Explain(err)
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
	e = s.conn.side.Explain(e)
	s.conn.Log.Info("link error", slog.Int("channel", int(s.channel)), slog.String("link", fsm.Short(l.name)), slog.Any("error", e))
	s.drop(l)
	s.pairs.leave(l)
	s.dynamic.deleteLater(l)
	l.isOver()
	// A client may refuse itself many links with names of any length.
	l.ended, l.name, l.address = true, "", wire.Optional[string]{}
	if l.out != nil {
		s.broker.Drop(l.out.consumer)
		s.giveBack(l.out)
		l.out = nil
	}
	s.conn.out.pushOutcomes(&s.publisher.outcomes, &wire.Detach{Handle: l.handle, Closed: true, Error: e})
}

// isOver tells the dialect of a link, once, that it is over.
func (l *link) isOver() {
	if over := l.view.over; over != nil {
		l.view.over = nil
		over()
	}
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
	s.pairs.leave(l)
	s.memory.Add(-l.held)
	l.isOver()
	answer := &wire.Detach{Handle: d.Handle, Closed: d.Closed}
	switch {
	case l.ended:
	case l.temporary != "":
		return s.dynamic.detach(l, answer)
	case l.out != nil && l.out.isAnswering():
		s.counts.remove(l.out)
		s.conn.out.push(s.channel, answer)
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
	if l.out == nil { // the client says what it has
		return nil
	}
	if l.out.own != nil {
		s.counts.flowOwn(l.out, f)
	} else {
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
	switch {
	case err != nil || message == nil:
	case l.pair != nil:
		if !s.counts.mayAnswer(l.pair.answers) {
			return nil, wire.Errorf(wire.ConditionPreconditionFailed, "a request on link '%s' cannot be answered: its other half is not attached, or has no credit", l.name)
		}
		next, err = s.pairs.request(l, message)
	default:
		d := &s.arrival
		*d = Delivery{Link: l.view, Message: message, ID: in.assembly.id, Format: in.assembly.format, Settled: in.assembly.settled, Transaction: in.assembly.txn}
		next, err = in.takes.Take(d)
	}
	if err != nil {
		err = s.conn.side.Explain(err)
	}
	if err != nil && err.Condition == wire.ConditionMessageSize && !in.assembly.settled {
		// Programs that attach again on their own wait for the outcome.
		s.conn.out.push(s.channel, &wire.Disposition{
			Role: true, First: in.assembly.id, Settled: true, State: wire.State{Kind: wire.StateRejected, Rejected: wire.Rejected{Error: err}},
		})
	}
	if err != nil {
		s.detach(l, err)
	}
	s.counts.grant(l.in)
	return next, nil
}

// copies returns the routing keys of the annotation x-cc.
func copies(annotations wire.MapBytes) (keys []string, err *wire.Error) {
	keys, ok := message.AnnotatedCopies(annotations)
	if !ok {
		return nil, wire.Errorf(wire.ConditionInvalidField, "x-cc is not a list of strings")
	}
	return keys, nil
}
