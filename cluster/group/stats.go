package group

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Stats are the numbers of one queue: all that lists, overviews and scrapes read of its machine. They
// are small if the queue does nothing: what few queues have hangs on pointers.
//
// What hangs on a value may be shared, and must not be changed.
//
//	NextExpiry, LeaseEnd and NextScheduled are 0 or not before NextDeadline
//	LastScheduled ≥ NextScheduled
//	Priorities is nil or adds up to Ready.Messages
type Stats struct {
	Applied  uint64 // index of the last entry that the machine has seen
	Revision uint64 // of the effective settings that it has taken up

	Clock      fsm.Time // the latest stamp that it has seen
	LastActive fsm.Time // when something was last done with the queue
	LastNumber uint64   // of the latest message that has come; 0: none has
	// Instants of what comes next; 0: nothing does.
	NextDeadline  fsm.Time // of anything
	NextExpiry    fsm.Time // of a message
	LeaseEnd      fsm.Time // of the queue, unless it is used before
	NextScheduled fsm.Time // the first scheduled message becomes ready
	LastScheduled fsm.Time // the last one does

	Ready, Unacknowledged queue.Count
	Returned              uint64 // of the ready messages: those that consumers had
	Consumers             int

	Phase       queue.Phase
	InUse       bool // it has a consumer, or a get that is not settled
	Listed      bool // it may have consumers to list, such as are cancelled included
	DeadLetters bool // messages that expire become dead letters

	Priority   uint8               // of the ready messages, if all have the same
	Priorities []uint64            // how many are ready of each priority, from 0; nil: all have the same
	Use        *Use                // by consumers; nil: there is none
	Ages       *Ages               // of the messages; nil: none is ready, unacknowledged or scheduled
	Pause      *queue.Pause        // of its consumers; nil: there is none
	Redrive    *logpb.RedriveState // the last one; nil: there was none
	Rest       *queue.Stats        // all of the machine's; nil: those that have no field here are 0, see All
}

// Use is how consumers use a queue.
type Use struct {
	TimedOut     int            // consumers that have not settled what was taken back from them
	ByCredit     int            // consumers that take by credit
	SingleActive string         // tag of the single active consumer; empty: there is none
	Capacity     queue.Capacity // of the consumers
}

// Ages say since when messages are in a queue.
type Ages struct {
	queue.Oldest
	Tallies []queue.Tally // by the value of a header
}

// Stats reads the numbers of the queue, between two entries. They are zero if the machine cannot be read:
// then the group is quarantined. Those of a group that sleeps are in its record.
func (g *Group) Stats() (s Stats) {
	if r := g.asleep.Load(); r != nil && !r.failed {
		return r.stats
	}
	g.View(func(m *queue.Machine) { s = StatsOf(m) })
	return s
}

// StatsOf reads a machine. O(consumers + returned/128).
func StatsOf(m *queue.Machine) Stats {
	all, config, next := m.Stats(), m.Config(), m.Outlook()
	s := Stats{
		Applied: m.Index(), Revision: config.GetRevision(), Clock: all.Clock,
		NextDeadline: m.NextDeadline(), NextExpiry: next.NextExpiry, LeaseEnd: next.LeaseEnd,
		Ready: all.Ready, Unacknowledged: all.Unacknowledged, Returned: next.Returned, Consumers: all.Consumers,
		Phase: all.Phase, DeadLetters: config.GetDeadLetter(), Pause: next.Pause, Redrive: next.Redrive,
	}
	s.LastActive, s.InUse = m.Activity()
	s.LastNumber = queue.NextSeq(m) - 1
	s.NextScheduled, s.LastScheduled = m.ScheduledSpan()
	if by := queue.ReadyByPriority(m); len(by) > 0 && by[len(by)-1] == s.Ready.Messages {
		s.Priority = uint8(len(by) - 1)
	} else {
		s.Priorities = by
	}
	if s.Listed = next.Consumers > 0; s.Listed {
		u := Use{SingleActive: next.SingleActive}
		u.TimedOut, u.ByCredit = m.ConsumersNow()
		if all.Consumers > 0 || u != (Use{}) {
			u.Capacity = queue.CapacityOf(m)
			s.Use = &u
		}
	}
	if all.Ready.Messages+all.Unacknowledged.Messages+all.Scheduled.Messages > 0 {
		times := queue.TimesOf(m)
		s.Ages = &Ages{times.Oldest(), times.Tallies()}
	}
	if hasRest(all) {
		rest := all // on the heap only if it is kept
		s.Rest = &rest
	}
	return s
}

// hasRest reports whether a queue has a number that no field of Stats has, and that is not one of those that
// every queue gets by being used and no list shows.
func hasRest(s queue.Stats) bool {
	s.Phase, s.Clock, s.Ready, s.Unacknowledged, s.Consumers, s.Sessions = 0, 0, queue.Count{}, queue.Count{}, 0, 0
	c := &s.Counters
	c.Enqueued, c.Delivered, c.Redelivered, c.Acked, c.Requeued, c.Duplicates = 0, 0, 0, 0, 0, 0
	return s != queue.Stats{}
}

// All are the numbers as the machine has them, without the sessions and the counters of what is enqueued,
// delivered, acked, requeued and repeated if Rest is nil.
func (s *Stats) All() queue.Stats {
	if s.Rest != nil {
		return *s.Rest
	}
	return queue.Stats{Phase: s.Phase, Clock: s.Clock, Ready: s.Ready, Unacknowledged: s.Unacknowledged, Consumers: s.Consumers}
}

// ReadyByPriority is how many messages are ready of each priority, from 0 to the highest that has any.
func (s *Stats) ReadyByPriority() []uint64 {
	if s.Priorities != nil || s.Ready.Messages == 0 {
		return s.Priorities
	}
	by := make([]uint64, s.Priority+1)
	by[s.Priority] = s.Ready.Messages
	return by
}

// Oldest is since when the oldest messages are in the queue.
func (s *Stats) Oldest() (o queue.Oldest) {
	if s.Ages != nil {
		o = s.Ages.Oldest
	}
	return o
}

// Age is how long ago an instant of Oldest was at a time of day; 0: there is no such message.
func (s *Stats) Age(since, now fsm.Time) fsm.Millis {
	if since == 0 {
		return 0
	}
	return max(fsm.Millis(max(now, s.Clock)-since), 0)
}

// Capacity is the share of time in which the queue could hand messages to its consumers at once, of late; 0
// without consumers.
func (s *Stats) Capacity(now fsm.Time) float64 {
	if s.Use == nil {
		return 0
	}
	return s.Use.Capacity.Share(now)
}
