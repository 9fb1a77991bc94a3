package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// kept is what counts in the limits and is never dropped to stay within them:
// scheduled messages, and letters that are delivered at least once.
func (m *Machine) kept() Count { return m.messages.count(Scheduled).plus(m.outbox.counted()) }

// counted is all that counts in the limits.
func (m *Machine) counted() Count {
	return m.kept().plus(m.messages.count(Ready)).plus(m.messages.count(Returned)).plus(m.messages.count(Delayed))
}

// full reports whether there is no place for one more message, which takes
// that of scheduled message old if that is not 0. A queue that drops is full
// if the message would have a place were it not for what cannot be dropped.
func (m *Machine) full(cmd *logpb.Enqueue, old uint32) bool {
	if !m.settings.limited() {
		return false
	}
	size := Count{1, uint64(cmd.Size - cmd.Head)}
	kept, all := m.kept(), m.counted()
	if old != 0 {
		less := m.messages.get(old).count()
		kept.sub(less)
		all.sub(less)
	}
	if m.settings.Overflow != logpb.QueueConfig_DROP_HEAD {
		return !m.settings.fits(all.plus(size))
	}
	return kept.Messages > 0 && m.settings.fits(size) && !m.settings.fits(kept.plus(size))
}

// refuse answers a message that is not taken in because the queue is full.
func (m *Machine) refuse(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Result {
	if m.settings.Overflow == logpb.QueueConfig_REJECT_PUBLISH_DLX && m.settings.DeadLetter {
		m.counters.Deaths[logpb.Death_MAXLEN-1][SentOnce]++
		deaths := m.outbox.addDeath(copyDeaths(cmd.Deaths), logpb.Death_MAXLEN)
		eff.DeadLetters = append(eff.DeadLetters, fsm.DeadLetter{
			Ref:    fsm.Ref{Index: meta.Index, Offset: meta.Offset, Size: cmd.Size},
			Reason: logpb.Death_MAXLEN, DiedAt: m.clock.now(), Priority: m.settings.priority(cmd.PriorityPlusOne),
			ScheduledFor: fsm.Time(cmd.ScheduledFor), HasExpiration: cmd.HasExpiration, Fresh: deaths[0].Count == 1, Deaths: deaths,
		})
	}
	return m.reject(eff)
}

// reject answers a message that is not taken in.
func (m *Machine) reject(eff *fsm.Effects) fsm.Result {
	m.counters.Refused++
	m.entries.refuse(eff)
	return fsm.Result{Code: fsm.Rejected}
}

// tooLong reports whether the queue has something to drop.
func (m *Machine) tooLong() bool {
	return m.settings.dropsHead() &&
		m.messages.readyCount()+m.messages.count(Delayed).Messages > 0 && !m.settings.fits(m.counted())
}

// trim drops what would be handed out next while the queue is too long, and
// when nothing is ready what has been delayed for longest. What is due in its
// way expires first. If there is more to do than one command
// may, the next Tick goes on.
func (m *Machine) trim(eff *fsm.Effects) {
	for n := m.bounds.Drops; n > 0 && m.tooLong(); n-- {
		h := m.first(eff)
		switch {
		case h == 0 && m.messages.readyCount() > 0:
			return
		case !m.tooLong():
		case h == 0:
			h = m.messages.head(delayedList)
			m.messages.undelay(h)
			m.outbox.die(h, logpb.Death_MAXLEN, eff)
		default:
			m.messages.remove(h)
			m.outbox.die(h, logpb.Death_MAXLEN, eff)
		}
	}
}
