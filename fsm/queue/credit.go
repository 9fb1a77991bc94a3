package queue

import (
	"math"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// linkCredit is what a consumer in credit mode may still be handed. Only a Credit command
// gives it more: settling does not. The zero linkCredit is that of a consumer with a
// prefetch.
//
// Invariant: on, or all is 0.
type linkCredit struct {
	on bool
	// count is the number of its deliveries, and of what drains have used up. It begins
	// anew after 2^32-1, and is compared as RFC 1982 says.
	count uint32
	left  uint32
}

// allow lets the count come to delivery + credit. delivery is the count that the receiver
// knew of; what was handed out since then is subtracted, and what it lies ahead is added.
func (l *linkCredit) allow(delivery, credit uint32) {
	behind := int64(int32(l.count - delivery))
	l.left = uint32(min(max(int64(credit)-behind, 0), math.MaxUint32))
}

// handedOut counts a delivery.
func (l *linkCredit) handedOut() {
	if l.on {
		l.count++
		l.left = max(l.left, 1) - 1
	}
}

// drain uses up what is left.
func (l *linkCredit) drain() {
	l.count += l.left
	l.left = 0
}

// giveCredit changes the credit of a consumer in credit mode. Its answer is completed by
// answerCredit, once messages have been assigned.
//
// Refusals, in this order: Invalid before version 3; NotFound for a consumer that is
// not there, or is cancelled; Invalid for one with a prefetch.
func (m *Machine) giveCredit(s *session, cmd *logpb.Credit) fsm.Result {
	c := s.consumer(cmd.GetConsumer())
	switch {
	case !m.since(3):
		return fsm.Result{Code: fsm.Invalid}
	case c == nil || c.isGets() || c.cancelled:
		return fsm.Result{Code: fsm.NotFound}
	case !c.link.on:
		return fsm.Result{Code: fsm.Invalid}
	}
	c.link.allow(cmd.GetDeliveryCount(), cmd.GetCredit())
	if !cmd.GetDrain() {
		c.choice.drain = 0
	}
	m.consumers.refresh(c)
	return fsm.Result{}
}

// answerCredit drains the consumer of a Credit command that asks for it, and says what its
// queue has then: the messages that are ready, the number of its next delivery, its count
// and its credit. A drain that is answered with credit is not finished: work that is due
// may bring another message, and a later command ends it.
//
// It runs after the assignment. Requires: the command was performed just now, and r is its
// answer. O(1).
func (m *Machine) answerCredit(s *session, cmd *logpb.Credit, r *fsm.Result) {
	if r.Code != fsm.OK {
		return
	}
	c := s.consumer(cmd.GetConsumer())
	if cmd.GetDrain() {
		// Without anything new, something may come yet: ticks do what this command could not.
		more := m.consumers.served(c) && c.credit() > 0 && !m.settings.forwards()
		if c.chooses() {
			more = more && c.choice.drains(m.Index())
		} else {
			more = more && (m.unfinished() || m.timers.overdue(m.clock.now()) || m.groups.doomed() != 0 || m.consumers.canServeTo(c, true))
		}
		if !more {
			c.choice.drain = 0
			c.link.drain()
			m.consumers.refresh(c)
			m.consumers.passOver() // NextDue is exact for those that still have credit
		}
	}
	r.Count, r.Next = m.messages.readyCount(), c.next
	r.DeliveryCount, r.Credit = c.link.count, c.link.left
}
