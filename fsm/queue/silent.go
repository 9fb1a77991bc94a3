package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// silence is one life of a node from which nothing is heard. Its sessions go
// on, but their consumers get nothing; what they hold goes back at until, on
// the clock of held messages. 0: it has gone back.
type silence struct {
	of    Boot
	until fsm.Time
}

func (m *Machine) findSilent(of Boot) (int, bool) {
	return slices.BinarySearchFunc(m.silent, of, func(x silence, of Boot) int {
		return cmp.Or(cmp.Compare(x.of.Node, of.Node), cmp.Compare(x.of.Boot, of.Boot))
	})
}

func (m *Machine) isSilent(id fsm.SessionID) bool {
	if len(m.silent) == 0 {
		return false
	}
	_, ok := m.findSilent(Boot{id.Node, id.Boot})
	return ok
}

// nodeSilent begins or ends the silence of a node.
func (m *Machine) nodeSilent(cmd *logpb.NodeSilent, eff *fsm.Effects) fsm.Result {
	of := Boot{fsm.NodeID(cmd.GetNode()), cmd.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	i, ok := m.findSilent(of)
	switch {
	case ok != cmd.GetBack() || m.isDown(of):
		return fsm.Result{} // known
	case ok:
		m.silent = slices.Delete(m.silent, i, i+1)
	default:
		m.silent = slices.Insert(m.silent, i, silence{of, m.clock.heldDeadline(m.settings.disconnected)})
	}
	if l := m.lives.get(of.key()); l != nil {
		(*l).silent = !ok
		for _, c := range m.consumers {
			m.scratch.steps++
			if c.session.life == *l {
				m.refresh(c)
			}
		}
	}
	m.contested = true
	eff.Silence = true
	return fsm.Result{}
}

// renewSilence is told that a session is about to hold something: if it is
// silent and has lost what it held, the time begins anew.
func (m *Machine) renewSilence(s *session) {
	if !s.life.silent {
		return
	}
	if i, ok := m.findSilent(Boot{s.id.Node, s.id.Boot}); ok && m.silent[i].until == 0 {
		m.silent[i].until = m.clock.heldDeadline(m.settings.disconnected)
	}
}

// isOverdue reports whether a session's node has been silent for so long that
// what it held has gone back.
func (m *Machine) isOverdue(s *session) bool {
	if !s.life.silent {
		return false
	}
	i, ok := m.findSilent(Boot{s.id.Node, s.id.Boot})
	return ok && m.silent[i].until == 0
}

// endSilences takes what sessions hold whose nodes have been silent for too long.
func (m *Machine) endSilences() {
	over := false
	for i := range m.silent {
		if x := &m.silent[i]; x.until != 0 && m.clock.heldUntil(x.until) <= m.clock.now() {
			x.until, m.contested, over = 0, true, true
		}
	}
	if !over {
		return
	}
	var done []*consumer
	for _, c := range m.consumers {
		m.scratch.steps++
		if c.held.len() > 0 && m.isOverdue(c.session) {
			m.detach(c, false)
			done = append(done, c)
		}
	}
	m.dismiss(done...)
}

// SilentNodes lists the lives of nodes that are taken to be silent, ascending.
func (m *Machine) SilentNodes() []Boot {
	var boots []Boot
	for _, x := range m.silent {
		boots = append(boots, x.of)
	}
	return boots
}

// ConsumerNodes lists the lives of nodes that consumers, or gets, live on,
// ascending.
func (m *Machine) ConsumerNodes() []Boot {
	var boots []Boot
	for _, l := range m.lives.all() {
		if (*l).consumers > 0 && !(*l).over {
			boots = append(boots, (*l).of)
		}
	}
	return boots
}
