package queue

import (
	"cmp"
	"math"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// group is one group of messages: those with its id that are ready, wait to be
// retried, or are checked out. At most one consumer holds it, and only that one is
// handed its messages, in the order of their numbers.
//
// Invariants, once groups.settle has run:
//
//	members = |{(no, ·)} of groups.order|; head = the least number of them, 0 if
//	there is none; headReady ⇔ that message is Grouped
//	out = number of its messages that are checked out
//	protected = number of its Grouped messages that are due and do not expire
//	purged = number of its messages that were purged and are not released yet
//	these hold if purges = groups.purges; else its members are purged, see groups.fresh
//	in groups.byID ⇔ busy, held, or it has a state; unless ended
//	listed ≠ 0 ⇔ it waits to be served: then in waiting of to, or in groups.free if
//	to is nil
//	idle ⇔ it has a state and is neither held nor busy; stateUntil ≠ 0 ⇒ idle
//	ended: nothing of it is handed out; what is left of it dies
//
// How long a state lasts is decided when its group becomes idle, and ends when that
// gets a message or a holder, even within one command.
//
// id never changes, since snapshots read it while commands are applied. no orders
// nothing that anyone sees: it differs from replica to replica.
type group struct {
	id string
	no uint64 // key of its messages in groups.order; 0: it was never in byID

	members   int
	out       int
	protected int
	purged    int
	purges    uint64
	head      uint64
	headReady bool
	ended     bool
	endNo     uint64 // orders the groups that end
	touched   bool   // it is in groups.touched

	hold *hold // nil: nobody holds it

	listed uint64      // the number under which it waits to be served; 0: it does not
	to     *groupTaker // who alone is to be served; nil: anybody

	state      string
	stateSet   fsm.Time // when it was last set, on the machine's clock; 0: there is none
	idle       bool
	stateUntil fsm.Time // on the machine's clock; 0: never
	stateOrder uint64
}

// key is the key of a message of g in groups.order, by its number, and of a delivery in
// groupTaker.ids.
func (g *group) key(no uint64) key { return key{At: fsm.Time(g.no), Seq: no} }

// busy reports whether messages of the group are in the queue, if only purged ones.
func (g *group) busy() bool { return g.members > 0 || g.out > 0 || g.purged > 0 }

// heldBy reports whether c holds the group, or its hold is to end.
func (g *group) heldBy(c *consumer) bool { return g.hold != nil && g.hold.of.c == c }

// rests reports whether the group has a state and nothing else.
func (g *group) rests() bool { return g.state != "" && g.hold == nil && !g.busy() }

// hold is the lock of a group. It ends at until or linger, on the clock of held
// messages, by a Tick; or its holder gives it up.
type hold struct {
	of    *groupTaker
	order uint64 // of all holds; the key in of.holds, and the tie-break of ends
	// until is when the lock ends; 0: never. linger is when the holder of an empty
	// group loses it; 0: the group is not empty, or that is not timed.
	until  fsm.Time
	linger fsm.Time
}

// end is when a Tick ends the hold; 0: never.
func (h *hold) end() fsm.Time {
	if h.until == 0 || h.linger != 0 && h.linger < h.until {
		return h.linger
	}
	return h.until
}

// groupTaker is what one consumer, or the gets of a session, holds and may hold of
// groups.
//
// Invariants:
//
//	holds = {g.hold.order → g : g.hold.of is the taker}
//	waiting = {g.listed → g : g.to is the taker}
//	owed = the first key of waiting, if the consumer wants messages; else 0
//	taking ⇔ it wants messages, takes any group, and holds fewer than max
//	ids ⊇ {(g.no, delivery) of what the consumer has of groups, whoever holds these};
//	others are settled and have not ended
//
// It is a record of its own, so that consumers of queues without groups cost
// nothing.
type groupTaker struct {
	c     *consumer
	max   int    // how many groups it may hold; gets: no limit
	only  string // the only group that it takes; empty: any
	turn  uint64 // the one with the lowest takes the next free group
	wants bool   // it may be served and has credit
	going bool   // it takes nothing new: cancelled
	keeps bool   // it keeps groups that are empty, until it gives them up or their locks end

	holds   sorted[*group]
	waiting sorted[*group]
	ids     sorted[struct{}]
	review  uint64 // from this order on its holds are under review; 0: none is
	owed    uint64
	taking  bool
	level   fsm.Time // of its entry in groups.takers, while taking
}

// passes reports whether the holder keeps a group only while something of it is
// not settled: gets, and consumers that are cancelled.
func (t *groupTaker) passes() bool { return t.going || t.c.isGets() }

// stays reports whether the holder keeps a group of which nothing is out or can be handed out.
func (t *groupTaker) stays() bool { return t.keeps && !t.passes() }

// first returns the key of the first delivery of g that the consumer has; false: it has
// none.
func (t *groupTaker) first(g *group) (key, bool) {
	for at := range t.ids.From(g.key(0)) {
		return at, at.At == fsm.Time(g.no)
	}
	return key{}, false
}

// mayTake reports whether the consumer could be given a free group, if it wants
// messages: any group, and holds fewer than it may.
func (t *groupTaker) mayTake() bool {
	return t.c.isGets() || t.only == "" && !t.going && t.holds.Len() < t.max
}

// groupTakers are the consumers that get groups: who of them wants messages of its
// groups, who takes the next free one, and who takes only a certain one.
//
// Invariants, besides those of groupTaker:
//
//	owing = {t.owed → t : t.owed ≠ 0}
//	free = {(level, turn) → t : t.taking}; level is that of groupTakers.rank
//	claims has the takers with only ≠ "" that want messages: by that, and by age
//	named = number of takers with only ≠ ""
//
// claims is never iterated where order could be seen.
type groupTakers struct {
	*shared
	all    sorted[*groupTaker] // by registered of the consumer
	claims map[string]*sorted[*groupTaker]
	named  int
	free   sorted[*groupTaker]
	owing  sorted[*groupTaker]
	// wanting is how many want messages.
	wanting int
}

func (ts *groupTakers) want(t *groupTaker, wants bool) {
	if t.wants == wants {
		return
	}
	ts.unclaim(t)
	t.wants = wants
	ts.claim(t)
	if ts.wanting--; wants {
		ts.wanting += 2
	}
}

func newGroupTakers(s *shared) *groupTakers {
	return &groupTakers{shared: s, claims: map[string]*sorted[*groupTaker]{}}
}

func (ts *groupTakers) claim(t *groupTaker) {
	if t.only == "" || !t.wants {
		return
	}
	if ts.claims[t.only] == nil {
		ts.claims[t.only] = &sorted[*groupTaker]{}
	}
	ts.claims[t.only].Put(key{Seq: t.c.registered}, t)
}

func (ts *groupTakers) unclaim(t *groupTaker) {
	if t.only == "" || !t.wants {
		return
	}
	all := ts.claims[t.only]
	if all.Remove(key{Seq: t.c.registered}); all.Len() == 0 {
		delete(ts.claims, t.only)
	}
}

// claimant is the first consumer that takes only the group with this id and wants
// messages; nil: there is none.
func (ts *groupTakers) claimant(id string) *groupTaker {
	if all := ts.claims[id]; all != nil {
		_, t, _ := all.Peek()
		return t
	}
	return nil
}

func (ts *groupTakers) owe(t *groupTaker) {
	at := uint64(0)
	if t.wants && t.waiting.Len() > 0 {
		k, _ := t.waiting.First()
		at = k.Seq
	}
	if at == t.owed {
		return
	}
	if t.owed != 0 {
		ts.owing.Remove(key{Seq: t.owed})
	}
	if t.owed = at; at != 0 {
		ts.owing.Put(key{Seq: at}, t)
	}
}

func (ts *groupTakers) add(c *consumer, turn uint64) *groupTaker {
	t := &groupTaker{c: c, max: 1, turn: turn}
	ts.all.Put(key{Seq: c.registered}, t)
	return t
}

// of returns the record of c; nil: it has none.
func (ts *groupTakers) of(c *consumer) *groupTaker {
	return ts.all.Value(key{Seq: c.registered})
}

// generally reports whether c may be handed messages that are of no group.
func (ts *groupTakers) generally(c *consumer) bool {
	if ts.named == 0 {
		return true
	}
	t := ts.of(c)
	return t == nil || t.only == ""
}

// rank orders those that take free groups before their turns: by priority, and if the
// least loaded one is served first, by what they hold, which is less than maxCredit.
func (ts *groupTakers) rank(c *consumer) fsm.Time {
	return levelKey(c.priority).At*maxCredit + fsm.Time(ts.settings.load(c))
}

// take updates whether t waits for free groups. Its turn lasts as long as it waits.
func (ts *groupTakers) take(t *groupTaker) {
	taking := t.wants && t.mayTake()
	level := ts.rank(t.c)
	if t.taking && (!taking || t.level != level) {
		ts.free.Remove(key{At: t.level, Seq: t.turn})
		t.taking = false
	}
	if taking && !t.taking {
		t.taking, t.level = true, level
		ts.free.Put(key{At: level, Seq: t.turn}, t)
	}
}

func (ts *groupTakers) any() bool { return ts.all.Len() > 0 }

func (ts *groupTakers) claimed() bool { return ts.named > 0 }

// heldBy returns the groups that c holds, in the order in which it got them.
func (ts *groupTakers) heldBy(c *consumer) []*group {
	if t := ts.of(c); t != nil {
		return slices.Collect(t.holds.Values(key{}))
	}
	return nil
}

func (ts *groupTakers) holdsAny(c *consumer) bool {
	t := ts.of(c)
	return t != nil && t.holds.Len() > 0
}

func (ts *groupTakers) rename(t *groupTaker, only string) {
	if ts.unclaim(t); t.only != "" {
		ts.named--
	}
	if t.only = only; only != "" {
		ts.named++
	}
	ts.claim(t)
}

func (ts *groupTakers) turnAway(t *groupTaker, turn uint64) {
	if t.taking {
		ts.free.Remove(key{At: t.level, Seq: t.turn})
		t.taking = false
	}
	t.turn = turn
	ts.take(t)
}

// check checks who takes groups: held is how many are held, and all says that every
// consumer must be known here.
func (ts *groupTakers) check(k *checker, held int, next uint64, all bool) {
	taking, owing, named, claims, wanting := 0, 0, 0, 0, 0
	for t := range ts.all.Values(key{}) {
		at := key{Seq: t.c.registered}
		k.that(ts.of(t.c) == t && t.turn < next && t.c.session != nil && t.max > 0, "consumer %v takes groups", t.c.id)
		k.that(t.going == t.c.cancelled && (!t.going || t.only == ""), "consumer %v still takes groups", t.c.id)
		k.that(t.c.session.life.over || t.wants == (!t.c.isGets() && k.m.consumers.served(t.c) && t.c.credit() > 0 && !t.c.chooses()), "consumer %v wants messages: %v", t.c.id, t.wants)
		k.that(t.taking == (t.wants && t.only == "" && t.holds.Len() < t.max), "consumer %v takes groups: %v", t.c.id, t.taking)
		first, _, _ := t.waiting.Peek()
		k.that(t.owed == 0 && (first.Seq == 0 || !t.wants) || t.owed == first.Seq && t.wants, "consumer %v waits for %d", t.c.id, t.owed)
		held -= t.holds.Len()
		if t.wants {
			wanting++
		}
		if t.taking {
			taking++
			k.that(ts.free.Get(key{At: t.level, Seq: t.turn}) != nil && (t.level == ts.rank(t.c) || t.c.session.life.over), "consumer %v gets no group", t.c.id)
		}
		if t.owed != 0 {
			owing++
		}
		if t.only != "" {
			named++
		}
		if t.only != "" && t.wants {
			claims++
			all := ts.claims[t.only]
			k.that(all != nil && all.Get(at) != nil, "consumer %v does not get its group", t.c.id)
		}
		for held := range t.c.held.from(0) {
			g := k.m.groupOf(held.handle)
			k.that(g == nil || t.ids.Get(g.key(held.id)) != nil, "delivery %d of a group is forgotten", held.id)
		}
	}
	for _, all := range ts.claims { // det: only counts
		claims -= all.Len()
	}
	k.that(held == 0 && named == ts.named && claims == 0 && taking == ts.free.Len() && owing == ts.owing.Len() && wanting == ts.wanting, "takers are miscounted")
	if all {
		for c := range k.m.consumers.from(0) {
			k.that(c.isGets() || c.cancelled || ts.of(c) != nil, "consumer %v never gets a group", c.id)
		}
	}
}

func (m *Machine) groupOf(h uint32) *group { return m.messages.extra(h).group }

func (m *Machine) setGroup(h uint32, g *group) { m.messages.editExtra(h).group = g }

// placeOf is where message h, which is in no place, waits to be handed out for the
// first time. A queue without groups forgets the group of the message.
func (m *Machine) placeOf(h uint32) Place {
	g := m.groupOf(h)
	switch {
	case g == nil:
		return Ready
	case !m.settings.grouped():
		m.messages.ungroup(h)
		return Ready
	case g.ended:
		m.setGroup(h, m.groups.find(g.id)) // it was scheduled meanwhile
	}
	return Grouped
}

// regroup puts those messages back that belong to a group, and returns the others in
// their order. They are in no place. The first ones of the place are then those that were
// put back.
func (m *Machine) regroup(kept []checkout) []checkout {
	var run []checkout
	kept = slices.DeleteFunc(kept, func(held checkout) bool {
		if m.groupOf(held.handle) == nil || m.placeOf(held.handle) != Grouped {
			return false
		}
		run = append(run, held)
		return true
	})
	slices.SortFunc(run, func(a, b checkout) int { return cmp.Compare(a.seq, b.seq) })
	for _, held := range slices.Backward(run) {
		m.messages.putAfter(0, held.handle, Grouped)
	}
	for _, held := range run {
		if m.messages.Get(held.handle).due(m.clock.now()) && m.covered(held.handle) {
			m.messages.protect(held.handle)
		} else {
			m.messages.watch(held.handle)
		}
	}
	return kept
}

// covered reports whether message h does not expire because its group is held. One
// that was due while that was so remains covered, whatever the settings say since.
func (m *Machine) covered(h uint32) bool {
	g := m.groupOf(h)
	return g != nil && g.hold != nil && (m.settings.GroupExpiry || m.messages.extra(h).protected)
}

func (m *Machine) doomed(h uint32) bool {
	g := m.groupOf(h)
	return g != nil && g.ended
}

// groupDeath is why message h dies whose group has ended. It is in no place, so that its
// expiry is known.
func (m *Machine) groupDeath(h uint32) logpb.Death_Reason {
	if m.messages.Get(h).due(m.clock.now()) {
		return logpb.Death_EXPIRED
	}
	return logpb.Death_GROUP_EXPIRED
}

// endOverdueGroups ends the groups of messages that come back past their expiry, if nobody
// holds them and their messages expire together. The messages are in no place.
func (m *Machine) endOverdueGroups(back []checkout) {
	if !m.settings.GroupExpiry || !m.groups.any() {
		return
	}
	for _, held := range back {
		g := m.groupOf(held.handle)
		if g != nil && g.hold == nil && !g.ended && m.messages.Get(held.handle).due(m.clock.now()) {
			m.groups.end(m.groups.known(g))
		}
	}
}

// mayGo reports whether message h, which is ready, may be handed out: it is not due,
// or that has no effect.
func (m *Machine) mayGo(h uint32) bool {
	return !m.messages.Get(h).due(m.clock.now()) || h == m.scratch.fresh || m.covered(h)
}

// renewGroups is called with the deliveries in scratch.taken and rest, which c has settled:
// that renews the locks of their groups. rest may be nil.
func (m *Machine) renewGroups(c *consumer, rest *held) {
	if !m.groups.any() {
		return
	}
	lock := m.settings.groupLock(c)
	for i, held := range m.scratch.taken {
		g := m.groupOf(held.handle)
		if g == nil {
			continue
		}
		if m.groups.forget(g, c, held.id); g.heldBy(c) && (i < m.bounds.Tick || !m.since(3)) {
			m.groups.lock(g, lock)
		}
	}
	if rest != nil && rest.Len() > 0 && !m.since(3) {
		m.groups.renew(c, rest, lock)
	}
}

// endSettled is called with deliveries that of had settled beyond the bound of one
// command, and that end now. Nothing has timed out since then, so this is early enough
// to renew the locks of their groups.
func (m *Machine) endSettled(of fsm.ConsumerID, some []checkout) {
	if !m.groups.any() {
		return
	}
	c := m.holder(nil, of.Session.Proto(), of.Number)
	if c == nil {
		return
	}
	lock := m.settings.groupLock(c)
	for _, held := range some {
		g := m.groupOf(held.handle)
		if g == nil {
			continue
		}
		if _, another := c.held.find(held.id); !another { // of a consumer that has the number now
			m.groups.forget(g, c, held.id)
		}
		if m.since(3) && g.heldBy(c) {
			m.groups.lock(g, lock)
		}
	}
}

// nextForGet returns the message that a get of c, which may be nil, is handed next: the oldest of
// no group, of a free group, or of one that its session's gets hold; 0: there is none.
func (m *Machine) nextForGet(c *consumer) uint32 {
	h := m.messages.nextReady()
	if !m.groups.any() || m.returnings.any() {
		return h
	}
	if g := m.groups.nextFor(c); g != nil && (h == 0 || g.listed < m.messages.Get(h).seq) {
		return m.groups.first(g)
	}
	return h
}

// group performs a request about a group that a consumer of s holds.
//
// Refusals, in this order: Invalid; NotFound if there is no such
// consumer, or nobody holds the group; InUse if another consumer does. A new state
// is Rejected if it does not fit into the length limits of the queue.
func (m *Machine) group(s *session, cmd *logpb.Group) fsm.Result {
	if cmd.GetId() == "" || cmd.Action < logpb.Group_RENEW || cmd.Action > logpb.Group_GET_STATE || len(cmd.State) > maxGroupState {
		return fsm.Result{Code: fsm.Invalid}
	}
	c := s.consumer(cmd.Consumer)
	g := m.groups.held(cmd.Id)
	switch {
	case c == nil || g == nil:
		return fsm.Result{Code: fsm.NotFound}
	case g.hold.of.c != c:
		return fsm.Result{Code: fsm.InUse}
	}
	m.lease.touch()
	r := fsm.Result{Count: 1}
	switch cmd.Action {
	case logpb.Group_RENEW:
		m.groups.lock(g, m.settings.groupLock(c))
	case logpb.Group_RELEASE:
		m.giveUp(g, false)
		m.consumers.removeFinished(c)
	case logpb.Group_SET_STATE:
		if !m.fitsState(g, len(cmd.State)) {
			return fsm.Result{Code: fsm.Rejected}
		}
		m.groups.setState(g, string(cmd.State))
	}
	m.groups.describe(cmd, &r)
	return r
}

// fitsState reports whether the limits allow a state of n bytes for g: those of the
// queue, which makes space if it drops its head, and that of all states.
func (m *Machine) fitsState(g *group, n int) bool {
	if n > len(g.state) && m.since(3) && m.groups.stateBytes()-uint64(len(g.state))+uint64(n) > uint64(m.bounds.States) {
		return false
	}
	all := m.counted()
	if m.settings.Overflow == logpb.QueueConfig_DROP_HEAD {
		all = m.kept()
	}
	before := all.Bytes - uint64(len(g.state))
	return n <= len(g.state) || m.settings.maxBytes.Allows(before+uint64(n))
}

// expire is the end of message h, which is due, unless its group is held and covers
// it. If the messages of a group expire together, all of them will die; what is
// set aside is not covered, and deferred and parked messages die by themselves.
func (m *Machine) expire(h uint32, eff *fsm.Effects) {
	in, g := m.messages.Get(h).place, m.groupOf(h)
	switch {
	case g == nil || !m.settings.GroupExpiry || in == Deferred || in == Parked || in == Delayed && g.hold != nil:
		m.endWaiting(h, logpb.Death_EXPIRED, eff)
	case g.hold != nil:
		m.messages.protect(h)
	default:
		m.groups.end(g)
	}
}

func (m *Machine) endWaiting(h uint32, reason logpb.Death_Reason, eff *fsm.Effects) {
	m.leaveWaiting(h)
	m.outbox.die(h, reason, eff)
}

func (m *Machine) leaveWaiting(h uint32) {
	if m.messages.Get(h).place == Delayed {
		m.lease.touch()
	}
	m.aside.takeWaiting(h)
}

// giveUp ends the hold of g. What its holder has not settled goes back, as failed
// if the lock was lost. From version 3 on that is done in steps, see endLeaving.
func (m *Machine) giveUp(g *group, failed bool) {
	switch {
	case !m.since(3):
		m.takeBack(g, failed, math.MaxInt)
		fallthrough
	case g.out == 0:
		m.groups.release(g)
	default:
		m.groups.giveUp(g, failed)
	}
}

// takeBack takes from the holder of g up to n of the deliveries that it has of it, and
// returns how many. They go back, as failed if the lock was lost.
func (m *Machine) takeBack(g *group, lost bool, n int) (done int) {
	t := g.hold.of
	c := t.c
	r := &returning{of: c.id, tag: c.tag, failed: lost, group: true}
	for ; done < n; done++ {
		at, ok := t.first(g)
		if !ok {
			break
		}
		t.ids.Remove(at)
		m.scratch.steps++
		held, ok := c.held.Remove(key{Seq: at.Seq})
		if !ok {
			continue
		}
		if lost && !m.detached.has(c) {
			c.loses(at.Seq)
			m.scratch.news.tell(c, fsm.LocksLost, at.Seq, "")
		}
		r.held.push(checkout{id: at.Seq, grip: held})
	}
	if r.held.Len() > 0 {
		m.consumers.holds(c, -r.held.Len())
		m.returnings.add(r)
	}
	m.afterTaking(c)
	return done
}

func (m *Machine) giveUpAll(c *consumer) {
	if m.since(3) {
		m.groups.giveUpAll(c, true)
		return
	}
	for _, g := range m.takers.heldBy(c) {
		m.giveUp(g, false)
	}
}

// endHolds ends the holds that are over: locks that were not renewed, and those of
// groups that have been empty for long enough. None does while others are leaving.
func (m *Machine) endHolds() {
	if m.groups.anyLeft() {
		return
	}
	var done []*consumer
	for m.scratch.budget > 0 {
		g := m.groups.overdue()
		if g == nil {
			break
		}
		m.scratch.budget--
		lost := g.hold.until != 0 && m.clock.heldUntil(g.hold.until) <= m.clock.now()
		if lost {
			m.counters.GroupsLost++
		}
		done = append(done, g.hold.of.c)
		m.giveUp(g, lost)
	}
	m.consumers.removeFinished(done...)
}
