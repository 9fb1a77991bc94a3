package queue

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// mustHold checks the whole state if that is small. It runs after every command
// in builds with the tag invariants. Larger states are left out, since Check
// costs O(n) and would make a test quadratic.
func (m *Machine) mustHold() {
	if m.messages.live() > 64 || m.sessions.size() > 256 || m.consumers.len() > 256 {
		return
	}
	err := m.Check()
	invariants.Assert(err == nil, fmt.Sprint(err))
}

// checker collects the first fault. Each Check has its own. Parts add to the
// counts in the order in which Check calls them, and the later ones compare.
type checker struct {
	m    *Machine
	err  error
	seen []bool   // by handle: found in a place
	live []uint64 // log indexes of the messages found
	// count and timed are by place; count[0] stays zero, since no message may be
	// between two places.
	count [placeCount]Count
	ready [maxPriority + 1]uint32 // by priority
	next  fsm.Time                // earliest deadline found

	timed [placeCount]int // messages that wait for an instant; 0: those set aside that expire

	groups map[*group]*foundGroup // what was found of each

	// In this order: messages with a deadLetterInfo, with a schedule name, in the
	// table of numbers, in blocks of returns; consumers in tables of sessions;
	// deliveries with a deadline.
	infos, named, numbered, returned, attached, timeouts int

	locks, running int // deliveries with a lock, and those whose lock runs
	labelled       int // messages with a label
	ordered        int // ready messages, if the queue goes by deadlines
}

// that notes a fault unless ok. What is asked for each message goes through
// fail instead, which builds no arguments while all is well.
func (k *checker) that(ok bool, format string, args ...any) {
	if !ok {
		k.fail(format, args...)
	}
}

// fail notes a fault. Only the first one is kept: those behind it may be its
// consequences.
func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

// note counts message h, which is in a place.
func (k *checker) note(x *message, h uint32, place Place) {
	k.seen[h] = true
	k.live = append(k.live, x.index)
	k.count[place].add(x.count())
	if place != Purged && x.ready() {
		k.ready[x.priority]++
	}
	if x.info != 0 {
		k.infos++
	}
	if x.labelled() {
		k.labelled++
	}
}

// deadline records an instant at which a tick has work to do; 0: none.
func (k *checker) deadline(t fsm.Time) {
	if t != 0 && (k.next == 0 || t < k.next) {
		k.next = t
	}
}

// Check walks the whole state and reports the first broken invariant.
//
// Parts that hold messages come first, since each message they find is counted;
// those that only count come last. It changes nothing, and its result does not
// depend on the order of map iteration. It allocates O(n). Restore ends with
// it, so a part's check has to find every damage that could make a later
// command panic.
func (m *Machine) Check() error {
	k := &checker{m: m, groups: map[*group]*foundGroup{}, seen: make([]bool, max(m.messages.end(), 1)), live: make([]uint64, 0, m.messages.live())}
	m.messages.checkLists(k)
	m.deliveries.check(k)
	m.aside.check(k)
	m.seen.check(k)
	m.outbox.check(k)
	m.sessions.check(k)
	m.detached.check(k)
	m.consumers.check(k)
	k.books()
	k.time()
	return k.err
}

// books compares all counts with the messages found.
func (k *checker) books() {
	m := k.m
	m.timers.check(k)
	m.locks.check(k)
	m.messages.check(k)
	m.entries.check(k)
	m.groups.check(k)
	if h, _ := (choice{m.deliveries}).candidate(); h != 0 {
		next, _ := m.NextDue()
		k.that(!m.members.mayGo(h) || next <= m.clock.atOnce(), "a message waits although somebody has credit")
	}
	k.that(m.lease.phase() == Active || m.consumers.len() == 0 && m.sessions.len() == 0 && m.messages.readyCount() == 0, "an ended queue serves")
	m.lease.check(k)
	m.clock.check(k)
	m.ends.check(k, m.outbox.nextLetter())
}

// time compares the next deadline with the earliest one found.
//
// It computes anew what NextDue finds in the indexes: a deadline that is missing
// there means that nobody ticks, and one that is too early that ticks never end.
func (k *checker) time() {
	m := k.m
	switch m.lease.phase() {
	case Active:
		k.deadline(m.lease.leaseEnd())
		k.deadline(m.lease.idleEnd())
		k.deadline(m.seen.due())
		if hasWork(m) {
			k.deadline(m.clock.atOnce())
		}
	case Draining:
		if k.next = m.lease.drainedAt(); m.outbox.hasWork() {
			k.next = m.clock.atOnce()
		}
	default:
		k.next = 0
	}
	if k.err == nil {
		next, what := m.NextDue()
		k.that(next == k.next && (next == 0) == (what == NothingDue), "next deadline is %d (%v), found %d", next, what, k.next)
	}
}
