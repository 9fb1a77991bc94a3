package queue

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
)

// quota is how many messages a consumer may hold. prefetch and shared are as the
// last Consume gave them: 0 stands for maxCredit, but for nothing if the
// consumer shares a limit with others of its session.
type quota struct {
	prefetch uint32
	shared   bool
	noticed  bool // since the last Consume the session has been told that it is short
	listed   bool // it is in short; derived
}

// limit is how many messages the consumer may hold.
func (a *quota) limit() int {
	if a.prefetch == 0 && !a.shared {
		return maxCredit
	}
	return int(min(a.prefetch, maxCredit))
}

// short are the consumers whose session is to be told as soon as a message is
// ready that they may have, and that nobody has credit for. Each is told once, until its next Consume:
// the session then gives it more, or takes note that it wants more.
//
// Invariant: c is in list ⇔ c.listed ⇔ it shares a limit, is served and has no
// credit, and its session was not told, unless that is ending.
//
// A snapshot has noticed; the list follows from it. It is ordered by age.
type short struct{ list sorted[*consumer] }

// note lists c, or no longer. lacks: it is served, and has no credit.
func (s *short) note(c *consumer, lacks bool) {
	if wants := lacks && c.shared && !c.noticed; wants != c.listed {
		s.toggle(c)
	}
}

// toggle lists c, or removes it if it is listed.
func (s *short) toggle(c *consumer) {
	if c.listed {
		s.drop(c)
		return
	}
	c.listed = true
	s.list.put(key{at: fsm.Time(c.registered)}, c)
}

// drop removes c, if it is listed.
func (s *short) drop(c *consumer) {
	if c.listed {
		c.listed = false
		s.list.remove(key{at: fsm.Time(c.registered)})
	}
}

// servable is the part of consumers that says who may have something that is ready. It
// has no state of its own. Whoever asks that, asks here: those with credit are in
// services or among the takers of groups, and those without are in short, and none of
// these knows the others.
type servable struct{ *consumers }

// any reports whether a consumer has credit for a message that is ready and that it
// may have, as far as that is known. O(1).
func (cs servable) any() bool { return cs.services.anyFor() || cs.groups.servesAny() }

// forConsumer reports whether a message is ready that c may have, whatever its credit,
// as far as that is known. Requires: c is not cancelled, and not gets.
func (cs servable) forConsumer(c *consumer) bool {
	return cs.takers.generally(c) && cs.services.has(c.least) || cs.groups.nextFor(c) != nil
}

// credit reports whether any consumer may take another message, if only of one group.
func (cs servable) credit() bool { return cs.services.any() || cs.takers.wanting > 0 }

// anyShort reports whether any session is to be told of something.
func (cs servable) anyShort() bool { return cs.short.list.len() > 0 }

// tellShort tells the sessions of those that may have something that is ready, while
// nobody with credit may have anything. Before version 3 all are told, and nobody while
// anybody takes every message. O(consumers listed).
func (cs servable) tellShort(eff *fsm.Effects) {
	now := cs.since(3)
	if now && cs.any() || !now && (cs.services.takesAny() || cs.services.anyFor()) {
		return // if there is anything, a tick hands it out
	}
	cs.scratch.steps += cs.short.list.len()
	var told []*consumer
	for _, p := range cs.short.list.all() {
		if now {
			cs.services.passOver((*p).least)
		}
		if !now || cs.forConsumer(*p) {
			told = append(told, *p)
		}
	}
	for _, c := range told {
		cs.short.drop(c)
		c.noticed = true
		eff.Short = append(eff.Short, c.id)
	}
}

// check compares the answer for all with the one for c, and checks that its session
// knows if it lacks credit. A state that breaks it makes nobody panic, and is no reason
// not to read a snapshot: so it is for tests.
func (cs servable) check(k *checker, c *consumer) {
	if !invariants.Enabled || c.level == nil || cs.sessions.isEnding() || cs.any() || cs.settings.forwards() || !cs.forConsumer(c) {
		return
	}
	k.that(!cs.served(c) || c.credit() <= 0 || cs.services.demand(), "consumer %v may have something, and nothing is served", c.id)
	k.that(!c.listed || !cs.since(3), "consumer %v is short of credit, and nobody is told", c.id)
}
