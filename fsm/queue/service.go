package queue

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"math/bits"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// service is the order in which consumers with credit are served: higher
// priorities first, and a ring within each priority. A consumer moves to the
// end of its ring when it gets credit, and again with each delivery. If the settings
// say so, the least loaded one of a priority comes first, and rings are tables.
//
// Invariants:
//
//	levels has a level for each priority of a consumer that is in service or waits
//	for credit: 1 ≤ members
//	c.level = nil ⇔ c is never served: it is cancelled, or gets
//	c.serviced ⇔ c is in the ring of c.level, exactly once
//	n = Σ lengths of the rings; all rings before top are empty
//	c.serviced ⇒ c.load = settings.load(c), unless its session is ending
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
//
// Invariant: byLoad is empty, or it is the ring: it has all by (load, waits), first is
// the first of them, and last and the links between them are nil.
type level struct {
	of          *service
	priority    int32
	members     int
	first, last *consumer
	byLoad      sorted[*consumer]
}

// levelKey is the key of a priority among the levels: the highest comes first.
func levelKey(priority int32) key { return key{At: -fsm.Time(priority)} }

func (v *service) clear() { *v = service{shared: v.shared, least: v.least} }

func (v *service) size() int { return v.levels.Len() }

func (v *service) any() bool { return v.n > 0 }

// join adds c, which is in no level, to the level of its priority. O(log
// levels). It is in no ring yet.
func (v *service) join(c *consumer) {
	at := levelKey(c.priority)
	if c.level = v.levels.Value(at); c.level == nil {
		c.level = &level{of: v, priority: c.priority}
		v.levels.Put(at, c.level)
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
		v.levels.Remove(levelKey(l.priority))
	}
}

// serve appends c, which is in no ring, to its ring. Requires: it is in a level
// and has credit. O(1), in a table O(log ring). A level above top becomes top.
func (v *service) serve(c *consumer) {
	l := c.level
	c.serviced = true
	if v.settings.leastLoaded {
		c.load = c.held.Len()
		l.byLoad.Put(c.turnKey(), c)
		_, l.first, _ = l.byLoad.Peek()
	} else {
		c.prevRing, c.nextRing = l.last, nil
		if l.last == nil {
			l.first = c
		} else {
			l.last.nextRing = c
		}
		l.last = c
	}
	v.n++
	if at := levelKey(l.priority); at.Before(v.top) {
		v.top = at
	}
}

// suspend removes c from its ring. It does nothing if c is in none. O(1), in a table
// O(log ring).
func (v *service) suspend(c *consumer) {
	if !c.serviced {
		return
	}
	l := c.level
	if l.byLoad.Len() > 0 {
		l.byLoad.Remove(c.turnKey())
		_, l.first, _ = l.byLoad.Peek()
		c.serviced, c.load = false, 0
		v.n--
		return
	}
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
	if at, l := v.levels.First(); !at.Before(v.top) && (*l).first != nil {
		v.scratch.steps++
		v.top = at
		return (*l).first // most queues have one level
	}
	for at, l := range v.levels.From(v.top) {
		v.scratch.steps++
		if c := (*l).first; c != nil {
			v.top = at
			return c
		}
	}
	panic("nobody is in the ring of any level")
}

func (v *service) order(f func(*consumer)) {
	for l := range v.levels.Values(levelKey(math.MaxInt32)) {
		for c := range l.ring() {
			f(c)
		}
	}
}

func (l *level) ring() iter.Seq[*consumer] {
	if l.byLoad.Len() > 0 {
		return l.byLoad.Values(key{})
	}
	return func(yield func(*consumer) bool) {
		for c := l.first; c != nil && yield(c); c = c.nextRing {
		}
	}
}

func (v *service) check(k *checker, members map[*level]int) {
	serviced, joined := 0, 0
	for at, p := range v.levels.All() {
		l := *p
		joined += l.members
		k.that(at == levelKey(l.priority) && l.of == v, "level %d is out of order", l.priority)
		k.that(l.first == nil || !at.Before(v.top), "level %d is overlooked", l.priority)
		k.that(l.members > 0 && l.members == members[l], "level %d: %d members", l.priority, l.members)
		var before, prev *consumer // prev is its link
		for c := range l.ring() {
			k.that(c.level == l && c.serviced && c.prevRing == prev, "consumer %v: wrong ring", c.id)
			k.that(before == nil && l.first == c || before != nil && before.servedBefore(c), "consumer %v is out of turn", c.id)
			k.that(c.load == v.settings.load(c) || c.session.life.over, "consumer %v holds %d, not %d", c.id, c.held.Len(), c.load)
			if before = c; l.byLoad.Len() == 0 {
				prev = c
			}
			if serviced++; serviced > v.n {
				k.fail("a ring never ends, or consumers are miscounted")
				return
			}
		}
		k.that(l.last == prev && (l.first == nil) == (before == nil), "level %d: the tail is wrong", l.priority)
		k.that((l.byLoad.Len() > 0) == (before != nil && v.settings.leastLoaded), "level %d: the order is another one", l.priority)
	}
	k.that(serviced == v.n && joined == v.joined, "services are miscounted")
}

// services are the consumers with credit. Those that take only messages with enough
// left of their TTL have services of their own. A message that more than one service
// may have goes to the consumer with the highest priority, and among equals to the
// least loaded one, if loads count, and among equals of these to the one that has waited
// for longest, whatever it asks for.
//
// Invariants: demanding ascends by least, which is not 0, has no service without
// consumers and at most maxMinTTLs; each has its cursor. waits of those in rings are
// at most count, and ascend in each ring among those with one load.
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

func (vs *services) clear() {
	vs.general.clear()
	vs.demanding = nil
}

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

func (vs *services) serve(c *consumer) {
	vs.count++
	c.waits = vs.count
	c.level.of.serve(c)
}

func (vs *services) suspend(c *consumer) {
	if c.serviced {
		c.level.of.suspend(c)
	}
}

func (vs *services) takesAny() bool { return vs.general.any() }

func (vs *services) any() bool {
	_, ok := vs.least()
	return ok
}

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

func (vs *services) anyFor() bool {
	least, ok := vs.least()
	return ok && vs.has(least)
}

func (vs *services) passOver(least fsm.Millis) { vs.cursors.passOver(least, vs.messages) }

// has reports whether a message of no group is ready that consumers with a least life
// may have, as far as that is known.
func (vs *services) has(least fsm.Millis) bool { return vs.cursors.unsettled(least, vs.messages) }

func (vs *services) demand() bool { return len(vs.demanding) > 0 }

func (vs *services) idle() bool { return vs.messages.readyCount() == 0 }

func (vs *services) next(h uint32) *consumer {
	if len(vs.demanding) == 0 {
		return vs.general.next()
	}
	best, x, now := vs.general.next(), vs.messages.Get(h), vs.clock.now()
	for _, v := range vs.demanding {
		if !v.any() || !x.lives(now, v.least) {
			continue
		}
		if c := v.next(); best == nil || c.servedBefore(best) {
			best = c
		}
	}
	return best
}

// servedBefore reports whether c is served before o. It is a strict total order of
// those in rings.
func (c *consumer) servedBefore(o *consumer) bool {
	return cmp.Or(cmp.Compare(o.priority, c.priority), cmp.Compare(c.load, o.load), cmp.Compare(c.waits, o.waits)) < 0
}

// inOrder returns those in rings by priority, and those of each by how long they have
// waited, whatever they hold: that changes.
func (vs *services) inOrder() []*consumer {
	var all []*consumer
	add := func(c *consumer) { all = append(all, c) }
	vs.general.order(add)
	for _, v := range vs.demanding {
		v.order(add)
	}
	slices.SortFunc(all, func(a, b *consumer) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.waits, b.waits))
	})
	return all
}

// load is what c counts in the order of service, before how long it has waited: what it
// holds, if the least loaded one is served first.
func (s *settings) load(c *consumer) int {
	if s.leastLoaded {
		return c.held.Len()
	}
	return 0
}

// turnKey is the key of c, which is in a ring, if that is a table.
func (c *consumer) turnKey() key { return key{At: fsm.Time(c.load), Seq: c.waits} }

// reload is called with c, which is in a ring, when it holds more or less. It has waited
// for as long as before.
func (vs *services) reload(c *consumer) {
	c.level.of.suspend(c)
	c.level.of.serve(c)
}

// rearrange orders all who are served as the settings say now. O(n log n).
func (vs *services) rearrange() {
	all := vs.inOrder()
	vs.scratch.steps += 2 * len(all)
	for _, c := range all {
		vs.suspend(c)
	}
	for _, c := range all {
		vs.serve(c)
	}
}

func (vs *services) restored() error { return vs.cursors.restored() }

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

// capacitySpan is the shortest time over which Capacity is measured, if the queue
// has existed for as long; the longest is twice that.
const capacitySpan fsm.Millis = 5000

// Capacity says for how long, of late, the queue could have handed messages to a
// consumer at once: one that takes any message had credit for more. It is taken by
// the machine's clock, between commands, so what changes within a millisecond does
// not count. The zero value knows nothing.
//
// It is in no snapshot, and nothing depends on it: a restored machine begins anew.
//
// Invariants: able ≤ serving ≤ 2 · capacitySpan for current and before; began ≤ until.
type Capacity struct {
	began, until    fsm.Time // of current; 0: there is none yet
	current, before servedTime
	present         presence // since until
}

// servedTime is how long there were consumers, and how long one of them had credit.
type servedTime struct{ serving, able fsm.Millis }

// presence is whether there are consumers, and whether one of them has credit.
type presence struct{ serving, able bool }

// advance goes on to an instant. is holds from the one before up to now. O(1).
func (c *Capacity) advance(now fsm.Time, is presence) {
	if c.until == 0 {
		c.began, c.until = now, now
		return
	}
	passed := fsm.Millis(now - c.until)
	if c.until = now; passed >= capacitySpan { // what was before is too long ago
		passed, c.current, c.before = capacitySpan, servedTime{}, servedTime{}
		c.began = now.Add(-passed)
	}
	if is.serving {
		c.current.serving += passed
		if is.able {
			c.current.able += passed
		}
	}
	if fsm.Millis(now-c.began) >= capacitySpan {
		c.before, c.current, c.began = c.current, servedTime{}, now
	}
}

// At returns the share of time in which the queue could hand messages out, of that in
// which it had consumers, over the last capacitySpan or up to twice that before an
// instant: able of serving. 0 of 0: it has no consumers.
func (c Capacity) At(now fsm.Time) (able, serving fsm.Millis) {
	if !c.present.serving {
		return 0, 0
	}
	if now > c.until && c.until != 0 {
		c.advance(now, c.present)
	}
	sum := servedTime{c.before.serving + c.current.serving, c.before.able + c.current.able}
	switch {
	case sum.serving > 0:
		return sum.able, sum.serving
	case c.present.able:
		return 1, 1
	}
	return 0, 1
}

// Share is At as a number from 0 to 1; 0 without consumers.
func (c Capacity) Share(now fsm.Time) float64 {
	able, serving := c.At(now)
	return float64(able) / float64(max(serving, 1))
}

// measure counts the time since the command before. It is called with each, before
// that changes anything.
func (cs *consumers) measure() {
	if now := cs.clock.now(); now != cs.capacity.until {
		cs.capacity.advance(now, cs.presence())
	}
}

// presence reports whether a consumer may be served, and has credit now. Those that
// take only one group do not count as able, nor does anybody while only such messages
// wait that nobody with credit may have.
func (cs *consumers) presence() presence {
	return presence{cs.serving > 0 && !cs.paused(), cs.anyServed() && (cs.services.idle() || cs.canServe())}
}

func (cs *consumers) measured() Capacity {
	c := cs.capacity
	c.present = cs.presence()
	return c
}

// maxMinTTLs is how many different least lives the consumers of a queue may ask for.
const maxMinTTLs = 8

// lives reports whether message x has this much left of its TTL. What is not so
// now never will be.
func (x *message) lives(now fsm.Time, least fsm.Millis) bool {
	return x.expireAt == 0 || x.expireAt >= now.Add(least)
}

// cursors find the next message for consumers that take only messages with
// enough left of their TTL, without going over the others again. There is one
// for each least life that a consumer which is not cancelled asks for.
//
// Invariants:
//
//	all ascends by least, and has those of services.demanding
//	no message in front of a cursor, in its list, lives for least
//	bit i of waiting = at[i] ≠ 0
//
// messages calls added, inserted and removed with every change of the lists of
// ready messages while there are cursors. A queue that goes by deadlines does
// not need them: its cursors stay at the heads.
//
// A snapshot names the messages at which cursors stand: how far a cursor has
// come depends on the bounds of the commands before.
type cursors struct {
	*shared
	timers    *timers
	all       []*cursor
	restoring []*logpb.CursorState // what is being restored; nil: nothing
}

// cursor is how far the lists of ready messages have been passed over.
type cursor struct {
	least   fsm.Millis
	waiting uint64                   // lists that are not at their end
	at      [returnedList + 1]uint32 // the first message that may live for least; 0: none does
	next    []uint64                 // while restoring: the messages at which it stands, by number
}

func (c *cursor) set(no int, h uint32) {
	c.at[no] = h
	if h != 0 {
		c.waiting |= 1 << no
	} else {
		c.waiting &^= 1 << no
	}
}

// list is the list from which comes what is handed out next. Requires: waiting ≠ 0.
// Returned messages have the highest number.
func (c *cursor) list() int { return bits.Len64(c.waiting) - 1 }

func (cs *cursors) clear() { cs.all, cs.restoring = nil, nil }

func (cs *cursors) any() bool { return len(cs.all) > 0 }

func (cs *cursors) len() int { return len(cs.all) }

func (cs *cursors) of(least fsm.Millis) *cursor {
	for _, c := range cs.all {
		if c.least == least {
			return c
		}
	}
	return nil
}

// open adds a cursor. It stands at the heads of the lists, or where it is to be
// restored.
func (cs *cursors) open(least fsm.Millis, ms *messages) {
	c := &cursor{least: least}
	for no := range c.at {
		c.set(no, ms.head(no))
	}
	for _, st := range cs.restoring {
		if st.MinTtl == uint64(least) {
			c.next = st.Next
		}
	}
	i := 0
	for i < len(cs.all) && cs.all[i].least < least {
		i++
	}
	cs.all = slices.Insert(cs.all, i, c)
}

func (cs *cursors) close(least fsm.Millis) {
	cs.all = slices.DeleteFunc(cs.all, func(c *cursor) bool { return c.least == least })
}

// added is called with message h, which has become the last one of a list; what
// follows it there is new, too.
func (cs *cursors) added(no int, h uint32, seq uint64) {
	for _, c := range cs.all {
		switch {
		case cs.restoring == nil:
			if c.at[no] == 0 {
				c.set(no, h)
			}
		case len(c.next) > 0 && c.next[0] == seq:
			c.set(no, h)
			c.next = c.next[1:]
		}
	}
}

// inserted is called with messages that have got a place among the returned ones,
// in front of others. If one of them lives long enough that list is gone over
// again.
func (cs *cursors) inserted(run []checkout, ms *messages) {
	for _, c := range cs.all {
		if slices.ContainsFunc(run, func(held checkout) bool { return ms.Get(held.handle).lives(cs.clock.now(), c.least) }) {
			c.set(returnedList, ms.head(returnedList))
		}
	}
}

// removed is called with message h, which is in its list no more; next follows it.
func (cs *cursors) removed(no int, h, next uint32) {
	for _, c := range cs.all {
		if c.at[no] == h {
			c.set(no, next)
		}
	}
}

func (cs *cursors) purged() {
	for _, c := range cs.all {
		c.at, c.waiting = [returnedList + 1]uint32{}, 0
	}
}

// passOver moves the cursor of a least life to the next message that lives so
// long, as far as the command may: scratch.skips.
func (cs *cursors) passOver(least fsm.Millis, ms *messages) {
	c := cs.of(least)
	if c == nil || cs.settings.DeadlineOrder {
		return
	}
	before := cs.scratch.skips
	for c.waiting != 0 && cs.scratch.skips > 0 {
		no := c.list()
		x := ms.Get(c.at[no])
		if x.lives(cs.clock.now(), least) {
			break
		}
		c.set(no, x.next)
		cs.scratch.skips--
	}
	cs.scratch.steps += (before - cs.scratch.skips) / stepsPerScan
}

// first returns the message that a consumer with a least life is handed next, as
// far as passOver has found it; 0: none. Zero stands for consumers that take all.
func (cs *cursors) first(least fsm.Millis, ms *messages) uint32 {
	if least == 0 {
		return ms.nextReady()
	}
	if cs.settings.DeadlineOrder {
		return cs.timers.nextInOrder(cs.clock.now().Add(least))
	}
	c := cs.of(least)
	if c.waiting == 0 {
		return 0
	}
	if h := c.at[c.list()]; ms.Get(h).lives(cs.clock.now(), least) {
		return h
	}
	return 0
}

// unsettled reports whether first has a message, or might have one if more is
// passed over.
func (cs *cursors) unsettled(least fsm.Millis, ms *messages) bool {
	if least == 0 || cs.settings.DeadlineOrder {
		return cs.first(least, ms) != 0
	}
	return cs.of(least).waiting != 0
}

// save writes where the cursors stand: their lists in the order of a snapshot.
func (cs *cursors) save(h *logpb.QueueSnapshot, ms *messages) {
	for _, c := range cs.all {
		st := &logpb.CursorState{MinTtl: uint64(c.least)}
		for no := maxPriority; no >= 0; no-- {
			if c.at[no] != 0 {
				st.Next = append(st.Next, ms.Get(c.at[no]).seq)
			}
		}
		if at := c.at[returnedList]; at != 0 {
			st.Next = append(st.Next, ms.Get(at).seq)
		}
		h.Cursors = append(h.Cursors, st)
	}
}

func (cs *cursors) restore(h *logpb.QueueSnapshot) { cs.restoring = h.Cursors }

func (cs *cursors) restored() error {
	if len(cs.restoring) != len(cs.all) {
		return fmt.Errorf("%w: %d cursors", ErrSnapshot, len(cs.restoring))
	}
	for i, c := range cs.all {
		if cs.restoring[i].MinTtl != uint64(c.least) || len(c.next) > 0 {
			return fmt.Errorf("%w: a cursor is nowhere", ErrSnapshot)
		}
		c.next = nil
	}
	cs.restoring = nil
	return nil
}

func (cs *cursors) check(k *checker, ms *messages) {
	for i, c := range cs.all {
		k.that(i == 0 || cs.all[i-1].least < c.least, "cursor %d is out of order", c.least)
		for no, at := range c.at {
			h := ms.head(no)
			for ; h != at && h != 0; h = ms.Get(h).next {
				if ms.Get(h).lives(cs.clock.now(), c.least) {
					k.fail("message %d was passed over by cursor %d", ms.Get(h).seq, c.least)
				}
			}
			k.that(h == at && (c.waiting>>no&1 == 1) == (at != 0), "list %d: cursor %d is lost", no, c.least)
		}
	}
}
