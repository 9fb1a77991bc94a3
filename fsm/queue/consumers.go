package queue

import (
	"cmp"
	"iter"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// consumers are all consumers of the queue, including the gets of sessions, by
// age. This part decides who may be served; service decides in which order.
//
// Invariants:
//
//	all ascends by registered, which is < next; each is in its session's table
//	serving ≤ attached ≤ len(all): attached counts all but gets and finished
//	consumers, serving those of them that are not cancelled
//	getsHeld = Σ held.len() of gets
//	exclusive is nil, or the only one that is not cancelled and whose session's
//	life is not over
//	c is in service ⇔ served(c) and c.credit() > 0 and it has no selector and takes
//	not only one group, unless its session is ending
//	single, quiescing = choose(), once elect has run; single is nil unless the
//	settings ask for a single active consumer
//
// all has the consumers of ending sessions, too. These may still be in rings,
// but nobody is served before they are gone. The order of age is that of the
// log, so it is the same on all replicas, and a snapshot refers to consumers by
// their position in it.
type consumers struct {
	*shared
	sessions *sessions
	detached *detached
	groups   *leavings
	takers   *groupTakers
	services services
	short    short
	choosers choosers

	// next is never reused: two consumers, or two settlements, never tie.
	all      []*consumer
	next     uint64 // orders consumers by age, and pending settlements
	attached int
	serving  int
	getsHeld int
	// Except for single, the rest is derived: Restore counts attached, serving
	// and getsHeld again, finds exclusive by its flag, and computes quiescing.
	// contested may differ after it: choosing once more changes nothing.
	exclusive *consumer
	single    *consumer // the only one that is served; nil: nobody can be
	quiescing bool      // single gets nothing new
	contested bool      // elect must choose

	capacity Capacity // without present; in no snapshot
}

// clear removes all consumers. The order of age begins with 1, since 0 means no
// settlement, see returning, and continues.
func (cs *consumers) clear() {
	cs.services.clear()
	*cs = consumers{shared: cs.shared, sessions: cs.sessions, detached: cs.detached, groups: cs.groups, takers: cs.takers, services: cs.services, next: max(cs.next, 1), capacity: cs.capacity}
}

// inUse reports whether the lease is suspended. Deliveries on their way back do not count.
func (cs *consumers) inUse() bool { return cs.attached > 0 || cs.getsHeld > 0 || cs.detached.len() > 0 }

func (cs *consumers) len() int { return len(cs.all) }

// active is the number of consumers that are neither cancelled nor gets. This
// is what if-unused, auto-delete and queue.declare-ok count.
func (cs *consumers) active() int { return cs.serving }

func (cs *consumers) contest() { cs.contested = true }

// holds adds n to the deliveries that c holds. It is called with every change of c.held.
func (cs *consumers) holds(c *consumer, n int) {
	if c.isGets() && !cs.detached.has(c) {
		cs.getsHeld += n
	}
}

// take removes the deliveries first … last from what c holds and appends them
// to scratch.taken.
//
// Ensures: the messages are in no held, and still CheckedOut and in deadlines. The
// caller lifts them, or makes them part of a returning, within the same command.
func (cs *consumers) take(c *consumer, first, last uint64) {
	before := len(cs.scratch.taken)
	cs.scratch.taken = c.held.take(first, last, cs.scratch.taken)
	cs.holds(c, before-len(cs.scratch.taken))
}

// order returns the next position in the order of age.
func (cs *consumers) order() uint64 {
	cs.next++
	return cs.next - 1
}

func (cs *consumers) passed(order uint64) bool { return order < cs.next }

// join adds c to those that may be served. Requires: c is not cancelled, not
// gets, and in no level. It gets a place in a ring only with refresh.
func (cs *consumers) join(c *consumer) {
	cs.services.forConsumer(c).join(c)
	cs.contested = true
}

func (cs *consumers) leave(c *consumer) {
	cs.short.drop(c)
	cs.choosers.note(c, false)
	if c.level != nil {
		cs.services.leave(c)
		cs.contested = true
	}
}

// from iterates over the consumers with a position of at least n in the order of age. all must
// not change meanwhile.
func (cs *consumers) from(n uint64) iter.Seq[*consumer] {
	i, _ := slices.BinarySearchFunc(cs.all, n, func(c *consumer, r uint64) int { return cmp.Compare(c.registered, r) })
	return slices.Values(cs.all[i:])
}

// refresh moves c to the end of its ring or removes it, depending on its
// credit.
//
// A consumer that is in its ring and may stay keeps its position there, among those with
// its load if that counts. It must be called after every change of what served and credit
// depend on: prefetch, held, late, suspicion, single.
func (cs *consumers) refresh(c *consumer) {
	served := cs.served(c)
	wants := served && c.credit() > 0
	cs.short.note(c, served && !wants && c.lacks())
	cs.choosers.note(c, wants)
	wants = wants && !c.chooses()
	if cs.takers.any() || cs.groups.on() {
		cs.groups.refresh(c, wants)
		wants = wants && cs.takers.generally(c)
	}
	switch {
	case !wants:
		cs.services.suspend(c)
	case !c.serviced:
		cs.services.serve(c)
	case c.load != cs.settings.load(c):
		cs.services.reload(c)
	}
}

// register adds a consumer of s to the tables.
//
// Requires: s has no consumer with this number, and the queue is not crowded.
// Ensures: it is the youngest, has no settings and is in no level. Gets go on with
// the numbers of their deliveries.
func (cs *consumers) register(s *session, number uint64) *consumer {
	c := &consumer{
		id:      fsm.ConsumerID{Session: s.id, Number: number},
		session: s, registered: cs.next, next: 1, quota: quota{max: maxCredit},
	}
	if number == 0 && s.nextGet > 0 {
		c.next, s.nextGet = s.nextGet, 0
	}
	cs.next++
	cs.all = append(cs.all, c)
	s.attach(c)
	if number != 0 {
		cs.attached++
		cs.serving++
	}
	return c
}

// retire ends the service of c, which remains for the messages that it holds.
//
// Ensures: it is in no level and is neither exclusive nor single. It does
// nothing for gets. A caller that keeps c calls removeFinished, since c may hold
// nothing.
func (cs *consumers) retire(c *consumer) {
	if c.cancelled || c.isGets() {
		return
	}
	cs.leave(c)
	cs.groups.retire(c)
	c.cancelled = true
	cs.serving--
	if cs.exclusive == c {
		cs.exclusive = nil
	}
	if cs.single == c {
		cs.single, cs.quiescing = nil, false
	}
}

func (cs *consumers) at(i int) *consumer { return cs.all[i] }

func (cs *consumers) position(c *consumer) int {
	i, _ := slices.BinarySearchFunc(cs.all, c.registered, func(o *consumer, r uint64) int { return cmp.Compare(o.registered, r) })
	return i
}

// unregister ends c, which holds nothing or is detached, and sets its session to
// nil. The caller removes it from the tables.
//
// Ensures: c.session is nil, by which dropEnded finds it. No part may look at
// it any more, unless it is detached, except as a pointer in timers and locks that
// nobody reads.
func (cs *consumers) unregister(c *consumer) {
	cs.groups.disown(c) // retire looks at each that it still has
	cs.retire(c)
	cs.groups.drop(c)
	if !c.isGets() && !c.finished {
		cs.attached--
	}
	c.session.life.detached()
	c.session = nil
}

// crowded reports whether the queue has reached its limit of consumers. From version
// 3 on, gets that hold nothing make room: their session knows how they go on.
func (cs *consumers) crowded() bool {
	if len(cs.all) < cs.bounds.Consumers {
		return false
	}
	if cs.since(3) {
		cs.dropGets()
	}
	return len(cs.all) >= cs.bounds.Consumers
}

func (cs *consumers) dropGets() {
	for _, c := range cs.all {
		if !c.isGets() || c.held.Len() > 0 || c.remembered() || len(c.lockLost) > 0 || c.session.life.over {
			continue
		}
		s := c.session
		s.nextGet = c.next
		s.prune(func(o *consumer) bool { return o == c })
		cs.unregister(c)
	}
	cs.dropEnded()
}

// removeFinished removes cancelled consumers that hold nothing, in one pass over each
// session. They are remembered while they have late deliveries, or if they were revoked.
//
// done may name others, also such that are or were detached: nothing happens to them.
// Ensures: those of the others that remain are finished, count neither as
// attached nor as serving, and have something to be remembered for.
func (cs *consumers) removeFinished(done ...*consumer) {
	var sessions []*session
	for _, c := range done {
		if !c.cancelled || c.held.Len() > 0 || c.session == nil {
			continue
		}
		if !c.finished {
			c.finished = true
			cs.attached--
		}
		if s := c.session; !s.thinning {
			s.thinning = true
			sessions = append(sessions, s)
		}
	}
	removed := 0
	for _, s := range sessions {
		s.thinning = false
		removed += cs.thin(s)
	}
	if removed > 0 {
		cs.dropEnded()
	}
}

// thin unregisters the finished consumers of a session, except the newest ones that must be
// remembered, and returns how many. O(consumers of the session).
func (cs *consumers) thin(s *session) (removed int) {
	surplus := -lateConsumers
	for _, c := range s.consumers {
		if c.finished && c.remembered() {
			surplus++
		}
	}
	cs.scratch.steps += len(s.consumers)
	s.prune(func(c *consumer) bool {
		if !c.finished || c.remembered() && surplus <= 0 {
			return false
		}
		if c.remembered() {
			surplus--
		}
		removed++
		cs.unregister(c)
		return true
	})
	return removed
}

// dropEnded removes consumers whose sessions have ended. It costs one pass over all, so it is
// called once for many.
func (cs *consumers) dropEnded() {
	cs.scratch.steps += len(cs.all)
	cs.all = slices.DeleteFunc(cs.all, func(c *consumer) bool { return c.session == nil })
}

// reconsider is called when the settings say otherwise who is served. single: they are about
// a single active consumer, so there is none until one is elected.
func (cs *consumers) reconsider(single bool) {
	cs.services.rearrange()
	if single {
		cs.single, cs.quiescing, cs.contested = nil, false, true
	}
	for _, c := range cs.all {
		c.limit(&cs.settings)
		cs.refresh(c)
	}
}

func (cs *consumers) anyServed() bool { return cs.services.any() }

func (cs *consumers) leastServed() (fsm.Millis, bool) { return cs.services.least() }

func (cs *consumers) passOver() {
	if !cs.services.demand() {
		return
	}
	if least, ok := cs.leastServed(); ok {
		cs.services.passOver(least)
	}
}

func (cs *consumers) nextServed(h uint32) *consumer { return cs.services.next(h) }

// handedOut moves c to the end of its ring, or out of it if its credit is used up.
func (cs *consumers) handedOut(c *consumer) {
	cs.services.suspend(c)
	cs.refresh(c)
}

// timeOut suspends c because of deliveries that it held too long, and adds them to
// scratch.taken.
//
// Requires: due is not empty, all of c, ascending by id, and not in c.held.
// Ensures: once c is refreshed, it is in no ring until everything in c.late is
// settled.
func (cs *consumers) timeOut(c *consumer, due []overdue, eff *fsm.Effects) {
	late := make([]lateness, len(due))
	by := cs.scratch.holder(c.id, c.tag)
	for i, d := range due {
		d.held.by = by
		late[i] = lateness{d.held.id, d.held.since, d.held.limit}
		cs.scratch.taken = append(cs.scratch.taken, d.held)
	}
	t := fsm.Timeout{To: c.id, Tag: c.tag, First: len(c.late) == 0 && c.lateAcks == 0 && !c.cancelled}
	t.Deliveries, t.Limit, t.Held = describeLate(late, cs.clock.now())
	eff.Timeouts = append(eff.Timeouts, t)
	cs.counters.TimedOut += uint64(len(late))
	c.late = slices.Concat(c.late, late)
	slices.SortFunc(c.late, func(a, b lateness) int { return cmp.Compare(a.id, b.id) })
	cs.contest()
}

func (cs *consumers) settledLate(c *consumer, late []lateness, eff *fsm.Effects) {
	notice := fsm.LateAck{Of: c.id, Tag: c.tag, First: c.lateAcks == 0}
	notice.Deliveries, notice.Limit, notice.Held = describeLate(late, cs.clock.now())
	eff.LateAcks = append(eff.LateAcks, notice)
	c.lateAcks += uint64(len(late))
	cs.counters.LateAcks += uint64(len(late))
}

// nodeSuspected begins or ends the suspicion of a node.
//
// The command is proposed by the leader when it has not heard from a node for a
// while, and with Back when it has again. It ends no stream and takes nothing
// back: the first Tick after the deadline does, see endSuspicions. Repeating it
// neither extends the deadline nor answers an error.
func (cs *consumers) nodeSuspected(cmd *logpb.NodeSuspected, eff *fsm.Effects) fsm.Result {
	of := Boot{fsm.NodeID(cmd.GetNode()), cmd.GetBoot()}
	if of.Node == 0 || of.Boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	l, ok := cs.sessions.setSuspected(of, !cmd.GetBack())
	if !ok {
		return fsm.Result{} // already known
	}
	cs.contested = true
	for _, c := range cs.all {
		if l == nil {
			break // it has no sessions
		}
		cs.scratch.steps++
		if c.session.life == l {
			cs.refresh(c)
		}
	}
	eff.SuspicionChanged = true
	return fsm.Result{}
}

// consume registers a consumer of s, or changes an existing one.
//
// Refusals, in this order: Invalid for number 0, for one that was cancelled and is
// still known, for credit mode before version 3 and a selector without it; InUse for exclusive consumption of a queue with
// a single active consumer; Forwards for a new one of a queue that forwards; Crowded;
// TooMany; InUse if another consumer excludes this one. None of them changes
// anything.
//
// A Consume of a known number changes the consumer: its deliveries, its number
// of the next one, its credit in credit mode and its age stay; with another priority
// or least TTL it joins the end of that ring.
func (cs *consumers) consume(s *session, cmd *logpb.Consume, eff *fsm.Effects) fsm.Result {
	c := s.consumer(cmd.GetConsumer())
	if cmd.GetConsumer() == 0 || c != nil && c.cancelled || cmd.Credit && !cs.since(3) || cmd.Selector != "" && !cmd.Credit {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.Exclusive && cs.settings.SingleActive {
		return fsm.Result{Code: fsm.InUse}
	}
	if c == nil && cs.settings.forwards() {
		return fsm.Result{Code: fsm.Forwards}
	}
	if c == nil && cs.crowded() {
		return fsm.Result{Code: fsm.Crowded}
	}
	if cs.services.tooMany(c, duration(cmd.MinTtl)) {
		return fsm.Result{Code: fsm.TooMany}
	}
	holds := cmd.GroupHold && cmd.GroupId != "" && cs.settings.grouped() && cs.since(3)
	if holds && cs.groups.isTaken(cmd.GroupId, c) {
		return fsm.Result{Code: fsm.Reserved}
	}
	if cmd.Exclusive || cs.exclusive != nil && cs.exclusive != c {
		if !cs.replaceable(c) {
			return fsm.Result{Code: fsm.InUse}
		}
		cs.revokeAllBut(c, eff)
	}
	if c == nil {
		c = cs.register(s, cmd.Consumer)
	}
	cs.update(c, cmd)
	if holds {
		cs.groups.hold(cmd.GroupId, c, cs.settings.groupLock(c))
	}
	cs.scratch.news.consumed = c
	return fsm.Result{}
}

// cancel ends the service of a consumer. What it holds can still be settled, and still time out.
func (cs *consumers) cancel(s *session, cmd *logpb.Cancel) fsm.Result {
	c := s.consumer(cmd.GetConsumer())
	if c == nil || c.isGets() || c.cancelled {
		return fsm.Result{Code: fsm.NotFound}
	}
	cs.retire(c)
	cs.removeFinished(c)
	return fsm.Result{}
}

// cancelAll tells all that are not cancelled that they are. The caller removes them.
func (cs *consumers) cancelAll(eff *fsm.Effects) {
	for _, c := range cs.all {
		if !c.cancelled && !c.isGets() {
			eff.Cancelled = append(eff.Cancelled, c.id)
		}
	}
}

// replaceable reports whether all consumers but c may be revoked for an exclusive one: their nodes
// have been suspected for too long. O(consumers).
func (cs *consumers) replaceable(c *consumer) bool {
	for _, o := range cs.all {
		cs.scratch.steps++
		if o != c && o.level != nil && !o.session.life.over && !cs.sessions.isOverdue(o.session) {
			return false
		}
	}
	return true
}

// revokeAllBut cancels all consumers but c, which must be replaceable. They are
// notified when their node is heard from.
func (cs *consumers) revokeAllBut(c *consumer, eff *fsm.Effects) {
	var revoked []*consumer
	for _, o := range cs.all {
		cs.scratch.steps++
		if o == c || o.level == nil || o.session.life.over {
			continue
		}
		cs.retire(o)
		o.revoked = true
		eff.Cancelled = append(eff.Cancelled, o.id)
		revoked = append(revoked, o)
	}
	cs.removeFinished(revoked...)
}

// update applies a Consume to c, which is new or not cancelled. Ensures:
// cs.exclusive is c or nil. Nobody else can have been exclusive here.
func (cs *consumers) update(c *consumer, cmd *logpb.Consume) {
	if c.level != nil && (c.priority != cmd.Priority || c.least != duration(cmd.MinTtl)) {
		cs.leave(c)
	}
	cs.short.drop(c)
	c.tag, c.quota, c.priority = cmd.Tag, quota{prefetch: cmd.Prefetch, shared: cmd.Shared}, cmd.Priority
	c.lockLength, c.lockMax, c.lockAuto = duration(cmd.Lock), duration(cmd.MaxLock), duration(cmd.LockAutoRenew)
	c.lockHead, c.lockGrace, c.least = cmd.LockHead, duration(cmd.LockDetachGrace), duration(cmd.MinTtl)
	if c.held.Len() == 0 {
		c.numbered = cmd.Numbered && cs.since(3)
	}
	if c.choice.selector != cmd.Selector {
		c.choice = choice{selector: cmd.Selector, number: c.choice.number}
	}
	if c.link.on != cmd.Credit {
		c.link = linkCredit{on: cmd.Credit}
	}
	if c.link.on {
		c.quota = quota{}
	}
	c.noAck, c.exclusive, c.ownTimeout = cmd.NoAck, cmd.Exclusive, fsm.OptionalFrom[fsm.Millis](cmd.TimeoutPlusOne)
	c.limit(&cs.settings)
	if cs.exclusive = nil; c.exclusive {
		cs.exclusive = c
	}
	if c.level == nil {
		cs.join(c)
	}
	cs.groups.update(c, cmd.MaxGroups, cmd.GroupId, cmd.GroupHold && cs.since(3))
	cs.refresh(c)
}

// nodeDown ends all sessions of a node up to a boot number, permanently. bringBack takes them
// apart. O(lives of the node).
func (cs *consumers) nodeDown(cmd *logpb.NodeDown) fsm.Result {
	node, boot := fsm.NodeID(cmd.GetNode()), cmd.GetBoot()
	if node == 0 || boot == 0 {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cs.sessions.declareDown(node, boot) {
		cs.contested = true
		if cs.exclusive != nil && cs.exclusive.session.life.over {
			cs.exclusive = nil
		}
	}
	return fsm.Result{}
}

// A queue with a single active consumer serves one consumer; the others wait.
// Who it is changes only here, and is decided before messages are assigned:
//
//   - Nobody, or one that was cancelled or whose session has ended: the first
//     of those that wait takes over at once.
//   - One that has timed out keeps its place while it holds something, and
//     nobody gets anything new, which keeps the order of messages. Then it
//     waits, and takes no turn until it has settled what was taken from it.
//   - One that is outranked gets nothing new, and swaps when it holds nothing.

func (c *consumer) outranks(o *consumer) bool {
	return cmp.Or(cmp.Compare(o.priority, c.priority), cmp.Compare(c.registered, o.registered)) < 0
}

// served reports whether c may get messages when it has credit. It does not ask
// for credit. Gets and cancelled consumers have no level.
func (cs *consumers) served(c *consumer) bool {
	return !cs.paused() && c.level != nil && c.status() == Up && (!cs.settings.SingleActive || c == cs.single && !cs.quiescing)
}

// singleActive is the single active consumer; nil: there is none.
func (cs *consumers) singleActive() *consumer {
	if !cs.settings.SingleActive {
		return nil
	}
	return cs.single
}

// elect decides who is the single active consumer. It costs nothing unless
// somebody has come, gone, timed out or come back since the last time, or the
// active consumer is to make way and holds nothing any more.
//
// It runs once per command, after everything that could change the outcome and
// before assignment. Ensures: single, quiescing = choose(), if the settings ask
// for one. O(consumers) if it has to choose, else O(1).
func (cs *consumers) elect() {
	if !cs.settings.SingleActive {
		return
	}
	before := cs.single
	defer func() { cs.scratch.news.elected(before, cs.single) }()
	if !cs.contested && !(cs.quiescing && cs.single.held.Len() == 0) {
		return
	}
	cs.contested = false
	cs.single, cs.quiescing = cs.choose()
	for _, c := range [2]*consumer{before, cs.single} {
		if c != nil {
			cs.refresh(c)
		}
	}
}

// choose returns who is to be the single active consumer; nil: nobody can be.
// quiescing: it is to make way for another one.
//
// It is a function of the consumers and of the present single one, and changes
// nothing; so Check can call it, and Restore gets the same result. Among equals
// the present one stays: only a higher priority takes its place.
func (cs *consumers) choose() (active *consumer, quiescing bool) {
	var best *consumer
	cs.scratch.steps += len(cs.all)
	for _, c := range cs.all {
		if c.level != nil && c.status() == Up && (best == nil || c.outranks(best)) {
			best = c
		}
	}
	now := cs.single
	switch {
	case now == nil, now.level == nil, now.session.life.over, now.status() != Up && now.held.Len() == 0:
		return best, false
	case now.status() != Up, best.priority <= now.priority:
		return now, false
	case now.held.Len() == 0:
		return best, false
	}
	return now, true
}

// quota is how many messages a consumer may hold. prefetch and shared are as the
// last Consume gave them: 0 stands for maxCredit, but for nothing if the
// consumer shares a limit with others of its session.
type quota struct {
	prefetch uint32
	shared   bool
	max      uint32 // of the settings, for who settles; maxCredit: none. Derived
	noticed  bool   // since the last Consume the session has been told that it is short
	listed   bool   // it is in short; derived
}

func (a *quota) limit() int {
	if a.prefetch == 0 && !a.shared {
		return int(a.max)
	}
	return int(min(a.prefetch, a.max))
}

// limit has c obey the settings. Gets are handed what they ask for.
func (c *consumer) limit(s *settings) {
	c.quota.max = maxCredit
	if s.MaxPrefetch != 0 && !c.noAck && !c.isGets() {
		c.quota.max = min(s.MaxPrefetch, maxCredit)
	}
}

// short are the consumers whose session is to be told as soon as a message is
// ready that they may have, and that nobody has credit for. Each is told once, until its next Consume:
// the session then gives it more, or takes note that it wants more.
//
// Invariant: c is in list ⇔ c.listed ⇔ it shares a limit, is served and has no
// credit, and its session was not told, unless that is ending.
//
// A snapshot has noticed; the list follows from it. It is ordered by age.
type short struct{ list sorted[*consumer] }

func (s *short) note(c *consumer, lacks bool) {
	switch wants := lacks && c.shared && !c.noticed; {
	case !wants:
		s.drop(c)
	case !c.listed:
		c.listed = true
		s.list.Put(key{At: fsm.Time(c.registered)}, c)
	}
}

func (s *short) drop(c *consumer) {
	if c.listed {
		c.listed = false
		s.list.Remove(key{At: fsm.Time(c.registered)})
	}
}

// canServe reports whether a consumer has credit for a message that is ready and that it
// may have, as far as that is known. O(1).
//
// Those with credit are in services or among the takers of groups, those without are in
// short, and none of these knows the others. So whoever asks who may have something
// that is ready asks these methods.
func (cs *consumers) canServe() bool { return cs.services.anyFor() || cs.groups.servesAny() }

// canServeTo reports whether a message is ready that c may have, whatever its credit,
// as far as that is known, or, with further, as far as the command may pass over others.
// Requires: c is not cancelled, and not gets.
func (cs *consumers) canServeTo(c *consumer, further bool) bool {
	if further {
		cs.services.passOver(c.least)
	}
	return cs.takers.generally(c) && cs.services.has(c.least) || cs.groups.nextFor(c) != nil
}

func (cs *consumers) hasCredit() bool {
	return cs.services.any() || cs.takers.wanting > 0 || cs.choosers.list.Len() > 0
}

// tellShort tells the sessions of those that may have something that is ready, while nobody with
// credit may. Before version 3 all are told, and nobody while anybody takes every message.
func (cs *consumers) tellShort(ready uint64, eff *fsm.Effects) {
	if cs.short.list.Len() == 0 || ready == 0 || cs.sessions.isEnding() {
		return
	}
	now := cs.since(3)
	if now && cs.canServe() || !now && (cs.services.takesAny() || cs.services.anyFor()) {
		return // if there is anything, a tick hands it out
	}
	cs.scratch.steps += cs.short.list.Len()
	var told []*consumer
	for c := range cs.short.list.Values(key{}) {
		if !now || cs.canServeTo(c, true) {
			told = append(told, c)
		}
	}
	for _, c := range told {
		cs.short.drop(c)
		c.noticed = true
		eff.Short = append(eff.Short, c.id)
	}
}

// checkServed compares the answer for all with the one for c, and checks that its session
// knows if it lacks credit. A state that breaks it makes nobody panic, and is no reason
// not to read a snapshot: so it is for tests.
func (cs *consumers) checkServed(k *checker, c *consumer) {
	if !invariants.Enabled || c.level == nil || c.chooses() || cs.sessions.isEnding() || cs.canServe() || cs.settings.forwards() || !cs.canServeTo(c, false) {
		return
	}
	k.that(!cs.served(c) || c.credit() <= 0 || cs.services.demand(), "consumer %v may have something, and nothing is served", c.id)
	k.that(!c.listed || !cs.since(3), "consumer %v is short of credit, and nobody is told", c.id)
}

// maxCredit is the credit of a consumer that asks for no limit. A higher
// prefetch counts as this.
const maxCredit = fsm.MaxHeld

// Status is the status of a consumer.
type Status uint8

const (
	// Up consumers are served while they have credit.
	Up Status = iota
	// TimedOut consumers get nothing until they have settled what was taken
	// back from them.
	TimedOut
	// Cancelled consumers only settle what they hold, or held.
	Cancelled
	// Quiescing consumers get nothing new, because a consumer with a higher
	// priority takes over once they hold nothing.
	Quiescing
	// Suspected consumers get nothing because their node is suspected.
	Suspected
)

// consumer is one registered consumer, or the gets of a session (number 0).
// consumers maintains its tables and its service, deliveries what it holds and
// what is late. Its session decides whether it can be found.
//
// Invariants:
//
//	1 ≤ next; ids of held and of late ascend, are < next, and none is in both
//	held.len() ≤ maxCredit, except for gets, which have no limit
//	timed out ⇔ len(late) > 0 and it is not cancelled
//	finished ⇔ cancelled and held.len() = 0; it stays while it is remembered for late
//	or revoked, and is removed otherwise
//	revoked ⇒ cancelled; gets are neither cancelled, finished nor in a level
//
// A snapshot has ConsumerState for it: what a Consume gave, next, registered,
// late, lateAcks, revoked, and whether it is cancelled. Its suspicion follows
// from the session, finished from cancelled and held; the head has the rings.
type consumer struct {
	// session is nil from unregister on; dropEnded then drops the consumer, which may
	// be detached.
	id         fsm.ConsumerID
	session    *session
	registered uint64 // orders consumers by age
	next       uint64 // number of the next delivery
	held       held
	// late has the deliveries taken back and not settled, ascending. The slice
	// is replaced, never changed.
	late []lateness
	// lateAcks only grows.
	lateAcks uint64 // settlements of late deliveries

	tag string
	// As the last Consume gave them, undecoded. Unused by gets.
	quota
	priority   int32
	noAck      bool
	exclusive  bool
	cancelled  bool
	revoked    bool                     // cancelled by the queue, see revokeAllBut: its session may not know
	finished   bool                     // cancelled and holds nothing: kept only for late or revoked
	ownTimeout fsm.Optional[fsm.Millis] // not given: the queue's applies
	link       linkCredit               // of credit mode
	choice     choice                   // of one with a selector
	lockTerms
	least fsm.Millis // messages with less left of their TTL are not for c; 0: all are

	turn
}

// turn is the position of a consumer in the order of service. service maintains
// it.
type turn struct {
	level              *level // nil: cancelled, or gets
	serviced           bool   // in the ring of its level
	nextRing, prevRing *consumer
	load               int    // see settings.load; in no ring: 0
	waits              uint64 // orders the consumers of a level with one load, and of those equal to it in other services
}

func (c *consumer) isGets() bool { return c.id.Number == 0 }

// status is the status for listings, but for Quiescing. Only consumers that are Up are handed
// messages. Cancelled hides a suspicion, which in turn hides a timeout.
func (c *consumer) status() Status {
	if !c.cancelled && (c.session.life.suspected || c.session.life.over) {
		return Suspected
	}
	return c.lasting()
}

func (c *consumer) lasting() Status {
	switch {
	case c.cancelled:
		return Cancelled
	case len(c.late) > 0:
		return TimedOut
	}
	return Up
}

// credit is how many more messages c may be handed. It is not positive when c has
// lowered its prefetch below what it holds.
func (c *consumer) credit() int {
	n := c.quota.limit() - c.held.Len()
	if c.link.on {
		return min(n, int(min(c.link.left, maxCredit)))
	}
	return n
}

// lacks reports whether c has no credit, and its session could give it some: it is not the queue that bounds it.
func (c *consumer) lacks() bool {
	return c.credit() <= 0 && (c.quota.max == maxCredit || c.held.Len() < int(c.quota.max))
}

// lateConsumers bounds how many cancelled consumers of a session are kept only
// to count late settlements, or to report that they are revoked. The newest
// ones are kept.
const lateConsumers = 64

func (c *consumer) remembered() bool { return len(c.late) > 0 || c.revoked }

// forgive removes the ids first … last from the late deliveries of c and
// appends them to forgiven.
//
// Requires: first ≤ last. forgiven belongs to the caller. late is cut or
// replaced, so a snapshot that shares it does not change. Once late is empty c
// may be served again; the caller refreshes it.
func (c *consumer) forgive(first, last uint64, forgiven []lateness) []lateness {
	left, cut := without(c.late, first, last, compareLate)
	c.late = left
	return append(forgiven, cut...)
}

// without returns a list, ascending, without what is from first to last, and that. The list
// is cut or replaced, not changed.
func without[T any](list []T, first, last uint64, compare func(T, uint64) int) (left, cut []T) {
	i, _ := slices.BinarySearchFunc(list, first, compare)
	j := i
	for j < len(list) && compare(list[j], last) <= 0 {
		j++
	}
	switch cut = list[i:j]; {
	case len(cut) == 0:
		return list, nil
	case len(cut) == len(list):
		return nil, cut
	case i == 0:
		return list[j:], cut
	}
	return slices.Concat(list[:i], list[j:]), cut
}
