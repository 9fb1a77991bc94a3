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

// leavings are the groups, the holds of them that are to end, and the consumers whose
// holds are under review: whether they keep them is decided anew, one after the other.
//
// Invariants: order = {order of the first of l.holds → l}; count = Σ l.holds.Len();
// reviews = {age of its consumer → t : t.review ≠ 0}.
type leavings struct {
	*groups
	order   sorted[*leaving]
	count   int
	reviews sorted[*groupTaker]
}

func (ls *leavings) clear() {
	ls.groups.clear()
	*ls = leavings{groups: ls.groups}
}

func (ls *leavings) anyLeft() bool { return ls.count > 0 }

func (ls *leavings) stats() GroupStats {
	st := ls.groups.stats()
	st.Held -= ls.count
	return st
}

// left reports whether the group is held, and the hold is to end.
func (g *group) left() bool {
	return g.hold != nil && g.hold.of.holds.Get(key{Seq: g.hold.order}) == nil
}

// reviewed reports whether the group is held, and the hold is under review.
func (g *group) reviewed() bool {
	from := g.hold.of.review
	return from != 0 && g.hold.order >= from
}

func (ls *leavings) reviewAll() {
	for t := range ls.takers.all.Values(key{}) {
		ls.review(t)
	}
}

func (ls *leavings) review(t *groupTaker) {
	if t.holds.Len() == 0 {
		return
	}
	if t.review == 0 {
		ls.reviews.Put(key{Seq: t.c.registered}, t)
	}
	t.review = 1
}

func (ls *leavings) reviewing() bool { return ls.reviews.Len() > 0 }

func (ls *leavings) goOnReviewing(n int) (done int) {
	for ; done < n && ls.reviewing(); done++ {
		ls.scratch.steps++
		_, t, _ := ls.reviews.Peek()
		if g := t.reviewNext(); g != nil {
			t.review = g.hold.order + 1
			ls.settleHold(g)
		}
		if t.reviewNext() == nil {
			ls.endReview(t)
		}
	}
	return done
}

// reviewNext returns the group whose hold is reviewed next; nil: there is none.
func (t *groupTaker) reviewNext() *group {
	for g := range t.holds.Values(key{Seq: t.review}) {
		return g
	}
	return nil
}

func (ls *leavings) endReview(t *groupTaker) {
	if t.review != 0 {
		ls.reviews.Remove(key{Seq: t.c.registered})
		t.review = 0
	}
}

// retire is called when c is cancelled: it keeps its groups only until nothing of
// them is left unsettled.
func (ls *leavings) retire(c *consumer) {
	ls.groups.retire(c)
	if t := ls.takers.of(c); t != nil && ls.since(3) {
		ls.review(t)
		return
	}
	for _, g := range ls.takers.heldBy(c) {
		ls.touch(g)
	}
}

// drop is called when c ends, and holds no groups.
func (ls *leavings) drop(c *consumer) {
	if t := ls.takers.of(c); t != nil {
		ls.endReview(t)
		ls.takers.all.Remove(key{Seq: c.registered})
	}
}

func (ls *leavings) addLeaving(l *leaving) {
	first, _ := l.holds.First()
	ls.order.Put(first, l)
	ls.count += l.holds.Len()
}

// giveUp makes the hold of g end, with what its holder has of it. Requires: it does not
// end yet.
func (ls *leavings) giveUp(g *group, lost bool) {
	l, t := &leaving{back: true, lost: lost}, g.hold.of
	at := key{Seq: g.hold.order}
	t.holds.Remove(at)
	l.holds.Put(at, g)
	ls.setEnd(g, 0, 0)
	ls.addLeaving(l)
	ls.takers.take(t)
}

// giveUpAll makes all holds of c end, with what it has of them if back. O(1).
func (ls *leavings) giveUpAll(c *consumer, back bool) {
	t := ls.takers.of(c)
	if t == nil || t.holds.Len() == 0 {
		return
	}
	ls.addLeaving(&leaving{holds: t.holds, back: back})
	t.holds = sorted[*group]{}
	ls.takers.take(t)
}

// disown frees the groups of c, which is gone or suspected; from version 3 on in steps
// if there are several. What it has of them comes back by itself.
func (ls *leavings) disown(c *consumer) {
	if t := ls.takers.of(c); t != nil && t.holds.Len() > 1 && ls.since(3) {
		ls.giveUpAll(c, false)
		return
	}
	for _, g := range ls.takers.heldBy(c) {
		ls.scratch.steps++
		ls.release(g)
	}
}

// nextLeft returns the group whose hold ends next, as it was asked for. Requires: anyLeft.
func (ls *leavings) nextLeft() (*group, *leaving) {
	_, l, _ := ls.order.Peek()
	_, g, _ := l.holds.Peek()
	return g, l
}

// endNext ends the next hold. Requires: anyLeft.
func (ls *leavings) endNext() {
	g, l := ls.nextLeft()
	at := key{Seq: g.hold.order}
	ls.order.Remove(at)
	ls.count -= l.holds.Len()
	if l.holds.Remove(at); l.holds.Len() > 0 {
		ls.addLeaving(l)
	}
	ls.release(g)
	ls.scratch.steps++
}

// endLeaving ends holds in at most n steps, one for each delivery that comes back and
// one for each hold. It returns how many steps it took.
func (m *Machine) endLeaving(n int) (done int) {
	for done < n && m.groups.anyLeft() {
		g, l := m.groups.nextLeft()
		c := g.hold.of.c
		if _, some := g.hold.of.first(g); !l.back || !some || c.session == nil && m.detached.find(c.id) != c {
			m.groups.endNext()
			done++
			continue
		}
		done += m.takeBack(g, l.lost, n-done)
		m.consumers.removeFinished(c)
	}
	return done
}

// save writes the groups' section of a snapshot's head. The position of a holder is that by age;
// behind these are the detached ones, and behind these whoever is gone.
func (ls *leavings) save(h *logpb.QueueSnapshot, cs *consumers, d *detached) {
	ls.groups.save(h, cs.position)
	if !ls.anyLeft() {
		return
	}
	detached := map[*consumer]uint32{}
	for c := range d.list() {
		detached[c] = uint32(cs.len() + len(detached))
	}
	for l := range ls.order.Values(key{}) {
		_, first, _ := l.holds.Peek()
		c := first.hold.of.c
		holder, ok := detached[c]
		switch {
		case c.session != nil:
			holder = uint32(cs.position(c))
		case !ok:
			holder = math.MaxUint32
		}
		for g := range l.holds.Values(key{}) {
			st := g.save()
			st.Holder, st.Leaving = holder, l.stored()
			h.Groups = append(h.Groups, st)
		}
	}
}

type leavingKey struct {
	of     *groupTaker
	stored uint32
}

func (ls *leavings) restore(h *logpb.QueueSnapshot, cs *consumers, detached []*consumer) error {
	if err := ls.groups.restore(h, cs.len(), cs.at); err != nil {
		return err
	}
	for t := range ls.takers.all.Values(key{}) {
		if t.review != 0 {
			ls.reviews.Put(key{Seq: t.c.registered}, t)
		}
	}
	takers, all := map[*consumer]*groupTaker{}, map[leavingKey]*leaving{}
	for _, st := range h.Groups {
		if st.Leaving == 0 {
			continue
		}
		if st.Leaving > 3 || !st.Held {
			return fmt.Errorf("%w: group %q is left in another way", ErrSnapshot, st.Id)
		}
		c, n := (*consumer)(nil), uint64(cs.len())
		switch at := uint64(st.Holder); {
		case at < n:
			c = cs.at(int(at))
		case at < n+uint64(len(detached)):
			c = detached[at-n]
		}
		t := takers[c]
		if c != nil && c.session != nil {
			t = ls.takers.of(c)
		}
		if t == nil {
			if t = (&groupTaker{c: c}); c == nil {
				t.c = &consumer{}
			}
			takers[c] = t
		}
		g := ls.find(st.Id)
		ls.restoreHold(g, st, t)
		ls.keep(g)
		at := leavingKey{t, st.Leaving}
		l := all[at]
		if l == nil {
			l = &leaving{back: st.Leaving > 1, lost: st.Leaving > 2}
			all[at] = l
		}
		l.holds.Put(key{Seq: st.Order}, g)
	}
	for _, l := range all { // det: the order is that of their keys
		ls.addLeaving(l)
	}
	return nil
}

func (ls *leavings) check(k *checker) {
	ls.groups.check(k)
	n := 0
	for at, p := range ls.order.All() {
		l := *p
		first, _, ok := l.holds.Peek()
		k.that(ok && first == at && (l.back || !l.lost), "holds end at the wrong place")
		for g := range l.holds.Values(key{}) {
			k.that(g.left() && l.holds.Value(key{Seq: g.hold.order}) == g, "the hold of group %q does not end", g.id)
		}
		n += l.holds.Len()
	}
	k.that(n == ls.count && n == k.left, "%d holds end, of %d and %d", n, ls.count, k.left)
	reviews := 0
	for t := range ls.takers.all.Values(key{}) {
		if t.review != 0 {
			reviews++
			k.that(ls.reviews.Value(key{Seq: t.c.registered}) == t, "what %v holds is never reviewed", t.c.id)
		}
	}
	k.that(reviews == ls.reviews.Len(), "the holds of %d consumers are under review, of %d", ls.reviews.Len(), reviews)
}
