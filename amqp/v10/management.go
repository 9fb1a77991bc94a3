package v10

import (
	"bytes"
	"context"
	"log/slog"

	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// managementAddress is the address of both halves of a management link pair.
const managementAddress = "/management"

// Bounds of a pair.
const (
	pairCredit = 8         // requests that a client may send before it is given new credit
	maxRequest = 128 << 10 // bytes, as of a method in 0-9-1
	maxAnswer  = 1 << 20   // bytes
	maxID      = 1 << 10   // bytes of a request's message-id
)

// pair are two links of a session with the same name: one for requests, and one on which they are answered.
//
// Invariant: at least one half is attached.
type pair struct {
	name     string
	requests *link // nil: not attached
	answers  *outgoingLink
}

// pairs are the link pairs of a session. Its gate is held, or busy is set.
type pairs struct {
	session *session
	byName  map[string]*pair
}

func (x *pairs) init(s *session) { x.session, x.byName = s, map[string]*pair{} }

// isAnswering reports whether a link carries answers to requests, which are no messages of the broker.
func (l *outgoingLink) isAnswering() bool { return l.answers }

// isManagement reports whether a client wants one half of a pair.
func isManagement(a *wire.Attach) bool {
	if a.Role {
		return a.Source != nil && a.Source.Address.Value == managementAddress
	}
	t, ok := a.Target.(*wire.Target)
	return ok && t.Address.Value == managementAddress
}

// attach attaches one half of a pair.
func (x *pairs) attach(l *link, a *wire.Attach) {
	s := x.session
	if v, ok := a.Properties.Get("paired"); !ok || v.Type != wire.Boolean || !v.Bool() {
		s.refuseLink(l, a, wire.Errorf(wire.ConditionInvalidField, "Link property 'paired' is not set to boolean value 'true'"))
		return
	}
	p := x.byName[a.Name]
	if p != nil && (a.Role && p.answers != nil || !a.Role && p.requests != nil) {
		s.refuseLink(l, a, wire.Errorf(wire.ConditionPreconditionFailed, "both halves of the link pair '%s' are attached", a.Name))
		return
	}
	if p == nil {
		p = &pair{name: a.Name}
		x.byName[a.Name] = p
	}
	l.pair = p
	answer := &wire.Attach{
		Name: a.Name, Handle: a.Handle, Role: !a.Role, SndSettleMode: a.SndSettleMode, Source: a.Source, Target: a.Target, Properties: a.Properties,
	}
	if a.Role {
		p.answers = &outgoingLink{
			session: s, handle: l.handle, name: a.Name, form: verbatim{}, settled: true, limit: a.MaxMessageSize,
			answers: true, pair: p, own: new(sending),
		}
		l.out = p.answers
		s.counts.add(l.out)
		answer.SndSettleMode, answer.InitialDeliveryCount, answer.MaxMessageSize = sendSettled, wire.Some[uint32](0), a.MaxMessageSize
		s.counts.start(l.out, answer)
		return
	}
	p.requests = l
	l.in = &incomingLink{session: s, handle: l.handle, isRelay: true, pair: p, assembly: assembly{mode: a.SndSettleMode, limit: maxRequest}}
	answer.MaxMessageSize = maxRequest
	s.conn.out.push(s.channel, answer)
	s.counts.begin(l.in, a.InitialDeliveryCount.Or(0), pairCredit)
}

// leave takes a link out of its pair, if it is in one.
func (x *pairs) leave(l *link) {
	p := l.pair
	if p == nil {
		return
	}
	l.pair = nil
	if l == p.requests {
		p.requests = nil
	} else {
		p.answers = nil
	}
	if p.requests == nil && p.answers == nil {
		delete(x.byName, p.name)
	}
}

// request takes in a request. An error is the link's; next is the call that performs it and answers.
func (x *pairs) request(l *link, encoded []byte) (next func(), err *wire.Error) {
	s := x.session
	size := int64(len(encoded))
	if over := s.memory.Take(size); over != nil {
		return nil, wire.Errorf(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over))
	}
	defer func() {
		if next == nil {
			s.memory.Add(-size)
		}
	}()
	var m wire.Message
	if e := m.ParseRequest(bytes.Clone(encoded)); e != nil { // it is performed later
		return nil, protocolError(e)
	}
	var p wire.Properties
	if e := m.ReadProperties(&p); e != nil {
		return nil, protocolError(e)
	}
	if a := &l.in.assembly; !a.settled {
		number := s.publisher.outcomes.add(nil, a.id, 0, false)
		s.publisher.resolve(number, number, wire.StateAccepted, nil)
	}
	if !isID(p.MessageID) {
		s.conn.Log.Info("management request without message-id ignored", slog.Int("channel", int(s.channel)), slog.String("link", l.name))
		return nil, nil
	}
	return func() {
		answer := x.perform(&p, &m)
		s.gate.Lock()
		defer s.gate.Unlock()
		s.memory.Add(-size)
		if s.state == sessionOpen && l.pair != nil && l.pair.answers != nil {
			x.answer(l.pair.answers, answer)
		}
	}, nil
}

// isID reports whether a request can be told from others by its message-id.
func isID(id wire.RawValue) bool {
	switch id.Value().Type {
	case wire.String, wire.Binary, wire.Ulong, wire.UUID:
		return len(id) <= maxID
	}
	return false
}

// perform performs a request and returns the message that answers it. It blocks.
func (x *pairs) perform(p *wire.Properties, m *wire.Message) []byte {
	s := x.session
	ctx, cancel := context.WithTimeout(s.conn.Context(), s.conn.Config().OperationTimeout)
	defer cancel()
	r := request{ctx: ctx, session: s, method: string(p.Subject)}
	err := r.read(p, m)
	if err == nil {
		err = r.perform()
	}
	if err == nil && len(r.body) > maxAnswer {
		err = refuseRequest(badRequest, "the answer has %d bytes, at most %d are allowed", len(r.body), maxAnswer)
	}
	if err != nil {
		r.status, r.body = r.explain(err)
	}
	b := wire.Append(nil, &wire.Properties{Subject: []byte(r.status), CorrelationID: p.MessageID})
	b = wire.StartApplicationProperties(b)
	at := len(b)
	b = wire.AppendString(wire.AppendString(wire.StartMap(b), "http:response"), "1.1")
	b = wire.StartValue(wire.EndMap(b, at, 1))
	if r.body == nil {
		return wire.AppendNull(b)
	}
	return append(b, r.body...)
}

// answer sends the answer to a request.
func (x *pairs) answer(l *outgoingLink, answer []byte) {
	s := x.session
	size := int64(len(answer))
	if l.limit > 0 && uint64(size) > l.limit {
		s.detach(s.links[l.handle], wire.Errorf(wire.ConditionMessageSize, "an answer of %d bytes exceeds max-message-size %d", size, l.limit))
		return
	}
	over := s.memory.Take(size)
	if over != nil {
		s.memory.Add(size) // what the end gives back
		s.tasks = append(s.tasks, s.ending(wire.Errorf(wire.ConditionResourceLimit, "%s", amqp.AboutHeld(over))))
	}
	s.counts.sendAnswer(l, answer)
}

// mayAnswer reports whether there is credit for an answer. counts.mu is held.
func (p *pair) mayAnswer() bool { return p.answers != nil && p.answers.own.left > 0 }

// mayAnswer reports whether a link can answer one more request.
func (c *counts) mayAnswer(l *outgoingLink) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l != nil && l.own.left > 0
}

// sendAnswer queues an answer, which counts as held until its frames are in the outbox.
func (c *counts) sendAnswer(l *outgoingLink, answer []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.session.memory.Add(-int64(len(answer)))
		return
	}
	l.own.take()
	c.hold(l, &fsm.Message{Payload: answer}, len(answer))
	c.pump()
}

// forgetAnswer stops counting an answer, if that is what is sent. mu is held.
func (c *counts) forgetAnswer(h *heldSend) {
	if h.frames > 0 && h.link.isAnswering() {
		c.session.memory.Add(-int64(len(h.message.Payload)))
	}
}

// flowOwn gives a link the credit of a flow, where the broker does not have it.
func (c *counts) flowOwn(l *outgoingLink, f *wire.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.own.flow(f)
	// A client that waits for credit never asks what cannot be answered.
	if p := l.pair; p != nil && p.mayAnswer() && p.requests != nil && p.requests.in != nil {
		p.requests.in.announce()
	}
	if c.closed {
		return
	}
	l.sendWaiting()
	if f.Drain || f.Echo {
		c.holdFlow(l, fsm.LinkState{DeliveryCount: l.own.count, Credit: l.own.left, Drained: f.Drain})
	}
	c.pump()
}
