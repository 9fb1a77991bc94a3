package queue

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxGroupState bounds the state of one group.
const maxGroupState = 256 << 10

// groups are the groups of messages: which there are, the order of their
// messages, who holds them, and who is served next.
//
// Invariants, besides those of group and groupTaker:
//
//	order = {(g.no, seq) → message} of the Grouped messages, and of the Delayed ones
//	that belong to a group
//	ages = {seq → message} of the Grouped messages
//	free = {g.listed → g : g.listed ≠ 0 and g.to = nil}
//	ends = {(g.hold.end(), g.hold.order) → g : the end is not 0}
//	states = {(g.stateUntil, g.stateOrder) → g : g.stateUntil ≠ 0}
//	kept = the groups of byID that are held, have a state, or have something out
//	stateSize = Σ len(g.state); heldOnes = number of groups that are held
//	ended = {g.endNo → g : g.ended}; dying has those with members
//
// byID is never iterated where order could be seen. A snapshot has the groups
// that are held or have a state, and the takers; messages name their group, from
// which the rest follows.
type groups struct {
	*shared
	byID  map[string]*group
	order sorted[inGroup]
	ages  sorted[uint32]
	free  sorted[*group]
	kept  sorted[*group] // keys have at = 0 and seq = no
	// Groups whose messages die, in this order, and those of them that have any left that
	// can. Their ids may be those of new ones.
	ended, dying sorted[*group]

	takers *groupTakers // those that get them

	ends      sorted[*group]
	states    sorted[*group]
	stateSize uint64
	heldOnes  int
	purges    uint64   // how many there were, from version 3 on; the replica's own
	next      uint64   // orders holds, turns and states; a snapshot has it
	lastNo    uint64   // of a group
	lastEnd   uint64   // of a group
	touched   []*group // groups that settle must check
}

// byID orders groups by their ids.
func byID(a, b *group) int { return cmp.Compare(a.id, b.id) }

// inGroup is a message in the order of its group.
type inGroup struct {
	h     uint32
	ready bool
}

func newGroups(s *shared, ts *groupTakers) *groups {
	return &groups{shared: s, byID: map[string]*group{}, takers: ts, next: 1}
}

// clear removes all groups and takers. The order continues.
func (gs *groups) clear() {
	next, takers := gs.next, gs.takers
	*takers = *newGroupTakers(gs.shared)
	*gs = groups{shared: gs.shared, byID: map[string]*group{}, takers: takers, next: next}
}

// on reports whether consumers must be known here: the queue has groups.
func (gs *groups) on() bool {
	return gs.settings.Groups != logpb.QueueConfig_NO_GROUPS || gs.any()
}

func (gs *groups) any() bool { return len(gs.byID) > 0 || gs.ended.Len() > 0 }

// find returns the group with this id. One that is new is known only once it has a
// message.
func (gs *groups) find(id string) *group {
	if g := gs.byID[id]; g != nil {
		return g
	}
	return &group{id: id}
}

// known returns the group that has the id of g now, which is a new one if there was
// none.
func (gs *groups) known(g *group) *group {
	if now := gs.byID[g.id]; now != nil {
		return now
	}
	if g.ended || g.no != 0 {
		g = &group{id: g.id}
	}
	gs.lastNo++
	g.no, g.purges = gs.lastNo, gs.purges
	gs.byID[g.id] = g
	gs.touch(g)
	return g
}

func (gs *groups) touch(g *group) {
	if !g.touched {
		g.touched = true
		gs.touched = append(gs.touched, g)
	}
}

// enter adds message seq to the group with the id of g and returns that group. A
// group that has ended gets messages only while it is restored.
func (gs *groups) enter(g *group, seq uint64, h uint32, ready bool) *group {
	if !g.ended {
		g = gs.known(g)
	}
	gs.unlist(g)
	gs.order.Put(g.key(seq), inGroup{h, ready})
	if ready {
		gs.ages.Put(key{Seq: seq}, h)
	}
	g.members++
	gs.mark(g)
	if g.head == 0 || seq < g.head {
		g.head, g.headReady = seq, ready
	}
	gs.list(g)
	gs.wake(g)
	return g
}

func (gs *groups) leave(g *group, seq uint64) {
	gs.unlist(g)
	gs.order.Remove(g.key(seq))
	gs.ages.Remove(key{Seq: seq})
	g.members--
	gs.mark(g)
	if seq == g.head {
		gs.findHead(g)
	}
	gs.list(g)
	gs.touch(g)
}

func (gs *groups) findHead(g *group) {
	g.head, g.headReady = 0, false
	for at, m := range gs.order.From(g.key(0)) {
		if at.At == fsm.Time(g.no) {
			g.head, g.headReady = at.Seq, m.ready
		}
		return
	}
}

func (gs *groups) first(g *group) uint32 { return gs.order.Get(g.key(g.head)).h }

// unlist takes g out of where it waits to be served. The caller changes it, and
// lists it again.
func (gs *groups) unlist(g *group) {
	if gs.fresh(g); g.listed == 0 {
		return
	}
	if t := g.to; t == nil {
		gs.free.Remove(key{Seq: g.listed})
	} else {
		t.waiting.Remove(key{Seq: g.listed})
		gs.takers.owe(t)
	}
	g.listed, g.to = 0, nil
}

// fresh makes the members of g purged ones if there was a purge since they were counted.
// A purge does not look at the groups: what uses their counts does.
func (gs *groups) fresh(g *group) {
	if g.purges != gs.purges {
		g.purges, g.purged = gs.purges, g.purged+g.members
		g.members, g.head, g.headReady, g.protected, g.listed, g.to = 0, 0, false, 0, 0, nil
	}
}

// list puts g where it waits to be served, if it has something to hand out.
// Requires: it is not listed.
func (gs *groups) list(g *group) {
	if g.head == 0 || !g.headReady || g.ended {
		return
	}
	g.listed = g.head
	switch {
	case g.hold != nil:
		g.to = g.hold.of
	default:
		g.to = gs.takers.claimant(g.id)
	}
	if t := g.to; t == nil {
		gs.free.Put(key{Seq: g.listed}, g)
	} else {
		t.waiting.Put(key{Seq: g.listed}, g)
		gs.takers.owe(t)
	}
}

func (gs *groups) number() uint64 {
	gs.next++
	return gs.next - 1
}

// update records what a Consume says of groups: how many c may hold, 0 for one, and
// the only one that it takes.
func (gs *groups) update(c *consumer, limit uint32, only string, keeps bool) {
	t := gs.takers.of(c)
	if t == nil {
		if !gs.on() && limit == 0 && only == "" {
			return
		}
		t = gs.takers.add(c, gs.number())
	}
	t.max = max(int(limit), 1)
	if t.keeps != keeps {
		t.keeps = keeps
		for g := range t.holds.Values(key{}) {
			gs.touch(g)
		}
	}
	if before := t.only; before != only {
		gs.takers.rename(t, only)
		gs.relist(before)
		gs.relist(only)
	}
}

// isTaken reports whether somebody else than c holds the group with this id. c may be nil.
func (gs *groups) isTaken(id string, c *consumer) bool {
	g := gs.byID[id]
	return g != nil && g.hold != nil && (c == nil || !g.heldBy(c))
}

// hold gives c the group with this id, which nobody else holds, even if it is empty. c takes only
// this one.
func (gs *groups) hold(id string, c *consumer, lock fsm.Millis) {
	g := gs.known(gs.find(strings.Clone(id)))
	if g.hold == nil {
		gs.wake(g)
		gs.acquire(g, gs.takers.of(c), lock)
	}
}

func (gs *groups) relist(id string) {
	if g := gs.byID[id]; id != "" && g != nil && g.hold == nil {
		gs.unlist(g)
		gs.list(g)
	}
}

// refresh is called when what the service of c depends on may have changed: wants says that it may
// be served and has credit.
func (gs *groups) refresh(c *consumer, wants bool) {
	t := gs.takers.of(c)
	if t == nil {
		if !gs.on() || c.isGets() || c.cancelled {
			return
		}
		t = gs.takers.add(c, gs.number())
	}
	wants = wants && !c.isGets()
	if t.wants != wants {
		gs.takers.want(t, wants)
		gs.relist(t.only)
	}
	gs.takers.owe(t)
	gs.takers.take(t)
}

// nextServed returns the group that is served next, and to whom; nil: none is. It is the one with
// the oldest first message.
func (gs *groups) nextServed() (g *group, t *groupTaker) {
	if _, t, _ = gs.takers.owing.Peek(); t != nil {
		_, g, _ = t.waiting.Peek()
	}
	_, taker, _ := gs.takers.free.Peek()
	if _, free, ok := gs.free.Peek(); ok && taker != nil && (g == nil || free.listed < g.listed) {
		return free, taker
	}
	return g, t
}

// servesAny reports whether a group can be served.
func (gs *groups) servesAny() bool {
	return gs.takers.owing.Len() > 0 || gs.free.Len() > 0 && gs.takers.free.Len() > 0
}

// nextFor returns the group from which c is served next, whatever its credit; nil: from none. c is
// nil for the gets of a session that never got anything.
func (gs *groups) nextFor(c *consumer) (g *group) {
	var t *groupTaker
	if c != nil {
		t = gs.takers.of(c)
	}
	older := func(o *group) {
		if g == nil || o.listed < g.listed {
			g = o
		}
	}
	if t != nil {
		if _, o, ok := t.waiting.Peek(); ok {
			older(o)
		}
		if o := gs.byID[t.only]; o != nil && o.purges == gs.purges && o.listed != 0 && o.to == nil {
			older(o)
		}
	}
	if t == nil || t.mayTake() {
		if _, o, ok := gs.free.Peek(); ok {
			older(o)
		}
	}
	return g
}

// handOut records that c is handed a message of g as delivery id. c gets the group
// unless another consumer has it, which is so only for messages that were deferred.
// lock is how long the group is locked; 0: until it is given up. take false: c does not
// get it. It returns the group that has this id now. Requires: the message is in no place.
func (gs *groups) handOut(g *group, c *consumer, id uint64, lock fsm.Millis, take bool) *group {
	g = gs.known(g)
	gs.addOut(g, 1)
	t := gs.takers.of(c)
	if t == nil {
		t = gs.takers.add(c, gs.number()) // the first get of a session
	}
	if take && g.hold == nil && !g.ended {
		gs.acquire(g, t, lock)
	}
	t.ids.Put(g.key(id), struct{}{})
	return g
}

func (gs *groups) addOut(g *group, n int) {
	gs.fresh(g)
	g.out += n
	gs.wake(g)
	gs.keep(g)
	gs.touch(g)
}

func (gs *groups) keep(g *group) {
	at := key{Seq: g.no}
	has, needs := gs.kept.Get(at) != nil, !g.ended && (g.hold != nil || g.state != "" || g.out > 0)
	switch {
	case needs && !has:
		gs.kept.Put(at, g)
	case has && !needs:
		gs.kept.Remove(at)
	}
}

func (gs *groups) acquire(g *group, t *groupTaker, lock fsm.Millis) {
	gs.unlist(g)
	gs.counters.GroupsTaken++
	gs.scratch.news.tell(t.c, fsm.GroupsTaken, 0, g.id)
	g.hold = &hold{of: t, order: gs.number()}
	gs.heldOnes++
	t.holds.Put(key{Seq: g.hold.order}, g)
	gs.lock(g, lock)
	gs.takers.turnAway(t, gs.number())
	gs.keep(g)
	gs.list(g)
	gs.touch(g)
}

// lock lets the lock of g, which is held, begin anew, unless the hold is to end.
func (gs *groups) lock(g *group, lock fsm.Millis) {
	if g.left() {
		return
	}
	until := fsm.Time(0)
	if lock > 0 {
		until = gs.clock.heldDeadline(lock)
	}
	gs.setEnd(g, until, g.hold.linger)
}

func (gs *groups) setEnd(g *group, until, linger fsm.Time) {
	h := g.hold
	before := h.end()
	h.until, h.linger = until, linger
	after := h.end()
	if before == after {
		return
	}
	if before != 0 {
		gs.ends.Remove(key{At: before, Seq: h.order})
	}
	if after != 0 {
		gs.ends.Put(key{At: after, Seq: h.order}, g)
	}
}

func (gs *groups) stateBytes() uint64 { return gs.stateSize }

// release ends the hold of g. Its holder is the last one to take another group. What
// it has not settled is up to the caller.
func (gs *groups) release(g *group) {
	h := g.hold
	gs.scratch.news.tell(h.of.c, fsm.GroupsLeft, 0, g.id)
	gs.unlist(g)
	gs.setEnd(g, 0, 0)
	h.of.holds.Remove(key{Seq: h.order})
	g.hold = nil
	gs.heldOnes--
	gs.takers.turnAway(h.of, gs.number())
	gs.keep(g)
	if g.protected > 0 {
		gs.end(g)
	}
	gs.list(g)
	gs.touch(g)
}

// settle brings holds and groups up to date that have changed: a group that is
// empty is left by its holder, at once or after a while, and forgotten.
//
// It runs before messages are assigned and at the end of each command, not between,
// since a message that comes back is in no place for a moment. The order is that of
// ids: turns and the order of states depend on it.
func (gs *groups) settle() {
	if len(gs.touched) > 0 {
		gs.settleTouched()
	}
}

// settleTouched is settle for a queue where a group has changed.
func (gs *groups) settleTouched() {
	if len(gs.touched) > 1 {
		slices.SortFunc(gs.touched, byID)
	}
	for i := 0; i < len(gs.touched); i++ {
		g := gs.touched[i]
		g.touched = false
		gs.scratch.steps++
		if gs.fresh(g); g.ended {
			if !g.busy() {
				gs.ended.Remove(key{Seq: g.endNo})
			}
			continue
		}
		if g.hold != nil {
			gs.settleHold(g)
		}
		gs.settleState(g)
		if !g.busy() && g.hold == nil && g.state == "" && gs.byID[g.id] == g {
			delete(gs.byID, g.id)
		}
	}
	gs.touched = gs.touched[:0]
}

func (gs *groups) setState(g *group, state string) {
	gs.untimeState(g)
	g.idle = false
	gs.stateSize += uint64(len(state)) - uint64(len(g.state))
	g.state, g.stateSet = state, 0
	if state != "" && gs.since(3) {
		g.stateSet = gs.clock.now()
	}
	gs.keep(g)
	gs.touch(g)
}

func (gs *groups) retire(c *consumer) {
	t := gs.takers.of(c)
	if t == nil {
		return
	}
	t.going = true
	gs.takers.want(t, false)
	only := t.only
	gs.takers.rename(t, "")
	gs.relist(only)
	gs.takers.owe(t)
	gs.takers.take(t)
}

// purge removes all messages but those that are checked out. O(consumers): a group goes on
// once its messages are released, see swept. Before version 3 it does at once.
func (gs *groups) purge() {
	if !gs.any() {
		return
	}
	gs.order.Clear()
	gs.ages.Clear()
	gs.free.Clear()
	for t := range gs.takers.all.Values(key{}) {
		t.waiting.Clear()
		gs.takers.owe(t)
	}
	gs.dying.Clear()
	gs.purges++
	if gs.since(3) {
		return
	}
	gs.byID = map[string]*group{}
	all := slices.Collect(gs.ending())
	for g := range gs.kept.Values(key{}) { // settle goes by ids
		gs.byID[g.id] = g
		all = append(all, g)
	}
	for _, g := range all {
		gs.scratch.steps++
		gs.fresh(g)
		g.purged = 0
		gs.touch(g)
	}
}

// swept is called when a message of g is released that was purged.
func (gs *groups) swept(g *group) {
	gs.fresh(g)
	if g.purged--; g.purged == 0 {
		gs.touch(g)
	}
}

// keptByID returns the groups that are held, have a state, or have something out, by
// id. Their order in kept differs from replica to replica.
func (gs *groups) keptByID() []*group {
	return slices.SortedFunc(gs.kept.Values(key{}), byID)
}

func (gs *groups) protect(g *group, n int) { g.protected += n }

func (gs *groups) oldest() uint32 {
	_, h, _ := gs.ages.Peek()
	return h
}

func (gs *groups) forget(g *group, c *consumer, id uint64) {
	t := gs.takers.of(c)
	if g.heldBy(c) {
		t = g.hold.of // c may be gone
	}
	if t != nil {
		t.ids.Remove(g.key(id))
	}
}

// settleHold releases g if its holder does not keep it. A hold that is to end does by itself;
// one that is under review waits for that, and if messages were purged for their release.
func (gs *groups) settleHold(g *group) {
	if gs.fresh(g); g.left() || g.reviewed() || g.purged > 0 {
		return
	}
	h, linger, stands := g.hold, duration(gs.settings.GroupLinger), gs.stands(g)
	switch {
	case h.of.stays() && h.linger != 0:
		gs.setEnd(g, h.until, 0)
	case h.of.stays():
	case h.of.passes() && g.out == 0, stands && linger == 0 && h.linger == 0:
		gs.release(g)
	case stands && h.linger == 0:
		gs.setEnd(g, h.until, gs.clock.heldDeadline(linger))
	case !stands && h.linger != 0 && gs.since(3): // what was first has gone
		gs.setEnd(g, h.until, 0)
	}
}

// stands reports whether nothing of g is out, and nothing can be handed out. Before version 3 only
// an empty group stands still.
func (gs *groups) stands(g *group) bool {
	if gs.since(3) {
		return g.out == 0 && !g.headReady
	}
	return !g.busy()
}

// wake is called when something has come to g: its state does not end, and its hold
// does not unless it still stands.
func (gs *groups) wake(g *group) {
	gs.untimeState(g)
	g.idle = false
	if g.hold != nil && g.hold.linger != 0 && !gs.stands(g) {
		gs.setEnd(g, g.hold.until, 0)
	}
}

// settleState times the state of a group that has become empty and is not held.
func (gs *groups) settleState(g *group) {
	if g.idle || !g.rests() {
		return
	}
	g.idle = true
	if ttl := duration(gs.settings.GroupStateTtl); ttl > 0 {
		gs.timeState(g, gs.clock.deadline(ttl), gs.number())
	}
}

func (gs *groups) timeState(g *group, until fsm.Time, order uint64) {
	g.stateUntil, g.stateOrder = until, order
	gs.states.Put(key{At: until, Seq: order}, g)
}

func (gs *groups) untimeState(g *group) {
	if g.stateUntil != 0 {
		gs.states.Remove(key{At: g.stateUntil, Seq: g.stateOrder})
		g.stateUntil, g.stateOrder = 0, 0
	}
}

// expireStates ends states whose time is over, as far as the budget of the command
// allows.
func (gs *groups) expireStates() {
	for gs.states.Len() > 0 && gs.scratch.budget > 0 {
		at, p := gs.states.First()
		if at.At > gs.clock.now() {
			return
		}
		gs.scratch.budget--
		gs.setState(*p, "")
	}
}

// emptiness is since when a group is empty, as far as that decides when something ends.
type emptiness struct {
	linger     fsm.Time // of its hold
	idle       bool
	stateUntil fsm.Time
	stateOrder uint64
}

// emptiness returns that of the group with this id, which may be unknown.
func (gs *groups) emptiness(id string) (e emptiness) {
	g := gs.byID[id]
	if g == nil {
		return e
	}
	if gs.fresh(g); g.members > 0 || g.out > 0 {
		return e
	}
	e = emptiness{idle: g.idle, stateUntil: g.stateUntil, stateOrder: g.stateOrder}
	if g.hold != nil {
		e.linger = g.hold.linger
	}
	return e
}

// emptyAgain undoes what a message has changed that came to a group and was refused: it
// is as empty as it was before. Requires: nothing else has happened to the group.
func (gs *groups) emptyAgain(id string, e emptiness) {
	g := gs.byID[id]
	if g == nil {
		return
	}
	if e.linger != 0 && g.hold != nil {
		gs.setEnd(g, g.hold.until, e.linger)
	}
	if g.idle = e.idle; e.stateUntil != 0 && g.stateUntil == 0 {
		gs.timeState(g, e.stateUntil, e.stateOrder)
	}
}

// renew lets the locks of the groups begin anew of which c has settled some of rest.
// From version 3 on each is renewed when what was settled ends.
func (gs *groups) renew(c *consumer, rest *held, lock fsm.Millis) {
	first, _ := rest.First()
	for _, g := range gs.takers.heldBy(c) {
		for at := range g.hold.of.ids.From(g.key(first.Seq)) {
			gs.scratch.steps++
			if at.At != fsm.Time(g.no) {
				break
			}
			if _, settled := rest.find(at.Seq); settled {
				gs.lock(g, lock)
				break
			}
		}
	}
}

// nextEnds returns when the first hold ends, on the clock of held messages, and when
// the first state does; 0: none does.
func (gs *groups) nextEnds() (hold, state fsm.Time) {
	first, _, _ := gs.ends.Peek()
	k, _, _ := gs.states.Peek()
	return first.At, k.At
}

func (gs *groups) overdue() *group {
	if k, g, ok := gs.ends.Peek(); ok && gs.clock.heldUntil(k.At) <= gs.clock.now() {
		return g
	}
	return nil
}

// end makes all messages of g die, step by step, see doomed. Nothing of it is
// handed out any more. Messages that come belong to another group of its id, which
// has the state. Requires: nobody holds g, and it is known.
func (gs *groups) end(g *group) {
	if g.ended {
		return
	}
	gs.unlist(g)
	state, set := g.state, g.stateSet
	gs.setState(g, "")
	delete(gs.byID, g.id)
	gs.endAs(g)
	gs.keep(g)
	gs.touch(g)
	if state != "" {
		next := gs.known(g)
		gs.setState(next, state)
		next.stateSet = set
	}
}

func (gs *groups) endAs(g *group) {
	gs.lastEnd++
	g.ended, g.endNo = true, gs.lastEnd
	gs.ended.Put(key{Seq: g.endNo}, g)
	gs.mark(g)
}

func (gs *groups) mark(g *group) {
	if !g.ended {
		return
	}
	switch at := (key{Seq: g.endNo}); {
	case g.members == 0 && gs.dying.Get(at) != nil:
		gs.dying.Remove(at)
	case g.members > 0 && gs.dying.Get(at) == nil:
		gs.dying.Put(at, g)
	}
}

// doomed returns a message that is to die because its group has ended; 0: there is
// none. The order is that of the groups, then of the messages.
func (gs *groups) doomed() uint32 {
	if _, g, ok := gs.dying.Peek(); ok {
		return gs.first(g)
	}
	return 0
}
