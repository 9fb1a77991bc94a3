package queue

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// GroupStats are the statistics of the groups of a queue.
type GroupStats struct {
	Groups     int // with messages or a state, or held
	Held       int
	StateBytes uint64
}

// Group describes a group, for listings.
type Group struct {
	ID          string
	Messages    uint64 // ready, or waiting to be retried
	CheckedOut  uint64
	Oldest      uint64   // number of the first message that is not checked out; 0: none
	OldestAt    fsm.Time // when that one was enqueued, or became due in this queue
	Held        bool
	Holder      fsm.ConsumerID
	Tag         string   // of the holder
	LockedUntil fsm.Time // 0: until it is given up
	StateBytes  int
	StateSet    fsm.Time // when the state was last set; 0: there is none
	StateUntil  fsm.Time // when the state ends; 0: never
}

// held returns the group with this id, unless nobody holds it or its hold is to end.
func (gs *groups) held(id string) *group {
	if g := gs.byID[id]; g != nil && g.hold != nil && !g.left() {
		return g
	}
	return nil
}

// describe completes the answer to a request about a group: when its lock ends, and
// its state if that was asked for.
func (gs *groups) describe(cmd *logpb.Group, r *fsm.Result) {
	g := gs.byID[cmd.GetId()]
	if g == nil {
		return
	}
	if g.hold != nil {
		r.Until = gs.clock.heldUntil(g.hold.until)
	}
	if cmd.Action == logpb.Group_GET_STATE {
		r.State = g.state
	}
}

func (gs *groups) stats() GroupStats {
	return GroupStats{Groups: len(gs.byID), Held: gs.heldOnes, StateBytes: gs.stateSize}
}

// endedOnes returns the groups that end, by position + 1; nil: there are none.
func (gs *groups) endedOnes() map[*group]uint32 {
	if gs.ended.Len() == 0 {
		return nil
	}
	positions := make(map[*group]uint32, gs.ended.Len())
	for g := range gs.ending() {
		positions[g] = uint32(len(positions)) + 1
	}
	return positions
}

// save writes the groups' section of a snapshot's head: the groups in no order, which
// Snapshot.complete brings into that of their ids, since it has more time. position is
// that of a consumer by age.
func (gs *groups) save(h *logpb.QueueSnapshot, position func(*consumer) int) {
	h.NextGroupOrder = gs.next
	for g := range gs.kept.Values(key{}) {
		if g.hold == nil && g.state == "" || g.left() {
			continue
		}
		st := g.save()
		if g.hold != nil {
			st.Holder = uint32(position(g.hold.of.c))
		}
		h.Groups = append(h.Groups, st)
	}
	for g := range gs.ending() {
		h.EndedGroups = append(h.EndedGroups, g.id)
	}
	for t := range gs.takers.all.Values(key{}) {
		h.GroupTakers = append(h.GroupTakers, &logpb.GroupTakerState{Consumer: uint32(position(t.c)), Max: uint32(t.max), Id: t.only, Turn: t.turn, Review: t.review, Hold: t.keeps})
	}
}

func (g *group) save() *logpb.GroupState {
	st := &logpb.GroupState{Id: g.id, State: g.state, StateSet: int64(g.stateSet), StateUntil: int64(g.stateUntil), StateOrder: g.stateOrder}
	if x := g.hold; x != nil {
		st.Held, st.Order, st.Until, st.LingerUntil = true, x.order, int64(x.until), int64(x.linger)
	}
	return st
}

// restore is the inverse of save. The messages follow, and then what consumers
// want. byAge returns one of n consumers.
func (gs *groups) restore(h *logpb.QueueSnapshot, n int, byAge func(int) *consumer) error {
	gs.next = h.NextGroupOrder
	for _, st := range h.GroupTakers {
		if uint64(st.Consumer) >= uint64(n) || gs.takers.of(byAge(int(st.Consumer))) != nil {
			return fmt.Errorf("%w: nobody takes groups", ErrSnapshot)
		}
		c := byAge(int(st.Consumer))
		t := &groupTaker{c: c, max: int(st.Max), only: st.Id, turn: st.Turn, going: c.cancelled, review: st.Review, keeps: st.Hold}
		gs.takers.all.Put(key{Seq: c.registered}, t)
		if t.only != "" {
			gs.takers.named++
		}
	}
	for _, id := range h.EndedGroups {
		gs.lastNo++
		gs.endAs(&group{id: id, no: gs.lastNo})
	}
	for _, st := range h.Groups {
		if gs.byID[st.Id] != nil {
			return fmt.Errorf("%w: group %q twice", ErrSnapshot, st.Id)
		}
		g := gs.known(&group{id: st.Id})
		g.state, g.stateSet, g.stateUntil, g.stateOrder = st.State, fsm.Time(st.StateSet), fsm.Time(st.StateUntil), st.StateOrder
		gs.stateSize += uint64(len(g.state))
		if at := (key{At: g.stateUntil, Seq: g.stateOrder}); g.stateUntil != 0 {
			if gs.states.Get(at) != nil {
				return fmt.Errorf("%w: the state of group %q twice", ErrSnapshot, st.Id)
			}
			gs.states.Put(at, g)
		}
		if st.Held && st.Leaving == 0 {
			if uint64(st.Holder) >= uint64(n) {
				return fmt.Errorf("%w: nobody holds group %q", ErrSnapshot, st.Id)
			}
			t := gs.takers.of(byAge(int(st.Holder)))
			if t == nil || t.holds.Get(key{Seq: st.Order}) != nil || gs.ends.Get(key{At: fsm.Time(st.Until), Seq: st.Order}) != nil {
				return fmt.Errorf("%w: group %q is not held", ErrSnapshot, st.Id)
			}
			gs.restoreHold(g, st, t)
			t.holds.Put(key{Seq: st.Order}, g)
		}
		gs.keep(g)
	}
	return nil
}

// restoreHold restores that t holds g. The caller adds g to those that t holds.
func (gs *groups) restoreHold(g *group, st *logpb.GroupState, t *groupTaker) {
	g.hold = &hold{of: t, order: st.Order}
	gs.heldOnes++
	gs.setEnd(g, fsm.Time(st.Until), fsm.Time(st.LingerUntil))
}

// restoreOut counts a message of the group with the id of g that c holds as delivery
// id, or nobody if c is nil. It returns the group.
func (gs *groups) restoreOut(g *group, c *consumer, id uint64) *group {
	if !g.ended {
		g = gs.known(g)
	}
	gs.addOut(g, 1)
	if c == nil {
		return g
	}
	t := gs.takers.of(c)
	if g.heldBy(c) {
		t = g.hold.of
	}
	if t != nil {
		t.ids.Put(g.key(id), struct{}{})
	}
	return g
}

// restored ends a restore: nothing has changed since settle ran.
func (gs *groups) restored() {
	for g := range gs.kept.Values(key{}) {
		g.idle = g.rests()
	}
	for _, g := range gs.touched {
		g.touched = false
	}
	gs.touched = gs.touched[:0]
}

// ending iterates over the groups that end, in their order.
func (gs *groups) ending() iter.Seq[*group] { return gs.ended.Values(key{}) }

// endedAt returns the n-th group that ends, from 1; nil: there is none. Requires: the
// groups were restored, so that they are numbered from 1.
func (gs *groups) endedAt(n uint32) *group { return gs.ended.Value(key{Seq: uint64(n)}) }

type foundGroup struct {
	members, out, protected, readyOnes, purged int
	head                                       uint64
	ready                                      bool
}

func (k *checker) found(g *group) *foundGroup {
	f := k.groups[g]
	if f == nil {
		f = &foundGroup{}
		k.groups[g] = f
	}
	return f
}

func (k *checker) group(g *group, x *message, h uint32, protected bool) {
	f := k.found(g)
	switch x.place {
	case CheckedOut:
		f.out++
	case Grouped, Delayed:
		f.members++
		if f.head == 0 || x.seq < f.head {
			f.head, f.ready = x.seq, x.place == Grouped
		}
		if k.m.groups.ordered(g, x.seq) != (inGroup{h, x.place == Grouped}) {
			k.fail("message %d is not in the order of its group", x.seq)
		}
		if x.place == Grouped {
			f.readyOnes++
			k.that(k.m.groups.aged(x.seq) == h, "message %d is not found by its age", x.seq)
		}
	}
	if protected {
		f.protected++
		k.that(x.place == Grouped && x.due(k.m.clock.now()) && g.hold != nil || g.ended, "message %d is protected", x.seq)
	}
}

// ordered returns the entry of message seq in the order of g, and aged the message that
// is ready under a number; zero: there is none.
func (gs *groups) ordered(g *group, seq uint64) inGroup { return gs.order.Value(g.key(seq)) }
func (gs *groups) aged(seq uint64) uint32               { return gs.ages.Value(key{Seq: seq}) }

func (gs *groups) check(k *checker) {
	if !k.m.lease.isWhole() {
		k.that(!gs.any() && gs.takers.all.Len() == 0, "an ended queue has groups")
		return
	}
	members, ready, states, ends, held, free, kept := 0, 0, 0, 0, 0, 0, 0
	size := uint64(0)
	var all []*group
	dying := 0
	for g := range gs.ending() {
		at, some := key{Seq: g.endNo}, g.counted(gs.purges).members > 0
		k.that(gs.ended.Value(at) == g && g.ended && some == (gs.dying.Get(at) != nil), "group %q ends wrongly", g.id)
		if all = append(all, g); some {
			dying++
		}
	}
	for id, g := range gs.byID { // det: only counts and checks
		k.that(g.id == id && !g.ended, "group %q is known by another id", g.id)
		all = append(all, g)
	}
	for _, g := range all {
		f := k.groups[g]
		if f == nil {
			f = &foundGroup{}
		}
		counted := g.counted(gs.purges)
		counted.readyOnes = f.readyOnes
		k.that(*f == counted, "group %q: counted %+v, found %+v", g.id, counted, f)
		k.that(g.ended || g.busy() || g.hold != nil || g.state != "", "group %q has nothing", g.id)
		members += counted.members
		ready += f.readyOnes
		size += uint64(len(g.state))
		if gs.kept.Get(key{Seq: g.no}) != nil {
			kept++
		}
		k.that((gs.kept.Get(key{Seq: g.no}) != nil) == (!g.ended && (g.hold != nil || g.state != "" || g.out > 0)), "group %q is wrongly kept", g.id)
		k.that(g.idle == (g.rests() && !g.ended), "group %q is idle: %v", g.id, g.idle)
		k.that(0 <= g.stateSet && g.stateSet <= gs.clock.now() && (g.state != "" || g.stateSet == 0), "the state of group %q was set at %d", g.id, g.stateSet)
		if g.stateUntil != 0 {
			states++
			k.deadline(g.stateUntil)
			k.that(g.idle, "the state of group %q ends", g.id)
		}
		if g.hold != nil {
			if held++; g.left() {
				k.left++
			}
			ends += gs.checkHold(k, g)
		}
		if gs.checkListed(k, g) {
			free++
		}
		delete(k.groups, g)
	}
	for g, f := range k.groups { // det: only checks
		k.that(f.members == 0 && f.out == 0 && f.purged == 0, "group %q is not known", g.id)
	}
	k.that(members == gs.order.Len() && ready == gs.ages.Len() && states == gs.states.Len() && ends == gs.ends.Len() && held == gs.heldOnes && free == gs.free.Len() &&
		kept == gs.kept.Len() && dying == gs.dying.Len() && size == gs.stateSize && len(gs.touched) == 0, "groups are miscounted")
	gs.takers.check(k, held-k.left, gs.next, gs.on())
}

// counted is what is known of g after so many purges, but for readyOnes.
func (g *group) counted(purges uint64) foundGroup {
	if g.purges != purges {
		return foundGroup{out: g.out, purged: g.purged + g.members}
	}
	return foundGroup{members: g.members, out: g.out, protected: g.protected, purged: g.purged, head: g.head, ready: g.headReady}
}

func (gs *groups) checkHold(k *checker, g *group) int {
	h, leaves := g.hold, g.left()
	k.that(!g.ended && (leaves || h.of.holds.Value(key{Seq: h.order}) == g) && h.order < gs.next && h.until >= 0 && h.linger >= 0, "group %q is held wrongly", g.id)
	k.that(leaves || gs.takers.of(h.of.c) == h.of && h.of.c.session != nil, "the holder of group %q is gone", g.id)
	k.that(leaves || g.reviewed() || !h.of.passes() || g.out > 0 || g.counted(gs.purges).purged > 0, "group %q is held for nothing", g.id)
	if h.end() == 0 {
		return 0
	}
	k.deadline(gs.clock.heldUntil(h.end()))
	k.that(gs.ends.Get(key{At: h.end(), Seq: h.order}) != nil, "the hold of group %q never ends", g.id)
	return 1
}

// checkListed checks where g waits to be served, and reports whether it is free.
func (gs *groups) checkListed(k *checker, g *group) (free bool) {
	if g.purges != gs.purges {
		return false
	}
	listed, to := uint64(0), (*groupTaker)(nil)
	if g.headReady && !g.ended {
		listed = g.head
		if to = gs.takers.claimant(g.id); g.hold != nil {
			to = g.hold.of
		}
	}
	k.that(g.listed == listed && (g.to == to || listed == 0), "group %q waits wrongly", g.id)
	if g.listed == 0 {
		return false
	}
	in := &gs.free
	if g.to != nil {
		in = &g.to.waiting
	}
	k.that(in.Value(key{Seq: g.listed}) == g, "group %q is not served", g.id)
	return g.to == nil
}

// Groups is a view of the groups of a queue.
type Groups struct {
	all      *groups
	messages *messages
}

// GroupsOf returns a view of the groups of m. It is valid until m changes.
func GroupsOf(m *Machine) Groups { return Groups{m.groups.groups, m.messages} }

// After returns up to limit groups with an id above after, by id. Groups whose
// messages are dying together are left out. O(groups).
func (v Groups) After(after string, limit int) []Group {
	var some []*group
	cut := func() {
		slices.SortFunc(some, byID)
		some = some[:min(len(some), limit)]
	}
	for id, g := range v.all.byID { // det: sorted below
		if id <= after {
			continue
		}
		if some = append(some, g); len(some) > 2*limit+64 {
			cut()
		}
	}
	cut()
	list := make([]Group, len(some))
	for i, g := range some {
		list[i] = v.all.show(g)
		if list[i].Oldest != 0 {
			list[i].OldestAt = v.messages.enqueuedAt(v.all.first(g))
		}
	}
	return list
}

func (gs *groups) show(g *group) Group {
	c := g.counted(gs.purges)
	x := Group{
		ID: g.id, Messages: uint64(c.members), CheckedOut: uint64(c.out), Oldest: c.head,
		StateBytes: len(g.state), StateSet: g.stateSet, StateUntil: g.stateUntil,
	}
	if h := g.hold; h != nil && !g.left() {
		x.Held, x.Holder, x.Tag, x.LockedUntil = true, h.of.c.id, h.of.c.tag, gs.clock.heldUntil(h.until)
	}
	return x
}

// groupsText writes the groups that are held, have a state or are ending.
func groupsText(b *strings.Builder, m *Machine) {
	for _, g := range m.groups.keptByID() {
		x := m.groups.show(g)
		fmt.Fprintf(b, "group %q", x.ID)
		if x.Held {
			fmt.Fprintf(b, " by %s:%d", sessionText(x.Holder.Session), x.Holder.Number)
		}
		numberText(b, " until=%d", x.LockedUntil)
		flagText(b, " left", g.left())
		if h := g.hold; h != nil {
			numberText(b, " lingers=%d", m.clock.heldUntil(h.linger))
		}
		numberText(b, " state=%d", x.StateBytes)
		numberText(b, " state-set=%d", x.StateSet)
		numberText(b, " state-until=%d", x.StateUntil)
		b.WriteString("\n")
	}
	for g := range m.groups.ending() {
		fmt.Fprintf(b, "group %q ends: %d\n", g.id, m.groups.show(g).Messages)
	}
}
