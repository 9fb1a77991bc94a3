package queue

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/internal/ordered"
	"github.com/quorate/quorate/proto/logpb"
)

// messages are all messages of the queue, each in exactly one place, and their
// indexes: a list for each priority and place, and for scheduled messages a
// table by number and one by name. The indexes by time are in timers, which is
// updated with every change of place made here.
//
// A method that removes a message leaves it in no place (0); the caller puts it
// into a place, or frees it, before it does anything else.
//
// Invariants, for every place p:
//
//	counts[p] = number and bytes of the messages with place p
//	counts[0] = 0 between two commands
//	live() = Σ counts[p].Messages
//	ready[i] = number of messages with priority i that are ready()
//	1 ≤ seq < next for every message, and seqs ascend in each list of ready and
//	of scheduled messages
//	bit i of waiting = list i has messages, 0 ≤ i ≤ maxPriority
//	returns has exactly the messages of the returned list, in its order
//	marks has the first message of each block of numbers of each list of a priority,
//	unless it is the first of its list
//	numbers has exactly the scheduled messages, named those that have a name
//
// A snapshot holds the records by list, in order, and next. Lists, waiting,
// counts, returns, numbers, marks, named and entries are rebuilt from them, so
// handles differ from replica to replica.
type messages struct {
	*shared
	timers  *timers
	entries *entries
	labels  *labels
	groups  *groups
	cursors *cursors
	uniques *uniques

	// The records and their extra information, both by handle; 0 is no message.
	arena[message]
	extras  arena[extra]
	next    uint64 // number of the next message
	lists   [listCount]list
	waiting uint32                  // priorities that have messages
	counts  [placeCount]Count       // by place
	ready   [maxPriority + 1]uint32 // ready ones by priority, whatever their place
	marks   marks                   // where the lists of priorities can be entered, see browse.go
	tallies tallies                 // counts by the value of a header, see ages.go
	returns ordered.Sequence        // order of the returned list
	// cameBack counts what was inserted there, in this machine: replicas need not agree on it.
	cameBack uint64
	// Keys have at = 0 and seq = the number of the message. named is never iterated,
	// so the order of a map cannot reach the state.
	numbers sorted[uint32] // scheduled messages, by number
	// unnamed is how many of those purged, the first ones, are of no group any more,
	// see disband.
	unnamed uint64
	named   map[string]uint32 // scheduled messages that have a name
}

// clear removes all messages. Numbers begin with 1, and none is used again. Timers, entries
// and labels are cleared by the machine.
func (ms *messages) clear() {
	ms.cursors.clear()
	*ms = messages{shared: ms.shared, timers: ms.timers, entries: ms.entries, labels: ms.labels, groups: ms.groups, cursors: ms.cursors, uniques: ms.uniques, next: max(ms.next, 1), named: map[string]uint32{}}
}

// add makes a record for a new message, in no place, and assigns its number. head
// is message.head, tally what the message counts by.
//
// Requires: the message belongs to the entry that is being applied. Ensures: its
// number is above all others, and its entry is kept. eff may lose an index of
// Released. The caller puts it into a place within the same command.
func (ms *messages) add(at fsm.Ref, head uint16, priority uint8, tally string, eff *fsm.Effects) uint32 {
	h := ms.Alloc()
	x := ms.Mut(h)
	x.seq, x.index, x.offset, x.size, x.head, x.priority = ms.next, at.Index, at.Offset, at.Size, head, priority
	ms.next++
	ms.counts[0].add(x.count())
	ms.entries.keep(ms.clock.now(), eff)
	if tally != "" && ms.since(3) {
		ms.tallies.give(h, tally[:min(len(tally), fsm.MaxLabel)], ms)
	}
	return h
}

// setPlace changes the place of message h, x, and the counts. The caller maintains the
// lists. Other parts use it only for the places without a list, CheckedOut and
// 0. O(1). Timers are not updated: that is up to the caller, too.
func (ms *messages) setPlace(h uint32, x *message, p Place) {
	c := x.count()
	if x.info != 0 {
		if n := ms.extras.Get(x.info).tally; n != 0 {
			ms.tallies.moved(n, h, x, p)
		}
		c = ms.weight(h)
	}
	ms.counts[x.place].sub(c)
	ms.counts[p].add(c)
	if x.ready() {
		ms.ready[x.priority]--
	}
	if x.place = p; x.ready() {
		ms.ready[x.priority]++
	}
	ms.scratch.steps++
}

// insertAfter inserts message h, whose place is set, after message at of its
// list; 0 inserts it first. Returned messages go through insertReturned.
//
// Requires: h is in no list, and at is 0 or a message of the same list. O(1).
func (ms *messages) insertAfter(at, h uint32) {
	x := ms.Mut(h)
	no := x.list()
	l := &ms.lists[no]
	next := l.head
	if at != 0 {
		next = ms.Get(at).next
	}
	x.prev, x.next = at, next
	if at == 0 {
		l.head = h
	} else {
		ms.Mut(at).next = h
	}
	if next == 0 {
		l.tail = h
	} else {
		ms.Mut(next).prev = h
	}
	if no <= maxPriority {
		ms.waiting |= 1 << no
		ms.marks.added(ms, no, h)
		if ms.cursors.any() {
			ms.cursors.added(no, h, x.seq) // there it is the last one, see put
		}
	}
}

// remove removes message h from its list and leaves it in no place.
//
// Requires: h is in a list, so neither CheckedOut nor in no place, and not purged.
// A letter has been taken out of what the outbox knows of it.
//
// Ensures: place 0, next = prev = 0, and no timer, number or name leads to h. Its
// instant stays in expireAt. O(1) for the list, O(log n) for the indexes, and one
// block of them for a returned message.
func (ms *messages) remove(h uint32) {
	x := ms.Mut(h)
	no := x.list()
	l := &ms.lists[no]
	prev, next := x.prev, x.next
	ms.timers.forget(x)
	switch x.place {
	case Scheduled:
		ms.unname(h)
	case Grouped, Delayed:
		ms.leaveGroup(h)
		x = ms.Mut(h)
	}
	if no == returnedList {
		prev = ms.removeReturned(h)
		x = ms.Mut(h)
	}
	x.prev, x.next = 0, 0
	ms.setPlace(h, x, 0)
	if prev == 0 {
		l.head = next
	} else {
		ms.Mut(prev).next = next
	}
	if next == 0 {
		l.tail = prev
	} else if no != returnedList {
		ms.Mut(next).prev = prev
	}
	if no <= maxPriority {
		ms.marks.removed(ms, no, x.seq, prev, next)
	}
	if no <= maxPriority && l.head == 0 {
		ms.waiting &^= 1 << no
	}
	if ms.cursors.any() && no <= returnedList {
		ms.cursors.removed(no, h, next)
	}
}

// nextReady returns the message of no group to hand out next, due or not; 0 if there is
// none. O(1). The order is: returned messages, then priorities from high to
// low, each in order of arrival; or, if the settings say so, that of the
// deadlines, see nextByDeadline. It does not depend on who asks.
func (ms *messages) nextReady() uint32 {
	if ms.settings.DeadlineOrder {
		return ms.nextByDeadline()
	}
	if h := ms.lists[returnedList].head; h != 0 {
		return h
	}
	if ms.waiting == 0 {
		return 0
	}
	return ms.lists[bits.Len32(ms.waiting)-1].head
}

// nextByDeadline is nextReady for a queue that goes by deadlines. A message with
// TTL 0 that is being offered is in no table.
func (ms *messages) nextByDeadline() uint32 {
	h, fresh := ms.timers.nextInOrder(0), ms.scratch.fresh
	if fresh == 0 || ms.Get(fresh).place != Ready {
		return h
	}
	x, y := ms.Get(h), ms.Get(fresh)
	if h != 0 && orderKey(x.expireAt, x.seq).Before(orderKey(y.expireAt, y.seq)) {
		return h
	}
	return fresh
}

// readyCount is the number of ready messages, returned ones and those of groups
// included.
func (ms *messages) readyCount() uint64 {
	return ms.counts[Ready].Messages + ms.counts[Returned].Messages + ms.counts[Grouped].Messages
}

// free releases message h, which is in no place. Its handle may be reused at
// once, and its entry may be released.
//
// Ensures: the record is zero, so that a stale handle finds a message in no place,
// until alloc hands it out again. Timers must not know the message any more.
func (ms *messages) free(h uint32, eff *fsm.Effects) {
	ms.counts[0].sub(ms.weight(h))
	if n := ms.extra(h).tally; n != 0 {
		ms.tallies.left(n)
	}
	ms.releaseRecord(h, eff)
}

// releaseRecord is free for a message that no longer counts anywhere.
func (ms *messages) releaseRecord(h uint32, eff *fsm.Effects) {
	ms.scratch.steps++
	x := ms.Get(h)
	index := x.index
	if x.info != 0 {
		ms.uniques.drop(ms.extras.Mut(x.info))
		ms.extras.Release(x.info)
	}
	if x.labelled() {
		ms.labels.Drop(x.seq)
	}
	ms.Release(h)
	ms.entries.drop(index, eff)
}

// findScheduled returns the message with this name or, if that is empty, with
// this number; 0: none. A name takes precedence. O(1) by name, O(log n) by
// number.
func (ms *messages) findScheduled(id string, seq uint64) uint32 {
	if id != "" {
		return ms.named[id]
	}
	return ms.numbers.Value(key{Seq: seq})
}

// put appends message h, which is in no place, to the list of a place. The
// caller updates the index by time, see timers.watch.
//
// Ready messages stay sorted by number because each is put there only while its
// number is the newest.
func (ms *messages) put(h uint32, p Place) {
	no := listsBehind + int(p)
	if p == Ready {
		no = int(ms.Get(h).priority)
	}
	ms.putAfter(ms.lists[no].tail, h, p)
}

// putAfter is put for a position after message at of the same place; 0: first.
func (ms *messages) putAfter(at, h uint32, p Place) {
	ms.setPlace(h, ms.Mut(h), p)
	ms.insertAfter(at, h)
	if p == Grouped || p == Delayed {
		ms.enterGroup(h)
	}
}

// watch starts the expiry of message h, which is ready. A message with TTL 0 is
// watched only after it was offered.
func (ms *messages) watch(h uint32) {
	if x := ms.Get(h); x.info == 0 || !ms.extras.Get(x.info).protected {
		ms.timers.watch(x, h)
	}
}

// schedule makes message h, which is in no place, become ready at due.
//
// Requires: due ≥ 1; no scheduled message has the name id, and scheduleInfo has
// it, since unname reads it there. Ensures: expireAt = due.
func (ms *messages) schedule(h uint32, due fsm.Time, id string) {
	ms.Mut(h).expireAt = due
	ms.put(h, Scheduled)
	ms.watch(h)
	ms.numbers.Put(key{Seq: ms.Get(h).seq}, h)
	if id != "" {
		ms.named[id] = h
	}
}

// move changes the due time of scheduled message h. It keeps its number, and
// with it its position in the list.
func (ms *messages) move(h uint32, due fsm.Time) {
	x := ms.Mut(h)
	ms.timers.forget(x)
	x.expireAt = due
	ms.timers.watch(x, h)
	r := *ms.scheduleInfo(h)
	r.scheduledFor = due
	ms.setScheduleInfo(h, r)
}

func (ms *messages) unname(h uint32) {
	ms.numbers.Remove(key{Seq: ms.Get(h).seq})
	if id := ms.scheduleInfo(h).id; id != "" {
		delete(ms.named, id)
	}
}

func (ms *messages) forgetName(id string) {
	h := ms.named[id]
	if h == 0 {
		return
	}
	r := *ms.scheduleInfo(h)
	r.id = ""
	ms.setScheduleInfo(h, r)
	delete(ms.named, id)
}

// renew gives message h, which is in no place, a new number, above all others.
// The former number is not used again.
func (ms *messages) renew(h uint32) {
	x := ms.Mut(h)
	if x.labelled() {
		ms.labels.Move(x.seq, ms.next)
	}
	x.seq = ms.next
	ms.next++
}

func (ms *messages) nextSeq() uint64 { return ms.next }

func (ms *messages) setLabel(h uint32, messageID, correlationID string) {
	if x := ms.Mut(h); ms.labels.Add(x.seq, messageID, correlationID) {
		x.head |= labelBit
	}
}

func (ms *messages) label(h uint32) (messageID, correlationID []byte) {
	if x := ms.Get(h); x.labelled() {
		return ms.labels.Of(x.seq)
	}
	return nil, nil
}

// dropReady purges all messages that are ready, scheduled, set aside or parked. O(number
// of lists), whatever they hold. Checked-out messages and letters stay. The
// caller clears the tokens.
func (ms *messages) dropReady() {
	ms.uniques.purged()
	for no := range returnedList {
		ms.discardList(no, Ready)
	}
	ms.waiting, ms.ready = 0, [maxPriority + 1]uint32{}
	ms.marks.Clear()
	ms.discardList(returnedList, Returned)
	ms.returns = ordered.Sequence{}
	ms.cursors.purged()
	if ms.counts[Scheduled].Messages > 0 {
		ms.discardList(scheduledList, Scheduled)
		ms.named = map[string]uint32{}
	}
	ms.discardList(delayedList, Delayed)
	ms.discardList(deferredList, Deferred)
	ms.discardList(groupedList, Grouped)
	ms.discardList(parkedList, Parked)
	ms.groups.purge()
	ms.numbers.Clear()
	ms.timers.clear()
}

// discardList purges all messages of a place by moving one list, in constant
// time. Their records are not touched, and still name their former place.
//
// Requires: the caller clears every index of the place (timers, numbers, names,
// returns, waiting bits, outbox.waiting). Nobody may call list or remove on those
// records afterwards: only sweep and checker.purged read them, by their links.
func (ms *messages) discardList(no int, p Place) {
	ms.tallies.discard(p)
	ms.counts[Purged].add(ms.counts[p])
	ms.counts[p] = Count{}
	from, to := &ms.lists[no], &ms.lists[purgedList]
	switch {
	case from.head == 0:
	case to.head == 0:
		*to = *from
	default:
		ms.Mut(to.tail).next = from.head
		to.tail = from.tail
	}
	*from = list{}
}

// sweep releases up to n purged messages, of which one of a group counts as sweptOfGroup.
// It does so in the order in which they were purged, which a snapshot keeps, so eff.Released is the same on every
// replica.
func (ms *messages) sweep(n int, eff *fsm.Effects) {
	l := &ms.lists[purgedList]
	for n > 0 && l.head != 0 {
		h := l.head
		x := ms.Get(h)
		if l.head = x.next; l.head == 0 {
			l.tail = 0
		}
		ms.counts[Purged].sub(ms.weight(h))
		n--
		switch g := x.purgedOf(ms.extra(h)); {
		case ms.unnamed > 0:
			ms.unnamed--
		case g != nil && ms.since(3):
			ms.groups.swept(g)
			n -= sweptOfGroup - 1
		}
		ms.releaseRecord(h, eff)
	}
}

// purgedOf returns the group of which the message was when it was purged; nil: of none. e is
// its extra.
func (x *message) purgedOf(e *extra) *group {
	if x.place != Grouped && x.place != Delayed && x.place != Purged {
		return nil
	}
	return e.group
}

// disband makes the purged messages be of no group any more. Before version 3 they are of
// none anyway.
func (ms *messages) disband() {
	if ms.since(3) {
		ms.unnamed = ms.counts[Purged].Messages
	}
}

// count is the number and size of the messages in a place.
func (ms *messages) count(p Place) Count { return ms.counts[p] }

// head is the first message of a list, and tail the last one; 0 if it is empty.
func (ms *messages) head(list int) uint32 { return ms.lists[list].head }
func (ms *messages) tail(list int) uint32 { return ms.lists[list].tail }

// enqueuedAt is when message h came into the queue, or when it became ready if
// it was scheduled here: its TTL counts from then. O(log n).
func (ms *messages) enqueuedAt(h uint32) fsm.Time {
	x := ms.Get(h)
	if x.info == 0 {
		return ms.entries.time(x.index, ms.clock.now())
	}
	return max(ms.entries.time(x.index, ms.clock.now()), ms.scheduleInfo(h).scheduledFor)
}

// enterGroup adds message h, which has just got its place, to its group, if it has
// one.
func (ms *messages) enterGroup(h uint32) {
	x, g := ms.Get(h), ms.extra(h).group
	if g == nil {
		return
	}
	if now := ms.groups.enter(g, x.seq, h, x.place == Grouped); now != g {
		ms.extras.Mut(x.info).group = now
	}
}

// leaveGroup removes message h from its group, before it leaves its place.
func (ms *messages) leaveGroup(h uint32) {
	x, g := ms.Get(h), ms.extra(h).group
	if g == nil {
		return
	}
	if ms.extra(h).protected {
		ms.extras.Mut(x.info).protected = false
		ms.groups.protect(g, -1)
	}
	ms.groups.leave(g, x.seq)
}

func (ms *messages) ungroup(h uint32) {
	ms.extras.Mut(ms.Get(h).info).group = nil
	ms.dropInfo(h)
}

// dropInfo frees the extra of message h if it is empty.
func (ms *messages) dropInfo(h uint32) {
	x := ms.Mut(h)
	if ms.extras.Get(x.info).isEmpty() {
		ms.extras.Release(x.info)
		x.info = 0
	}
}

// protect makes message h, which is Grouped and due, wait without expiring while
// its group is held.
func (ms *messages) protect(h uint32) {
	x := ms.Get(h)
	ms.timers.forget(x)
	ms.extras.Mut(x.info).protected = true
	ms.groups.protect(ms.extra(h).group, 1)
}

// restoreGroup gives message h, which is in no place, its group.
func (ms *messages) restoreGroup(st *logpb.MessageState, h uint32) error {
	g := ms.groups.find(st.GroupId)
	if st.EndedGroup > 0 {
		g = ms.groups.endedAt(st.EndedGroup)
	}
	switch {
	case g == nil || g.id != st.GroupId || st.GroupId == "" && Place(st.Place) == Grouped:
		return fmt.Errorf("%w: message %d has no group", ErrSnapshot, st.Seq)
	case st.GroupId != "":
		ms.editExtra(h).group = g
	}
	return nil
}

const (
	maxPriority     = 31
	defaultPriority = 4

	// Lists of a machine: one per priority (0 … maxPriority) of what is Ready, and one for each
	// other place. Messages to be handed out are only in the lists 0 … returnedList, and in
	// groupedList.
	listsBehind   = maxPriority - int(Ready)
	returnedList  = listsBehind + int(Returned)
	outboxList    = listsBehind + int(Outbox)
	scheduledList = listsBehind + int(Scheduled)
	waitingList   = listsBehind + int(Waiting)
	purgedList    = listsBehind + int(Purged)
	delayedList   = listsBehind + int(Delayed)
	deferredList  = listsBehind + int(Deferred)
	groupedList   = listsBehind + int(Grouped)
	parkedList    = listsBehind + int(Parked)
	listCount     = listsBehind + placeCount

	// expirationBit of message.head: the payload has an expiration property.
	expirationBit = 1 << 15
	// labelBit of message.head: labels has something of the message.
	labelBit = 1 << 14
	headMask = labelBit - 1
)

// Place is where a message is. The values are in snapshots; 0 is no place. Live
// messages are in exactly one.
type Place uint8

const (
	// Ready messages wait in the list of their priority. They may be handed out
	// and may expire, as may Returned ones. Of the others, only Delayed, Deferred and
	// Parked ones expire.
	Ready Place = iota + 1
	// Returned messages are ready too, and are served before the others.
	Returned
	// CheckedOut messages are held by a consumer or a get.
	CheckedOut
	// Outbox messages are dead letters on their way.
	Outbox
	// Scheduled messages become ready at their time.
	Scheduled
	// Waiting messages are dead letters that have no destination for now.
	Waiting
	// Purged messages no longer count and are released step by step.
	Purged
	// Delayed messages were returned, and wait before they become ready again.
	Delayed
	// Deferred messages were put aside by a consumer under a token.
	Deferred
	// Grouped messages are ready and belong to a group.
	Grouped
	// Parked messages have failed more often than the default delivery limit allows.
	Parked

	placeCount = iota + 1
)

// ready reports whether messages here may be handed out.
func (p Place) ready() bool { return p == Ready || p == Returned || p == Grouped }

// aside reports whether messages here were set aside after a delivery.
func (p Place) aside() bool { return p == Delayed || p == Deferred }

// Count is a number of messages and the bytes of their properties and bodies.
type Count struct{ Messages, Bytes uint64 }

func (c *Count) add(o Count) { c.Messages, c.Bytes = c.Messages+o.Messages, c.Bytes+o.Bytes }
func (c *Count) sub(o Count) { c.Messages, c.Bytes = c.Messages-o.Messages, c.Bytes-o.Bytes }

func (c Count) plus(o Count) Count { return Count{c.Messages + o.Messages, c.Bytes + o.Bytes} }

// message is one record of the arena: 56 bytes, no pointers.
//
// Invariants:
//
//	1 ≤ seq; offset and size name bytes of the entry at index, 1 ≤ size
//	0 ≤ head&headMask ≤ size
//	expireAt is the due time in the places Scheduled, Delayed and Deferred, and
//	≠ 0 in the first two
//	acquired = failed = 0 in the place Ready; failed ≤ acquired, until one of them
//	saturates
//	place = 0 only while a command is moving the message
//
// Who keeps a handle must also keep the seq if the message may be freed
// meanwhile: handles are reused at once.
//
// It has no pointers so that the garbage collector does not scan a backlog, and
// TestMessageSize keeps it from growing. Lists, counts and timers each repeat
// something of it. Only messages changes place, links and number; store sets
// expireAt before the message is watched; settlements count acquired and failed.
type message struct {
	seq      uint64
	index    uint64   // of the log entry with the payload
	expireAt fsm.Time // of a scheduled, delayed or deferred message: when it is due
	offset   uint32
	size     uint32
	// next and prev are handles of the list that the place names, see message.list.
	// While a message is in no list both are 0, and so is next at the end of one.
	next uint32 // in its list; 0: last, or in no list
	prev uint32 // of a returned message: its slot in messages.returns
	// acquired counts deliveries that have ended without an ack, failed those of them
	// that ended in a failure. Both saturate.
	acquired uint32
	failed   uint32
	info     uint32 // handle in messages.extras; 0: none
	head     uint16 // bytes of the payload that no limit counts, expirationBit, labelBit
	priority uint8
	place    Place
}

// extra is what only some messages have. A message has one only if it is not empty: it has a death, a schedule, a
// group, annotations, a tally or a key, or was forwarded.
//
// It is in an arena of its own, under message.info, and dies with its message. A
// snapshot shares deaths, transfers and schedule with it; hence "never changed".
type extra struct {
	deaths []*logpb.Death // newest first; shared, never changed

	// The rest belongs to letters of the outbox. 0 and empty in all other
	// places. 1 ≤ letter < outbox.next.
	letter    uint64
	diedAt    fsm.Time
	transfers []Transfer // not settled; replaced, never changed
	reason    logpb.Death_Reason
	remark    *fsm.Remark // of who rejected it; shared, never changed; nil: none

	annotations []*logpb.Annotation // what receivers have added; replaced, never changed; nil: nothing

	schedule *scheduleInfo // replaced, never changed; nil: nothing of it

	hops      uint8 // how often it was forwarded; ≤ maxHops+1
	forwarded bool  // a letter that has not died, but goes on to where the queue forwards
	tally     uint8 // see tallies; 0: it has none

	// Only what group.id says may be read in a snapshot. Letters have no group.
	group     *group // of a message of a group; nil: none
	protected bool   // it is due and its group is held: it is in no timer

	unique messageID // the key of which no second message is taken; zero: none
	purges uint32    // uniques.purges when the message came, or was held for the last time
}

func (e *extra) isEmpty() bool {
	return len(e.deaths) == 0 && e.schedule == nil && e.group == nil && e.hops == 0 && e.annotations == nil && e.tally == 0 && e.unique == (messageID{})
}

// scheduleInfo is what even fewer messages have: those that were scheduled or
// set aside, and letters that not all targets have.
//
// It is replaced as a whole (setScheduleInfo), since a snapshot may share it.
type scheduleInfo struct {
	scheduledFor fsm.Time // when it was to become ready; 0: it was never scheduled

	// Of delayed and deferred messages, see aside.
	expireAt fsm.Time // when it expires; 0: never
	deferral string   // the token of a deferred message; empty in other places

	// Of scheduled messages.
	id           string                   // its name; empty: none
	ttl, ceiling fsm.Optional[fsm.Millis] // as in the command

	// For letters: the targets that have it while others do not, and whether a
	// target has refused it.
	done    []fsm.QueueID
	refused bool
	// Of letters that a Take sends: the queue they go to, and how. 0: another letter.
	takenTo fsm.QueueID
	takenAs logpb.Take_Action
}

var noScheduleInfo scheduleInfo

// list is a doubly linked list of messages, so that removal from the middle
// leaves nothing behind. head = 0 ⇔ tail = 0 ⇔ it is empty. The returned list
// has no links back: its order is in returns.
type list struct{ head, tail uint32 }

// ref locates the payload; the machine never reads it.
func (x *message) ref() fsm.Ref { return fsm.Ref{Index: x.index, Offset: x.offset, Size: x.size} }

// list is the number of the list a message with this place is in.
//
// Requires: the place is none of 0 and CheckedOut, which have no list, and the
// record is not one of those that a purge has moved without touching them.
func (x *message) list() int {
	if x.place == Ready {
		return int(x.priority)
	}
	return listsBehind + int(x.place)
}

// placeOf is the place of the messages in a list.
func placeOf(list int) Place {
	if list <= maxPriority {
		return Ready
	}
	return Place(list - listsBehind)
}

// inOrder are the lists that come before what is held in a snapshot and in listings.
var inOrder = func() (order []int) {
	for no := maxPriority; no >= 0; no-- {
		order = append(order, no)
	}
	return append(order, returnedList, scheduledList, delayedList, deferredList, groupedList, parkedList)
}()

// bytes is the size that limits and counts use: properties and body.
func (x *message) bytes() uint64 { return uint64(x.size) - uint64(x.head&headMask) }

func (x *message) hasExpiration() bool { return x.head&expirationBit != 0 }

func (x *message) labelled() bool { return x.head&labelBit != 0 }

// count is what the message adds to the counts of its place, without what its edit does,
// see messages.weight. It never changes.
func (x *message) count() Count { return Count{1, x.bytes()} }

// waitsForTime reports whether expireAt is not the expiry but the due time.
func (x *message) waitsForTime() bool {
	return x.place == Scheduled || x.place.aside()
}

// ready reports whether the message may be handed out.
func (x *message) ready() bool { return x.place.ready() }

// due reports whether the instant of the message has come. A ready message that
// is due must not be handed out.
func (x *message) due(c fsm.Time) bool { return x.expireAt != 0 && x.expireAt <= c }

// extra returns that of message h for reading; never nil. It is good until the next change of any message. Those that have none
// share one empty record, which must not be written to.
func (ms *messages) extra(h uint32) *extra {
	if e := ms.Get(h).info; e != 0 {
		return ms.extras.Get(e)
	}
	return &noExtra
}

var noExtra extra

// scheduleInfo returns the scheduleInfo of message h for reading; never nil.
func (ms *messages) scheduleInfo(h uint32) *scheduleInfo {
	if r := ms.extra(h).schedule; r != nil {
		return r
	}
	return &noScheduleInfo
}

// setScheduleInfo replaces the scheduleInfo of message h. r is copied; its
// slices are not.
func (ms *messages) setScheduleInfo(h uint32, r scheduleInfo) { ms.editExtra(h).schedule = &r }

// editExtra returns that of message h for writing, a new one if needed. It is good until the next alloc or freeze. The caller must
// leave something in it that makes it worth having: a death or a schedule, see
// Check.
func (ms *messages) editExtra(h uint32) *extra {
	x := ms.Mut(h)
	if x.info == 0 {
		x.info = ms.extras.Alloc()
	}
	return ms.extras.Mut(x.info)
}

// bump increments n and saturates.
func bump(n *uint32) {
	if *n < math.MaxUint32 {
		*n++
	}
}
