package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// apply performs one command of an active queue. s is the session of the
// command, nil if it has none or an unknown one.
//
// Requires: the queue is Active, due work was caught up, and admit has returned
// ok. Ensures: Invalid and NoSession have changed nothing, except that the
// command has used up its number in the stream.
func (m *Machine) apply(meta *fsm.Meta, cmd *logpb.Command, s *session, eff *fsm.Effects) fsm.Result {
	switch cmd.Kind {
	case logpb.Command_ENQUEUE:
		return fsm.Result{Code: m.intake.enqueue(meta, cmd.Enqueue, eff)}
	case logpb.Command_CONSUME:
		return m.consumers.consume(s, cmd.Consume, eff)
	case logpb.Command_CANCEL:
		return m.consumers.cancel(s, cmd.Cancel)
	case logpb.Command_GET:
		return m.deliveries.get(s, cmd.Get, eff)
	case logpb.Command_SETTLE:
		code, n := m.deliveries.settle(s, cmd.Settle, eff)
		return fsm.Result{Code: code, Count: n}
	case logpb.Command_RENEW:
		return overtime{m.deliveries}.renew(s, cmd.Renew)
	case logpb.Command_SESSION_DOWN:
		return m.deliveries.sessionDown(meta, s)
	case logpb.Command_PURGE:
		return m.intake.purge()
	case logpb.Command_CONFIGURE:
		return m.configure(cmd.Configure, eff)
	case logpb.Command_TICK:
		return overtime{m.deliveries}.tick(eff)
	case logpb.Command_DELETE:
		return m.delete(cmd.Delete, eff)
	case logpb.Command_TOUCH:
		return m.touch(cmd.Touch)
	case logpb.Command_ROUTE_DEAD:
		return m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		return m.outbox.confirmTransfers(cmd.SettleDead, eff)
	case logpb.Command_NODE_DOWN:
		return m.consumers.nodeDown(cmd.NodeDown)
	case logpb.Command_NODE_SUSPECTED:
		return m.consumers.nodeSuspected(cmd.NodeSuspected, eff)
	case logpb.Command_SCHEDULE:
		return m.intake.reschedule(cmd.Schedule, eff)
	case logpb.Command_RECEIVE_DEFERRED:
		return m.deliveries.receiveDeferred(s, cmd.ReceiveDeferred, eff)
	case logpb.Command_KICK:
		return m.intake.retryNow(cmd.Kick)
	case logpb.Command_UNPARK:
		return m.intake.unpark(cmd.Unpark)
	case logpb.Command_GROUP:
		return m.intake.group(s, cmd.Group)
	}
	return fsm.Result{Code: fsm.Invalid}
}

// admit finds the session of a command and its place in the stream. ok says
// that the command is to be performed; if not, r is its answer. s is nil for a
// command outside of any stream whose session is unknown.
//
// What happens to command n = cmd.Seq of a session:
//
//	no session          n = 0: performed; else Invalid
//	n = 0               performed outside of the stream, by a known session or not
//	unknown, n ≠ 1      NoSession: never Gap, which would begin the stream anew
//	unknown, ended      NoSession
//	unknown, n = 1      Late if made too long ago; else the session begins
//	n < next            the answer it got before; nothing is performed
//	n > next            Gap, with the number that is expected
//	n = next            performed; next grows by one, whatever the result
//
// A session of a node that is down counts as unknown and ended. A refusal changes
// nothing; a repetition only counts in Duplicates.
func (m *Machine) admit(meta *fsm.Meta, cmd *logpb.Command, eff *fsm.Effects) (s *session, r fsm.Result, ok bool) {
	if meta.Session == (fsm.SessionID{}) {
		if cmd.Seq != 0 {
			return nil, fsm.Result{Code: fsm.Invalid}, false
		}
		return nil, r, true
	}
	s = m.sessions.find(meta.Session)
	switch {
	case cmd.Seq == 0:
		return s, r, true
	case s == nil && (cmd.Seq != 1 || m.sessions.hasEnded(meta.Session)):
		return nil, fsm.Result{Code: fsm.NoSession}, false
	case s == nil && m.sessions.isLate(fsm.Time(cmd.OpenedAt)):
		return nil, fsm.Result{Code: fsm.Late, Next: uint64(m.clock.now())}, false
	case s == nil:
		s = m.sessions.begin(meta.Session)
	case cmd.Seq < s.next:
		m.counters.Duplicates++
		return s, m.deliveries.repeat(s, cmd, eff), false
	case cmd.Seq > s.next:
		return s, fsm.Result{Code: fsm.Gap, Next: s.next}, false
	}
	s.next++
	return s, r, true
}

// configure replaces the settings. A new lease starts now. Message expiries,
// schedules and deadlines that are already running are unaffected. A new length
// limit acts at once, and waiting letters are dropped if the queue no longer
// delivers at least once. The order of the messages changes only while there are
// none. Settings with an older revision than the effective
// ones are ignored: they come from a leader with an outdated view.
//
// Configure is proposed by the leader, outside of any stream. It also restores
// the settings of a snapshot, on a machine that is still empty; all it does
// besides replacing them is without effect there.
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
	single, groups := m.settings.SingleActive, m.settings.Groups
	byDeadline, window := m.settings.DeadlineOrder, m.settings.dedup
	m.settings = newSettings(c)
	m.ends.trim()
	if m.messages.live() > 0 {
		m.settings.DeadlineOrder = byDeadline
	}
	m.seen.configured(window)
	m.timers.orderByDeadline(m.settings.DeadlineOrder)
	m.lease.touch()
	if c.SingleActive != single {
		m.consumers.reconsider()
	}
	if c.Groups != groups {
		m.consumers.refreshAll()
	}
	m.outbox.settleWaiting()
	eff.Outbox = eff.Outbox || m.outbox.letters() > 0 // there may be another route now
	return fsm.Result{}
}

// touch records use: an active redeclaration, which also renews the lease, or
// something that keeps the queue from being idle. It answers what a
// redeclaration reports. Consumers of the answer are those that may be served,
// as queue.declare-ok has them: no gets and no cancelled ones.
func (m *Machine) touch(cmd *logpb.Touch) fsm.Result {
	m.lease.touch()
	if !cmd.GetIdleOnly() {
		m.lease.renew()
	}
	return fsm.Result{Count: m.messages.readyCount(), Consumers: uint64(m.consumers.active())}
}
