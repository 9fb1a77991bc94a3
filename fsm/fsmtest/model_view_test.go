package fsmtest

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// What the model shows, in the machine's words.

// table lists all messages as queue.Machine.Messages does.
func (q *model) table() []queue.Message {
	var list []*message
	for p := maxPriority; p >= 0; p-- {
		for _, x := range q.messages {
			if x.place == ready && int(x.priority) == p {
				list = append(list, x)
			}
		}
	}
	list = append(append(append(list, q.returns...), q.in(scheduled)...), q.delayedOnes...)
	list = append(append(append(list, q.deferrals...), q.groupedOnes...), q.parkedOnes...)
	for _, c := range q.consumers {
		list = append(list, q.held(c)...)
	}
	for _, b := range q.coming() {
		list = append(list, q.of(b)...)
	}
	for _, d := range q.detachedOnes {
		list = append(list, q.held(d.c)...)
	}
	list = append(append(list, q.letters...), q.waitingOnes...)
	shown := make([]queue.Message, 0, len(list))
	for _, x := range list {
		y := queue.Message{
			Seq: x.seq, Ref: x.ref, Place: queue.Place(x.place), Priority: uint8(x.priority), ExpireAt: x.expireAt,
			Acquired: x.acquired, Failed: x.failed, HasExpiration: x.hasExpiry, Deaths: x.deaths,
			Delivery: x.delivery, Deadline: x.deadline, Letter: x.letter,
			DueAt: x.dueAt, ScheduleID: x.id, ScheduledFor: x.scheduledFor, Deferral: x.deferral,
		}
		y.Annotations = x.annotations()
		y.Forwarded, y.Copy, y.Group = x.forwarded, x.takenAs == logpb.Take_COPY, x.group
		y.MessageID, y.CorrelationID = x.messageID, x.correlationID
		if x.holder != nil {
			y.Holder = x.holder.id
		}
		if q.phase == live {
			y.LockedUntil = x.lockUntil
		}
		if x.place == outbox || x.place == waiting {
			y.Deaths = q.letterOf(x).Deaths // with the present one
		}
		shown = append(shown, y)
	}
	return shown
}

func (q *model) stats() queue.Stats {
	s := queue.Stats{
		Phase: queue.Phase(q.phase), Clock: q.clock, Consumers: int(q.liveConsumers()), Sessions: len(q.sessionIDs()),
		Counters: q.counters, IDs: len(q.ids), Ended: q.endedBy,
		Ready: q.total(ready, returned, grouped), Groups: q.groupStats(), Unacknowledged: q.total(checkedOut), Scheduled: q.total(scheduled), Delayed: q.total(delayed),
		Deferred: q.total(deferred), Parked: q.total(parked),
		Outbox: q.total(outbox, waiting), Waiting: q.total(waiting), Forwarding: q.underWay(), Pending: q.pending(), Locked: q.lockedOnes(),
	}
	return s
}

func (q *model) listing() []queue.Consumer {
	var list []queue.Consumer
	for _, c := range q.consumers {
		if c.id.Number == 0 {
			continue
		}
		y := queue.Consumer{
			ID: c.id, Tag: c.tag, Prefetch: c.requested, Priority: c.priority, NoAck: c.noAck, Exclusive: c.exclusive,
			Held: len(q.held(c)), TimedOut: len(c.timedOut), LateAcks: c.lateAcks, NextDelivery: c.next, Timeout: -1, OwnTimeout: c.timeout != 0,
			ConsumerLocks: q.locks(c), ConsumerCredit: queue.ConsumerCredit{CreditMode: c.link.mode, DeliveryCount: uint32(c.link.count), Credit: uint32(c.link.left)},
		}
		switch {
		case c.cancelled:
			y.Status = queue.Cancelled
		case q.suspicionOf(c.id.Session) != nil || q.isDown(c.id.Session):
			y.Status = queue.Suspected
		case len(c.timedOut) > 0:
			y.Status = queue.TimedOut
		case c == q.single && q.quiescing():
			y.Status = queue.Quiescing
		}
		y.Active = !c.cancelled && (!q.config.SingleActive || c == q.single)
		if t := q.timeoutOf(c); t != 0 {
			y.Timeout = millis(t - 1)
		}
		if held := q.held(c); len(held) > 0 {
			y.FirstDeadline, y.HeldSince = held[0].deadline, held[0].since
		}
		list = append(list, y)
	}
	return list
}

func (q *modelSessions) sessionIDs() []fsm.SessionID {
	var ids []fsm.SessionID
	for _, s := range q.sessions {
		if !q.isDown(s.id) {
			ids = append(ids, s.id)
		}
	}
	slices.SortFunc(ids, fsm.SessionID.Compare)
	return ids
}

// boots lists the lives of nodes that have sessions here.
func (q *modelSessions) boots() []queue.Boot {
	var list []queue.Boot
	for _, id := range q.sessionIDs() {
		if b := (queue.Boot{Node: id.Node, Boot: id.Boot}); id.Node != 0 && !slices.Contains(list, b) {
			list = append(list, b)
		}
	}
	return list
}

func (q *modelMessages) targetList() []queue.DeadLetterTarget {
	var list []queue.DeadLetterTarget
	for _, t := range q.targets {
		list = append(list, queue.DeadLetterTarget{ID: fsm.QueueID(t.id), Next: t.next, Confirmed: t.settled})
	}
	slices.SortFunc(list, func(a, b queue.DeadLetterTarget) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

func (q *model) unrouted() []queue.Letter {
	var list []queue.Letter
	for _, x := range q.letters {
		if !x.routed {
			list = append(list, q.letterOf(x))
		}
	}
	return list
}

func (q *model) waitingLetters() []queue.Letter {
	var list []queue.Letter
	for _, x := range q.waitingOnes {
		list = append(list, q.letterOf(x))
	}
	slices.SortFunc(list, func(a, b queue.Letter) int { return cmp.Compare(a.Number, b.Number) })
	return list
}

// transfersTo lists the transfers to a target that are not settled.
func (q *model) transfersTo(target uint64) []queue.Outgoing {
	var list []queue.Outgoing
	for _, x := range q.letters {
		for _, f := range x.transfers {
			if f.target == target {
				list = append(list, queue.Outgoing{Transfer: f.shown(), Letter: q.letterOf(x)})
			}
		}
	}
	return list
}

// letterOf shows x with its death history: the pair of this queue and the
// reason moves to the front, one more.
func (q *model) letterOf(x *message) queue.Letter {
	l := queue.Letter{Number: x.letter, DeadLetter: fsm.DeadLetter{
		Remark: x.remark, Ref: x.ref, Reason: x.reason, DiedAt: x.diedAt, Priority: uint8(x.priority), ScheduledFor: x.scheduledFor,
		HasExpiration: x.hasExpiry, Fresh: true, TTL: fsm.OptionalFrom[fsm.Millis](x.ttl), Ceiling: fsm.OptionalFrom[fsm.Millis](x.ceiling),
		TakenTo: fsm.QueueID(x.takenTo), Redriven: x.takenAs == logpb.Take_REDRIVE, Forwarded: x.forwarded, Hops: x.hops, Annotations: x.annotations(),
	}}
	for _, id := range x.done {
		l.Done = append(l.Done, fsm.QueueID(id))
	}
	for _, f := range x.transfers {
		l.Transfers = append(l.Transfers, f.shown())
	}
	if x.reason == logpb.Death_NONE {
		l.Fresh, l.Deaths = false, x.deaths // it is due, not dead
		return l
	}
	present := &logpb.Death{Reason: x.reason, Queue: machineName, Count: 1, Time: int64(x.diedAt), First: len(x.deaths) == 0}
	var rest []*logpb.Death
	for _, d := range x.deaths {
		if l.Fresh && d.Reason == x.reason && d.Queue == machineName {
			present = proto.Clone(d).(*logpb.Death)
			present.Count++
			present.LastExchange = ""
			l.Fresh = false
			continue
		}
		rest = append(rest, d)
	}
	present.Failed = x.failures
	l.Deaths = append([]*logpb.Death{present}, rest...)
	return l
}

func (f transfer) shown() queue.Transfer {
	return queue.Transfer{To: fsm.QueueID(f.target), Number: f.number, Ceiling: fsm.OptionalFrom[fsm.Millis](f.ceiling)}
}

// groupList lists all groups, by id. A queue that has ended has none.
func (q *model) groupList() (list []queue.Group) {
	if !q.isWhole() {
		return nil
	}
	var ids []string
	for _, g := range q.groups {
		ids = append(ids, g.id)
	}
	for _, x := range q.messages {
		if x.alive() && x.ending == 0 {
			ids = append(ids, x.group)
		}
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		waits := q.ofGroup(id, grouped, delayed)
		x := queue.Group{ID: id, Messages: uint64(len(waits)), CheckedOut: uint64(len(q.ofGroup(id, checkedOut)))}
		if len(waits) > 0 {
			x.Oldest, x.OldestAt = waits[0].seq, max(waits[0].came, waits[0].scheduledFor)
		}
		if g := q.group(id); g != nil {
			x.StateBytes, x.StateSet, x.StateUntil = len(g.state), g.stateSet, g.stateUntil
			if g.holder != nil && !g.leaves {
				x.Held, x.Holder, x.Tag, x.LockedUntil = true, g.holder.id, g.holder.tag, g.until
			}
		}
		list = append(list, x)
	}
	return list
}

func (q *model) groupStats() queue.GroupStats {
	s := queue.GroupStats{StateBytes: q.stateSize().Bytes}
	for _, g := range q.groupList() {
		s.Groups++
		if g.Held {
			s.Held++
		}
	}
	return s
}
