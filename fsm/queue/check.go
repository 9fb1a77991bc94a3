package queue

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// mustHold checks small states whole.
func (m *Machine) mustHold() {
	if m.messages.live() > 64 || m.sessions.size() > 256 || len(m.consumers) > 256 {
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

	extras, named, numbered, returned, attached, getsHeld, timeouts int
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
	k.consumers()
	k.returning()
	k.service()
	m.outbox.check(k)
	m.sessions.check(k)
	k.that(k.attached == len(m.consumers), "%d consumers have sessions", k.attached)
	k.books()
	k.time()
	return k.err
}

func (k *checker) consumers() {
	m := k.m
	attached, active, lasting, order := 0, 0, 0, uint64(0)
	var exclusive *consumer
	for i, c := range m.consumers {
		k.that((i == 0 || c.registered > order) && c.registered < m.nextOrder, "consumer %v is out of order", c.id)
		order = c.registered
		k.that(c.session != nil && m.sessions.has(c.session) && c.session.consumer(c.id.Number) == c, "consumer %v has no session", c.id)
		if k.err != nil {
			return
		}
		if !c.isGets() {
			if !c.dismissed {
				attached++
			}
			k.that(c.dismissed == (c.cancelled && c.held.len() == 0) && (!c.dismissed || len(c.late) > 0 || c.revoked) && (c.cancelled || !c.revoked), "consumer %v owes nothing", c.id)
			if !c.cancelled {
				active++
				if !c.session.life.over {
					lasting++
				}
				if c.exclusive && m.exclusive == c {
					exclusive = c
				}
			}
		} else {
			k.that(c.level == nil && !c.cancelled && !c.dismissed, "gets of %v are served", c.id)
			k.getsHeld += c.held.len()
		}
		k.that(slices.IsSortedFunc(c.late, func(a, b lateness) int { return compare(a.id, b.id) }) &&
			(len(c.late) == 0 || c.late[len(c.late)-1].id < c.next), "consumer %v: late ids", c.id)
		k.held(c.id, c.next, &c.held, c.late)
		k.that(c.held.len() <= creditCeiling || c.isGets(), "consumer %v holds %d", c.id, c.held.len())
	}
	k.that(attached == m.attached && active == m.serving && k.getsHeld == m.getsHeld, "consumers are miscounted")
	k.that(exclusive == m.exclusive && (exclusive == nil || lasting == 1), "the exclusive consumer is not alone")
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
		k.that(at == m.returningKey(r) && r.order < m.nextOrder && (r.order != 0 || r.outcome == 0), "what %v held is on its way in the wrong place", r.of)
	}
}

func (k *checker) service() {
	m := k.m
	serviced, members := 0, map[*level]int{}
	for _, c := range m.consumers {
		wants := m.served(c) && c.credit() > 0
		k.that(c.serviced == wants || c.session.life.over, "consumer %v: in service %v", c.id, c.serviced)
		k.that((c.level == nil) == (c.cancelled || c.isGets()), "consumer %v: level", c.id)
		if c.level != nil {
			members[c.level]++
			k.that(c.level.priority == c.priority, "consumer %v: wrong level", c.id)
		}
	}
	k.single()
	for at, p := range m.levels.all() {
		l := *p
		k.that(at == levelKey(l.priority), "level %d is out of order", l.priority)
		k.that(l.first == nil || !at.before(m.top), "level %d is overlooked", l.priority)
		k.that(l.members > 0 && l.members == members[l], "level %d: %d members", l.priority, l.members)
		var prev *consumer
		for c := l.first; c != nil; c = c.nextRing {
			k.that(c.level == l && c.serviced && c.prevRing == prev, "consumer %v: wrong ring", c.id)
			prev = c
			if serviced++; serviced > len(m.consumers) {
				k.that(false, "a ring never ends")
				return
			}
		}
		k.that(l.last == prev, "level %d: the tail is wrong", l.priority)
	}
	k.that(serviced == m.serviced && len(members) == m.levels.len(), "services are miscounted")
	if h := m.messages.front(); serviced > 0 && h != 0 {
		next, _ := m.NextDue()
		k.that(m.messages.get(h).due(m.clock.now()) || next <= m.clock.atOnce(), "a message waits although somebody has credit")
	}
}

// single checks who is the single active consumer: if anybody can be served,
// somebody is.
func (k *checker) single() {
	m := k.m
	if !m.settings.SingleActive {
		k.that(m.single == nil && !m.quiescing, "a single consumer is served")
		return
	}
	active, quiescing := m.choose()
	k.that(m.single == active && m.quiescing == quiescing, "somebody else should be the active consumer")
	for _, c := range m.consumers {
		k.that(m.single != nil || c.level == nil || c.status() != Up, "consumer %v could be served", c.id)
		k.that(!c.serviced || c == m.single || c.session.life.over, "consumer %v is served and not the active one", c.id)
	}
	k.that(m.single == nil || m.single.session != nil && m.single.level != nil, "the active consumer has gone")
}

// books compares all counts with what was found.
func (k *checker) books() {
	m := k.m
	m.timers.check(k)
	m.messages.check(k)
	m.entries.check(k)
	k.that(m.phase == Active || len(m.consumers) == 0 && m.sessions.len() == 0 && m.messages.readyCount() == 0, "an ended queue serves")
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
		if m.messages.head(purgedList) != 0 || m.tooLong() || m.unfinished() || m.serviced > 0 && m.messages.front() != 0 || m.outbox.hasWork() {
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
