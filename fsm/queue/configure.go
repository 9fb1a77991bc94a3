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
	if c.Revision < m.config.Revision {
		return fsm.Result{}
	}
	if c.Expires != m.config.Expires {
		m.lastUsed = m.clock
	}
	single := m.config.SingleActive
	m.config = &logpb.QueueConfig{
		TtlPlusOne: c.TtlPlusOne, Expires: c.Expires, ConsumerTimeoutPlusOne: c.ConsumerTimeoutPlusOne,
		DeadLetter: c.DeadLetter, DeadLetterExchange: c.DeadLetterExchange,
		HasDeadLetterRoutingKey: c.HasDeadLetterRoutingKey, DeadLetterRoutingKey: c.DeadLetterRoutingKey,
		DeliveryLimit: c.DeliveryLimit, AutoDelete: c.AutoDelete,
		MaxLengthPlusOne: c.MaxLengthPlusOne, MaxLengthBytesPlusOne: c.MaxLengthBytesPlusOne,
		LockCredit: c.LockCredit, MessageTtlFirst: c.MessageTtlFirst, DeadLetterStrategy: c.DeadLetterStrategy,
		Overflow: c.Overflow, AutoDeleteOnIdle: c.AutoDeleteOnIdle, IdleCountsRouted: c.IdleCountsRouted,
		ExpiresKeepPending: c.ExpiresKeepPending, DeliveryDelay: c.DeliveryDelay, DelayedStore: c.DelayedStore, DeadLetterMaxPlusOne: c.DeadLetterMaxPlusOne, Revision: c.Revision,
		SingleActive: c.SingleActive, Retry: c.Retry, RetryMin: c.RetryMin, RetryMax: c.RetryMax,
		MaxPriorityPlusOne: c.MaxPriorityPlusOne, DisconnectedTimeoutPlusOne: c.DisconnectedTimeoutPlusOne,
	}
	m.active = m.clock
	if c.SingleActive != single {
		m.single, m.quiescing, m.contested = nil, false, true
		for _, c := range m.consumers {
			m.refresh(c)
		}
	}
	if m.fate(logpb.Death_NONE) != AtLeastOnce {
		m.counters.DeadDropped += m.counts[Waiting].Messages
		m.dropPatient()
	}
	eff.Outbox = eff.Outbox || m.letters() > 0 // there may be another way now
	return fsm.Result{}
}

// touch notes use: an active redeclaration, which also renews the lease, or
// something that keeps the queue from being idle. It answers what a
// redeclaration shows.
func (m *Machine) touch(cmd *logpb.Touch) fsm.Result {
	m.active = m.clock
	if !cmd.GetIdleOnly() {
		m.lastUsed = m.clock
	}
	return fsm.Result{Count: m.readyCount(), Consumers: uint64(m.serving)}
}
