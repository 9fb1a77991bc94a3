package queue

import "github.com/quorate/quorate/fsm"

// service is the order in which consumers with credit are served: higher
// priorities first, and a ring within each priority. A consumer moves to the
// end of its ring when it gets credit, and again with each delivery.
//
// Invariants:
//
//	levels has a level for each priority of a consumer that is in service or waits
//	for credit: 1 ≤ members
//	c.level = nil ⇔ c is never served: it is cancelled, or gets
//	c.serviced ⇔ c is in the ring of c.level, exactly once
//	n = Σ lengths of the rings; all rings before top are empty
//
// Consumers that take only messages with a least life have a service of their own,
// one for each such life: see services.
//
// A ring is a list, served from its first consumer on; who was served is
// appended again. A snapshot has the order of all rings, as positions by age;
// levels come from the priorities. top is not in it: it only saves next from
// scanning levels.
type service struct {
	*shared
	least  fsm.Millis     // what all of them ask for; 0: nothing
	joined int            // Σ members
	levels sorted[*level] // by priority, highest first
	// No ring before top has a consumer. n counts over all levels.
	top key
	n   int
}

// level is all consumers of one priority. Those with credit are in its ring, in
// the order in which they will be served. members includes those without
// credit, so that a level is kept while they settle.
type level struct {
	of          *service
	priority    int32
	members     int
	first, last *consumer
}

// levelKey is the key of a priority among the levels: the highest comes first.
func levelKey(priority int32) key { return key{at: -fsm.Time(priority)} }

// clear removes all consumers without touching them. It is for the end of a
// queue, which drops its consumers as well.
func (v *service) clear() { *v = service{shared: v.shared, least: v.least} }

// size is the number of levels.
func (v *service) size() int { return v.levels.len() }

// any reports whether any consumer has credit.
func (v *service) any() bool { return v.n > 0 }

// join adds c, which is in no level, to the level of its priority. O(log
// levels). It is in no ring yet.
func (v *service) join(c *consumer) {
	at := levelKey(c.priority)
	if l := v.levels.get(at); l != nil {
		c.level = *l
	} else {
		c.level = &level{of: v, priority: c.priority}
		v.levels.put(at, c.level)
	}
	c.level.members++
	v.joined++
}

// leave removes c, which is in a level, from its level and its ring.
func (v *service) leave(c *consumer) {
	v.suspend(c)
	l := c.level
	c.level = nil
	v.joined--
	if l.members--; l.members == 0 {
		v.levels.remove(levelKey(l.priority))
	}
}

// serve appends c, which is in no ring, to its ring. Requires: it is in a level
// and has credit. O(1). A level above top becomes top.
func (v *service) serve(c *consumer) {
	l := c.level
	c.serviced, c.prevRing, c.nextRing = true, l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.nextRing = c
	}
	l.last = c
	v.n++
	if at := levelKey(l.priority); at.before(v.top) {
		v.top = at
	}
}

// suspend removes c from its ring. It does nothing if c is in none. O(1).
func (v *service) suspend(c *consumer) {
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
	v.n--
}

// next returns the consumer to serve next; nil: none has credit. Ensures: top
// is its level, so levels found empty are not scanned again.
func (v *service) next() *consumer {
	if v.n == 0 {
		return nil
	}
	if at, l := v.levels.first(); !at.before(v.top) && (*l).first != nil {
		v.scratch.steps++
		v.top = at
		return (*l).first // most queues have one level
	}
	for at, l := range v.levels.from(v.top) {
		v.scratch.steps++
		if c := (*l).first; c != nil {
			v.top = at
			return c
		}
	}
	panic("nobody is in the ring of any level")
}

// order calls f for the consumers in rings, in the order of service.
func (v *service) order(f func(*consumer)) {
	for _, p := range v.levels.all() {
		for c := (*p).first; c != nil; c = c.nextRing {
			f(c)
		}
	}
}

// check checks the rings. members counts the consumers that have a level.
func (v *service) check(k *checker, members map[*level]int) {
	serviced, joined := 0, 0
	for at, p := range v.levels.all() {
		l := *p
		joined += l.members
		k.that(at == levelKey(l.priority) && l.of == v, "level %d is out of order", l.priority)
		k.that(l.first == nil || !at.before(v.top), "level %d is overlooked", l.priority)
		k.that(l.members > 0 && l.members == members[l], "level %d: %d members", l.priority, l.members)
		var prev *consumer
		for c := l.first; c != nil; c = c.nextRing {
			k.that(c.level == l && c.serviced && c.prevRing == prev, "consumer %v: wrong ring", c.id)
			prev = c
			if serviced++; serviced > v.n {
				k.fail("a ring never ends, or consumers are miscounted")
				return
			}
		}
		k.that(l.last == prev, "level %d: the tail is wrong", l.priority)
	}
	k.that(serviced == v.n && joined == v.joined, "services are miscounted")
}
