package queue

import (
	"fmt"
	"math/bits"

	"github.com/quorate/quorate/fsm"
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
//	numbers has exactly the scheduled messages, named those that have a name
//
// A snapshot holds the records by list, in order, and next. Lists, waiting,
// counts, returns, numbers, named and entries are rebuilt from them, so handles
// differ from replica to replica.
type messages struct {
	*shared
	timers  *timers
	entries *entries
	labels  *labels
	groups  *groups
	cursors *cursors

	// The records and their extra information, both by handle; 0 is no message.
	arena[message]
	extras  arena[extra]
	next    uint64 // number of the next message
	lists   [listCount]list
	waiting uint32                  // priorities that have messages
	counts  [placeCount]Count       // by place
	ready   [maxPriority + 1]uint32 // ready ones by priority, whatever their place
	returns returns                 // order of the returned list
	// Keys have at = 0 and seq = the number of the message. named is never iterated,
	// so the order of a map cannot reach the state.
	numbers sorted[uint32]    // scheduled messages, by number
	named   map[string]uint32 // scheduled messages that have a name
}

// clear removes all messages. Numbers begin with 1, and none is used again. Timers, entries
// and labels are cleared by the machine.
func (ms *messages) clear() {
	ms.cursors.clear()
	*ms = messages{shared: ms.shared, timers: ms.timers, entries: ms.entries, labels: ms.labels, groups: ms.groups, cursors: ms.cursors, next: max(ms.next, 1), named: map[string]uint32{}}
}

// add makes a record for a new message, in no place, and assigns its number. head
// is message.head.
//
// Requires: the message belongs to the entry that is being applied. Ensures: its
// number is above all others, and its entry is kept. eff may lose an index of
// Released. The caller puts it into a place within the same command.
func (ms *messages) add(at fsm.Ref, head uint16, priority uint8, eff *fsm.Effects) uint32 {
	h := ms.Alloc()
	x := ms.Mut(h)
	x.seq, x.index, x.offset, x.size, x.head, x.priority = ms.next, at.Index, at.Offset, at.Size, head, priority
	ms.next++
	ms.counts[0].add(x.count())
	ms.entries.keep(ms.clock.now(), eff)
	return h
}

// setPlace changes the place of x and the counts. The caller maintains the
// lists. Other parts use it only for the places without a list, CheckedOut and
// 0. O(1). Timers are not updated: that is up to the caller, too.
func (ms *messages) setPlace(x *message, p Place) {
	c := x.count()
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
// block of at most returnsLen for a returned message.
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
	ms.setPlace(x, 0)
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
	if x := ms.Get(h); h != 0 && x.order().Before(ms.Get(fresh).order()) {
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
	ms.counts[0].sub(ms.Get(h).count())
	ms.releaseRecord(h, eff)
}

// releaseRecord is free for a message that no longer counts anywhere.
func (ms *messages) releaseRecord(h uint32, eff *fsm.Effects) {
	ms.scratch.steps++
	x := ms.Get(h)
	index := x.index
	if x.info != 0 {
		ms.extras.Release(x.info)
	}
	if x.labelled() {
		ms.labels.drop(x.seq)
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
	if h := ms.numbers.Get(key{Seq: seq}); h != nil {
		return *h
	}
	return 0
}

// put appends message h, which is in no place, to the list of a place. The
// caller updates the index by time, see timers.watch.
//
// Ready messages stay sorted by number because each is put there only while its
// number is the newest.
func (ms *messages) put(h uint32, p Place) {
	x := ms.Mut(h)
	ms.setPlace(x, p)
	ms.insertAfter(ms.lists[x.list()].tail, h)
	if p == Grouped || p == Delayed {
		ms.enterGroup(h)
	}
}

// putAfter is put for a position after message at of the same place; 0: first.
func (ms *messages) putAfter(at, h uint32, p Place) {
	ms.setPlace(ms.Mut(h), p)
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

// unname removes scheduled message h from the tables of numbers and names.
func (ms *messages) unname(h uint32) {
	ms.numbers.Remove(key{Seq: ms.Get(h).seq})
	if id := ms.scheduleInfo(h).id; id != "" {
		delete(ms.named, id)
	}
}

// forgetName takes its name from the scheduled message that has it, if there is
// one.
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
		ms.labels.move(x.seq, ms.next)
	}
	x.seq = ms.next
	ms.next++
}

// nextSeq is the number of the next message.
func (ms *messages) nextSeq() uint64 { return ms.next }

// setLabel stores what the publisher calls message h, which is the newest.
func (ms *messages) setLabel(h uint32, messageID, correlationID string) {
	if x := ms.Mut(h); ms.labels.add(x.seq, messageID, correlationID) {
		x.head |= labelBit
	}
}

// label returns what the publisher calls message h. The texts are good until the
// next change.
func (ms *messages) label(h uint32) (messageID, correlationID []byte) {
	if x := ms.Get(h); x.labelled() {
		return ms.labels.of(x.seq)
	}
	return nil, nil
}

// dropReady purges all messages that are ready, scheduled, set aside or parked. O(number
// of lists), whatever they hold. Checked-out messages and letters stay. The
// caller clears the tokens.
func (ms *messages) dropReady() {
	for no := range returnedList {
		ms.discardList(no, Ready)
	}
	ms.waiting, ms.ready = 0, [maxPriority + 1]uint32{}
	ms.discardList(returnedList, Returned)
	ms.returns = returns{}
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
	ms.timers.forgetWaiting()
}

// discardList purges all messages of a place by moving one list, in constant
// time. Their records are not touched, and still name their former place.
//
// Requires: the caller clears every index of the place (timers, numbers, names,
// returns, waiting bits, outbox.waiting). Nobody may call list or remove on those
// records afterwards: only sweep and checkPurged read them, by their links.
func (ms *messages) discardList(no int, p Place) {
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

// sweep releases up to n purged messages. It does so in the order in which they
// were purged, which a snapshot keeps, so eff.Released is the same on every
// replica.
func (ms *messages) sweep(n int, eff *fsm.Effects) {
	l := &ms.lists[purgedList]
	for ; n > 0 && l.head != 0; n-- {
		h := l.head
		x := ms.Get(h)
		if l.head = x.next; l.head == 0 {
			l.tail = 0
		}
		ms.counts[Purged].sub(x.count())
		ms.releaseRecord(h, eff)
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

// ungroup makes message h, which is in no place, one of no group.
func (ms *messages) ungroup(h uint32) {
	ms.extras.Mut(ms.Get(h).info).group = nil
	ms.dropInfo(h)
}

// dropInfo frees the extra of message h, which has one, if it is empty.
func (ms *messages) dropInfo(h uint32) {
	x := ms.Mut(h)
	if e := ms.extras.Get(x.info); len(e.deaths) == 0 && e.schedule == nil && e.group == nil && e.hops == 0 {
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
