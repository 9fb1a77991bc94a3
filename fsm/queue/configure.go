package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// configure replaces the settings. A new lease starts now. Message expiries
// and deadlines that are running keep what they were given. Settings of an
// older revision than those in force change nothing: they come from a leader
// that did not know better.
func (m *Machine) configure(cmd *logpb.Configure) fsm.Result {
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
	m.config = &logpb.QueueConfig{
		TtlPlusOne: c.TtlPlusOne, Expires: c.Expires, ConsumerTimeoutPlusOne: c.ConsumerTimeoutPlusOne,
		DeadLetter: c.DeadLetter, DeadLetterExchange: c.DeadLetterExchange,
		HasDeadLetterRoutingKey: c.HasDeadLetterRoutingKey, DeadLetterRoutingKey: c.DeadLetterRoutingKey,
		DeliveryLimit: c.DeliveryLimit, AutoDelete: c.AutoDelete,
		MaxLengthPlusOne: c.MaxLengthPlusOne, MaxLengthBytesPlusOne: c.MaxLengthBytesPlusOne,
		LockCredit: c.LockCredit, MessageTtlFirst: c.MessageTtlFirst, DeadLetterStrategy: c.DeadLetterStrategy,
		Overflow: c.Overflow, AutoDeleteOnIdle: c.AutoDeleteOnIdle, IdleCountsRouted: c.IdleCountsRouted,
		ExpiresKeepPending: c.ExpiresKeepPending, DeliveryDelay: c.DeliveryDelay, Revision: c.Revision,
	}
	return fsm.Result{}
}

// touch renews the lease for an active redeclaration and answers what it shows.
func (m *Machine) touch() fsm.Result {
	m.lastUsed = m.clock
	return fsm.Result{Count: m.readyCount(), Consumers: uint64(m.active)}
}
