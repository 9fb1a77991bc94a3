package queue

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// frozen is a state of messages at one moment. It shares chunks with the
// arenas, and handles mean the same in both.
type frozen struct {
	records pages[message]
	extras  pages[extra]
	lists   [listCount]list
	live    liveIndexes
	labels  labels
	ended   map[*group]uint32 // the groups that end, by position + 1
	// unnamed is as in messages; named says that the others of those purged have groups.
	unnamed uint64
	named   bool
}

// capture returns the current state. If keep, it never changes: large structures are
// shared, and copied in pieces when the messages change. Otherwise it is valid until
// the next change and raises no epoch, so that hashing a state does not make the next
// writes copy chunks. O(number of chunks).
func (ms *messages) capture(keep bool) frozen {
	return frozen{
		ms.arena.Capture(keep), ms.extras.Capture(keep), ms.lists, ms.entries.capture(keep), ms.labels.Capture(keep), ms.groups.endedOnes(),
		ms.unnamed, ms.since(3),
	}
}

func (ms *messages) save(h *logpb.QueueSnapshot) {
	h.NextMessage, h.Messages, h.UnnamedPurged = ms.next, uint64(ms.Live()), ms.unnamed
	ms.cursors.save(h, ms)
	ms.tallies.save(h)
}

func (ms *messages) restoreHead(h *logpb.QueueSnapshot) error {
	ms.next, ms.unnamed = h.NextMessage, h.UnnamedPurged
	ms.cursors.restore(h)
	return ms.tallies.restore(h)
}

func (f *frozen) writeList(e *encoder, no int) {
	for h := f.lists[no].head; h != 0; h = f.records.At(int(h)).next {
		e.record(f.fill(&e.message, h))
	}
}

// writePurged writes what is needed to sweep the purged messages. Place, expiry
// and the rest are left out: the records still name former places, and sweep
// needs only the entry and the size, and the group that it was in. A restored record differs in that; the
// encoding does not.
func (f *frozen) writePurged(e *encoder) {
	unnamed := f.unnamed
	for h := f.lists[purgedList].head; h != 0; {
		x := f.records.At(int(h))
		e.message = logpb.MessageState{
			Seq: x.seq, Index: x.index, Size: x.size, Head: uint32(x.head & headMask), Place: uint32(Purged),
		}
		switch {
		case unnamed > 0:
			unnamed--
		case f.named && x.info != 0:
			if g := x.purgedOf(f.extras.At(int(x.info))); g != nil {
				e.message.GroupId, e.message.EndedGroup = g.id, f.ended[g]
			}
		}
		e.record(&e.message)
		h = x.next
	}
}

// fill describes message h in st. st is overwritten. It shares deaths with f,
// and is good until the next fill.
func (f *frozen) fill(st *logpb.MessageState, h uint32) *logpb.MessageState {
	x := f.records.At(int(h))
	*st = logpb.MessageState{
		Seq: x.seq, Index: x.index, Offset: x.offset, Size: x.size, ExpireAt: int64(x.expireAt),
		Acquired: x.acquired, Failed: x.failed, Priority: uint32(x.priority), Place: uint32(x.place),
		HasExpiration: x.hasExpiration(), Head: uint32(x.head & headMask), EnqueuedAt: int64(f.live.time(x.index)),
	}
	if x.waitsForTime() {
		st.ExpireAt, st.DueAt = 0, int64(x.expireAt)
	}
	if x.info != 0 {
		e := f.extras.At(int(x.info))
		e.fill(st)
		if len(f.ended) > 0 && x.place != Scheduled && x.place != Deferred && x.place != Parked {
			st.EndedGroup = f.ended[e.group]
		}
	}
	if x.labelled() {
		messageID, correlationID := f.labels.Of(x.seq)
		st.MessageId, st.CorrelationId = string(messageID), string(correlationID)
	}
	return st
}

func (e *extra) fill(st *logpb.MessageState) {
	st.Letter, st.Reason, st.DiedAt, st.Deaths = e.letter, e.reason, int64(e.diedAt), e.deaths
	st.Hops, st.Forwarded, st.Annotations, st.Tally = uint32(e.hops), e.forwarded, e.annotations, uint32(e.tally)
	if e.unique != (messageID{}) {
		st.UniqueKey = e.unique[:]
	}
	if e.group != nil {
		st.GroupId, st.Protected = e.group.id, e.protected
	}
	for _, t := range e.transfers {
		st.Transfers = append(st.Transfers, &logpb.DeadTransfer{Target: uint64(t.To), Number: t.Number, TtlCeilingPlusOne: t.Ceiling.Stored(), Edit: []byte(t.Edit)})
	}
	if e.remark != nil {
		st.RemarkReason, st.RemarkDescription = e.remark.Reason, e.remark.Description
	}
	r := e.schedule
	if r == nil {
		return
	}
	st.ScheduledFor, st.ScheduleId, st.Refused = int64(r.scheduledFor), r.id, r.refused
	st.TtlPlusOne, st.TtlCeilingPlusOne = r.ttl.Stored(), r.ceiling.Stored()
	st.Deferral, st.TakenTo, st.TakenAs = r.deferral, uint64(r.takenTo), r.takenAs
	if r.expireAt != 0 {
		st.ExpireAt = int64(r.expireAt)
	}
	for _, id := range r.done {
		st.Done = append(st.Done, uint64(id))
	}
}

// restore adds the next message, in the order of the encoding, to its place.
// Other parts restore its holder, and its route if it is a letter.
//
// Requires: restoreHead was called; st was written by fill or writePurged. It keeps
// st.Deaths, so these must belong to st alone. Ensures: the message is in its list,
// if its place has one, and in all tables but that of the entries, which expects it.
func (ms *messages) restore(st *logpb.MessageState) (uint32, error) {
	if st.Priority > maxPriority || st.Place < uint32(Ready) || st.Place >= placeCount {
		return 0, fmt.Errorf("%w: message %d is nowhere", ErrSnapshot, st.Seq)
	}
	if st.Head > st.Size || st.Head > headMask {
		return 0, fmt.Errorf("%w: message %d has a wrong size", ErrSnapshot, st.Seq)
	}
	ms.entries.expect(st.Index, fsm.Time(st.EnqueuedAt))
	h := ms.Alloc()
	x := ms.Mut(h)
	*x = message{
		seq: st.Seq, index: st.Index, offset: st.Offset, size: st.Size, expireAt: fsm.Time(st.ExpireAt),
		acquired: st.Acquired, failed: st.Failed, head: uint16(st.Head), priority: uint8(st.Priority),
	}
	if st.HasExpiration {
		x.head |= expirationBit
	}
	ms.counts[0].add(x.count())
	if st.MessageId != "" || st.CorrelationId != "" {
		x.head |= labelBit
		ms.labels.Expect(st.Seq, st.MessageId, st.CorrelationId)
	}
	if len(st.Deaths) > 0 {
		ms.editExtra(h).deaths = st.Deaths
	}
	if len(st.Annotations) > 0 {
		ms.setAnnotations(h, st.Annotations)
	}
	if st.Hops > 0 {
		ms.setHops(h, st.Hops)
	}
	if len(st.UniqueKey) > 0 {
		if len(st.UniqueKey) != len(messageID{}) || ms.uniques.find(messageID(st.UniqueKey)) != 0 {
			return 0, fmt.Errorf("%w: message %d has the key of another one, or none", ErrSnapshot, st.Seq)
		}
		ms.uniques.give(h, ms.editExtra(h), messageID(st.UniqueKey))
	}
	ms.restoreScheduleInfo(st, h)
	if err := ms.tallies.restoreOne(h, st.Tally, ms); err != nil {
		return 0, err
	}
	if err := ms.restoreGroup(st, h); err != nil {
		return 0, err
	}
	return h, ms.restorePlace(st, h)
}

// restoreScheduleInfo gives message h a scheduleInfo only if that is not empty,
// so that equal states have equal records.
func (ms *messages) restoreScheduleInfo(st *logpb.MessageState, h uint32) {
	r := scheduleInfo{
		scheduledFor: fsm.Time(st.ScheduledFor), id: st.ScheduleId, refused: st.Refused,
		ttl: fsm.OptionalFrom[fsm.Millis](st.TtlPlusOne), ceiling: fsm.OptionalFrom[fsm.Millis](st.TtlCeilingPlusOne),
		takenTo: fsm.QueueID(st.TakenTo), takenAs: st.TakenAs,
	}
	for _, id := range st.Done {
		r.done = append(r.done, fsm.QueueID(id))
	}
	if r.scheduledFor != 0 || r.id != "" || r.refused || r.ttl.Given || r.ceiling.Given || r.done != nil || r.takenTo != 0 {
		ms.setScheduleInfo(h, r)
	}
}

// restorePlace puts message h into its place and into the tables of that place.
// Messages set aside are left to their part. A duplicate number means that the
// snapshot is damaged.
//
// Only tables that would be damaged by a second equal key are checked here; the
// rest is Check's.
func (ms *messages) restorePlace(st *logpb.MessageState, h uint32) error {
	x := ms.Mut(h)
	place := Place(st.Place)
	at := x.expireAt
	if place == Scheduled || place.aside() {
		at = fsm.Time(st.DueAt)
	}
	if ms.timers.has(place, at, st.Seq) || place == Scheduled && ms.findScheduled("", st.Seq) != 0 {
		return fmt.Errorf("%w: message %d twice", ErrSnapshot, st.Seq)
	}
	switch place {
	case Scheduled:
		ms.schedule(h, fsm.Time(st.DueAt), st.ScheduleId)
	case Delayed, Deferred:
	case Returned:
		ms.returnLast(h)
		ms.watch(h)
	case CheckedOut:
		ms.setPlace(h, x, place)
	default:
		ms.put(h, place)
		if g := ms.extra(h).group; place == Purged && g != nil {
			if !g.ended {
				g = ms.groups.known(g)
				ms.extras.Mut(x.info).group = g
			}
			g.purged++
		}
		if st.Protected && place == Grouped {
			ms.protect(h)
			return nil
		}
		ms.watch(h)
	}
	return nil
}

func (ms *messages) check(k *checker) {
	k.that(k.count == ms.counts, "counted %v, found %v", ms.counts, k.count)
	k.that(k.ready == ms.ready, "ready by priority: counted %d, found %d", ms.ready, k.ready)
	k.that(len(k.live) == ms.Live(), "%d messages, %d in places", ms.Live(), len(k.live))
	k.that(k.extras == ms.extras.Live(), "%d extras, %d in use", ms.extras.Live(), k.extras)
	k.that(k.named == len(ms.named), "%d scheduled messages have a name, %d names", k.named, len(ms.named))
	k.that(k.numbered == ms.numbers.Len(), "%d scheduled messages, %d numbers", k.numbered, ms.numbers.Len())
	if err := ms.labels.Check(k.labelled); err != nil {
		k.fail("%w", err)
	}
	ms.marks.check(k, ms)
	ms.tallies.check(k)
	ms.cursors.check(k, ms)
	if err := ms.returns.Check(); err != nil {
		k.fail("%w", err)
	}
}

func (ms *messages) checkLists(k *checker) {
	for no := range ms.lists {
		if no == purgedList {
			k.purged(ms)
			continue
		}
		if no == returnedList {
			ms.checkReturned(k)
		}
		prev, last := uint32(0), uint64(0)
		for h := ms.lists[no].head; h != 0 && k.err == nil; h = ms.Get(h).next {
			x := ms.Get(h)
			ms.checkOne(k, h, placeOf(no))
			if no != returnedList && x.prev != prev {
				k.fail("message %d: the link back is wrong", x.seq)
			}
			if no <= maxPriority && (int(x.priority) != no || x.seq <= last || x.acquired != 0 || x.failed != 0) {
				k.fail("message %d is out of order or was handed out before", x.seq)
			}
			if no == scheduledList && x.seq <= last {
				k.fail("message %d is out of order", x.seq)
			}
			prev, last = h, x.seq
		}
		k.that(ms.lists[no].tail == prev, "list %d: the tail is wrong", no)
		if no <= maxPriority {
			k.that((ms.waiting>>no&1 == 1) == (ms.lists[no].head != 0), "list %d: the bit is wrong", no)
		}
	}
}

func (ms *messages) checkOne(k *checker, h uint32, place Place) {
	x := ms.Get(h)
	switch e := ms.extra(h); {
	case k.seen[h]:
		k.fail("message %d is in two places", x.seq)
	case x.place != place:
		k.fail("message %d says %v and is in %v", x.seq, x.place, place)
	case x.seq == 0 || x.seq >= ms.next:
		k.fail("message %d of %d", x.seq, ms.next)
	case x.size == 0 || x.expireAt < 0 || uint32(x.head&headMask) > x.size:
		k.fail("message %d: size %d, entry %d, expiry %d", x.seq, x.size, x.index, x.expireAt)
	case x.info != 0 && e.isEmpty():
		k.fail("message %d has empty info", x.seq)
	case place != Outbox && place != Waiting && ms.scheduleInfo(h).takenTo != 0:
		k.fail("message %d is not sent anywhere", x.seq)
	case place != Scheduled && ms.scheduleInfo(h).id != "":
		k.fail("message %d is not scheduled", x.seq)
	case !place.aside() && ms.scheduleInfo(h).expireAt != 0 || place != Deferred && place != CheckedOut && ms.scheduleInfo(h).deferral != "":
		k.fail("message %d is not set aside", x.seq)
	case place != Outbox && place != Waiting && (e.letter != 0 || e.transfers != nil || e.diedAt != 0 || e.reason != 0 || e.remark != nil):
		k.fail("message %d is no letter", x.seq)
	}
	k.note(x, h, place)
	k.unique(h, false)
	if g := ms.extra(h).group; g != nil {
		k.group(g, x, h, ms.extra(h).protected)
	}
	if !ms.extra(h).protected {
		ms.timers.checkOne(k, x, h)
	}
	switch {
	case place == Scheduled:
		ms.checkScheduled(k, h)
	case place == Parked:
		k.that(x.failed != 0 && x.failed <= x.acquired, "message %d is parked and has not failed", x.seq)
	case place == Grouped:
		k.that(ms.extra(h).group != nil, "message %d has no group", x.seq)
	case place.aside():
		ms.timers.checkExpiry(k, ms.scheduleInfo(h).expireAt, x.seq, h)
		k.that((x.expireAt != 0 || place == Deferred) && x.acquired != 0, "message %d is never tried again, or was not before", x.seq)
	}
}

func (ms *messages) checkScheduled(k *checker, h uint32) {
	x := ms.Get(h)
	k.numbered++
	k.that(x.expireAt != 0 && ms.findScheduled("", x.seq) == h, "message %d is never due, or not found", x.seq)
	if id := ms.scheduleInfo(h).id; id != "" {
		k.named++
		k.that(ms.named[id] == h, "message %d does not have its name", x.seq)
	}
}

// purged counts the purged messages; their records name their former
// place.
func (k *checker) purged(ms *messages) {
	last, unnamed := uint32(0), ms.unnamed
	for h := ms.lists[purgedList].head; h != 0 && k.err == nil; h = ms.Get(h).next {
		x := ms.Get(h)
		switch g := x.purgedOf(ms.extra(h)); {
		case unnamed > 0:
			unnamed--
		case g != nil && ms.since(3):
			k.found(g).purged++
		}
		k.that(!k.seen[h], "message %d is purged and somewhere", x.seq)
		k.note(x, h, Purged)
		k.unique(h, true)
		last = h
	}
	k.that(ms.lists[purgedList].tail == last, "the tail of what was purged is wrong")
}

// checkReturned compares the list of returned messages with their order.
func (ms *messages) checkReturned(k *checker) {
	h := ms.lists[returnedList].head
	for o, at := range ms.returns.All() {
		x := ms.Get(o)
		if o != h || x.seq != at.Number || x.prev != at.Slot {
			k.fail("message %d is returned at another place", x.seq)
			return
		}
		h = x.next
	}
	k.that(h == 0, "a returned message has no order")
}
