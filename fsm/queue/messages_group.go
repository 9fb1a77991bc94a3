package queue

import (
	"fmt"

	"github.com/quorate/quorate/proto/logpb"
)

// enterGroup adds message h, which has just got its place, to its group, if it has
// one.
func (ms *messages) enterGroup(h uint32) {
	x, g := ms.get(h), ms.deadLetterInfo(h).group
	if g == nil {
		return
	}
	if now := ms.groups.enter(g, x.seq, h, x.place == Grouped); now != g {
		ms.infos.mut(x.info).group = now
	}
}

// leaveGroup removes message h from its group, before it leaves its place.
func (ms *messages) leaveGroup(h uint32) {
	x, g := ms.get(h), ms.deadLetterInfo(h).group
	if g == nil {
		return
	}
	if ms.deadLetterInfo(h).protected {
		ms.infos.mut(x.info).protected = false
		ms.groups.protect(g, -1)
	}
	ms.groups.leave(g, x.seq)
}

// ungroup makes message h, which is in no place, one of no group.
func (ms *messages) ungroup(h uint32) {
	ms.infos.mut(ms.get(h).info).group = nil
	ms.dropInfo(h)
}

// dropInfo frees the deadLetterInfo of message h, which has one, if it is empty.
func (ms *messages) dropInfo(h uint32) {
	x := ms.mut(h)
	if e := ms.infos.get(x.info); len(e.deaths) == 0 && e.schedule == nil && e.group == nil && e.hops == 0 {
		ms.infos.release(x.info)
		x.info = 0
	}
}

// protect makes message h, which is Grouped and due, wait without expiring while
// its group is held.
func (ms *messages) protect(h uint32) {
	x := ms.get(h)
	ms.timers.forget(x)
	ms.infos.mut(x.info).protected = true
	ms.groups.protect(ms.deadLetterInfo(h).group, 1)
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
		ms.editDeadLetterInfo(h).group = g
	}
	return nil
}
