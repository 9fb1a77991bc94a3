package queue

import (
	"cmp"
	"slices"
)

// groupTakers are the consumers that get groups: who of them wants messages of its
// groups, who takes the next free one, and who takes only a certain one.
//
// Invariants, besides those of groupTaker:
//
//	owing = {t.owed → t : t.owed ≠ 0}
//	free = {(level, turn) → t : t.taking}
//	named has the takers with only ≠ "", by that, each list by age
//
// named is never iterated where order could be seen.
type groupTakers struct {
	*shared
	all   sorted[*groupTaker] // by registered of the consumer
	named map[string][]*groupTaker
	free  sorted[*groupTaker]
	owing sorted[*groupTaker]
	// wanting is how many want messages.
	wanting int
}

// want sets whether t wants messages.
func (ts *groupTakers) want(t *groupTaker, wants bool) {
	if t.wants != wants {
		t.wants = wants
		if ts.wanting--; wants {
			ts.wanting += 2
		}
	}
}

// newGroupTakers returns an empty set of takers.
func newGroupTakers(s *shared) *groupTakers {
	return &groupTakers{shared: s, named: map[string][]*groupTaker{}}
}

// claimant is the first consumer that takes only the group with this id and wants
// messages; nil: there is none. O(consumers that take it).
func (ts *groupTakers) claimant(id string) *groupTaker {
	for _, t := range ts.named[id] {
		ts.scratch.steps++
		if t.wants {
			return t
		}
	}
	return nil
}

// owe updates whether and where t waits for messages of its groups.
func (ts *groupTakers) owe(t *groupTaker) {
	at := uint64(0)
	if t.wants && t.waiting.len() > 0 {
		k, _ := t.waiting.first()
		at = k.seq
	}
	if at == t.owed {
		return
	}
	if t.owed != 0 {
		ts.owing.remove(key{seq: t.owed})
	}
	if t.owed = at; at != 0 {
		ts.owing.put(key{seq: at}, t)
	}
}

// add makes a record of c, which has none.
func (ts *groupTakers) add(c *consumer, turn uint64) *groupTaker {
	t := &groupTaker{c: c, max: 1, turn: turn}
	ts.all.put(key{seq: c.registered}, t)
	return t
}

// of returns the record of c; nil: it has none.
func (ts *groupTakers) of(c *consumer) *groupTaker {
	if p := ts.all.get(key{seq: c.registered}); p != nil {
		return *p
	}
	return nil
}

// generally reports whether c may be handed messages that are of no group.
func (ts *groupTakers) generally(c *consumer) bool {
	if len(ts.named) == 0 {
		return true
	}
	t := ts.of(c)
	return t == nil || t.only == ""
}

// take updates whether t waits for free groups. Its turn lasts as long as it waits.
func (ts *groupTakers) take(t *groupTaker) {
	taking := t.wants && t.mayTake()
	level := levelKey(t.c.priority).at
	if t.taking && (!taking || t.level != level) {
		ts.free.remove(key{t.level, t.turn})
		t.taking = false
	}
	if taking && !t.taking {
		t.taking, t.level = true, level
		ts.free.put(key{level, t.turn}, t)
	}
}

// any reports whether any consumer is known here.
func (ts *groupTakers) any() bool { return ts.all.len() > 0 }

// claimed reports whether any consumer takes only one group.
func (ts *groupTakers) claimed() bool { return len(ts.named) > 0 }

// heldBy returns the groups that c holds, in the order in which it got them.
func (ts *groupTakers) heldBy(c *consumer) []*group {
	var all []*group
	if t := ts.of(c); t != nil {
		for _, p := range t.holds.all() {
			all = append(all, *p)
		}
	}
	return all
}

// holdsAny reports whether c holds a group.
func (ts *groupTakers) holdsAny(c *consumer) bool {
	t := ts.of(c)
	return t != nil && t.holds.len() > 0
}

// rename makes t take only the group with this id; empty: any.
func (ts *groupTakers) rename(t *groupTaker, only string) {
	if t.only != "" {
		list := slices.DeleteFunc(ts.named[t.only], func(o *groupTaker) bool { return o == t })
		if ts.named[t.only] = list; len(list) == 0 {
			delete(ts.named, t.only)
		}
	}
	if t.only = only; only != "" {
		list := ts.named[only]
		i, _ := slices.BinarySearchFunc(list, t.c.registered, func(o *groupTaker, r uint64) int { return cmp.Compare(o.c.registered, r) })
		ts.named[only] = slices.Insert(list, i, t)
	}
}

// turnAway gives t another turn.
func (ts *groupTakers) turnAway(t *groupTaker, turn uint64) {
	if t.taking {
		ts.free.remove(key{t.level, t.turn})
		t.taking = false
	}
	t.turn = turn
	ts.take(t)
}

// check checks who takes groups: held is how many are held, and all says that every
// consumer must be known here.
func (ts *groupTakers) check(k *checker, held int, next uint64, all bool) {
	taking, owing, named, wanting := 0, 0, 0, 0
	for at, p := range ts.all.all() {
		t := *p
		k.that(at.seq == t.c.registered && t.turn < next && t.c.session != nil && t.max > 0, "consumer %v takes groups", t.c.id)
		k.that(t.going == t.c.cancelled && (!t.going || t.only == ""), "consumer %v still takes groups", t.c.id)
		k.that(t.c.session.life.over || t.wants == (!t.c.isGets() && k.m.consumers.served(t.c) && t.c.credit() > 0), "consumer %v wants messages: %v", t.c.id, t.wants)
		k.that(t.taking == (t.wants && t.only == "" && t.holds.len() < t.max), "consumer %v takes groups: %v", t.c.id, t.taking)
		first, _, _ := firstOf(&t.waiting)
		k.that(t.owed == 0 && (first.seq == 0 || !t.wants) || t.owed == first.seq && t.wants, "consumer %v waits for %d", t.c.id, t.owed)
		held -= t.holds.len()
		if t.wants {
			wanting++
		}
		if t.taking {
			taking++
			k.that(ts.free.get(key{levelKey(t.c.priority).at, t.turn}) != nil, "consumer %v gets no group", t.c.id)
		}
		if t.owed != 0 {
			owing++
		}
		if t.only != "" {
			named++
			k.that(slices.Contains(ts.named[t.only], t), "consumer %v does not get its group", t.c.id)
		}
	}
	for _, list := range ts.named { // det: only counts and checks
		named -= len(list)
		k.that(slices.IsSortedFunc(list, func(a, b *groupTaker) int { return cmp.Compare(a.c.registered, b.c.registered) }), "consumers of a group are out of order")
	}
	k.that(held == 0 && named == 0 && taking == ts.free.len() && owing == ts.owing.len() && wanting == ts.wanting, "takers are miscounted")
	if all {
		for c := range k.m.consumers.from(0) {
			k.that(c.isGets() || c.cancelled || ts.of(c) != nil, "consumer %v never gets a group", c.id)
		}
	}
}
