package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// creditCeiling is the credit of a consumer that asks for no limit.
const creditCeiling = 65535

// consumer is one registered consumer, or the gets of a session (number 0).
type consumer struct {
	id         fsm.ConsumerID
	session    *session
	registered uint64 // orders consumers by age
	next       uint64 // number of the next delivery
	held       held
	// late is what was taken back and is not settled, ascending. The slice is
	// replaced, never changed.
	late     []lateness
	lateAcks uint64 // settlements of what was late

	tag            string
	prefetch       uint32
	priority       int32
	noAck          bool
	exclusive      bool
	cancelled      bool
	revoked        bool   // cancelled by the queue, see revokeAllBut: its session may not know
	dismissed      bool   // cancelled and holds nothing: it only remembers what is late or to be told
	timeoutPlusOne uint64 // 0: inherited

	level              *level // nil: cancelled, or gets
	serviced           bool   // in the ring of its level
	nextRing, prevRing *consumer
}

// level is all consumers of one priority. Those with credit are in its ring,
// in the order in which they will be served.
type level struct {
	priority    int32
	members     int
	first, last *consumer
}

func (c *consumer) isGets() bool { return c.id.Number == 0 }

func (c *consumer) status() Status {
	if !c.cancelled && (c.session.life.silent || c.session.life.over) {
		return Silent
	}
	return c.lasting()
}

// lasting is the status but for silence, which is its session's.
func (c *consumer) lasting() Status {
	switch {
	case c.cancelled:
		return Cancelled
	case len(c.late) > 0:
		return TimedOut
	}
	return Up
}

func (c *consumer) credit() int {
	limit := int(min(c.prefetch, creditCeiling))
	if limit == 0 {
		limit = creditCeiling
	}
	return limit - c.held.len()
}

// levelKey is the place of a priority among the levels: the highest is first.
func levelKey(priority int32) key { return key{at: -fsm.Time(priority)} }

// join puts c into the level of its priority.
func (m *Machine) join(c *consumer) {
	at := levelKey(c.priority)
	if l := m.levels.get(at); l != nil {
		c.level = *l
	} else {
		c.level = &level{priority: c.priority}
		m.levels.put(at, c.level)
	}
	c.level.members++
	m.contested = true
}

// leave takes c out of service for good, or until it joins again.
func (m *Machine) leave(c *consumer) {
	m.suspend(c)
	l := c.level
	if l == nil {
		return
	}
	c.level = nil
	m.contested = true
	if l.members--; l.members == 0 {
		m.levels.remove(levelKey(l.priority))
	}
}

// refresh puts c at the end of its ring or takes it out, as its credit wants.
func (m *Machine) refresh(c *consumer) {
	wants := m.served(c) && c.credit() > 0
	switch {
	case !wants:
		m.suspend(c)
	case !c.serviced:
		m.serve(c)
	}
}

// serve puts c, which is in no ring, at the end of its ring.
func (m *Machine) serve(c *consumer) {
	l := c.level
	c.serviced, c.prevRing, c.nextRing = true, l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.nextRing = c
	}
	l.last = c
	m.serviced++
	if at := levelKey(l.priority); at.before(m.top) {
		m.top = at
	}
}

// suspend takes c out of its ring.
func (m *Machine) suspend(c *consumer) {
	if !c.serviced {
		return
	}
	l := c.level
	if c.prevRing == nil {
		l.first = c.nextRing
	} else {
		c.prevRing.nextRing = c.nextRing
	}
	if c.nextRing == nil {
		l.last = c.prevRing
	} else {
		c.nextRing.prevRing = c.prevRing
	}
	c.serviced, c.prevRing, c.nextRing = false, nil, nil
	m.serviced--
}

// nextConsumer is the one to serve next; nil: nobody has credit.
func (m *Machine) nextConsumer() *consumer {
	if m.serviced == 0 {
		return nil
	}
	for at, l := range m.levels.from(m.top) {
		m.scratch.steps++
		if c := (*l).first; c != nil {
			m.top = at
			return c
		}
	}
	panic("nobody is in the ring of any level")
}

// register adds a consumer of s to the tables.
func (m *Machine) register(s *session, number uint64) *consumer {
	c := &consumer{
		id:      fsm.ConsumerID{Session: s.id, Number: number},
		session: s, registered: m.nextOrder, next: 1,
	}
	m.nextOrder++
	m.consumers = append(m.consumers, c)
	i, _ := s.search(number)
	s.consumers = slices.Insert(s.consumers, i, c)
	s.life.consumers++
	if number != 0 {
		m.attached++
		m.serving++
	}
	return c
}

// retire ends the service of c, which stays for what it holds.
func (m *Machine) retire(c *consumer) {
	if c.cancelled || c.isGets() {
		return
	}
	m.leave(c)
	c.cancelled = true
	m.serving--
	if m.exclusive == c {
		m.exclusive = nil
	}
	if m.single == c {
		m.single, m.quiescing = nil, false
	}
}

// position of c among the consumers, which are ordered by age.
func (m *Machine) position(c *consumer) int {
	i, _ := slices.BinarySearchFunc(m.consumers, c.registered, func(o *consumer, r uint64) int { return cmp.Compare(o.registered, r) })
	return i
}

// unregister ends c, which holds nothing. It is left to the caller to take it
// out of the tables: its session is nil then.
func (m *Machine) unregister(c *consumer) {
	m.retire(c)
	if !c.isGets() && !c.dismissed {
		m.attached--
	}
	c.session.life.consumers--
	c.session = nil
}

// lateConsumers bounds how many cancelled consumers of a session are kept only
// to count what they settle late, or to tell that they are revoked.
const lateConsumers = 64

// crowded reports whether the queue has as many consumers as it may.
func (m *Machine) crowded() bool { return len(m.consumers) >= m.bounds.Consumers }

// dismissIfDone lets a cancelled consumer go that owes nothing more: it holds
// nothing. It is remembered while something of it is late, and if it is revoked.
func (m *Machine) dismissIfDone(c *consumer) {
	if c.cancelled && c.held.len() == 0 {
		m.dismiss(c)
	}
}

// dismiss is dismissIfDone for many consumers: of all sessions one pass.
func (m *Machine) dismiss(done ...*consumer) {
	var sessions []*session
	for _, c := range done {
		if !c.cancelled || c.held.len() > 0 {
			continue
		}
		if !c.dismissed {
			c.dismissed = true
			m.attached--
		}
		if s := c.session; !s.thinning {
			s.thinning = true
			sessions = append(sessions, s)
		}
	}
	erased := 0
	for _, s := range sessions {
		s.thinning = false
		erased += m.thin(s)
	}
	if erased > 0 {
		m.dropEnded()
	}
}

// thin unregisters the dismissed consumers of a session but for the newest ones
// that are to be remembered, and returns how many.
func (m *Machine) thin(s *session) (erased int) {
	surplus := -lateConsumers
	for _, c := range s.consumers {
		if c.dismissed && c.remembered() {
			surplus++
		}
	}
	m.scratch.steps += len(s.consumers)
	s.consumers = slices.DeleteFunc(s.consumers, func(c *consumer) bool {
		if !c.dismissed || c.remembered() && surplus <= 0 {
			return false
		}
		if c.remembered() {
			surplus--
		}
		erased++
		m.unregister(c)
		return true
	})
	return erased
}

// remembered reports whether there is something to tell of c although it holds
// nothing.
func (c *consumer) remembered() bool { return len(c.late) > 0 || c.revoked }

// forgive removes the ids first … last from what c holds too long and appends
// them to forgiven.
func (c *consumer) forgive(first, last uint64, forgiven []lateness) []lateness {
	i, _ := slices.BinarySearchFunc(c.late, first, compareLate)
	j := i
	for j < len(c.late) && c.late[j].id <= last {
		j++
	}
	forgiven = append(forgiven, c.late[i:j]...)
	switch {
	case i == j:
	case j-i == len(c.late):
		c.late = nil
	case i == 0:
		c.late = c.late[j:]
	default:
		c.late = slices.Concat(c.late[:i], c.late[j:])
	}
	return forgiven
}
