package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// hasWill reports whether what is left of the queue when it ends is dead-lettered. Settings do not
// change after that.
//
// Such a queue drains with all its messages in their places. What consumers held is on its way
// back, as if their sessions had ended, and what they have settled is settled first. Then one
// message after the other becomes a letter, and the queue is Gone with the last letter. It has
// drainTimeout after the last letter that went, and after the beginning of each term: only
// what nobody takes is dropped.
func (s *shared) hasWill() bool {
	return s.since(3) && s.settings.DeadLetterOnDelete && s.settings.DeadLetter
}

// isWhole reports whether the queue has all that belongs to its messages: groups, locks, timers. One that has
// ended has, as long as something is left to its last will.
func (l *lease) isWhole() bool { return l.life == Active || l.life == Draining && l.hasWill() }

// unwilled is how many messages of a queue that has ended are to be dead-lettered still.
func (o *outbox) unwilled() uint64 {
	if !o.hasWill() {
		return 0
	}
	return o.left() - o.letters()
}

// takesWill reports whether there is something to be dead-lettered, and space for its letter: what is under
// way takes more memory than what is not. A queue that keeps no letters sends them once.
func (o *outbox) takesWill() bool {
	return o.unwilled() > 0 && o.messages.count(Outbox).Messages < uint64(o.bounds.Tick) && (!o.full() || o.settings.maxLetters.Value == 0)
}

// carryOut makes letters of what is left, as many as a command of this kind may: what was handed out
// before, then what would be handed out next, then what waits for something.
func (m *Machine) carryOut(kind logpb.Command_Kind, eff *fsm.Effects) {
	m.scratch.begin(kind, &m.bounds)
	m.bringBack(kind, eff)
	n := m.bounds.Before
	if kind == logpb.Command_TICK {
		n = min(m.scratch.budget, m.bounds.Back())
	}
	for ; n > 0 && !m.unfinished() && m.outbox.takesWill(); n-- {
		m.outbox.die(m.takeUnwilled(), logpb.Death_QUEUE_DELETED, eff)
	}
	m.groups.settle()
	m.scratch.end()
}

// takeUnwilled takes the next message that is to be dead-lettered out of its place. Requires: there is one, and
// nothing is on its way back.
func (m *Machine) takeUnwilled() uint32 {
	h := m.oldestReady()
	for _, no := range [...]int{groupedList, delayedList, deferredList, parkedList} {
		if h == 0 {
			h = m.messages.head(no)
		}
	}
	if h != 0 {
		m.aside.takeWaiting(h)
		return h
	}
	h = m.messages.head(scheduledList)
	due := m.messages.scheduleInfo(h).scheduledFor
	m.messages.remove(h)
	m.counters.Unscheduled++
	m.messages.setScheduleInfo(h, scheduleInfo{scheduledFor: due})
	m.messages.Mut(h).expireAt = 0
	return h
}
