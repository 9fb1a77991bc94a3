package queue

import "github.com/quorate/quorate/fsm"

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
// ready that nobody has credit for. Each is told once, until its next Consume:
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

// tell reports all that are listed, and empties the list.
func (s *short) tell(eff *fsm.Effects) {
	for _, p := range s.list.all() {
		(*p).noticed, (*p).listed = true, false
		eff.Short = append(eff.Short, (*p).id)
	}
	s.list.clear()
}

// anyShort reports whether a session is to be told once a message is ready that
// nobody has credit for: who has credit asks for more left of the TTL.
func (cs *consumers) anyShort() bool {
	return cs.short.list.len() > 0 && !cs.services.takesAny() && !cs.anyFor()
}

// tellShort tells all of these sessions. O(consumers told).
func (cs *consumers) tellShort(eff *fsm.Effects) {
	cs.scratch.steps += cs.short.list.len()
	cs.short.tell(eff)
}
