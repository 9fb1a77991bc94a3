package queue

import (
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
			for h := s.messages.lists[no].head; h != 0; h = s.messages.records.at(int(h)).next {
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
		for _, g := range s.held[i].all() {
			handles = append(handles, g.handle)
		}
	}
	slices.SortFunc(handles, func(a, b uint32) int {
		return compare(s.messages.records.at(int(a)).seq, s.messages.records.at(int(b)).seq)
	})
	return handles
}

// NextOf is the number of the next message that a source brings to m; 1: it has
// brought none.
func NextOf(m *Machine, source fsm.QueueID) uint64 {
	if s := m.sessions.get(fsm.SessionID{Boot: uint64(source)}); s != nil {
		return s.next
	}
	return 1
}
