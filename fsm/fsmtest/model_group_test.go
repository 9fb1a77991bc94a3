package fsmtest

import (
	"cmp"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// modelGroups are the groups of messages. A group is its id: what belongs to it is
// found among the messages.
type modelGroups struct {
	groups  []*group // those that are held or have a state
	numbers int      // of turns, holds and states so far
	endings int      // of groups so far
}

// group is who holds a group, and its state.
type group struct {
	id       string
	holder   *consumer // nil: nobody
	order    int       // of the hold
	until    fsm.Time  // when the lock ends; 0: never
	state    string
	stateSet fsm.Time // when it was set; 0: there is none
	leaving
	emptiness
}

// leaving is how a hold ends step by step. Meanwhile the holder may be gone.
type leaving struct {
	leaves bool
	back   bool // what the holder has of the group comes back with it
	lost   bool // as failed
}

// emptiness is what follows from since when a group is empty.
type emptiness struct {
	linger     fsm.Time // when the hold ends; 0: it is not empty
	idle       bool     // it has a state and nothing else
	stateUntil fsm.Time // 0: never
	stateOrder int
}

// groupTerms are what a consumer wants of groups.
type groupTerms struct {
	limit int
	only  string
	turn  int // 0: it takes none
	// review is the first of its holds for which it is to be decided anew whether it
	// keeps them; 0: none is.
	review int
	keeps  bool // empty groups, too
}

// member is what a message has of its group.
type member struct {
	group   string // empty: none
	ending  int    // its group has ended, as the n-th one; 0: it has not
	covered bool   // it is due and does not expire, since its group was held
	stays   bool   // it was purged, and its group stays until it is forgotten
}

func (q *model) number() int {
	q.numbers++
	return q.numbers
}

// alive reports whether x is one of its group: ready, retried later, or held.
func (x *message) alive() bool {
	return x.group != "" && (x.place == grouped || x.place == delayed || x.place == checkedOut || x.place == 0 || x.stays)
}

// of lists the messages of a group in a place, by number; an ended group has none.
func (q *model) ofGroup(id string, places ...place) (all []*message) {
	for _, x := range q.messages {
		if x.group == id && x.ending == 0 && slices.Contains(places, x.place) {
			all = append(all, x)
		}
	}
	return all
}

func (q *model) busyGroup(id string) bool {
	return len(q.ofGroup(id, grouped, delayed, checkedOut)) > 0 || q.purgedGroup(id)
}

// purgedGroup reports whether messages of a group were purged and are not forgotten.
func (q *model) purgedGroup(id string) bool {
	return slices.ContainsFunc(q.ofGroup(id, purged), func(x *message) bool { return x.stays })
}

func (q *modelGroups) group(id string) *group {
	for _, g := range q.groups {
		if g.id == id {
			return g
		}
	}
	return nil
}

// holds are the groups that c holds, in the order in which it got them.
func (q *modelGroups) holds(c *consumer) (all []*group) {
	for _, g := range q.groups {
		if g.holder == c && !g.leaves {
			all = append(all, g)
		}
	}
	slices.SortFunc(all, func(a, b *group) int { return cmp.Compare(a.order, b.order) })
	return all
}

// holderOfGroup returns who holds the group of x; nil: nobody.
func (q *model) holderOfGroup(x *message) *consumer {
	if g := q.group(x.group); g != nil && x.group != "" && x.ending == 0 {
		return g.holder
	}
	return nil
}

// protected reports whether x does not expire because its group is held.
func (q *model) protected(x *message) bool {
	return x.group != "" && (x.covered || q.config.GroupExpiry && q.holderOfGroup(x) != nil)
}

func (q *model) anyGroup() bool {
	return len(q.groups) > 0 || slices.ContainsFunc(q.messages, (*message).alive)
}

func (q *model) hasGroups() bool { return q.config.Groups != logpb.QueueConfig_NO_GROUPS }

// readyCount is how many messages are ready.
func (q *modelMessages) readyCount() uint64 { return q.total(ready, returned, grouped).Messages }

// arrive puts x, which is new or comes after its time, behind all others.
func (q *model) arrive(x *message) {
	x.place, x.ending = ready, 0
	if !q.hasGroups() {
		x.group = ""
	}
	if x.group != "" {
		x.place = grouped
		q.groupedOnes = append(q.groupedOnes, x)
		q.wakeGroup(x)
	}
}

// wakeGroup is called when x comes to its group: if that was empty it is so no more.
func (q *model) wakeGroup(x *message) {
	if g := q.group(x.group); g != nil && x.ending == 0 {
		linger := g.linger
		if g.emptiness = (emptiness{}); q.version >= 3 && q.stands(x.group) {
			g.linger = linger
		}
	}
}

// stands reports whether nothing of a group is held, and nothing can be handed out: it is
// empty, or its first message is retried later.
func (q *model) stands(id string) bool {
	if q.version < 3 {
		return !q.busyGroup(id)
	}
	all := q.ofGroup(id, grouped, delayed)
	return len(q.ofGroup(id, checkedOut)) == 0 && (len(all) == 0 || all[0].place == delayed)
}

// rejoin puts messages that come back into their groups again, and returns those of
// no group.
func (q *model) rejoin(back []*message) (others []*message) {
	var run []*message
	for _, x := range back {
		if !q.hasGroups() && x.ending == 0 {
			x.group = ""
		}
		if x.group == "" {
			others = append(others, x)
			continue
		}
		x.covered = x.ending == 0 && x.expired(q.clock) && q.protected(x)
		x.place = grouped
		q.wakeGroup(x)
		run = append(run, x)
	}
	slices.SortFunc(run, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	q.groupedOnes = append(run, q.groupedOnes...)
	return others
}

// wants reports whether a consumer, not a get, may get a message now.
func (q *model) wants(c *consumer) bool {
	return c != nil && c.id.Number != 0 && !c.cancelled && c.turn != 0 && q.hasCredit(c) && c.selector == ""
}

// taker returns who gets the next message of a group; nil: nobody now. free: whoever
// gets it may be anybody.
func (q *model) taker(id string) (c *consumer, free bool) {
	if g := q.group(id); g != nil && g.holder != nil {
		if slices.Contains(q.consumers, g.holder) && q.wants(g.holder) {
			return g.holder, false
		}
		return nil, false
	}
	for _, c := range q.consumers {
		if c.only == id && q.wants(c) {
			return c, false
		}
	}
	var best *consumer
	for _, c := range q.consumers {
		if q.wants(c) && c.only == "" && len(q.holds(c)) < max(c.limit, 1) &&
			(best == nil || cmp.Or(cmp.Compare(best.priority, c.priority), cmp.Compare(q.load(c), q.load(best)), cmp.Compare(c.turn, best.turn)) < 0) {
			best = c
		}
	}
	return best, true
}

// heads are the first messages of all groups that are ready, by number.
func (q *model) heads() (all []*message) {
	for _, x := range q.in(grouped) {
		if x.ending == 0 && q.ofGroup(x.group, grouped, delayed)[0] == x {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// nextOfGroups is the message of a group that is handed out next, and to whom.
func (q *model) nextOfGroups() (*message, *consumer) {
	for _, x := range q.heads() {
		if c, _ := q.taker(x.group); c != nil {
			return x, c
		}
	}
	return nil, nil
}

// candidate is the message that is handed out next, due or not, and to whom.
func (q *model) candidate() (*message, *consumer) {
	var x *message
	var c *consumer
	if len(q.service) > 0 {
		if x = q.nextReady(q.leastServed()); x != nil {
			c = q.firstServed(x)
		}
	}
	if y, d := q.nextOfGroups(); y != nil && !q.comesBack() && (x == nil || y.seq < x.seq) {
		return y, d
	}
	return x, c
}

// servesAny reports whether there is something to hand out and somebody who gets it.
func (q *model) servesAny() bool {
	x, _ := q.nextOfGroups()
	return x != nil || len(q.service) > 0 && q.nextReady(q.leastServed()) != nil
}

// candidateForGet is the message that a get of a session gets, due or not.
func (q *model) candidateForGet(c *consumer) *message {
	x := q.nextReady(0)
	if q.comesBack() {
		return x
	}
	for _, y := range q.heads() {
		if x != nil && y.seq > x.seq {
			break
		}
		if h := q.holderOfGroup(y); h != nil && h == c {
			return y
		} else if h != nil {
			continue
		}
		claimed := slices.ContainsFunc(q.consumers, func(o *consumer) bool { return o.only == y.group && q.wants(o) })
		if !claimed {
			return y
		}
	}
	return x
}

// nextToDrop is what a queue drops that is too long, due or not.
func (q *model) nextToDrop() *message {
	x := q.nextReady(0)
	for _, y := range q.groupedOnes {
		if x == nil || y.seq < x.seq {
			x = y
		}
	}
	return x
}

// withoutDue returns what next does once nothing that is due is in its way; ok is
// false if the command may expire no more.
func (q *model) withoutDue(next func() *message) (x *message, ok bool) {
	return q.inOrder(next, func(*message) bool { return true })
}

// inOrder is withoutDue for a message that may go.
func (q *model) inOrder(next func() *message, may func(*message) bool) (x *message, ok bool) {
	for {
		x := next()
		if x == nil || x.ending == 0 && (x == q.fresh || !x.expired(q.clock) || q.protected(x)) && may(x) {
			return x, true
		}
		if !q.expireOne() {
			return nil, false
		}
	}
}

// takeGroup is called when c is handed x, which is of a group: c holds the group
// from now on, if nobody else does.
func (q *model) takeGroup(x *message, c *consumer, apart bool) {
	x.ending, x.covered = 0, false
	if c.turn == 0 {
		c.turn = q.number()
	}
	g := q.group(x.group)
	if g == nil {
		g = &group{id: x.group}
		q.groups = append(q.groups, g)
	}
	g.emptiness = emptiness{}
	if g.holder != nil || apart {
		return
	}
	q.giveGroup(g, c)
}

// giveGroup makes c the holder of a group that nobody holds.
func (q *model) giveGroup(g *group, c *consumer) {
	q.counters.GroupsTaken++
	q.tell(c, fsm.GroupsTaken, 0, g.id)
	g.holder, g.order, g.emptiness = c, q.number(), emptiness{}
	q.lockGroup(g, 0)
	c.turn = q.number()
}

// lockGroup lets the lock of a group begin anew, for d or as long as its holder
// says.
func (q *model) lockGroup(g *group, d fsm.Millis) {
	if g.leaves {
		return
	}
	g.until = 0
	if l := q.lockOf(g.holder).lockLength; l != 0 {
		g.until = q.heldUntil(cmp.Or(d, l))
	}
}

// freeGroup ends the hold of a group. If something was due meanwhile the group
// expires.
func (q *model) freeGroup(g *group) {
	c := g.holder
	q.tell(c, fsm.GroupsLeft, 0, g.id)
	g.holder, g.until, g.linger, g.leaving = nil, 0, 0, leaving{}
	c.turn = q.number()
	if slices.ContainsFunc(q.ofGroup(g.id, grouped), func(x *message) bool { return x.covered }) {
		q.endGroup(g.id)
	}
	q.forgetGroups()
}

// giveUp ends the hold of a group. What its holder has of it goes back.
func (q *model) giveUp(g *group, failed bool) {
	c := g.holder
	if q.version >= 3 && len(q.ofGroup(g.id, checkedOut)) > 0 {
		g.until, g.linger, g.leaving = 0, 0, leaving{true, true, failed}
		return
	}
	b := &back{failed: failed, group: true}
	for _, x := range q.heldOf(c, g) {
		x.leave(b)
		if failed {
			c.loses(x)
			q.tell(c, fsm.LocksLost, x.delivery, "")
		}
	}
	q.freeGroup(g)
	q.startOldest()
	q.serve(c)
}

// heldOf are the messages of g that c holds.
func (q *model) heldOf(c *consumer, g *group) []*message {
	return slices.DeleteFunc(q.held(c), func(x *message) bool { return x.group != g.id || x.ending != 0 })
}

// loses remembers that the lock of x has ended.
func (c *consumer) loses(x *message) {
	c.lost = append(c.lost, x.delivery)
	slices.Sort(c.lost)
	c.lost = c.lost[max(0, len(c.lost)-lostLocks):]
}

// nextLeft is the group whose hold ends next; nil: none is to end.
func (q *modelGroups) nextLeft() (first *group) {
	for _, g := range q.groups {
		if g.leaves && (first == nil || g.order < first.order) {
			first = g
		}
	}
	return first
}

// comesBack reports whether something is on its way back, or groups are.
func (q *model) comesBack() bool { return len(q.coming()) > 0 || q.nextLeft() != nil }

// endLeaving ends holds in at most left steps, and returns how many are left.
func (q *model) endLeaving(left int) int {
	backs := map[*group]*back{}
	for ; left > 0 && q.nextLeft() != nil; left-- {
		g := q.nextLeft()
		c, here := g.holder, slices.Contains(q.consumers, g.holder)
		if !g.back || !here && !q.isDetached(c) || len(q.heldOf(c, g)) == 0 {
			q.freeGroup(g)
			continue
		}
		if backs[g] == nil {
			backs[g] = &back{failed: g.lost, group: true}
		}
		x := q.heldOf(c, g)[0]
		x.leave(backs[g])
		if g.lost && here {
			c.loses(x)
			q.tell(c, fsm.LocksLost, x.delivery, "")
		}
		q.startOldest()
		q.dropDetached()
		if here {
			q.serve(c)
			q.forgetConsumer(c)
		}
	}
	return left
}

// endGroup is the end of a group whose messages expire together.
func (q *model) endGroup(id string) {
	q.endings++
	for _, x := range q.messages {
		if x.group == id && x.alive() && x.ending == 0 {
			x.ending = q.endings
		}
	}
	if g := q.group(id); g != nil {
		g.idle, g.stateUntil = false, 0
	}
}

// endingOne is the message that dies next because its group has ended; nil: none.
func (q *model) endingOne() (first *message) {
	for _, x := range q.messages {
		if x.ending != 0 && (x.place == grouped || x.place == delayed) && (first == nil || x.ending < first.ending) {
			first = x
		}
	}
	return first
}

// deathOf is why x dies whose group has ended.
func (q *model) deathOf(x *message) logpb.Death_Reason {
	if x.expired(q.clock) {
		return logpb.Death_EXPIRED
	}
	return logpb.Death_GROUP_EXPIRED
}

// expire is the end of x, which is due, or of its group, or it is covered.
func (q *model) expire(x *message) {
	held := q.holderOfGroup(x) != nil
	switch {
	case x.ending != 0:
		q.die(x, q.deathOf(x))
	case x.group == "" || !q.config.GroupExpiry || x.place == deferred || x.place == parked || x.place == delayed && held:
		q.die(x, logpb.Death_EXPIRED)
	case held:
		x.covered = true
	default:
		q.endGroup(x.group)
	}
}

// settleGroups brings holds and states up to date, by the ids of the groups.
func (q *model) settleGroups() {
	all := slices.Clone(q.groups)
	slices.SortFunc(all, func(a, b *group) int { return cmp.Compare(a.id, b.id) })
	for _, g := range all {
		busy := q.busyGroup(g.id)
		if g.holder != nil {
			q.settleHold(g)
		}
		idle := g.state != "" && g.holder == nil && !busy
		if !idle {
			g.stateUntil = 0
		} else if !g.idle && q.config.GroupStateTtl > 0 {
			g.stateUntil, g.stateOrder = max(q.clock.Add(millis(q.config.GroupStateTtl)), 1), q.number()
		}
		g.idle = idle
	}
	q.forgetGroups()
}

// settleHold decides whether the holder of g keeps it, unless that ends by itself or is
// reviewed later.
func (q *model) settleHold(g *group) {
	c := g.holder
	if g.leaves || c.review != 0 && g.order >= c.review || q.purgedGroup(g.id) {
		return
	}
	stands := q.stands(g.id)
	passes := (c.cancelled || c.id.Number == 0) && len(q.ofGroup(g.id, checkedOut)) == 0
	switch {
	case c.keeps && !c.cancelled:
		g.linger = 0
	case passes, stands && q.config.GroupLinger == 0 && g.linger == 0:
		q.freeGroup(g)
	case !stands:
		g.linger = 0
	case g.linger == 0:
		g.linger = q.heldUntil(millis(q.config.GroupLinger))
	}
}

// review begins to decide anew what c keeps of its groups.
func (q *model) review(c *consumer) {
	if q.version >= 3 && len(q.holds(c)) > 0 {
		c.review = 1
	}
}

// reviewed is the first consumer of which something is to be decided; nil: there is none.
func (q *model) reviewed() *consumer {
	for _, c := range q.consumers {
		if c.review != 0 {
			return c
		}
	}
	return nil
}

// goOnReviewing decides about up to left holds, and returns how many are left.
func (q *model) goOnReviewing(left int) int {
	for ; left > 0 && q.reviewed() != nil; left-- {
		c := q.reviewed()
		all := slices.DeleteFunc(q.holds(c), func(g *group) bool { return g.order < c.review })
		if len(all) > 0 {
			c.review = all[0].order + 1
			q.settleHold(all[0])
		}
		if len(all) < 2 {
			c.review = 0
		}
	}
	return left
}

// forgetGroups forgets what nobody holds and has no state.
func (q *model) forgetGroups() {
	q.groups = slices.DeleteFunc(q.groups, func(g *group) bool { return g.holder == nil && g.state == "" })
}

// dropGroups is called when c ends: its groups are free.
func (q *model) dropGroups(c *consumer) {
	all := q.holds(c)
	for _, g := range all {
		if q.version >= 3 && len(all) > 1 {
			g.leaves = true
		} else {
			q.freeGroup(g)
		}
	}
}

// giveUpAll ends the holds of c. That is no failure.
func (q *model) giveUpAll(c *consumer) {
	for _, g := range q.holds(c) {
		if q.version >= 3 {
			g.leaves, g.back = true, true
		} else {
			q.giveUp(g, false)
		}
	}
}

// end is when the hold ends; 0: never.
func (g *group) end() fsm.Time {
	if g.until == 0 || g.linger != 0 && g.linger < g.until {
		return g.linger
	}
	return g.until
}

// endHolds ends the holds that are over.
func (q *model) endHolds() {
	if q.nextLeft() != nil {
		return
	}
	for q.budget > 0 {
		var first *group
		for _, g := range q.groups {
			if e := g.end(); e != 0 && e <= q.clock && (first == nil || cmp.Or(cmp.Compare(e, first.end()), cmp.Compare(g.order, first.order)) < 0) {
				first = g
			}
		}
		if first == nil {
			return
		}
		q.budget--
		lost, c := first.until != 0 && first.until <= q.clock, first.holder
		if lost {
			q.counters.GroupsLost++
		}
		q.giveUp(first, lost)
		q.forgetConsumer(c)
	}
}

// endStates forgets states whose time is over.
func (q *model) endStates() {
	for q.budget > 0 {
		var first *group
		for _, g := range q.groups {
			if e := g.stateUntil; e != 0 && e <= q.clock && (first == nil || cmp.Or(cmp.Compare(e, first.stateUntil), cmp.Compare(g.stateOrder, first.stateOrder)) < 0) {
				first = g
			}
		}
		if first == nil {
			return
		}
		q.budget--
		first.state, first.stateSet, first.stateUntil, first.idle = "", 0, 0, false
		q.forgetGroups()
	}
}

// renewGroups lets the locks of the groups begin anew of which c settles something.
func (q *model) renewGroups(c *consumer, settled []*message) {
	for _, x := range settled {
		if g := q.group(x.group); x.group != "" && x.ending == 0 && g != nil && c != nil && g.holder == c {
			q.lockGroup(g, 0)
		}
	}
}

// groupRequest performs a request about a group.
func (q *model) groupRequest(s *session, r *logpb.Group) fsm.Result {
	if s == nil {
		return fsm.Result{Code: fsm.NoSession}
	}
	if r.GetId() == "" || r.Action < 0 || r.Action > logpb.Group_GET_STATE || len(r.State) > 256<<10 {
		return fsm.Result{Code: fsm.Invalid}
	}
	c, g := q.consumer(fsm.ConsumerID{Session: s.id, Number: r.Consumer}), q.group(r.Id)
	switch {
	case c == nil || g == nil || g.holder == nil || g.leaves:
		return fsm.Result{Code: fsm.NotFound}
	case g.holder != c:
		return fsm.Result{Code: fsm.InUse}
	}
	q.active = q.clock
	switch r.Action {
	case logpb.Group_RENEW:
		q.lockGroup(g, 0)
	case logpb.Group_RELEASE:
		q.giveUp(g, false)
		q.forgetConsumer(c)
	case logpb.Group_SET_STATE:
		all := plus(q.kept(), q.total(ready, returned, grouped, delayed, parked))
		if q.drops() {
			all = q.kept()
		}
		most := q.config.MaxLengthBytesPlusOne
		if n := len(r.State); q.version >= 3 && n > len(g.state) && q.stateSize().Bytes-uint64(len(g.state))+uint64(n) > uint64(q.bounds.States) {
			return fsm.Result{Code: fsm.Rejected}
		}
		if n := len(r.State); n > len(g.state) && most != 0 && all.Bytes-uint64(len(g.state))+uint64(n) > most-1 {
			return fsm.Result{Code: fsm.Rejected}
		}
		g.state, g.stateSet = string(r.State), 0
		if q.version >= 3 && g.state != "" {
			g.stateSet = q.clock
		}
	}
	return q.describeGroup(r, fsm.Result{Count: 1})
}

// describeGroup completes the answer to a request that was performed.
func (q *model) describeGroup(c *logpb.Group, r fsm.Result) fsm.Result {
	r.Until, r.State = 0, ""
	if g := q.group(c.GetId()); g != nil {
		r.Until = g.until
		if c.Action == logpb.Group_GET_STATE {
			r.State = g.state
		}
	}
	return r
}

// stateSize is the size of all states, which counts.
func (q *model) stateSize() (c queue.Count) {
	for _, g := range q.groups {
		c.Bytes += uint64(len(g.state))
	}
	return c
}
