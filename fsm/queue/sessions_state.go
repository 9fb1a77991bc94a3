package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// save writes the section about ended sessions and nodes in a snapshot's head.
// The sessions themselves are copied, see capture.
func (ss *sessions) save(h *logpb.QueueSnapshot) {
	for i := range ss.ended.Len() {
		h.Ended = append(h.Ended, ss.ended.Item(i).id.Proto())
		h.EndedAt = append(h.EndedAt, int64(ss.ended.Item(i).at))
	}
	for _, b := range ss.down {
		h.Dead = append(h.Dead, &logpb.NodeDown{Node: uint32(b.Node), Boot: b.Boot})
	}
	for _, x := range ss.suspected {
		h.Suspected = append(h.Suspected, &logpb.Suspicion{Node: uint32(x.of.Node), Boot: x.of.Boot, Until: int64(x.until)})
	}
}

// capture returns copies of all sessions, ascending; unless keep, they are valid until
// the next change. They still point to consumers and lives of the machine, which a
// snapshot must not follow.
func (ss *sessions) capture(keep bool) []session {
	all := make([]session, 0, len(ss.byID))
	for s := range ss.all() {
		all = append(all, *s)
		if c := &all[len(all)-1]; keep {
			c.refused = slices.Clone(c.refused)
		}
	}
	return all
}

func (s *session) save() *logpb.SessionState {
	return &logpb.SessionState{
		Session: s.id.Proto(), NextSeq: s.next, LastOpSeq: s.last.seq, LastOpCount: s.last.count,
		LastOpCode: uint32(s.last.code), LastOpDelivery: s.last.delivery, LastOpConsumers: s.last.consumers, LastOpNext: s.last.next,
		Refused: encodeRuns(s.refused), NextGet: s.nextGet,
	}
}

func encodeRuns(runs []run) []uint64 {
	var out []uint64
	for _, r := range runs {
		out = append(out, r.first, r.length)
	}
	return out
}

// restoreHead is the inverse of save. Requires: the clock was restored. It
// comes before the sessions, since add asks which lives are down or suspected.
func (ss *sessions) restoreHead(h *logpb.QueueSnapshot) {
	for i, s := range h.Ended {
		at := ss.clock.now() // if the snapshot does not say
		if i < len(h.EndedAt) {
			at = fsm.Time(h.EndedAt[i])
		}
		ss.ended.Push(ended{fsm.SessionFrom(s), at})
		ss.isEnded[fsm.SessionFrom(s)] = true
	}
	for _, d := range h.Dead {
		ss.down = append(ss.down, Boot{fsm.NodeID(d.Node), d.Boot})
	}
	for _, x := range h.Suspected {
		ss.suspected = append(ss.suspected, suspicion{Boot{fsm.NodeID(x.Node), x.Boot}, fsm.Time(x.Until)})
	}
}

func (ss *sessions) restore(st *logpb.SessionState) (*session, error) {
	s := &session{id: fsm.SessionFrom(st.Session), next: st.NextSeq, nextGet: st.NextGet, last: answer{
		seq: st.LastOpSeq, count: st.LastOpCount, consumers: st.LastOpConsumers,
		delivery: st.LastOpDelivery, next: st.LastOpNext, code: fsm.Code(st.LastOpCode),
	}}
	for r := st.Refused; len(r) > 1; r = r[2:] {
		s.refused = append(s.refused, run{r[0], r[1]})
	}
	if ss.byID[s.id] != nil {
		return nil, fmt.Errorf("%w: a session twice", ErrSnapshot)
	}
	ss.add(s)
	return s, nil
}

func (ss *sessions) describe(b *strings.Builder) {
	for s := range ss.all() {
		if !s.life.over {
			fmt.Fprintf(b, "session %s next=%d", sessionText(s.id), s.next)
			numberText(b, " next-get=%d", s.nextGet)
			b.WriteString("\n")
		}
	}
	for i := range ss.ended.Len() {
		fmt.Fprintf(b, "ended %s at=%d\n", sessionText(ss.ended.Item(i).id), ss.ended.Item(i).at)
	}
	for _, d := range ss.down {
		fmt.Fprintf(b, "dead %d/%d\n", d.Node, d.Boot)
	}
	for _, x := range ss.suspected {
		fmt.Fprintf(b, "silent %d/%d", x.of.Node, x.of.Boot)
		numberText(b, " until=%d", ss.clock.heldUntil(x.until))
		b.WriteString("\n")
	}
}

func (ss *sessions) check(k *checker) {
	sessions, ending := 0, 0
	for s := range ss.all() {
		k.that(ss.byID[s.id] == s && !ss.isEnded[s.id] && s.life.over == ss.isDown(Boot{s.id.Node, s.id.Boot}), "session %v has ended", s.id)
		s.check(k)
		sessions++
		if s.life.over {
			ending++
		}
	}
	ss.checkLives(k)
	k.that(sessions == len(ss.byID) && ending == ss.ending, "%d sessions, %d are ending", sessions, ending)
	k.that(ss.ended.Len() == len(ss.isEnded), "ended sessions are miscounted")
	for i := range ss.ended.Len() {
		e := ss.ended.Item(i)
		k.that(ss.isEnded[e.id], "session %v has not ended", e.id)
		k.that(e.at <= ss.clock.now() && (i == 0 || ss.ended.Item(i-1).at <= e.at), "session %v ended at %d", e.id, e.at)
	}
	for i, x := range ss.suspected {
		at, ok := ss.findSuspected(x.of)
		k.that(ok && at == i && !ss.isDown(x.of), "silence of %v", x.of)
		k.deadline(ss.clock.heldUntil(x.until))
	}
	k.that(slices.IsSortedFunc(ss.down, func(a, b Boot) int { return cmp.Compare(a.Node, b.Node) }), "dead nodes are out of order")
}

func (s *session) check(k *checker) {
	k.that(s.id != fsm.SessionID{} && s.next > 0 && s.last.seq < s.next, "session %v: next %d, answered %d", s.id, s.next, s.last.seq)
	for i, r := range s.refused {
		k.that(r.length > 0 && r.first+r.length <= s.next && (i == 0 || s.refused[i-1].first+s.refused[i-1].length < r.first),
			"session %v: refused commands", s.id)
	}
	k.that(s.nextGet == 0 || s.consumer(0) == nil, "session %v: gets go on twice", s.id)
	k.that(len(s.refused) <= refusedRuns, "session %v: %d runs of refused commands", s.id, len(s.refused))
	k.that(slices.IsSortedFunc(s.consumers, func(a, b *consumer) int { return cmp.Compare(a.id.Number, b.id.Number) }), "session %v: consumers", s.id)
	k.attached += len(s.consumers)
}

func (ss *sessions) checkLives(k *checker) {
	for l := range ss.lives.Values(key{}) {
		consumers := 0
		for s := range l.sessions.Values(key{}) {
			k.that(s.life == l && l.sessions.Value(key{Seq: s.id.Num}) == s && l.of == (Boot{s.id.Node, s.id.Boot}), "session %v lives elsewhere", s.id)
			consumers += len(s.consumers)
		}
		k.that(ss.lives.Value(l.of.key()) == l && l.sessions.Len() > 0 && l.consumers == consumers, "%v: %d sessions, %d consumers", l.of, l.sessions.Len(), l.consumers)
		k.that(l.suspected == ss.isSuspected(fsm.SessionID{Node: l.of.Node, Boot: l.of.Boot}), "%v: silence", l.of)
	}
}
