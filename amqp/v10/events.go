package v10

import (
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// The broker's goroutines call these methods of fsm.SessionEvents.

// Confirmed records outcomes of publishes.
func (s *session) Confirmed(first, last uint64, why error) {
	defer s.conn.Contain("confirm")
	state, e := s.publisher.outcomeOf(why)
	s.publisher.resolve(first, last, state, e)
}

// unreturned gets nothing back: no publish is mandatory.
type unreturned struct{}

// Returned is not called.
func (unreturned) Returned(fsm.Payload) {}

// Refused is as Returned.
func (unreturned) Refused(fsm.Payload, *fsm.Refusal) {}

// Kept takes deliveries back that a command has not settled.
func (s *session) Kept(deliveries []fsm.Held) {
	defer s.conn.Contain("keep deliveries")
	s.counts.keep(deliveries)
}

// Deliver sends messages.
func (s *session) Deliver(messages []fsm.Message) {
	defer s.conn.Contain("deliver")
	s.counts.deliver(messages)
}

// Credited tells the client what a link has.
func (s *session) Credited(consumer uint64, now fsm.LinkState) {
	defer s.conn.Contain("tell credit")
	s.counts.credited(consumer, now)
}

// Settled tells the client what has become of its outcomes.
func (s *session) Settled(number uint64, lost []uint64) {
	defer s.conn.Contain("settle")
	s.counts.settled(number, lost)
}

// Cancelled ends the link of a consumer whose queue is gone.
func (s *session) Cancelled(consumer uint64) {
	defer s.conn.Contain("cancel")
	s.endLink(consumer, s.conn.side.Explain(ErrDeleted))
}

// Revoked ends the link of a consumer that may not read its queue any more.
func (s *session) Revoked(consumer uint64, why error) {
	defer s.conn.Contain("revoke")
	s.endLink(consumer, s.refusal("", why))
}

// TimedOut releases deliveries that were held too long, or ends their link.
func (s *session) TimedOut(consumer uint64, deliveries []uint64, limit fsm.Millis, suspend bool) {
	defer s.conn.Contain("time out")
	if suspend && s.counts.timedOut(consumer, deliveries) {
		return
	}
	s.counts.mu.Lock()
	l := s.counts.links[consumer]
	s.counts.mu.Unlock()
	if l != nil {
		s.endLink(consumer, wire.Errorf(wire.ConditionPreconditionFailed,
			"delivery acknowledgement on link '%s' timed out. Timeout value used: %d ms. "+
				"This timeout value can be configured, see consumers doc guide to learn more", l.name, limit))
	}
}

// News passes on what the queue says of a link.
func (s *session) News(consumer uint64, news *fsm.News) {
	defer s.conn.Contain("tell news")
	s.counts.mu.Lock()
	l := s.counts.links[consumer]
	s.counts.mu.Unlock()
	if l != nil && l.hears != nil && news.Kind != fsm.LocksLost {
		l.hears(news)
		return
	}
	if news.Kind != fsm.LocksLost {
		s.counts.news(consumer, news)
	} else if !s.counts.unlocked(consumer, news.Deliveries) {
		s.endLink(consumer, wire.Errorf(wire.ConditionPreconditionFailed, "the lock of a delivery has ended, and the link does not understand that it is released"))
	}
}

// endLink has the link of a consumer ended.
func (s *session) endLink(consumer uint64, e *wire.Error) {
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	if !s.counts.closed {
		s.post(s.detachConsumer(consumer, e))
	}
}

// Lost ends the session.
func (s *session) Lost(err error) {
	defer s.conn.Contain("lose a session")
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	if !s.counts.closed {
		s.post(s.ending(protocolError(err)))
	}
}
