package queue

import (
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/invariants"
	"github.com/quorate/quorate/proto/logpb"
)

// mustHold checks small states whole.
func (m *Machine) mustHold() {
	if m.messages.live() > 64 || len(m.sessions) > 256 || len(m.consumers) > 256 || m.ended.len() > 256 {
		return
	}
	err := m.Check()
	invariants.Assert(err == nil, fmt.Sprint(err))
}

// checker collects the first fault.
type checker struct {
	m     *Machine
	err   error
	seen  []bool   // by handle: found in a place
	live  []uint64 // log indexes of the messages found
	count [placeCount]Count
	next  fsm.Time // earliest deadline found

	extras, getsHeld, named, timeouts, gone int

	indexed map[*sorted[uint32]]int // nil: returned messages
}

// that notes a fault unless ok. What is asked for each message goes through
// fail instead, which builds no arguments while all is well.
func (k *checker) that(ok bool, format string, args ...any) {
	if !ok {
		k.fail(format, args...)
	}
}

func (k *checker) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

func (k *checker) deadline(t fsm.Time) {
	if t != 0 && (k.next == 0 || t < k.next) {
		k.next = t
	}
}

// Check walks the whole state and reports the first broken invariant.
func (m *Machine) Check() error {
	k := &checker{m: m, indexed: map[*sorted[uint32]]int{}, seen: make([]bool, max(m.messages.top, 1)), live: make([]uint64, 0, m.messages.live())}
	k.lists()
	k.consumers()
	k.returning()
	k.indexes()
	k.service()
	k.outbox()
	k.sessions()
	k.books()
	k.time()
	return k.err
}

// message checks what holds for a message wherever it is.
func (k *checker) message(h uint32, place Place) {
	m, x := k.m, k.m.messages.get(h)
	switch e := m.extraOf(h); {
	case k.seen[h]:
		k.fail("message %d is in two places", x.seq)
	case x.place != place:
		k.fail("message %d says %v and is in %v", x.seq, x.place, place)
	case x.seq == 0 || x.seq >= m.nextMessage:
		k.fail("message %d of %d", x.seq, m.nextMessage)
	case x.size == 0 || x.index > m.index || x.expireAt < 0 || uint32(x.head&^expirationBit) > x.size:
		k.fail("message %d: size %d, entry %d, expiry %d", x.seq, x.size, x.index, x.expireAt)
	case x.extra != 0 && len(e.deaths) == 0 && e.rare == nil:
		k.fail("message %d has an empty extra", x.seq)
	case place != Scheduled && m.rareOf(h).id != "":
		k.fail("message %d is not scheduled", x.seq)
	case place != Delayed && m.rareOf(h).expireAt != 0:
		k.fail("message %d is not delayed", x.seq)
	case place != Outbox && place != Waiting && (e.letter != 0 || e.transfers != nil || e.diedAt != 0 || e.reason != 0):
		k.fail("message %d is no letter", x.seq)
	}
	k.seen[h] = true
	k.live = append(k.live, x.index)
	k.count[place].Messages++
	k.count[place].Bytes += x.bytes()
	if x.extra != 0 {
		k.extras++
	}
	if x.ready() && x.expireAt != 0 {
		k.deadline(x.expireAt)
		k.index(&m.expiries, key{x.expireAt, x.seq}, h)
	}
}

// index checks that message h is where an index says.
func (k *checker) index(in *sorted[uint32], at key, h uint32) {
	k.indexed[in]++
	if p := in.get(at); p == nil || *p != h {
		k.fail("message %d is not in its index at %v", k.m.messages.get(h).seq, at)
	}
}

func (k *checker) lists() {
	m := k.m
	for no := range m.lists {
		place := Ready
		switch no {
		case returnedList:
			place = Returned
		case outboxList:
			place = Outbox
		case scheduledList:
			place = Scheduled
		case waitingList:
			place = Waiting
		case delayedList:
			place = Delayed
		case purgedList:
			k.purged()
			continue
		}
		prev, last := uint32(0), uint64(0)
		for h := m.lists[no].head; h != 0 && k.err == nil; h = m.messages.get(h).next {
			x := m.messages.get(h)
			k.message(h, place)
			if no == returnedList {
				k.returned(h, prev)
			} else if x.prev != prev {
				k.fail("message %d: the link back is wrong", x.seq)
			}
			if place == Ready {
				if int(x.priority) != no || x.seq <= last || x.acquired != 0 || x.failed != 0 {
					k.fail("message %d is out of order or was handed out before", x.seq)
				}
				last = x.seq
			}
			if place == Scheduled {
				if x.expireAt == 0 || x.seq <= last {
					k.fail("message %d is out of order or never due", x.seq)
				}
				last = x.seq
				k.scheduled(h)
			}
			if place == Delayed {
				k.delayed(h)
			}
			if place == Waiting {
				k.index(&m.patient, key{seq: m.extraOf(h).letter}, h)
			}
			prev = h
		}
		k.that(m.lists[no].tail == prev, "list %d: the tail is wrong", no)
		if no <= maxPriority {
			k.that((m.waiting>>no&1 == 1) == (m.lists[no].head != 0), "list %d: the bit is wrong", no)
		}
	}
}

// scheduled checks what holds for a scheduled message.
func (k *checker) scheduled(h uint32) {
	x := k.m.messages.get(h)
	k.deadline(x.expireAt)
	k.index(&k.m.schedules, key{x.expireAt, x.seq}, h)
	k.index(&k.m.numbers, key{seq: x.seq}, h)
	if id := k.m.rareOf(h).id; id != "" {
		k.named++
		k.that(k.m.named[id] == h, "message %d does not have its name", x.seq)
	}
}

// delayed checks what holds for a message that waits for its next try.
func (k *checker) delayed(h uint32) {
	x := k.m.messages.get(h)
	k.deadline(x.expireAt)
	k.index(&k.m.delays, key{x.expireAt, x.seq}, h)
	if x.expireAt == 0 || x.acquired == 0 {
		k.fail("message %d is never tried again, or was not before", x.seq)
	}
}

// purged counts what was purged; the records keep saying where they were.
func (k *checker) purged() {
	m, last := k.m, uint32(0)
	for h := m.lists[purgedList].head; h != 0 && k.err == nil; h = m.messages.get(h).next {
		x := m.messages.get(h)
		k.that(!k.seen[h], "message %d is purged and somewhere", x.seq)
		k.seen[h] = true
		k.live = append(k.live, x.index)
		k.count[Purged].add(x.count())
		if x.extra != 0 {
			k.extras++
		}
		last = h
	}
	k.that(m.lists[purgedList].tail == last, "the tail of what was purged is wrong")
}

func (k *checker) consumers() {
	m := k.m
	attached, active, lasting, order := 0, 0, 0, uint64(0)
	var exclusive *consumer
	for i, c := range m.consumers {
		k.that((i == 0 || c.registered > order) && c.registered < m.nextOrder, "consumer %v is out of order", c.id)
		order = c.registered
		k.that(c.session != nil && m.sessions[c.id.Session] == c.session && c.session.consumer(c.id.Number) == c, "consumer %v has no session", c.id)
		if k.err != nil {
			return
		}
		if !c.isGets() {
			if !c.dismissed {
				attached++
			}
			k.that(c.dismissed == (c.cancelled && c.held.len() == 0) && (!c.dismissed || len(c.late) > 0 || c.revoked) && (c.cancelled || !c.revoked), "consumer %v owes nothing", c.id)
			if !c.cancelled {
				active++
				if !c.session.life.over {
					lasting++
				}
				if c.exclusive && m.exclusive == c {
					exclusive = c
				}
			}
		} else {
			k.that(c.level == nil && !c.cancelled && !c.dismissed, "gets of %v are served", c.id)
			k.getsHeld += c.held.len()
		}
		k.that(slices.IsSortedFunc(c.late, func(a, b lateness) int { return compare(a.id, b.id) }) &&
			(len(c.late) == 0 || c.late[len(c.late)-1].id < c.next), "consumer %v: late ids", c.id)
		k.held(c.id, c.next, &c.held, c.late)
		k.that(c.held.len() <= creditCeiling || c.isGets(), "consumer %v holds %d", c.id, c.held.len())
	}
	k.that(attached == m.attached && active == m.serving && k.getsHeld == m.getsHeld, "consumers are miscounted")
	k.that(exclusive == m.exclusive && (exclusive == nil || lasting == 1), "the exclusive consumer is not alone")
}

// held checks what a consumer holds whose next delivery is next.
func (k *checker) held(of fsm.ConsumerID, next uint64, all *held, lates []lateness) {
	n, last := 0, uint64(0)
	for held := range all.from(0) {
		if k.err != nil {
			return
		}
		k.message(held.handle, CheckedOut)
		_, late := slices.BinarySearchFunc(lates, held.id, compareLate)
		switch {
		case held.id <= last || held.id >= next:
			k.fail("consumer %v: delivery %d of %d", of, held.id, next)
		case held.deadline < 0 || held.limit < 0 || held.since > k.m.clock.atOnce():
			k.fail("consumer %v: delivery %d has a wrong deadline", of, held.id)
		case late:
			k.fail("consumer %v: delivery %d is held and was taken back", of, held.id)
		}
		last = held.id
		n++
		if held.deadline != 0 && k.m.phase == Active {
			k.timeouts++
			k.deadline(k.m.clock.heldUntil(held.deadline))
			if p := k.m.timeouts.get(key{held.deadline, k.m.messages.get(held.handle).seq}); p == nil || p.id != held.id {
				k.fail("consumer %v: delivery %d never times out", of, held.id)
			}
		}
	}
	k.that(n == all.len(), "consumer %v holds %d, counted %d", of, n, all.len())
}

// returning checks what is on its way back.
func (k *checker) returning() {
	m := k.m
	for at, p := range m.returning.all() {
		r := *p
		if r.held.len() == 0 {
			k.fail("nothing of %v is on its way", r.of)
			return
		}
		k.held(r.of, ^uint64(0), &r.held, nil)
		k.that(at == m.returningKey(r) && r.order < m.nextOrder && (r.order != 0 || r.outcome == 0), "what %v held is on its way in the wrong place", r.of)
	}
}

// returned checks what holds for a message that was returned, and is behind prev.
func (k *checker) returned(h, prev uint32) {
	m, r := k.m, &k.m.returns
	no := m.messages.get(h).prev
	if int(no) >= len(r.slots) || r.slots[no].block == nil || !slices.Contains(r.slots[no].block.handles[r.slots[no].block.head:r.slots[no].block.tail], h) {
		k.fail("message %d is in no block", m.messages.get(h).seq)
		return
	}
	at := m.spotOf(h)
	s := &r.slots[no]
	if r.before(at) != prev || s.block.seqs[at.at] != m.messages.get(h).seq {
		k.fail("message %d: the block is wrong", m.messages.get(h).seq)
	}
	k.indexed[nil]++
	if at.at == s.block.head {
		k.that(s.least == slices.Min(s.block.seqs[s.block.head:s.block.tail]), "block %d: the least is %d", no, s.least)
	}
}

// indexes checks that nothing is in an index that should not be.
func (k *checker) indexes() {
	m := k.m
	for _, in := range []*sorted[uint32]{&m.expiries, &m.schedules, &m.delays, &m.numbers, &m.patient} {
		k.that(in.len() == k.indexed[in], "%d messages in an index of %d", in.len(), k.indexed[in])
	}
	k.that(m.timeouts.len() == k.timeouts, "%d timeouts of %d", m.timeouts.len(), k.timeouts)
	n := 0
	for _, s := range m.returns.slots {
		if s.block != nil {
			n += s.block.len()
		}
	}
	k.that(n == k.indexed[nil], "%d returned messages of %d", n, k.indexed[nil])
}

func (k *checker) service() {
	m := k.m
	serviced, members := 0, map[*level]int{}
	for _, c := range m.consumers {
		wants := m.served(c) && c.credit() > 0
		k.that(c.serviced == wants || c.session.life.over, "consumer %v: in service %v", c.id, c.serviced)
		k.that((c.level == nil) == (c.cancelled || c.isGets()), "consumer %v: level", c.id)
		if c.level != nil {
			members[c.level]++
			k.that(c.level.priority == c.priority, "consumer %v: wrong level", c.id)
		}
	}
	k.single()
	for at, p := range m.levels.all() {
		l := *p
		k.that(at == levelKey(l.priority), "level %d is out of order", l.priority)
		k.that(l.first == nil || !at.before(m.top), "level %d is overlooked", l.priority)
		k.that(l.members > 0 && l.members == members[l], "level %d: %d members", l.priority, l.members)
		var prev *consumer
		for c := l.first; c != nil; c = c.nextRing {
			k.that(c.level == l && c.serviced && c.prevRing == prev, "consumer %v: wrong ring", c.id)
			prev = c
			if serviced++; serviced > len(m.consumers) {
				k.that(false, "a ring never ends")
				return
			}
		}
		k.that(l.last == prev, "level %d: the tail is wrong", l.priority)
	}
	k.that(serviced == m.serviced && len(members) == m.levels.len(), "services are miscounted")
	if h := m.front(); serviced > 0 && h != 0 {
		next, _ := m.NextDue()
		k.that(m.messages.get(h).due(m.clock.now()) || next <= m.clock.atOnce(), "a message waits although somebody has credit")
	}
}

// single checks who is the single active consumer: if anybody can be served,
// somebody is.
func (k *checker) single() {
	m := k.m
	if !m.settings.SingleActive {
		k.that(m.single == nil && !m.quiescing, "a single consumer is served")
		return
	}
	active, quiescing := m.choose()
	k.that(m.single == active && m.quiescing == quiescing, "somebody else should be the active consumer")
	for _, c := range m.consumers {
		k.that(m.single != nil || c.level == nil || c.status() != Up, "consumer %v could be served", c.id)
		k.that(!c.serviced || c == m.single || c.session.life.over, "consumer %v is served and not the active one", c.id)
	}
	k.that(m.single == nil || m.single.session != nil && m.single.level != nil, "the active consumer has gone")
}

func (k *checker) outbox() {
	m := k.m
	unrouted, last := uint32(0), uint64(0)
	pending := map[fsm.QueueID]int{}
	for h := m.lists[outboxList].head; h != 0 && k.err == nil; h = m.messages.get(h).next {
		e := m.extraOf(h)
		k.that(e.letter > 0 && e.letter < m.nextLetter, "letter %d of %d", e.letter, m.nextLetter)
		k.that(unrouted == 0 || len(e.transfers) == 0 && e.letter == last+1, "letter %d is routed too early", e.letter)
		last = e.letter
		k.that(e.reason == logpb.Death_NONE && m.rareOf(h).scheduledFor != 0 ||
			len(e.deaths) > 0 && e.deaths[0].Queue == m.name && e.deaths[0].Reason == e.reason, "letter %d has no death", e.letter)
		if len(e.transfers) == 0 && unrouted == 0 {
			unrouted = h
		}
		for _, t := range e.transfers {
			i, ok := m.findTarget(t.Target)
			if k.that(ok, "letter %d goes to nobody", e.letter); !ok {
				continue
			}
			n := pending[t.Target]
			k.that(n < m.targets[i].pending.len() && *m.targets[i].pending.item(n) == h &&
				t.Number == m.targets[i].settled+1+uint64(n), "letter %d: transfer %d is not pending", e.letter, t.Number)
			pending[t.Target]++
		}
	}
	for h := m.lists[waitingList].head; h != 0; h = m.messages.get(h).next {
		e := m.extraOf(h)
		k.that(e.letter > 0 && e.letter < m.nextLetter && (len(e.deaths) > 0 || e.reason == logpb.Death_NONE) && len(e.transfers) == 0,
			"letter %d does not wait", e.letter)
	}
	k.that(m.counts[Waiting].Messages == 0 || m.fate(logpb.Death_NONE) == AtLeastOnce, "letters wait for nothing")
	k.that(unrouted == m.unrouted, "the first unrouted letter is wrong")
	if unrouted != 0 {
		k.that(last == m.nextLetter-1, "letter %d is missing", m.nextLetter-1)
	}
	for i, t := range m.targets {
		k.that(t.id != 0 && (i == 0 || m.targets[i-1].id < t.id), "target %d is out of order", t.id)
		k.that(t.settled < t.next && t.next-t.settled-1 == uint64(pending[t.id]), "target %d: settled %d, next %d", t.id, t.settled, t.next)
		k.that(t.pending.len() == pending[t.id], "target %d: %d pending", t.id, t.pending.len())
		if t.gone {
			k.gone++
			k.that(t.pending.len() > 0, "target %d is gone", t.id)
		}
	}
	k.that(k.gone == m.gone, "%d targets are gone, counted %d", k.gone, m.gone)
}

func (k *checker) sessions() {
	m := k.m
	consumers, sessions, ending := 0, 0, 0
	for s := range m.everySession() {
		id := s.id
		k.that(m.sessions[id] == s && id != fsm.SessionID{} && s.next > 0 && s.last.seq < s.next, "session %v: next %d, answered %d", id, s.next, s.last.seq)
		for i, r := range s.refused {
			k.that(r.length > 0 && r.first+r.length <= s.next && (i == 0 || s.refused[i-1].first+s.refused[i-1].length < r.first),
				"session %v: refused commands", id)
		}
		k.that(len(s.refused) <= refusedRuns, "session %v: %d runs of refused commands", id, len(s.refused))
		k.that(!m.isEnded[id] && s.life.over == m.isDown(Boot{id.Node, id.Boot}), "session %v has ended", id)
		k.that(slices.IsSortedFunc(s.consumers, func(a, b *consumer) int { return compare(a.id.Number, b.id.Number) }), "session %v: consumers", id)
		consumers += len(s.consumers)
		sessions++
		if s.life.over {
			ending++
		}
	}
	k.lives()
	k.that(sessions == len(m.sessions) && ending == m.ending, "%d sessions, %d are ending", sessions, ending)
	k.that(consumers == len(m.consumers), "%d consumers have sessions", consumers)
	k.that(m.ended.len() == len(m.isEnded), "ended sessions are miscounted")
	for i := range m.ended.len() {
		e := m.ended.item(i)
		k.that(m.isEnded[e.id], "session %v has not ended", e.id)
		k.that(e.at <= m.clock.now() && (i == 0 || m.ended.item(i-1).at <= e.at), "session %v ended at %d", e.id, e.at)
	}
	for i, x := range m.silent {
		at, ok := m.findSilent(x.of)
		k.that(ok && at == i && !m.isDown(x.of), "silence of %v", x.of)
		if x.until != 0 {
			k.deadline(m.clock.heldUntil(x.until))
		}
	}
	k.that(slices.IsSortedFunc(m.dead, func(a, b Boot) int { return compare(a.Node, b.Node) }), "dead nodes are out of order")
}

// lives checks the lives of nodes that sessions live on.
func (k *checker) lives() {
	m := k.m
	for at, p := range m.lives.all() {
		l, consumers := *p, 0
		for no, s := range l.sessions.all() {
			k.that((*s).life == l && no.seq == (*s).id.Num && at == (Boot{(*s).id.Node, (*s).id.Boot}).key(), "session %v lives elsewhere", (*s).id)
			consumers += len((*s).consumers)
		}
		k.that(l.of.key() == at && l.sessions.len() > 0 && l.consumers == consumers, "%v: %d sessions, %d consumers", l.of, l.sessions.len(), l.consumers)
		k.that(l.silent == (m.isSilent(fsm.SessionID{Node: l.of.Node, Boot: l.of.Boot})), "%v: silence", l.of)
	}
}

// books compares all counts with what was found.
func (k *checker) books() {
	m := k.m
	k.that(k.count == m.counts, "counted %v, found %v", m.counts, k.count)
	k.that(len(k.live) == m.messages.live(), "%d messages, %d in places", m.messages.live(), len(k.live))
	k.that(k.extras == m.extras.live(), "%d extras, %d in use", m.extras.live(), k.extras)
	k.that(k.named == len(m.named), "%d scheduled messages have a name, %d names", k.named, len(m.named))
	k.entries()
	k.that(m.phase == Active || len(m.consumers) == 0 && len(m.sessions) == 0 && m.readyCount() == 0, "an ended queue serves")
	k.that((m.phase == Draining) == (m.goneAt != 0), "phase %d ends at %d", m.phase, m.goneAt)
	k.that(m.phase != Draining || len(k.live) > 0, "nothing to drain")
	k.that(m.phase != Gone || len(k.live) == 0, "a queue that is gone has messages")
	m.clock.check(k)
	k.that(m.lastUsed >= 0 && m.lastUsed <= m.clock.now(), "clock %d, last used %d", m.clock.now(), m.lastUsed)
	k.that(m.active >= 0 && m.active <= m.clock.now(), "clock %d, last active %d", m.clock.now(), m.active)
}

// entries compares the live messages per log entry with what was found.
func (k *checker) entries() {
	l := &k.m.live
	slices.Sort(k.live)
	found, last := 0, uint64(0)
	for e, count := range l.all() {
		n := found
		for n < len(k.live) && k.live[n] == e.seq {
			n++
		}
		if found > 0 && e.seq <= last || n-found != int(*count) || *count == 0 {
			k.fail("entry %d after %d has %d messages, counted %d", e.seq, last, n-found, *count)
		}
		last, found = e.seq, n
	}
	k.that(found == len(k.live), "live entries are miscounted")
}

// time compares the earliest deadline with what was found.
func (k *checker) time() {
	m := k.m
	switch m.phase {
	case Active:
		k.deadline(m.leaseEnd())
		k.deadline(m.idleEnd())
		if m.lists[purgedList].head != 0 || m.tooLong() || m.unfinished() || m.serviced > 0 && m.front() != 0 || k.gone > 0 {
			k.deadline(m.clock.atOnce())
		}
	case Draining:
		if k.next = m.goneAt; k.gone > 0 {
			k.next = m.clock.atOnce()
		}
	default:
		k.next = 0
	}
	if k.err == nil {
		next, what := m.NextDue()
		k.that(next == k.next && (next == 0) == (what == NothingDue), "next deadline is %d (%v), found %d", next, what, k.next)
	}
}
