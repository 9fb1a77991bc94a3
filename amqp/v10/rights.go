package v10

import (
	"errors"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Whether the user may publish is checked for each message. A link that goes to one place ends, besides, as soon as the
// right to it is taken away, and with the queue that it goes to.

// renew checks the rights of links again. It does not block.
func (p *publisher) renew() {
	s := p.session
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	if !s.counts.closed && s.counts.incoming > 0 {
		s.post(p.checkRights)
	}
}

// checkRights ends the links on which the user may not publish any more.
func (p *publisher) checkRights() {
	p.eachLink(func(l *link) {
		if err := p.lacksRight(l.in); err != nil {
			p.session.detach(l, p.session.refusal("", err))
		}
	})
}

// eachLink calls f for links that go to one place, with the gate held.
func (p *publisher) eachLink(f func(*link)) {
	s := p.session
	s.gate.Lock()
	defer s.gate.Unlock()
	for _, l := range s.links {
		if l.in != nil && !l.in.isRelay {
			f(l)
		}
	}
}

// lacksRight returns why the user may not publish on a link that goes to one place; nil: it may, as far as rights go.
// The gate is held.
func (p *publisher) lacksRight(l *incomingLink) error {
	if l.isRelay {
		return nil
	}
	err, r := p.session.broker.Admit(&fsm.Publish{Exchange: l.to.exchange, RoutingKey: l.to.key, Fresh: true}), new(fsm.Refusal)
	if errors.As(err, &r) && r.Kind == fsm.AccessRefused {
		return err
	}
	return nil
}

// Gone ends the links to a queue that was deleted.
func (s *session) Gone(queue fsm.QueueID) {
	defer s.conn.Contain("lose a queue")
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	if s.counts.closed {
		return
	}
	s.post(func() {
		s.publisher.eachLink(func(l *link) {
			if l.in.queue == queue {
				s.detach(l, s.conn.side.Explain(ErrDeleted))
			}
		})
	})
}

// ErrDeleted ends the links from and to a queue, as the dialect explains it.
var ErrDeleted error = wire.Errorf(wire.ConditionResourceDeleted, "the queue was deleted")

// named returns an error that says which delivery it is about, for a link whose messages say where they go and are settled:
// they have no outcome.
func (l *incomingLink) named(e *wire.Error) *wire.Error {
	if !l.isRelay {
		return e
	}
	about := *e
	tag := l.assembly.tag[:l.assembly.tagSize]
	about.Info = wire.EndMap(wire.AppendBinary(wire.AppendSymbol(wire.StartMap(nil), "delivery-tag"), tag), 0, 1)
	return &about
}
