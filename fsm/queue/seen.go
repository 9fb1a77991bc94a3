package queue

import (
	"crypto/sha256"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// maxSeen bounds the ids that a queue remembers. Beyond it the oldest is
	// forgotten early.
	maxSeen = 1 << 20

	// forgetLate is how long an id may be remembered beyond the window, so that
	// one tick forgets many. It has no effect on what is a duplicate.
	forgetLate fsm.Millis = 1000
)

// messageID is the start of the SHA-256 of what a publisher calls a message: ids
// of any length cost the same, and nobody can make two that meet.
type messageID [16]byte

// seen are the ids of the messages that have been taken in within the window
// against duplicates.
//
// Invariants:
//
//	order has, for each id of ids, that id at its key; and nothing else
//	the keys of order are (when the message was taken in, count), and ascend
//	all of it is empty if the settings have no window
//	since is at most 1 after the clock, and never falls while there is a window
//
// An id is remembered whatever becomes of its message, and forgotten by time alone
// (forget), or if there are too many. ids is never iterated, so the order of a map
// cannot reach the state. A snapshot has order, without the counts.
type seen struct {
	*shared

	ids   map[messageID]key
	order sorted[messageID]
	count uint64 // of ids so far; keys with equal instants differ by it
	// since is when the first message was taken in that can have a duplicate: those
	// before it were outside of a window that was shorter.
	since fsm.Time
}

// clear forgets everything.
func (s *seen) clear() { *s = seen{shared: s.shared} }

// configured is called when the settings have changed, with the window before. An
// id that was outside of it remains so, forgotten or not.
func (s *seen) configured(before fsm.Millis) {
	switch {
	case s.settings.dedup == 0:
		s.clear()
	case before != 0 && before < s.settings.dedup:
		s.since = max(s.since, s.clock.now()-fsm.Time(before)+1)
	}
}

// within reports whether a message that was taken in at an instant may have a
// duplicate: it has been within the window ever since.
func (s *seen) within(at fsm.Time) bool {
	return at >= s.since && at.Add(s.settings.dedup) > s.clock.now()
}

// asks reports whether a message may be a duplicate: it has an id, and has not
// died before. What comes back as a dead letter is the same message, and no
// second one.
func (s *seen) asks(cmd *logpb.Enqueue) bool {
	return s.settings.dedup != 0 && cmd.MessageId != "" && len(cmd.Deaths) == 0
}

// has reports whether a message with the same id was taken in within the window.
// Requires: asks.
func (s *seen) has(cmd *logpb.Enqueue) bool {
	k, ok := s.ids[hashOf(cmd.MessageId)]
	return ok && s.within(k.At)
}

// note remembers the id of a message that has been taken in. Requires: asks.
func (s *seen) note(cmd *logpb.Enqueue) { s.add(hashOf(cmd.MessageId), s.clock.now()) }

// add remembers an id since an instant, which is not before that of any other.
func (s *seen) add(id messageID, at fsm.Time) {
	if k, ok := s.ids[id]; ok {
		s.order.Remove(k)
	} else if s.order.Len() >= max(s.bounds.IDs, 1) {
		if first, _ := s.order.First(); s.within(first.At) {
			s.counters.IDsForgotten++
		}
		s.forgetFirst()
	}
	if s.ids == nil {
		s.ids = map[messageID]key{}
	}
	s.count++
	k := key{At: at, Seq: s.count}
	s.ids[id] = k
	s.order.Put(k, id)
}

func hashOf(id string) messageID {
	sum := sha256.Sum256([]byte(id))
	return messageID(sum[:16])
}

// forgetFirst forgets the oldest id.
func (s *seen) forgetFirst() {
	k, id := s.order.First()
	delete(s.ids, *id)
	s.order.Remove(k)
}

// forget forgets up to n ids that are older than the window.
func (s *seen) forget(n int) {
	for ; n > 0 && s.order.Len() > 0; n-- {
		if k, _ := s.order.First(); s.within(k.At) {
			break
		}
		s.forgetFirst()
	}
}

// due is when a tick should forget ids; 0: there are none.
func (s *seen) due() fsm.Time {
	if s.order.Len() == 0 {
		return 0
	}
	k, _ := s.order.First()
	if k.At < s.since {
		return s.clock.atOnce() // this window says nothing of it
	}
	return max(k.At.Add(s.settings.dedup).Add(forgetLate), 1)
}

// len is how many ids are remembered.
func (s *seen) len() int { return s.order.Len() }

// capture returns the ids; unless keep, they are valid until the next change.
func (s *seen) capture(keep bool) sorted[messageID] { return s.order.Capture(keep) }

// saveSeen writes ids to a snapshot's head: the ids, one after the other, and the
// time of each since the one before.
func saveSeen(order *sorted[messageID], h *logpb.QueueSnapshot) {
	last := fsm.Time(0)
	h.SeenIds = make([]byte, 0, order.Len()*len(messageID{}))
	h.SeenAfter = make([]uint64, 0, order.Len())
	for k, id := range order.All() {
		h.SeenIds = append(h.SeenIds, id[:]...)
		h.SeenAfter = append(h.SeenAfter, uint64(k.At-last))
		last = k.At
	}
}

// save writes what a snapshot's head has besides the ids.
func (s *seen) save(h *logpb.QueueSnapshot) { h.SeenSince = int64(s.since) }

// restore is the inverse of save and saveSeen. Requires: the settings are restored.
func (s *seen) restore(h *logpb.QueueSnapshot) error {
	at, rest := fsm.Time(0), h.SeenIds
	s.since = fsm.Time(h.SeenSince)
	for _, after := range h.SeenAfter {
		if len(rest) < len(messageID{}) || after > uint64(fsm.MaxTime-at) {
			return fmt.Errorf("%w: an id is missing", ErrSnapshot)
		}
		at += fsm.Time(after)
		id := messageID(rest)
		if _, twice := s.ids[id]; twice {
			return fmt.Errorf("%w: an id twice", ErrSnapshot)
		}
		rest = rest[len(messageID{}):]
		if s.ids == nil {
			s.ids = map[messageID]key{}
		}
		s.count++
		s.ids[id] = key{At: at, Seq: s.count}
		s.order.Put(key{At: at, Seq: s.count}, id)
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: an id has no time", ErrSnapshot)
	}
	return nil
}

// check compares both tables.
func (s *seen) check(k *checker) {
	k.that(len(s.ids) == s.order.Len(), "%d ids in one table, %d in the other", len(s.ids), s.order.Len())
	k.that(s.order.Len() == 0 && s.since == 0 || s.settings.dedup != 0, "ids without a window")
	k.that(0 <= s.since && s.since <= s.clock.now().Add(1), "ids count since %v", s.since)
	for at, id := range s.order.All() {
		if s.ids[*id] != at || at.Seq > s.count || at.At > s.clock.now() {
			k.fail("an id is remembered at %v, found at %v", at, s.ids[*id])
			return
		}
	}
}
