package queue

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func (cs *consumers) save(h *logpb.QueueSnapshot) {
	h.NextOrder = cs.next
	for _, c := range cs.services.inOrder() {
		h.Service = append(h.Service, uint32(cs.position(c)))
	}
	if cs.single != nil {
		h.SingleActive = uint32(cs.position(cs.single)) + 1
	}
}

// capture returns copies of all consumers, by age. O(consumers). The copies still point to
// sessions and rings of the machine, and to what is held, which a snapshot must not follow.
func (cs *consumers) capture() []consumer {
	all := make([]consumer, len(cs.all))
	for i, c := range cs.all {
		all[i] = *c
	}
	return all
}

// save describes a consumer whose session is the at-th of the snapshot. LostLocks is shared and
// must not change.
func (c *consumer) save(at int) *logpb.ConsumerState {
	st := &logpb.ConsumerState{
		Session: uint32(at), Consumer: c.id.Number, Tag: c.tag, Prefetch: c.prefetch, NoAck: c.noAck,
		Exclusive: c.exclusive, Priority: c.priority, TimeoutPlusOne: c.ownTimeout.Stored(), Status: uint32(c.lasting()),
		NextDelivery: c.next, Registered: c.registered, LateAcks: c.lateAcks, Revoked: c.revoked, Shared: c.shared, Told: c.noticed,
		Lock: uint64(c.lockLength), MaxLock: uint64(c.lockMax), LockAutoRenew: uint64(c.lockAuto), LockHead: c.lockHead,
		LockDetachGrace: uint64(c.lockGrace), MinTtl: uint64(c.least), LostLocks: c.lockLost, LateLocks: c.lateLocks,
		Numbered: c.numbered, CreditMode: c.link.on, DeliveryCount: c.link.count, Credit: c.link.left,
		Selector: c.choice.selector, Choices: c.choice.number, Searched: c.choice.searched, Drains: c.choice.drain,
	}
	for _, l := range c.late {
		st.TimedOut = append(st.TimedOut, l.id)
		st.TimedOutSince = append(st.TimedOutSince, int64(l.since))
		st.TimedOutLimits = append(st.TimedOutLimits, uint64(l.limit))
	}
	return st
}

// restore adds a consumer of a session. It holds nothing yet. registered
// overwrites the position that register has given. Consumers come by age, and
// Check finds out if they do not.
func (cs *consumers) restore(s *session, st *logpb.ConsumerState) error {
	if s.consumer(st.Consumer) != nil {
		return fmt.Errorf("%w: a consumer twice", ErrSnapshot)
	}
	c := cs.register(s, st.Consumer)
	c.registered, c.next, c.lateAcks = st.Registered, st.NextDelivery, st.LateAcks
	c.late = restoreLate(st)
	c.lockTerms, c.least = restoreTerms(st), duration(st.MinTtl)
	c.tag, c.quota, c.priority = st.Tag, quota{prefetch: st.Prefetch, shared: st.Shared, noticed: st.Told}, st.Priority
	c.link = linkCredit{st.CreditMode, st.DeliveryCount, st.Credit}
	c.choice = choice{st.Selector, st.Choices, st.Searched, st.Drains}
	c.noAck, c.exclusive, c.ownTimeout = st.NoAck, st.Exclusive, fsm.OptionalFrom[fsm.Millis](st.TimeoutPlusOne)
	c.limit(&cs.settings)
	switch {
	case c.isGets():
	case st.Status == uint32(Cancelled):
		c.cancelled, c.revoked = true, st.Revoked
		cs.serving--
	default:
		cs.join(c)
		if c.exclusive && !s.life.over {
			cs.exclusive = c
		}
	}
	return nil
}

func restoreLate(st *logpb.ConsumerState) []lateness {
	var late []lateness
	for i, id := range st.TimedOut {
		l := lateness{id: id}
		if i < len(st.TimedOutSince) && i < len(st.TimedOutLimits) {
			l.since, l.limit = fsm.Time(st.TimedOutSince[i]), fsm.Millis(st.TimedOutLimits[i])
		}
		late = append(late, l)
	}
	return late
}

// restoreService puts consumers into their rings, after what they hold has been
// restored. single is the position + 1 of the single active one.
//
// Requires: all messages have been restored, since credit and finished depend
// on what is held. Rings are filled in the order of the snapshot, and not by
// refresh, which would begin them anew.
func (cs *consumers) restoreService(order []uint32, single uint32) error {
	if err := cs.services.restored(); err != nil {
		return err
	}
	if uint64(single) > uint64(len(cs.all)) {
		return fmt.Errorf("%w: nobody is served", ErrSnapshot)
	}
	if single > 0 {
		cs.single = cs.all[single-1]
		_, cs.quiescing = cs.choose()
	}
	for _, i := range order {
		if uint64(i) >= uint64(len(cs.all)) || cs.all[i].level == nil || cs.all[i].serviced {
			return fmt.Errorf("%w: wrong service order", ErrSnapshot)
		}
		cs.services.serve(cs.all[i])
	}
	for _, c := range cs.all {
		wants := cs.served(c) && c.credit() > 0
		cs.choosers.note(c, wants)
		cs.groups.refresh(c, wants && !c.chooses())
	}
	for _, c := range cs.all {
		if c.cancelled && c.held.Len() == 0 {
			c.finished = true
			cs.attached--
		}
		cs.short.note(c, cs.served(c) && c.lacks())
	}
	return nil
}

func (cs *consumers) check(k *checker) {
	attached, active, lasting, getsHeld, order := 0, 0, 0, 0, uint64(0)
	var exclusive *consumer
	for i, c := range cs.all {
		k.that((i == 0 || c.registered > order) && c.registered < cs.next, "consumer %v is out of order", c.id)
		order = c.registered
		k.that(c.session != nil && cs.sessions.has(c.session) && c.session.consumer(c.id.Number) == c, "consumer %v has no session", c.id)
		if k.err != nil {
			return
		}
		c.check(k)
		switch {
		case c.isGets():
			getsHeld += c.held.Len()
			continue
		case !c.finished:
			attached++
		}
		if c.cancelled {
			continue
		}
		active++
		if !c.session.life.over {
			lasting++
		}
		if c.exclusive && cs.exclusive == c {
			exclusive = c
		}
	}
	k.that(attached == cs.attached && active == cs.serving && getsHeld == cs.getsHeld, "consumers are miscounted")
	k.that(k.attached == len(cs.all), "%d consumers have sessions", k.attached)
	k.that(exclusive == cs.exclusive && (exclusive == nil || lasting == 1), "the exclusive consumer is not alone")
	cs.checkService(k)
}

func (c *consumer) check(k *checker) {
	if c.isGets() {
		k.that(c.level == nil && !c.cancelled && !c.finished, "gets of %v are served", c.id)
	} else {
		k.that(c.finished == (c.cancelled && c.held.Len() == 0) && (!c.finished || len(c.late) > 0 || c.revoked) && (c.cancelled || !c.revoked), "consumer %v owes nothing", c.id)
		k.that(c.held.Len() <= maxCredit, "consumer %v holds %d", c.id, c.held.Len())
	}
	k.that(slices.IsSortedFunc(c.late, func(a, b lateness) int { return cmp.Compare(a.id, b.id) }) &&
		(len(c.late) == 0 || c.late[len(c.late)-1].id < c.next), "consumer %v: late ids", c.id)
	n := len(c.lockLost)
	k.that(slices.IsSorted(c.lockLost) && n <= lostLocks && (n == 0 || c.lockLost[n-1] < c.next), "consumer %v: lost locks", c.id)
	k.that(c.link.on && !c.isGets() && c.quota.prefetch == 0 && !c.shared || c.link == linkCredit{}, "consumer %v: credit %v", c.id, c.link)
	k.that(c.link.on || c.choice.selector == "" && c.choice.drain == 0, "consumer %v: choice %v", c.id, c.choice)
	k.that(c.detachedUntil == 0, "consumer %v is detached", c.id)
}

func (cs *consumers) checkService(k *checker) {
	members, listed := map[*level]int{}, 0
	for _, c := range cs.all {
		wants := cs.served(c) && c.credit() > 0 && !c.chooses() && cs.takers.generally(c)
		cs.choosers.checkOne(k, c, cs.served(c) && c.credit() > 0)
		k.that(c.serviced == wants || c.session.life.over, "consumer %v: in service %v", c.id, c.serviced)
		lacks := cs.served(c) && c.lacks() && c.shared && !c.noticed
		k.that(c.listed == lacks || c.session.life.over, "consumer %v: listed as short %v", c.id, c.listed)
		if c.listed {
			listed++
			k.that(cs.short.list.Value(key{At: fsm.Time(c.registered)}) == c, "consumer %v is not among those that are short", c.id)
		}
		cs.checkServed(k, c)
		k.that((c.level == nil) == (c.cancelled || c.isGets()), "consumer %v: level", c.id)
		if c.level != nil {
			members[c.level]++
			k.that(c.level.priority == c.priority && c.level.of.least == c.least, "consumer %v: wrong level", c.id)
		}
	}
	k.that(listed == cs.short.list.Len(), "consumers that are short are miscounted")
	cs.checkSingle(k)
	cs.services.check(k, members)
}

func (cs *consumers) checkSingle(k *checker) {
	if !cs.settings.SingleActive {
		k.that(cs.single == nil && !cs.quiescing, "a single consumer is served")
		return
	}
	active, quiescing := cs.choose()
	k.that(cs.single == active && cs.quiescing == quiescing, "somebody else should be the active consumer")
	for _, c := range cs.all {
		k.that(cs.single != nil || c.level == nil || c.status() != Up, "consumer %v could be served", c.id)
		k.that(!c.serviced || c == cs.single || c.session.life.over, "consumer %v is served and not the active one", c.id)
	}
	k.that(cs.single == nil || cs.single.session != nil && cs.single.level != nil, "the active consumer has gone")
}

// restoreAll adds all sessions and consumers of a snapshot, which hold nothing
// yet. NextOrder comes last, because register counts from 1 meanwhile.
func (cs *consumers) restoreAll(h *logpb.QueueSnapshot) error {
	sessions := make([]*session, len(h.Sessions))
	for i, st := range h.Sessions {
		s, err := cs.sessions.restore(st)
		if err != nil {
			return err
		}
		sessions[i] = s
	}
	for _, st := range h.Consumers {
		if uint64(st.Session) >= uint64(len(sessions)) {
			return fmt.Errorf("%w: a consumer without session", ErrSnapshot)
		}
		if err := cs.restore(sessions[st.Session], st); err != nil {
			return err
		}
	}
	cs.next = h.NextOrder
	return nil
}
