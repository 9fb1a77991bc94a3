package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// back is what one consumer held that comes back, or is settled, piece by
// piece. Until then the messages are checked out.
type back struct {
	order   int // of settlements, from 1; 0: lost
	outcome logpb.Settle_Outcome
	failed  bool
	group   bool     // of a group that was lost or given up
	due     fsm.Time // of a settlement: when what is returned is tried again
	remark  fsm.Remark
	added   []addition
}

// detach takes all that c holds from it.
func (q *modelMessages) detach(c *consumer, failed bool) {
	b := &back{failed: failed}
	for _, x := range q.held(c) {
		x.leave(b)
	}
}

// leave takes x from its holder, which may have another tag before x is back.
func (x *message) leave(b *back) { x.back, x.tagThen = b, new(x.holder.tag) }

// coming lists what is on its way, in its order: settlements, then by the
// oldest that is next.
func (q *model) coming() []*back {
	var all []*back
	for _, x := range q.in(checkedOut) {
		if x.back != nil && x.back != q.overdue && !slices.Contains(all, x.back) {
			all = append(all, x.back)
		}
	}
	slices.SortFunc(all, func(a, b *back) int {
		if a.order != 0 || b.order != 0 {
			return cmp.Or(cmp.Compare(min(b.order, 1), min(a.order, 1)), cmp.Compare(a.order, b.order))
		}
		return cmp.Compare(q.of(a)[0].seq, q.of(b)[0].seq)
	})
	return all
}

// of are the messages of b, by delivery.
func (q *modelMessages) of(b *back) []*message {
	all := slices.DeleteFunc(q.in(checkedOut), func(x *message) bool { return x.back != b })
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.delivery, b.delivery) })
	return all
}

// ending is the next session of a node that is down; nil: there is none.
func (q *modelSessions) ending() *session {
	var next *session
	for _, s := range q.sessions {
		if q.isDown(s.id) && (next == nil || s.id.Compare(next.id) < 0) {
			next = s
		}
	}
	return next
}

// bringBack goes on with all this, as far as the command may, and gives back
// what a tick has found overdue.
func (q *model) bringBack(k logpb.Command_Kind) {
	left := q.bounds.Before
	switch k {
	case logpb.Command_TICK:
		left = min(q.budget, q.bounds.Back())
	case logpb.Command_NODE_DOWN, logpb.Command_SESSION_DOWN:
		left = q.bounds.Back()
	}
	most := left
	for ; left > 0 && q.ending() != nil; left-- {
		s := q.ending()
		if c := q.newestConsumer(s.id); c != nil {
			q.leaveSession(c)
		} else {
			q.sessions = slices.DeleteFunc(q.sessions, func(o *session) bool { return o == s })
		}
	}
	for left > 0 && q.ending() == nil {
		all := q.coming()
		if len(all) == 0 || all[0].order == 0 {
			break
		}
		some := q.of(all[0])
		some = some[:min(left, len(some))]
		left -= len(some)
		if q.version >= 3 {
			q.renewGroups(q.consumer(some[0].holder.id), some)
		}
		q.conclude(all[0], some)
	}
	if q.ending() == nil {
		left = q.goOnReviewing(q.endLeaving(left))
	}
	lost := q.of(q.overdue)
	for ; left > 0 && q.ending() == nil; left-- {
		all := q.coming()
		if len(all) == 0 {
			break
		}
		x := q.of(all[0])[0]
		x.failing, x.back = all[0].failed && (all[0].group || x.group == ""), q.overdue
		lost = append(lost, x)
	}
	slices.SortFunc(lost, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	q.giveBack(lost, false, 0)
	if k == logpb.Command_TICK {
		q.budget -= most - left
	}
}

// newestConsumer is that of a session, gets included, with the highest number.
func (q *modelSessions) newestConsumer(id fsm.SessionID) *consumer {
	var newest *consumer
	for _, c := range q.consumers {
		if c.id.Session == id && (newest == nil || c.id.Number > newest.id.Number) {
			newest = c
		}
	}
	return newest
}

// unfinished reports whether something is left for the next command.
func (q *model) unfinished() bool {
	return q.ending() != nil || q.comesBack() || q.reviewed() != nil
}

// endGone ends up to n transfers to targets that do not exist any more.
func (q *model) endGone(n int) {
	all := slices.Clone(q.targets)
	slices.SortFunc(all, func(a, b *target) int { return cmp.Compare(a.id, b.id) })
	for _, t := range all {
		for ; t.gone && n > 0 && t.settled < t.next-1; n-- {
			t.settled++
			q.resolveTransfer(t, t.settled, false, false)
		}
		if t.gone && t.settled == t.next-1 {
			q.targets = slices.DeleteFunc(q.targets, func(o *target) bool { return o == t })
		}
	}
}

// goOn is what a command does for targets that do not exist any more.
func (q *model) goOn(k logpb.Command_Kind) {
	switch k {
	case logpb.Command_SETTLE_DEAD:
	case logpb.Command_TICK:
		q.endGone(q.bounds.Back())
	default:
		q.endGone(q.bounds.Before)
	}
	q.dropIdle()
}

// resolveTransfer ends a transfer: the target has it, has refused it, or is gone.
func (q *model) resolveTransfer(t *target, number uint64, has, refused bool) {
	for _, x := range q.letters {
		i := slices.Index(x.numbers(), transfer{target: t.id, number: number})
		if i < 0 {
			continue
		}
		if refused {
			q.counters.DeadRefused++
			x.refused = true
		}
		if has {
			x.done = append(x.done, t.id)
			q.arrived(x, fsm.QueueID(t.id))
		}
		x.transfers = slices.Delete(x.transfers, i, i+1)
		q.endLetter(x)
		return
	}
}

// numbers are the transfers of x without what their TTLs may be.
func (x *message) numbers() []transfer {
	all := slices.Clone(x.transfers)
	for i := range all {
		all[i].ceiling = 0
	}
	return all
}
