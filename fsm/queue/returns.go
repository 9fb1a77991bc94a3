package queue

import (
	"fmt"
	"iter"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/internal/ordered"
	"github.com/quorate/quorate/proto/logpb"
)

// stepsPerScan is how many blocks are scanned in the time of one step.
const stepsPerScan = 16

// insertReturned inserts messages, which are in no place, in this order at a position of the
// returned ones.
//
// Requires: run is not empty, and each of its seq is that of its message.
//
// Ensures: their place is Returned. The caller calls watch for them. p and all other
// positions are invalid.
func (ms *messages) insertReturned(p ordered.Place, run []checkout) {
	prev, next := ms.returns.Before(p), ms.lists[returnedList].head
	if prev != 0 {
		next = ms.Get(prev).next
	}
	for _, held := range run {
		ms.setPlace(held.handle, ms.Mut(held.handle), Returned)
		ms.link(prev, held.handle)
		prev = held.handle
	}
	ms.link(prev, next)
	ms.cameBack += uint64(len(run))
	ms.returns.Insert(p, len(run), func(i int) (h uint32, seq uint64) { return run[i].handle, run[i].seq }, ms.keepSlot)
	switch {
	case !ms.cursors.any():
	case next == 0:
		ms.cursors.added(returnedList, run[0].handle, run[0].seq)
	default:
		ms.cursors.inserted(run, ms)
	}
}

// keepSlot notes where returns has message h.
func (ms *messages) keepSlot(h, slot uint32) {
	ms.scratch.steps++
	ms.Mut(h).prev = slot
}

func (ms *messages) returnAll(run []checkout) { ms.insertReturned(ms.returns.End(), run) }

func (ms *messages) returnLast(h uint32) {
	ms.returnAll([]checkout{{grip: grip{handle: h}, seq: ms.Get(h).seq}})
}

// link links h after prev in the returned list; 0 stands for either end. The
// list has no links back: prev of a returned message is its slot.
func (ms *messages) link(prev, h uint32) {
	l := &ms.lists[returnedList]
	if prev == 0 {
		l.head = h
	} else {
		ms.Mut(prev).next = h
	}
	if h == 0 {
		l.tail = prev
	}
}

// removeReturned removes message h from the order of the returned ones, and returns the
// message before it; 0: there is none. The links of the list are up to the caller.
func (ms *messages) removeReturned(h uint32) (prev uint32) {
	return ms.returns.Remove(ms.returns.PlaceOf(ms.Get(h).prev, h), ms.keepSlot)
}

// putBack returns messages, ascending by number, each after the last one there
// that is older. It walks once from the end, and inserts runs that share a
// position.
//
// Requires: kept ascends by seq. It is not changed. O(blocks from the end to the
// oldest of kept + one block for each run).
func (ms *messages) putBack(kept []checkout) {
	at := ms.returns.End()
	for len(kept) > 0 {
		i := len(kept) - 1
		spot, steps := ms.returns.BehindOlder(at, kept[i].seq)
		ms.scratch.steps += steps / stepsPerScan
		older := ms.returns.NumberBefore(spot)
		for i > 0 && kept[i-1].seq > older {
			i--
		}
		ms.insertReturned(spot, kept[i:])
		first := kept[i].handle
		at, kept = ms.returns.PlaceOf(ms.Get(first).prev, first), kept[:i]
	}
}

// returning is what one consumer held and no longer holds: its session has
// ended, its node was suspected for too long, or it has settled more at once
// than one command may end. The messages stay checked out and are processed
// step by step. held is never empty.
//
// Settlements come first, in their order, so that what was settled before a
// session ended is not lost with it. order ≠ 0 ⇔ it is a settlement; failed is
// meaningful only for losses.
//
// due is when what was settled is to be tried again; 0: as the settings say. What
// is deferred is never here: it is one delivery, which ends at once.
//
// It belongs to no consumer and no session, since both may be gone: of and tag are only
// for listings and the record of ends. In a snapshot the head has all but held, and the messages name their
// holder by position.
type returning struct {
	of      fsm.ConsumerID
	tag     string // of the consumer
	held    held
	order   uint64               // settlements finish in this order; 0: of has lost the messages
	outcome logpb.Settle_Outcome // of a settlement
	due     fsm.Time             // of a settlement
	remark  *fsm.Remark          // of one that discards; shared, never changed; nil: none
	// annotations are added to what a settlement returns; shared, never changed.
	annotations []*logpb.Annotation
	failed      bool // of a loss
	group       bool // of a group that was lost or given up: failed is meant for it, too
}

// returnings are what consumers held and have lost, or have settled beyond the bound of
// one command, until it is processed.
//
// Invariant: every entry holds something, and is at its key.
//
// In a snapshot its heads are in that order, and its messages follow those that
// consumers hold. coming and detached are nil except while one is restored.
type returnings struct {
	messages *messages
	groups   *leavings
	order    sorted[*returning]
	// In order, while a snapshot is restored: what is on its way back, and the
	// detached consumers.
	coming   []*returning
	detached []*consumer
}

func (rs *returnings) clear() { rs.order = sorted[*returning]{} }

// key is the position of r: settlements first, then by the oldest message that comes
// next.
//
// The key of a loss changes with its first message, so takeLost removes the entry
// before it takes anything. Keys are unique: a message has one holder.
func (rs *returnings) key(r *returning) key {
	if r.order != 0 {
		return key{At: 0, Seq: r.order}
	}
	_, g := r.held.First()
	return key{At: 1, Seq: rs.messages.Get(g.handle).seq}
}

func (rs *returnings) add(r *returning) { rs.order.Put(rs.key(r), r) }

func (rs *returnings) remove(k key) { rs.order.Remove(k) }

// any reports whether anything is on its way back, or is to be with a group that is
// left. As long as it is true nothing of any group is handed out.
func (rs *returnings) any() bool { return rs.some() || rs.groups.anyLeft() }

func (rs *returnings) some() bool { return rs.order.Len() > 0 }

// first returns what is processed next. Requires: some.
func (rs *returnings) first() (key, *returning) {
	k, r, _ := rs.order.Peek()
	return k, r
}

func (rs *returnings) settling() bool {
	k, _, ok := rs.order.Peek()
	return ok && k.At == 0
}

// all iterates over it, in the order in which it returns. Nothing of it may change
// meanwhile.
func (rs *returnings) all() iter.Seq[*returning] { return rs.order.Values(key{}) }

// at returns what is at the position of r.
func (rs *returnings) at(r *returning) *returning { return rs.order.Value(rs.key(r)) }

func (rs *returnings) save(h *logpb.QueueSnapshot) {
	for r := range rs.all() {
		st := &logpb.ReturningState{
			Session: r.of.Session.Proto(), Consumer: r.of.Number, Tag: r.tag, Order: r.order, Outcome: uint32(r.outcome), Failed: r.failed,
			DueAt: int64(r.due), Group: r.group,
		}
		if r.remark != nil {
			st.Reason, st.Description = r.remark.Reason, r.remark.Description
		}
		st.Annotations = r.annotations
		h.Returning = append(h.Returning, st)
	}
}

// restoreHead is the inverse of save. The messages themselves follow, and those of
// detached consumers.
func (rs *returnings) restoreHead(h *logpb.QueueSnapshot, detached []*consumer) {
	for _, st := range h.Returning {
		rs.coming = append(rs.coming, &returning{
			of: fsm.ConsumerID{Session: fsm.SessionFrom(st.Session), Number: st.Consumer}, tag: st.Tag,
			order: st.Order, outcome: logpb.Settle_Outcome(st.Outcome), failed: st.Failed, due: fsm.Time(st.DueAt), group: st.Group,
			remark: restoredRemark(st.Reason, st.Description), annotations: st.Annotations,
		})
	}
	rs.detached = detached
}

// restoring returns who held or holds the messages that follow, by its number behind all consumers,
// and the consumer if it is a detached one; nil: there is no such holder.
func (rs *returnings) restoring(no uint64) (into *held, c *consumer) {
	coming := uint64(len(rs.coming))
	switch {
	case no < coming:
		return &rs.coming[no].held, nil
	case no < coming+uint64(len(rs.detached)):
		c = rs.detached[no-coming]
		return &c.held, c
	}
	return nil, nil
}

// restored orders what was restored. It needs the numbers of the messages, so it comes
// after all of them.
func (rs *returnings) restored() error {
	for _, r := range rs.coming {
		if r.held.Len() == 0 || rs.at(r) != nil {
			return fmt.Errorf("%w: nothing of a consumer is on its way", ErrSnapshot)
		}
		rs.add(r)
	}
	rs.coming, rs.detached = nil, nil
	return nil
}

// detach takes everything that c holds, in O(1): the table changes its owner. The messages go back.
// The caller removes c, or sees to it that it gets nothing for now.
func (m *Machine) detach(c *consumer, failed bool) {
	if c.held.Len() == 0 {
		return
	}
	m.consumers.holds(c, -c.held.Len())
	m.returnings.add(&returning{of: c.id, tag: c.tag, failed: failed, held: c.held})
	c.held = held{}
	if t := m.takers.of(c); t != nil {
		t.ids.Clear()
	}
}

// unfinished reports whether something is on its way back. As long as it is, NextDue is at once and
// nothing times out.
func (m *Machine) unfinished() bool {
	return m.sessions.isEnding() || m.returnings.any() || m.groups.reviewing()
}

// bringBack ends sessions of nodes that are down, and returns what is on its
// way back and what is in scratch.taken. It stops at the bound of the command;
// the next command continues. While sessions are still ending nobody is served,
// so that everything comes back in order.
//
// It runs once with every command of an active queue, after the command itself and
// before the assignment at its end. Ensures: scratch.taken is empty; either nothing
// is unfinished or the bound was reached. On a Tick the bound is what expiries and
// timeouts have left of the budget, and at most bounds.Back.
//
// Order: lives that ended, then settlements by age, then holds of groups by age, then reviews, then losses by number. It is
// kept over any number of commands, because a new settlement waits while an older
// one is unfinished (endDeliveries).
func (m *Machine) bringBack(kind logpb.Command_Kind, eff *fsm.Effects) {
	if !m.unfinished() && len(m.scratch.taken) == 0 {
		return
	}
	left := m.bounds.Before
	switch kind {
	case logpb.Command_TICK:
		left = min(m.scratch.budget, m.bounds.Back())
	case logpb.Command_NODE_DOWN, logpb.Command_SESSION_DOWN:
		left = m.bounds.Back()
	}
	allowed := left
	left -= m.endDown(left)
	if !m.sessions.isEnding() {
		left -= m.finishSettling(left, eff)
		left -= m.endLeaving(left)
		left -= m.groups.goOnReviewing(left)
		left -= m.takeLost(left)
	}
	m.giveBack(m.scratch.taken, true, 0, eff)
	m.scratch.taken = m.scratch.taken[:0]
	if kind == logpb.Command_TICK {
		m.scratch.budget -= allowed - left
	}
}

func (m *Machine) finishSettling(n int, eff *fsm.Effects) (done int) {
	for done < n && m.returnings.some() {
		k, r := m.returnings.first()
		if r.order == 0 {
			break
		}
		var some []checkout
		for done+len(some) < n && r.held.Len() > 0 {
			some = r.held.takeFirst(some)
		}
		if r.held.Len() == 0 {
			m.returnings.remove(k)
		}
		m.endSettled(r.of, some)
		m.conclude(r, some, eff)
		done += len(some)
	}
	return done
}

// takeLost moves up to n messages that their holders have lost to scratch.taken
// and returns how many: oldest first, as far as each holder got them in that
// order.
//
// It merges the holders by their next message, as long as one of them is the
// oldest. key{at: 2} stands for "no other holder": it is after all keys.
func (m *Machine) takeLost(n int) (done int) {
	for done < n && m.returnings.some() {
		k, r := m.returnings.first()
		m.returnings.remove(k)
		next := key{At: 2}
		if m.returnings.some() {
			next, _ = m.returnings.first()
		}
		by := m.scratch.holder(r.of, r.tag)
		for done < n && r.held.Len() > 0 && m.returnings.key(r).Before(next) {
			m.scratch.taken = r.held.takeFirst(m.scratch.taken)
			last := &m.scratch.taken[len(m.scratch.taken)-1]
			last.failed, last.by = r.failed && (r.group || m.groupOf(last.handle) == nil), by
			done++
		}
		if r.held.Len() > 0 {
			m.returnings.add(r)
		}
	}
	return done
}

// endDown ends sessions of nodes that are down in at most n steps, one for each session and for each
// consumer, and returns how many. The order is by node, boot and number; consumers from the last one.
func (m *Machine) endDown(n int) (done int) {
	for done < n && m.sessions.isEnding() {
		l := m.sessions.firstDown()
		for done < n && l.sessions.Len() > 0 {
			_, s, _ := l.sessions.Peek()
			done += m.endSession(s, n-done)
		}
	}
	if done > 0 {
		m.consumers.dropEnded()
	}
	return done
}

// endSession removes a session with its consumers. What they hold goes back, as
// failed unless it is of a group, or stays locked for a while unless it is of a
// group. It takes at most n steps and removes the session only after all
// its consumers. It returns how many steps it took. The consumers stay in
// consumers.all, see dropEnded. Late deliveries end with it: nobody can settle
// them any more.
func (m *Machine) endSession(s *session, n int) (done int) {
	for i := len(s.consumers) - 1; i >= 0; i-- {
		if done == n {
			return done
		}
		c := s.consumers[i]
		if c.lockGrace > 0 {
			m.giveUpAll(c)
		}
		if grace := m.settings.grace(c); grace > 0 {
			m.consumers.holds(c, -c.held.Len())
			m.detached.add(c, m.clock.heldDeadline(grace))
		} else {
			m.detach(c, true)
		}
		m.consumers.unregister(c)
		s.consumers = s.consumers[:i]
		done++
		m.scratch.steps++
	}
	if done == n {
		return done
	}
	if m.sessions.remove(s) {
		m.consumers.contest()
	}
	m.scratch.steps++
	return done + 1
}

// sessionDown ends the session of the command, in one step: it has at most as many consumers as the
// queue may have. An unknown one is remembered, too: its first command may be late.
func (m *Machine) sessionDown(meta *fsm.Meta, s *session) fsm.Result {
	if meta.Session == (fsm.SessionID{}) {
		return fsm.Result{Code: fsm.Invalid}
	}
	if s != nil {
		m.endSession(s, len(s.consumers)+1)
		m.consumers.dropEnded()
	}
	m.sessions.remember(meta.Session)
	return fsm.Result{}
}

// endSuspicions takes back what sessions hold whose nodes have been suspected for too long. Their
// consumers stay, and are served again when the node is heard from. It waits while groups are left,
// to which some of it may belong.
func (m *Machine) endSuspicions() {
	if m.groups.anyLeft() || !m.sessions.overdue() {
		return
	}
	m.consumers.contest()
	var done []*consumer
	for c := range m.consumers.from(0) {
		m.scratch.steps++
		if (c.held.Len() > 0 || m.takers.holdsAny(c)) && m.sessions.isOverdue(c.session) {
			m.detach(c, false)
			m.groups.disown(c)
			done = append(done, c)
		}
	}
	m.consumers.removeFinished(done...)
}
