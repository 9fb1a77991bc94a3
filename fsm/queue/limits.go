package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// kept is what counts in the limits and is never dropped to satisfy them:
// scheduled and deferred messages, states of groups, and letters that are delivered
// at least once. O(1), as all sums here are: counts are kept by place.
func (it *intake) kept() Count {
	return it.messages.count(Scheduled).plus(it.messages.count(Deferred)).plus(it.outbox.counted()).plus(Count{Bytes: it.groups.stateBytes()})
}

// counted is everything that counts in the limits. Checked-out and purged
// messages do not count.
func (it *intake) counted() Count {
	return it.kept().plus(it.messages.count(Ready)).plus(it.messages.count(Returned)).plus(it.messages.count(Grouped)).plus(it.messages.count(Delayed)).plus(it.messages.count(Parked))
}

// left is how many messages are in the queue, letters among them. Before version 3
// purged ones that are not released yet count, too.
func (it *intake) left() uint64 {
	n := uint64(it.messages.live())
	if it.since(3) {
		n -= it.messages.count(Purged).Messages
	}
	return n
}

// full reports whether there is no space for one more message, which replaces
// scheduled message old if that is not 0. A queue that drops is full if the
// message would fit were it not for what cannot be dropped. A message that does
// not fit by itself never makes a queue that drops full: it is taken in and
// dropped by trim.
func (it *intake) full(cmd *logpb.Enqueue, old uint32) bool {
	if !it.settings.limited() {
		return false
	}
	size := Count{1, uint64(cmd.Size - cmd.Head)}
	kept, all := it.kept(), it.counted()
	if old != 0 {
		less := it.messages.get(old).count()
		kept.sub(less)
		all.sub(less)
	}
	if it.settings.Overflow != logpb.QueueConfig_DROP_HEAD {
		return !it.settings.fits(all.plus(size))
	}
	return kept != (Count{}) && it.settings.fits(size) && !it.settings.fits(kept.plus(size))
}

// refuse answers a message that is refused because the queue is full.
//
// A transfer that its source keeps has not been published, and goes nowhere: the source
// offers it again. Versions before 3 dead-letter it each time.
//
// Requires: the message has no record. With reject-publish-dlx it is dead-lettered
// as an effect, by its position in the entry; the entry is released with it, but
// payloads of DeadLetters are read before.
func (it *intake) refuse(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	if it.settings.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX && it.settings.DeadLetter && !(cmd.Kept && it.since(3)) {
		it.counters.Deaths[logpb.Death_MAXLEN-1][SentOnce]++
		it.ends.refused(meta, cmd, it.outbox.nextLetter())
		deaths := it.outbox.addDeath(copyDeaths(cmd.Deaths), logpb.Death_MAXLEN)
		eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{
			Ref:    fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size},
			Reason: logpb.Death_MAXLEN, DiedAt: it.clock.now(), Priority: it.settings.priority(cmd.PriorityPlusOne),
			ScheduledFor: fsm.Time(cmd.ScheduledFor), HasExpiration: cmd.HasExpiration, Fresh: deaths[0].Count == 1, Deaths: deaths,
		})
	}
	return it.reject(eff)
}

// reject answers a message that is refused. The session records the answer, so
// that a repetition is refused, too.
func (it *intake) reject(eff *fsm.Effects) fsm.Code {
	it.counters.Refused++
	it.entries.refuse(eff)
	return fsm.Rejected
}

// tooLong reports whether the queue has something to drop.
func (it *intake) tooLong() bool {
	return it.settings.dropsHead() &&
		it.messages.readyCount()+it.messages.count(Delayed).Messages+it.messages.count(Parked).Messages > 0 && !it.settings.fits(it.counted())
}

// trim drops parked messages while the queue is too long, those that were parked
// first, since nobody is going to be handed them; then what would be handed out next,
// and when nothing is ready, the longest delayed message. Due messages that are in
// the way expire first. If there is more to do than one command may, the next
// Tick continues.
//
// It runs after assignment: what a consumer takes at once needs no space. Ensures:
// the queue is within its limits, or tooLong makes NextDue be at once.
func (it *intake) trim(eff *fsm.Effects) {
	for n := it.bounds.Drops; n > 0 && it.tooLong(); n-- {
		h, ok := choice{it.deliveries}.oldest(eff)
		switch {
		case !ok:
			return
		case !it.tooLong():
		case it.messages.head(parkedList) != 0:
			it.deliveries.endWaiting(it.messages.head(parkedList), logpb.Death_MAXLEN, eff)
		case h == 0:
			it.deliveries.endWaiting(it.messages.head(delayedList), logpb.Death_MAXLEN, eff)
		default:
			it.messages.remove(h)
			it.outbox.die(h, logpb.Death_MAXLEN, eff)
		}
	}
}
