package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// consume registers a consumer of s, or changes one.
func (m *Machine) consume(s *session, cmd *logpb.Consume) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := s.consumer(cmd.GetConsumer())
	if cmd.GetConsumer() == 0 || c != nil && c.cancelled {
		return fsm.Result{Code: fsm.Invalid}
	}
	others := m.serving
	if c != nil {
		others--
	}
	if m.exclusive != nil && m.exclusive != c || cmd.Exclusive && (others > 0 || m.config.SingleActive) {
		return fsm.Result{Code: fsm.InUse}
	}
	if c == nil {
		c = m.register(s, cmd.Consumer)
	}
	if c.level != nil && c.priority != cmd.Priority {
		m.leave(c)
	}
	c.tag, c.prefetch, c.priority = cmd.Tag, cmd.Prefetch, cmd.Priority
	c.noAck, c.exclusive, c.timeoutPlusOne = cmd.NoAck, cmd.Exclusive, cmd.TimeoutPlusOne
	if m.exclusive = nil; c.exclusive {
		m.exclusive = c
	}
	if c.level == nil {
		m.join(c)
	}
	m.refresh(c)
	return fsm.Result{}
}

// cancel ends the service of a consumer. What it holds stays with it.
func (m *Machine) cancel(s *session, cmd *logpb.Cancel) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := s.consumer(cmd.GetConsumer())
	if c == nil || c.isGets() || c.cancelled {
		return fsm.Result{Code: fsm.NotFound}
	}
	m.retire(c)
	m.dismissIfDone(c)
	return fsm.Result{}
}
