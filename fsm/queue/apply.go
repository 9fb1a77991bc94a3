package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// apply performs one command of an active queue. s is the session of the
// command, nil if it has none or an unknown one.
func (m *Machine) apply(meta *fsm.Meta, cmd *logpb.Command, s *session, eff *fsm.Effects) fsm.Result {
	switch cmd.Kind {
	case logpb.Command_ENQUEUE:
		return m.intake.enqueue(meta, cmd.Enqueue, eff)
	case logpb.Command_CONSUME:
		return m.consume(s, cmd.Consume, eff)
	case logpb.Command_CANCEL:
		return m.cancel(s, cmd.Cancel)
	case logpb.Command_GET:
		return m.deliveries.get(s, cmd.Get, eff)
	case logpb.Command_SETTLE:
		return m.deliveries.settle(s, cmd.Settle, eff)
	case logpb.Command_SESSION_DOWN:
		return m.deliveries.sessionDown(meta, s)
	case logpb.Command_PURGE:
		return m.intake.purge()
	case logpb.Command_CONFIGURE:
		return m.configure(cmd.Configure, eff)
	case logpb.Command_TICK:
		return m.deliveries.tick(eff)
	case logpb.Command_DELETE:
		return m.delete(cmd.Delete, eff)
	case logpb.Command_TOUCH:
		return m.touch(cmd.Touch)
	case logpb.Command_ROUTE_DEAD:
		return m.outbox.routeDead(cmd.RouteDead, eff)
	case logpb.Command_SETTLE_DEAD:
		return m.outbox.settleDead(cmd.SettleDead, eff)
	case logpb.Command_NODE_DOWN:
		return m.nodeDown(cmd.NodeDown)
	case logpb.Command_NODE_SILENT:
		return m.nodeSilent(cmd.NodeSilent, eff)
	case logpb.Command_SCHEDULE:
		return m.intake.reschedule(cmd.Schedule, eff)
	}
	return fsm.Result{Code: fsm.Invalid}
}
