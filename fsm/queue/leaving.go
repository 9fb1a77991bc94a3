package queue

import (
	"fmt"
	"math"

	"github.com/quorate/quorate/proto/logpb"
)

// leaving are holds of one consumer that end one after the other, since it is gone,
// suspected, late, or has given a group up or lost it. In between the consumer cannot
// renew them, and nothing of any group is handed out.
//
// Invariants: holds = {g.hold.order → g} and is not empty; of each, g.hold.of is the same
// taker, which has none of them in its own holds.
//
// A snapshot has each group with its order. How they were divided among several of
// these does not matter: the oldest hold of all ends first.
type leaving struct {
	holds sorted[*group]
	back  bool // what the consumer has of them comes back with them; else that is done already
	lost  bool // as failed
}

// stored is how a snapshot has it; 0 stands for a hold that does not end.
func (l *leaving) stored() uint32 {
	switch {
	case l.lost:
		return 3
	case l.back:
		return 2
	}
	return 1
}

// isLeaving reports whether any hold is to end.
func (gs *groups) isLeaving() bool { return gs.leaving.Len() > 0 }

// leaves reports whether the hold of g is to end.
func (gs *groups) leaves(g *group) bool {
	return gs.isLeaving() && g.hold != nil && g.hold.of.holds.Get(key{Seq: g.hold.order}) == nil
}

// addLeaving adds l at its place.
func (gs *groups) addLeaving(l *leaving) {
	first, _ := l.holds.First()
	gs.leaving.Put(first, l)
}

// giveUp makes the hold of g end, with what its holder has of it. Requires: it does not end yet.
func (gs *groups) giveUp(g *group, lost bool) {
	l, t := &leaving{back: true, lost: lost}, g.hold.of
	at := key{Seq: g.hold.order}
	t.holds.Remove(at)
	l.holds.Put(at, g)
	gs.setEnd(g, 0, 0)
	gs.heldOnes--
	gs.addLeaving(l)
	gs.takers.take(t)
}

// giveUpAll makes all holds of c end, with what it has of them if back. O(1).
func (gs *groups) giveUpAll(c *consumer, back bool) {
	t := gs.takers.of(c)
	if t == nil || t.holds.Len() == 0 {
		return
	}
	gs.heldOnes -= t.holds.Len()
	gs.addLeaving(&leaving{holds: t.holds, back: back})
	t.holds = sorted[*group]{}
	gs.takers.take(t)
}

// nextLeaving returns the group whose hold ends next, as it was asked for. Requires:
// isLeaving.
func (gs *groups) nextLeaving() (*group, *leaving) {
	_, l := gs.leaving.First()
	_, g := (*l).holds.First()
	return *g, *l
}

// endNext ends the next hold. Requires: isLeaving.
func (gs *groups) endNext() {
	g, l := gs.nextLeaving()
	at := key{Seq: g.hold.order}
	gs.leaving.Remove(at)
	if l.holds.Remove(at); l.holds.Len() > 0 {
		gs.addLeaving(l)
	}
	gs.heldOnes++
	gs.release(g)
}

// endLeaving ends holds in at most n steps, one for each delivery that comes back and
// one for each hold. It returns how many steps it took.
func (m *Machine) endLeaving(n int) (done int) {
	for done < n && m.groups.isLeaving() {
		g, l := m.groups.nextLeaving()
		if c := g.hold.of.c; l.back && m.holds(c) && g.hold.ids.Len() > 0 {
			done += m.takeGroup(g, c, l.lost, n-done)
			continue
		}
		m.groups.endNext()
		m.scratch.steps++
		done++
	}
	return done
}

// holds reports whether c has a session, or holds something without one.
func (m *Machine) holds(c *consumer) bool { return c.session != nil || m.detached.find(c.id) == c }

// takeGroup takes up to n deliveries of g, at least one, from c, and returns how many.
// They are on their way back then.
func (m *Machine) takeGroup(g *group, c *consumer, lost bool, n int) (done int) {
	r := &returning{of: c.id, tag: c.tag, failed: lost, group: true}
	for ; done < n && g.hold.ids.Len() > 0; done++ {
		id, _ := g.hold.ids.First()
		g.hold.ids.Remove(id)
		m.scratch.steps++
		held, ok := c.held.Remove(id)
		if !ok {
			continue
		}
		if lost && !m.detached.has(c) {
			c.loses(id.Seq)
		}
		r.held.push(checkout{id: id.Seq, grip: held})
	}
	if r.held.Len() > 0 {
		m.consumers.holds(c, -r.held.Len())
		m.returnings.add(r)
		m.afterTaking(c)
		m.consumers.removeIfDone(c)
	}
	return done
}

// position is that of a holder of groups in a snapshot: by age, behind these the
// detached ones, and behind these whoever is gone.
func (m *Machine) position(c *consumer) int {
	if c.session != nil {
		return m.consumers.position(c)
	}
	at := m.consumers.len()
	for d := range m.detached.list() {
		if d == c {
			return at
		}
		at++
	}
	return math.MaxUint32
}

// saveLeaving adds the groups whose holds are to end to a snapshot's head.
func (gs *groups) saveLeaving(h *logpb.QueueSnapshot, position func(*consumer) int) {
	for _, p := range gs.leaving.All() {
		l := *p
		_, first := l.holds.First()
		holder := uint32(position((*first).hold.of.c))
		for _, g := range l.holds.All() {
			st := (*g).save()
			st.Holder, st.Leaving = holder, l.stored()
			h.Groups = append(h.Groups, st)
		}
	}
}

// restoringLeaving are the holds of a snapshot that are to end, while it is restored.
type restoringLeaving struct {
	takers map[*consumer]*groupTaker // of those that are gone or detached
	all    map[leavingKey]*leaving
}

// leavingKey is what holds that end have in common.
type leavingKey struct {
	of     *groupTaker
	stored uint32
}

// restoreLeaving restores the hold of g, which is to end. c is its holder; nil: it is gone.
func (gs *groups) restoreLeaving(r *restoringLeaving, g *group, st *logpb.GroupState, c *consumer) error {
	if st.Leaving > 3 {
		return fmt.Errorf("%w: group %q is left in another way", ErrSnapshot, g.id)
	}
	t := r.takers[c]
	if c != nil && c.session != nil {
		t = gs.takers.of(c)
	}
	if t == nil {
		if t = (&groupTaker{c: c}); c == nil {
			t.c = &consumer{}
		}
		r.takers[c] = t
	}
	gs.restoreHold(g, st, t)
	gs.heldOnes--
	at := leavingKey{t, st.Leaving}
	l := r.all[at]
	if l == nil {
		l = &leaving{back: st.Leaving > 1, lost: st.Leaving > 2}
		r.all[at] = l
	}
	l.holds.Put(key{Seq: st.Order}, g)
	return nil
}

// checkLeaving checks the holds that are to end, and returns how many there are.
func (gs *groups) checkLeaving(k *checker) (n int) {
	for at, p := range gs.leaving.All() {
		l := *p
		first, _, ok := firstOf(&l.holds)
		k.that(ok && first == at && (l.back || !l.lost), "holds end at the wrong place")
		for order, g := range l.holds.All() {
			k.that((*g).hold != nil && (*g).hold.order == order.Seq && gs.leaves(*g), "the hold of group %q does not end", (*g).id)
		}
		n += l.holds.Len()
	}
	return n
}
