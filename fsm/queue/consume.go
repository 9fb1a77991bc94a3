package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// consume registers a consumer of s, or changes one.
func (m *Machine) consume(s *session, cmd *logpb.Consume, eff *fsm.Effects) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	c := s.consumer(cmd.GetConsumer())
	if cmd.GetConsumer() == 0 || c != nil && c.cancelled {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.Exclusive && m.settings.SingleActive {
		return fsm.Result{Code: fsm.InUse}
	}
	if c == nil && m.consumers.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if cmd.Exclusive || m.consumers.excludes(c) {
		if !m.consumers.replaceable(c) {
			return fsm.Result{Code: fsm.InUse}
		}
		m.consumers.revokeAllBut(c, eff)
	}
	if c == nil {
		c = m.consumers.register(s, cmd.Consumer)
	}
	m.consumers.update(c, cmd)
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
	m.consumers.retire(c)
	m.consumers.dismissIfDone(c)
	return fsm.Result{}
}
