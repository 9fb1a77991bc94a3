package queue

import "cmp"

// A queue with a single active consumer serves one consumer; the others wait.
// Who it is changes only here, and is decided before messages are assigned:
//
//   - Nobody, or one that was cancelled or whose session has ended: the first
//     of those that wait takes over at once.
//   - One that has timed out keeps its place while it holds something, and
//     nobody gets anything new, which keeps the order of messages. Then it
//     waits, and takes no turn until it has settled what was taken from it.
//   - One that is outranked gets nothing new, and swaps when it holds nothing.

// outranks reports whether c comes before o among those that wait. It is a
// strict total order: registered is unique.
func (c *consumer) outranks(o *consumer) bool {
	return cmp.Or(cmp.Compare(o.priority, c.priority), cmp.Compare(c.registered, o.registered)) < 0
}

// served reports whether c may get messages when it has credit. It does not ask
// for credit. Gets and cancelled consumers have no level.
func (cs *consumers) served(c *consumer) bool {
	return c.level != nil && c.status() == Up && (!cs.settings.SingleActive || c == cs.single && !cs.quiescing)
}

// singleTag is the tag of the single active consumer; empty: there is none.
func (cs *consumers) singleTag() string {
	if cs.single == nil || !cs.settings.SingleActive {
		return ""
	}
	return cs.single.tag
}

// elect decides who is the single active consumer. It costs nothing unless
// somebody has come, gone, timed out or come back since the last time, or the
// active consumer is to make way and holds nothing any more.
//
// It runs once per command, after everything that could change the outcome and
// before assignment. Ensures: single, quiescing = choose(), if the settings ask
// for one. O(consumers) if it has to choose, else O(1).
func (cs *consumers) elect() {
	if !cs.settings.SingleActive || !cs.contested && !(cs.quiescing && cs.single.held.len() == 0) {
		return
	}
	cs.contested = false
	before := cs.single
	cs.single, cs.quiescing = cs.choose()
	for _, c := range [2]*consumer{before, cs.single} {
		if c != nil {
			cs.refresh(c)
		}
	}
}

// choose returns who is to be the single active consumer; nil: nobody can be.
// quiescing: it is to make way for another one.
//
// It is a function of the consumers and of the present single one, and changes
// nothing; so Check can call it, and Restore gets the same result. Among equals
// the present one stays: only a higher priority takes its place.
func (cs *consumers) choose() (active *consumer, quiescing bool) {
	var best *consumer
	cs.scratch.steps += len(cs.all)
	for _, c := range cs.all {
		if c.level != nil && c.status() == Up && (best == nil || c.outranks(best)) {
			best = c
		}
	}
	now := cs.single
	switch {
	case now == nil, now.level == nil, now.session.life.over, now.status() != Up && now.held.len() == 0:
		return best, false
	case now.status() != Up, best.priority <= now.priority:
		return now, false
	case now.held.len() == 0:
		return best, false
	}
	return now, true
}
