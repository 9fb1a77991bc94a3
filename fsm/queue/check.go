package queue

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// mustHold checks small states whole.
func (m *Machine) mustHold() {
	if m.messages.live() > 64 || m.sessions.size() > 256 || m.consumers.len() > 256 {
		return
	}
	err := m.Check()
	invariants.Assert(err == nil, fmt.Sprint(err))
}

// checker collects the first fault.
type checker struct {
	m     *Machine
	err   error
	seen  []bool   // by handle: found in a place
	live  []uint64 // log indexes of the messages found
	count [placeCount]Count
	next  fsm.Time // earliest deadline found

	timed [placeCount]int // messages that wait for an instant

	extras, named, numbered, returned, attached, timeouts int
}

// that notes a fault unless ok. What is asked for each message goes through
// fail instead, which builds no arguments while all is well.
func (k *checker) that(ok bool, format string, args ...any) {
	if !ok {
		k.fail(format, args...)
	}
}

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
	if x.extra != 0 {
		k.extras++
	}
}

func (k *checker) deadline(t fsm.Time) {
	if t != 0 && (k.next == 0 || t < k.next) {
		k.next = t
	}
}

// Check walks the whole state and reports the first broken invariant.
func (m *Machine) Check() error {
	k := &checker{m: m, seen: make([]bool, max(m.messages.top, 1)), live: make([]uint64, 0, m.messages.live())}
	m.messages.checkLists(k)
	k.returning()
	m.outbox.check(k)
	m.sessions.check(k)
	m.consumers.check(k)
	k.books()
	k.time()
	return k.err
}

// held checks what a consumer holds whose next delivery is next.
func (k *checker) held(of fsm.ConsumerID, next uint64, all *held, lates []lateness) {
	n, last := 0, uint64(0)
	for held := range all.from(0) {
		if k.err != nil {
			return
		}
		k.m.messages.checkOne(k, held.handle, CheckedOut)
		_, late := slices.BinarySearchFunc(lates, held.id, compareLate)
		switch {
		case held.id <= last || held.id >= next:
			k.fail("consumer %v: delivery %d of %d", of, held.id, next)
		case held.deadline < 0 || held.limit < 0 || held.since > k.m.clock.atOnce():
			k.fail("consumer %v: delivery %d has a wrong deadline", of, held.id)
		case late:
			k.fail("consumer %v: delivery %d is held and was taken back", of, held.id)
		}
		last = held.id
		n++
		if held.deadline != 0 && k.m.phase == Active {
			k.timeouts++
			k.deadline(k.m.clock.heldUntil(held.deadline))
			if of, ok := k.m.timers.held(held.deadline, k.m.messages.get(held.handle).seq); !ok || of.id != held.id {
				k.fail("consumer %v: delivery %d never times out", of, held.id)
			}
		}
	}
	k.that(n == all.len(), "consumer %v holds %d, counted %d", of, n, all.len())
}

// returning checks what is on its way back.
func (k *checker) returning() {
	m := k.m
	for at, p := range m.returning.all() {
		r := *p
		if r.held.len() == 0 {
			k.fail("nothing of %v is on its way", r.of)
			return
		}
		k.held(r.of, ^uint64(0), &r.held, nil)
		k.that(at == m.returningKey(r) && r.order < m.consumers.next && (r.order != 0 || r.outcome == 0), "what %v held is on its way in the wrong place", r.of)
	}
}

// books compares all counts with what was found.
func (k *checker) books() {
	m := k.m
	m.timers.check(k)
	m.messages.check(k)
	m.entries.check(k)
	if h := m.messages.front(); m.consumers.service.any() && h != 0 {
		next, _ := m.NextDue()
		k.that(m.messages.get(h).due(m.clock.now()) || next <= m.clock.atOnce(), "a message waits although somebody has credit")
	}
	k.that(m.phase == Active || m.consumers.len() == 0 && m.sessions.len() == 0 && m.messages.readyCount() == 0, "an ended queue serves")
	k.that((m.phase == Draining) == (m.goneAt != 0), "phase %d ends at %d", m.phase, m.goneAt)
	k.that(m.phase != Draining || len(k.live) > 0, "nothing to drain")
	k.that(m.phase != Gone || len(k.live) == 0, "a queue that is gone has messages")
	m.clock.check(k)
	k.that(m.lastUsed >= 0 && m.lastUsed <= m.clock.now(), "clock %d, last used %d", m.clock.now(), m.lastUsed)
	k.that(m.active >= 0 && m.active <= m.clock.now(), "clock %d, last active %d", m.clock.now(), m.active)
}

// time compares the earliest deadline with what was found.
func (k *checker) time() {
	m := k.m
	switch m.phase {
	case Active:
		k.deadline(m.leaseEnd())
		k.deadline(m.idleEnd())
		if m.messages.head(purgedList) != 0 || m.tooLong() || m.unfinished() || m.consumers.service.any() && m.messages.front() != 0 || m.outbox.hasWork() {
			k.deadline(m.clock.atOnce())
		}
	case Draining:
		if k.next = m.goneAt; m.outbox.hasWork() {
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
