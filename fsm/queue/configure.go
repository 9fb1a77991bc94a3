package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// configure replaces the settings. A new lease starts now. Message expiries,
// schedules and deadlines that are running keep what they were given. A new
// length limit acts at once, and letters that wait for somewhere to go are
// dropped if the queue does not deliver at least once any more. Settings of an
// older revision than those in force change nothing: they come from a leader
// that did not know better.
func (m *Machine) configure(cmd *logpb.Configure, eff *fsm.Effects) fsm.Result {
	c := cmd.GetConfig()
	if c == nil {
		return fsm.Result{Code: fsm.Invalid}
	}
	if c.Revision < m.settings.Revision {
		return fsm.Result{}
	}
	if c.Expires != m.settings.Expires {
		m.lease.renew()
	}
	single := m.settings.SingleActive
	m.settings = newSettings(c)
	m.lease.touch()
	if c.SingleActive != single {
		m.consumers.reconsider()
	}
	if m.outbox.strategy() != AtLeastOnce {
		m.counters.DeadDropped += m.outbox.purge()
	}
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0 // there may be another way now
	return fsm.Result{}
}

// touch notes use: an active redeclaration, which also renews the lease, or
// something that keeps the queue from being idle. It answers what a
// redeclaration shows.
func (m *Machine) touch(cmd *logpb.Touch) fsm.Result {
	m.lease.touch()
	if !cmd.GetIdleOnly() {
		m.lease.renew()
	}
	return fsm.Result{Count: m.messages.readyCount(), Consumers: uint64(m.consumers.active())}
}
