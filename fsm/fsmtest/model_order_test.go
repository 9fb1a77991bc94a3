package fsmtest

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// firstToExpire is what a queue hands out next that goes by deadlines: those
// that never expire come last.
func (q *model) firstToExpire(least uint64) *message {
	var best *message
	for _, x := range q.messages {
		switch {
		case !x.waits() || x.place == grouped || !q.mayHave(x, least):
		case best == nil, x.expireAt != 0 && (best.expireAt == 0 || x.expireAt < best.expireAt):
			best = x
		}
	}
	return best
}

// mayHave reports whether x has so much left of its TTL.
func (q *model) mayHave(x *message, least uint64) bool {
	return least == 0 || x.expireAt == 0 || x.expireAt >= q.clock.Add(millis(least))
}

// leastServed is what the least demanding consumer that waits for messages asks
// for.
func (q *model) leastServed() uint64 {
	least := q.service[0].minTTL
	for _, c := range q.service {
		least = min(least, c.minTTL)
	}
	return least
}

// firstServed is who of the consumers that wait for messages gets x.
func (q *model) firstServed(x *message) (first *consumer) {
	for _, c := range q.service {
		if q.mayHave(x, c.minTTL) && (first == nil || c.priority == first.priority && q.load(c) < q.load(first)) {
			first = c
		}
	}
	return first
}

// load is how much c holds, if those who hold less are served first.
func (q *model) load(c *consumer) int {
	if q.config.GetDispatch() != logpb.QueueConfig_LEAST_LOADED {
		return 0
	}
	return len(q.held(c))
}

// wouldHandOut reports whether a message is ready for somebody with credit, or to be
// forwarded.
func (q *model) wouldHandOut() bool {
	return q.config.Forward && q.nextReady(0) != nil || q.servesAny()
}

// asksTooMuch reports whether others than c, which may be nil, ask for as many
// different TTLs as they may, and c would be the first that asks for this one.
func (q *model) asksTooMuch(c *consumer, least uint64) bool {
	asked := map[uint64]bool{}
	for _, o := range q.consumers {
		if o.cancelled || o.id.Number == 0 || o.minTTL == 0 {
			continue
		}
		if o.minTTL == least {
			return false
		}
		if o != c {
			asked[o.minTTL] = true
		}
	}
	return least != 0 && len(asked) >= maxMinTTLs
}

// seenID is an id that a message had which was taken in.
type seenID struct {
	id  string
	at  fsm.Time
	out bool // it was outside of a window that was shorter
}

// isDuplicate reports whether a message with the same id was taken in within
// the window.
func (q *model) isDuplicate(e *logpb.Enqueue) bool {
	if q.replacedBy(e) != nil {
		return false
	}
	return q.hasID(e) && slices.ContainsFunc(q.ids, func(x seenID) bool { return x.id == e.MessageId && q.within(x) })
}

// replacedBy returns the scheduled message that e replaces; nil: none.
func (q *model) replacedBy(e *logpb.Enqueue) *message {
	if e.ScheduleId == "" || e.Conflict != logpb.Enqueue_REPLACE {
		return nil
	}
	return q.notYetDue(e.ScheduleId, 0)
}

// first returns the message that is there and has the key of e; nil: there is none. One that has expired is
// not, unless somebody holds it or its group; nor is one that dies with its group.
func (q *model) first(e *logpb.Enqueue) *message {
	if !q.config.Unique || q.version < 3 || len(e.UniqueKey) != 16 {
		return nil
	}
	for _, x := range q.messages {
		switch {
		case x.key != string(e.UniqueKey) || x.place == purged || (x.place == grouped || x.place == delayed) && x.ending != 0:
		case x.place == checkedOut, x.place == scheduled, x.place == grouped && q.protected(x), !x.expired(q.clock):
			return x
		}
	}
	return nil
}

// keyOf is the key of a new message. Those that had it and have expired lose it.
func (q *model) keyOf(e *logpb.Enqueue) string {
	if !q.config.Unique || q.version < 3 || len(e.UniqueKey) != 16 {
		return ""
	}
	for _, x := range q.messages {
		if x.key == string(e.UniqueKey) {
			x.key = ""
		}
	}
	return string(e.UniqueKey)
}

func (q *model) hasID(e *logpb.Enqueue) bool {
	return q.config.DedupWindow != 0 && e.MessageId != "" && len(e.Deaths) == 0
}

func (q *model) within(x seenID) bool {
	return !x.out && x.at.Add(millis(q.config.DedupWindow)) > q.clock
}

// widenWindow is called before the window becomes so long.
func (q *model) widenWindow(window uint64) {
	if window == 0 {
		q.ids = nil
	}
	for i, x := range q.ids {
		q.ids[i].out = x.out || window > q.config.DedupWindow && !q.within(x)
	}
}

// noteID remembers the id of a message that was taken in.
func (q *model) noteID(e *logpb.Enqueue) {
	if !q.hasID(e) {
		return
	}
	before := len(q.ids)
	q.ids = slices.DeleteFunc(q.ids, func(x seenID) bool { return x.id == e.MessageId })
	if len(q.ids) == before && before == q.bounds.IDs {
		if q.within(q.ids[0]) {
			q.counters.IDsForgotten++
		}
		q.ids = q.ids[1:]
	}
	q.ids = append(q.ids, seenID{id: e.MessageId, at: q.clock})
}

// forgetIDs forgets what is older than the window, some of it at a time.
func (q *model) forgetIDs(k logpb.Command_Kind) {
	n := q.bounds.Before
	if k == logpb.Command_TICK || k == logpb.Command_PURGE {
		n = q.bounds.Sweep
	}
	for ; n > 0 && len(q.ids) > 0 && q.phase == live && !q.within(q.ids[0]); n-- {
		q.ids = q.ids[1:]
	}
}

// toGive is withoutDue for what is handed out: a message does not go with a free group
// while anything is due that might end the group.
func (q *model) toGive(next func() *message) *message {
	x, _ := q.inOrder(next, func(x *message) bool {
		if x.group == "" || !q.config.GroupExpiry || q.holderOfGroup(x) != nil {
			return true
		}
		y := q.nextScheduled()
		return q.nextExpiring() == nil && (y == nil || y.dueAt > q.clock)
	})
	return x
}
