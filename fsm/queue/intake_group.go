package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// group performs a request about a group that a consumer of s holds.
//
// Refusals, in this order: NoSession; Invalid; NotFound if there is no such
// consumer, or nobody holds the group; InUse if another consumer does. A new state
// is Rejected if it does not fit into the length limits of the queue.
func (it *intake) group(s *session, cmd *logpb.Group) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if cmd.GetId() == "" || cmd.Action < logpb.Group_RENEW || cmd.Action > logpb.Group_GET_STATE || len(cmd.State) > maxGroupState {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := s.consumer(cmd.Consumer)
	g := it.groups.held(cmd.Id)
	switch {
	case c == nil || g == nil:
		return fsm.Result{Code: fsm.NotFound}
	case g.hold.of.c != c:
		return fsm.Result{Code: fsm.InUse}
	}
	it.lease.touch()
	r := fsm.Result{Count: 1}
	switch cmd.Action {
	case logpb.Group_RENEW:
		it.groups.lock(g, it.settings.groupLock(c))
	case logpb.Group_RELEASE:
		it.deliveries.giveUp(g, false)
		it.consumers.removeIfDone(c)
	case logpb.Group_SET_STATE:
		if !it.fitsState(g, len(cmd.State)) {
			return fsm.Result{Code: fsm.Rejected}
		}
		it.groups.setState(g, string(cmd.State))
	}
	it.groups.describe(cmd, &r)
	return r
}

// fitsState reports whether the limits allow a state of n bytes for g: those of the
// queue, which makes space if it drops its head, and that of all states.
func (it *intake) fitsState(g *group, n int) bool {
	if n > len(g.state) && it.since(3) && it.groups.stateBytes()-uint64(len(g.state))+uint64(n) > uint64(it.bounds.States) {
		return false
	}
	all := it.counted()
	if it.settings.Overflow == logpb.QueueConfig_DROP_HEAD {
		all = it.kept()
	}
	before := all.Bytes - uint64(len(g.state))
	return n <= len(g.state) || it.settings.maxBytes.Allows(before+uint64(n))
}
