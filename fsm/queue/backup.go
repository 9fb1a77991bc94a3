package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Source is a queue that brings its letters here, and the number of the next one.
type Source struct {
	ID   fsm.QueueID
	Next uint64
}

// Sources lists the queues that have brought letters, by id.
func (s *Snapshot) Sources() (list []Source) {
	for i := range s.sessions {
		if x := &s.sessions[i]; x.id.Node == 0 {
			list = append(list, Source{fsm.QueueID(x.id.Boot), x.next})
		}
	}
	return list
}

// Position is the entry that the snapshot was taken at, and the clock then.
func (s *Snapshot) Position() (index, term uint64, clock fsm.Time) {
	return s.head.Index, s.head.Term, fsm.Time(s.head.Clock)
}

// Backup iterates over all messages but the purged ones, in the order in which
// another machine is to take them back: what is held, oldest first, as if its
// holders had been lost; then what was returned, what is ready, and the rest. A
// record is good until the next one, and shares its deaths with the snapshot.
func (s *Snapshot) Backup() iter.Seq[*logpb.MessageState] {
	return func(yield func(*logpb.MessageState) bool) {
		var st logpb.MessageState
		for _, h := range s.heldHandles() {
			if !yield(s.messages.fill(&st, h)) {
				return
			}
		}
		lists := []int{returnedList}
		for no := maxPriority; no >= 0; no-- {
			lists = append(lists, no)
		}
		for _, no := range append(lists, groupedList, scheduledList, delayedList, deferredList, parkedList, outboxList, waitingList) {
			for h := s.messages.lists[no].head; h != 0; h = s.messages.records.At(int(h)).next {
				if !yield(s.messages.fill(&st, h)) {
					return
				}
			}
		}
	}
}

// heldHandles lists the messages that are checked out, oldest first.
func (s *Snapshot) heldHandles() []uint32 {
	var handles []uint32
	for i := range s.held {
		for _, g := range s.held[i].All() {
			handles = append(handles, g.handle)
		}
	}
	slices.SortFunc(handles, func(a, b uint32) int {
		return cmp.Compare(s.messages.records.At(int(a)).seq, s.messages.records.At(int(b)).seq)
	})
	return handles
}

// NextOf is the number of the next message that a source brings to m; 1: it has
// brought none.
func NextOf(m *Machine, source fsm.QueueID) uint64 {
	return max(PositionOf(m, fsm.SessionID{Boot: uint64(source)}).Next, 1)
}

// takeRestored takes in a message that a backup brings back, with the expiry and the
// counts it had. It is no publish: no limit refuses it, it is no duplicate of
// another message, and no delay of the queue applies to it.
//
// Which way a message goes:
//
//	it was a letter        dies again, for the same reason
//	it was scheduled       Scheduled, or a message of a delayed exchange departs
//	it has expired         dies
//	it failed too often    Parked, if the queue parks
//	it was handed out      Returned, behind what is there
//	of a group             Grouped
//	any other              Ready
//
// Requires: cmd.Size and cmd.Head were validated. Ensures: OK unless the answer is
// Invalid, and then nothing has changed.
func (m *Machine) takeRestored(meta *fsm.Meta, cmd *logpb.Enqueue, eff *fsm.Effects) fsm.Code {
	r := cmd.Restored
	if r.ExpireAt < 0 || r.Failed > r.Acquired || r.Reason < 0 || int(r.Reason) > len(m.counters.Deaths) {
		return fsm.Invalid
	}
	m.lease.touch()
	if r.Reason == logpb.Death_NONE && (r.Scheduled || m.settings.DelayedStore) {
		due, id := fsm.Time(max(cmd.DueAt, 1)), cmd.ScheduleId
		if id != "" && m.messages.findScheduled(id, 0) != 0 {
			id = "" // it stays with the message that has it by now
		}
		m.storeScheduled(meta, cmd, due, id, eff) // catchUp promotes it if it is due
		return fsm.OK
	}
	h := m.store(meta, cmd, 0, eff)
	x := m.messages.Mut(h)
	x.expireAt, x.acquired, x.failed = fsm.Time(r.ExpireAt), r.Acquired, r.Failed
	m.counters.Enqueued++
	switch {
	case r.Reason != logpb.Death_NONE:
		m.outbox.die(h, r.Reason, eff)
		return fsm.OK
	case x.due(m.clock.now()):
		m.outbox.die(h, logpb.Death_EXPIRED, eff)
		return fsm.OK
	}
	if m.outbox.parks() && m.settings.exceeds(x) {
		m.messages.park(h)
		return fsm.OK
	}
	if place := m.placeOf(h); place == Ready && r.Acquired > 0 {
		m.messages.returnLast(h)
	} else {
		m.messages.put(h, place)
	}
	m.messages.watch(h)
	return fsm.OK
}
