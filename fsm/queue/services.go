package queue

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
)

// services are the consumers with credit. Those that take only messages with enough
// left of their TTL have services of their own. A message that more than one service
// may have goes to the consumer with the highest priority, and among equals to the
// one that has waited for longest, whatever it asks for.
//
// Invariants: demanding ascends by least, which is not 0, has no service without
// consumers and at most maxMinTTLs; each has its cursor. waits of those in rings are
// at most count, and ascend in each ring.
//
// A snapshot has the order of all who are served, not their numbers.
type services struct {
	*shared
	messages  *messages
	cursors   *cursors
	general   service // of consumers that take all messages
	demanding []*service
	count     uint64 // of those who were put into a ring
}

// clear removes all consumers without touching them. Cursors are cleared by the
// machine.
func (vs *services) clear() {
	vs.general.clear()
	vs.demanding = nil
}

// of returns the service of a least life; nil: there is none.
func (vs *services) of(least fsm.Millis) *service {
	if least == 0 {
		return &vs.general
	}
	for _, v := range vs.demanding {
		if v.least == least {
			return v
		}
	}
	return nil
}

// forConsumer returns the service of c, and creates it if c is the first one. O(1),
// there are at most maxMinTTLs.
func (vs *services) forConsumer(c *consumer) *service {
	if v := vs.of(c.least); v != nil {
		return v
	}
	v := &service{shared: vs.shared, least: c.least}
	vs.demanding = append(vs.demanding, v)
	slices.SortFunc(vs.demanding, func(a, b *service) int { return cmp.Compare(a.least, b.least) })
	vs.cursors.open(c.least, vs.messages)
	return v
}

// leave takes c out of its service, which ends with its last consumer.
func (vs *services) leave(c *consumer) {
	v := c.level.of
	v.leave(c)
	if v.least != 0 && v.joined == 0 {
		vs.demanding = slices.DeleteFunc(vs.demanding, func(o *service) bool { return o == v })
		vs.cursors.close(v.least)
	}
}

// tooMany reports whether c may not ask for a least life, because others ask for as
// many different ones as they may. c is nil for a consumer that does not exist yet.
func (vs *services) tooMany(c *consumer, least fsm.Millis) bool {
	if vs.of(least) != nil {
		return false
	}
	n := len(vs.demanding)
	if c != nil && c.level != nil && c.least != 0 && c.level.of.joined == 1 {
		n-- // it gives up its own
	}
	return n >= maxMinTTLs
}

// serve appends c to its ring, as one that waits from now on.
func (vs *services) serve(c *consumer) {
	vs.count++
	c.waits = vs.count
	c.level.of.serve(c)
}

// suspend removes c from its ring, if it is in one.
func (vs *services) suspend(c *consumer) {
	if c.serviced {
		c.level.of.suspend(c)
	}
}

// takesAny reports whether a consumer has credit that takes all messages.
func (vs *services) takesAny() bool { return vs.general.any() }

// any reports whether any consumer has credit.
func (vs *services) any() bool {
	_, ok := vs.least()
	return ok
}

// least implements consumers.leastServed.
func (vs *services) least() (fsm.Millis, bool) {
	if vs.general.any() {
		return 0, true
	}
	for _, v := range vs.demanding {
		if v.any() {
			return v.least, true
		}
	}
	return 0, false
}

// anyFor implements consumers.anyFor.
func (vs *services) anyFor() bool {
	least, ok := vs.least()
	return ok && vs.has(least)
}

// passOver finds the next message for consumers with a least life, as far as the
// command may.
func (vs *services) passOver(least fsm.Millis) { vs.cursors.passOver(least, vs.messages) }

// has reports whether a message of no group is ready that consumers with a least life
// may have, as far as that is known.
func (vs *services) has(least fsm.Millis) bool { return vs.cursors.unsettled(least, vs.messages) }

// demand reports whether any consumer asks for a least life.
func (vs *services) demand() bool { return len(vs.demanding) > 0 }

// idle reports whether nothing is ready.
func (vs *services) idle() bool { return vs.messages.readyCount() == 0 }

// next implements consumers.nextServed.
func (vs *services) next(h uint32) *consumer {
	if len(vs.demanding) == 0 {
		return vs.general.next()
	}
	best, x, now := vs.general.next(), vs.messages.get(h), vs.clock.now()
	for _, v := range vs.demanding {
		if !v.any() || !x.lives(now, v.least) {
			continue
		}
		if c := v.next(); best == nil || c.waitsBefore(best) {
			best = c
		}
	}
	return best
}

// waitsBefore reports whether c is served before o. It is a strict total order of
// those in rings.
func (c *consumer) waitsBefore(o *consumer) bool {
	return cmp.Or(cmp.Compare(o.priority, c.priority), cmp.Compare(c.waits, o.waits)) < 0
}

// inOrder returns the consumers in rings, in the order of service.
func (vs *services) inOrder() []*consumer {
	var all []*consumer
	add := func(c *consumer) { all = append(all, c) }
	vs.general.order(add)
	if len(vs.demanding) == 0 {
		return all
	}
	for _, v := range vs.demanding {
		v.order(add)
	}
	slices.SortFunc(all, func(a, b *consumer) int {
		if a.waitsBefore(b) {
			return -1
		}
		return 1
	})
	return all
}

// restored is called when all messages have been restored.
func (vs *services) restored() error { return vs.cursors.restored() }

// check checks the services. members counts the consumers that have a level.
func (vs *services) check(k *checker, members map[*level]int) {
	vs.general.check(k, members)
	levels := vs.general.size()
	k.that(len(vs.demanding) <= maxMinTTLs && len(vs.demanding) == vs.cursors.len(), "%d services", len(vs.demanding))
	for i, v := range vs.demanding {
		v.check(k, members)
		levels += v.size()
		k.that(v.least > 0 && v.joined > 0 && vs.cursors.of(v.least) != nil && (i == 0 || vs.demanding[i-1].least < v.least), "service %d", v.least)
	}
	k.that(len(members) == levels, "levels are miscounted")
}
