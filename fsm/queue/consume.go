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
	if c == nil && m.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if cmd.Exclusive || m.exclusive != nil && m.exclusive != c {
		if !m.replaceable(c) {
			return fsm.Result{Code: fsm.InUse}
		}
		m.revokeAllBut(c, eff)
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

// replaceable reports whether all consumers but c have lost their right to be
// served beside an exclusive one: their nodes have been silent for too long.
func (m *Machine) replaceable(c *consumer) bool {
	for _, o := range m.consumers {
		m.scratch.steps++
		if o != c && o.level != nil && !o.session.life.over && !m.sessions.isOverdue(o.session) {
			return false
		}
	}
	return true
}

// revokeAllBut cancels all consumers but c, which are replaceable. They are
// told when their node is heard.
func (m *Machine) revokeAllBut(c *consumer, eff *fsm.Effects) {
	var revoked []*consumer
	for _, o := range m.consumers {
		m.scratch.steps++
		if o == c || o.level == nil || o.session.life.over {
			continue
		}
		m.retire(o)
		o.revoked = true
		eff.Cancelled = append(eff.Cancelled, o.id)
		revoked = append(revoked, o)
	}
	m.dismiss(revoked...)
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
