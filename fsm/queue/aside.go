package queue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// aside are the messages that were handed out and set aside: delayed ones,
// which are tried again at an instant, and deferred ones, which wait for
// somebody who asks for them by their token. Both expire meanwhile.
//
// Invariants:
//
//	tokens has exactly the deferred messages, each under scheduleInfo.deferral. One that
//	was taken from there has it while it is held, and may have lost it to another one
//	of a message set aside: message.expireAt is when it returns (0: never, deferred
//	ones only), and scheduleInfo.expireAt when it expires (0: never)
//
// The lists are in messages, the instants in timers. tokens is never iterated,
// so the order of a map cannot reach the state. A snapshot has both instants
// and the token with the message.
type aside struct {
	*shared
	timers   *timers
	messages *messages

	tokens map[string]uint32
}

func (p *aside) clear() { p.tokens = nil }

// delay sets a message aside that goes back, and reports whether it has to wait. A due
// time of its own takes precedence over the settings; one that has passed means at once.
// take is the inverse.
func (p *aside) delay(held checkout, due fsm.Time) bool {
	if due == 0 {
		due = p.clock.now()
		if wait := p.settings.backoff.after(p.messages.Get(held.handle), held.failed && !held.lapsed, p.id); wait != 0 {
			due = p.clock.deadline(wait)
		}
	}
	if due <= p.clock.now() {
		return false
	}
	p.put(held.handle, Delayed, due, "")
	return true
}

// put sets message h aside, which is in no place. Its expiry, if it has one, is
// in expireAt.
func (p *aside) put(h uint32, in Place, until fsm.Time, token string) {
	x := p.messages.Mut(h)
	if x.expireAt != 0 || token != "" {
		r := *p.messages.scheduleInfo(h)
		r.expireAt, r.deferral = x.expireAt, token
		p.messages.setScheduleInfo(h, r)
		p.timers.expire(r.expireAt, x.seq, h)
	}
	x.expireAt = until
	p.messages.put(h, in)
	p.messages.watch(h)
	if token == "" {
		return
	}
	if p.tokens == nil {
		p.tokens = map[string]uint32{}
	}
	p.tokens[token] = h
}

func (p *aside) find(token string) uint32 { return p.tokens[token] }

// take removes message h, which is set aside, and leaves it in no place. Its expiry is in
// expireAt again, even if it has passed, but in no timer; its token is free.
func (p *aside) take(h uint32) {
	p.messages.remove(h)
	x, r := p.messages.Mut(h), *p.messages.scheduleInfo(h)
	x.expireAt = r.expireAt
	if r.expireAt == 0 && r.deferral == "" {
		return
	}
	p.timers.neverExpire(r.expireAt, x.seq)
	delete(p.tokens, r.deferral)
	r.expireAt, r.deferral = 0, ""
	p.messages.setScheduleInfo(h, r)
}

func (p *aside) takeWaiting(h uint32) {
	if p.messages.Get(h).place.aside() {
		p.take(h)
	} else {
		p.messages.remove(h)
	}
}

// restore puts message h, which messages.restore has left in no place, back.
// Only what would damage a table is checked here; the rest is Check's.
func (p *aside) restore(st *logpb.MessageState, h uint32) error {
	in := Place(st.Place)
	switch {
	case (in == Deferred) != (st.Deferral != "") || in == Delayed && st.DueAt == 0:
		return fmt.Errorf("%w: message %d was set aside for nothing", ErrSnapshot, st.Seq)
	case in == Deferred && p.find(st.Deferral) != 0:
		return fmt.Errorf("%w: two messages are deferred as %q", ErrSnapshot, st.Deferral)
	case p.timers.has(Ready, fsm.Time(st.ExpireAt), st.Seq):
		return fmt.Errorf("%w: message %d expires twice", ErrSnapshot, st.Seq)
	}
	p.put(h, in, fsm.Time(st.DueAt), st.Deferral)
	return nil
}

func (p *aside) check(k *checker) {
	n := uint64(len(p.tokens))
	k.that(n == p.messages.count(Deferred).Messages, "%d messages are deferred, under %d tokens", p.messages.count(Deferred).Messages, n)
	for h := p.messages.head(deferredList); h != 0 && k.err == nil; h = p.messages.Get(h).next {
		token := p.messages.scheduleInfo(h).deferral
		k.that(token != "" && p.find(token) == h, "message %d is not found as %q", p.messages.Get(h).seq, token)
	}
}

// maxToken bounds the bytes of a deferral token.
const maxToken = 255

func defersOne(cmd *logpb.Settle) bool {
	return len(cmd.Ranges) == 2 && cmd.Ranges[1] == 1 && fitsToken(cmd.Deferral)
}

func fitsToken(token string) bool { return len(token) > 0 && len(token) <= maxToken }

// deferTaken puts the message in scratch.taken, if there is one, aside for c under a token that
// is free, until due unless that is 0. One that has expired dies now, as with any other end of
// a delivery.
func (m *Machine) deferTaken(c *consumer, token string, due fsm.Time, eff *fsm.Effects) (code fsm.Code, count uint64) {
	taken := m.scratch.taken
	if len(taken) == 0 {
		return fsm.NotFound, 0
	}
	m.lift(taken)
	m.scratch.noteHolder(taken, c.id, c.tag)
	h := taken[0].handle
	m.scratch.taken = taken[:0]
	x := m.messages.Mut(h)
	bump(&x.acquired)
	if x.due(m.clock.now()) {
		m.dieHeld(&taken[0], logpb.Death_EXPIRED, eff)
		return fsm.OK, 0
	}
	if due != 0 {
		due = max(due, m.clock.atOnce())
	}
	m.aside.put(h, Deferred, due, token)
	m.counters.Deferred++
	return fsm.OK, 1
}

// receiveDeferred hands deferred messages to a consumer that names their tokens.
// Count of the answer is how many; NotFound says that some were not there.
//
// They count in the credit of the consumer, but are handed out whatever credit
// it has, since it has asked for them, up to the most that any consumer may hold. One
// in credit mode is handed no more than its credit, whatever it asks for.
// A consumer that is not served for another reason than its credit is refused as
// Reserved: it has timed out, its node is suspected, it is not the active one, or
// the queue is paused.
func (m *Machine) receiveDeferred(s *session, cmd *logpb.ReceiveDeferred, eff *fsm.Effects) fsm.Result {
	tokens := cmd.GetTokens()
	if len(tokens) == 0 || len(tokens) > m.bounds.HandOuts {
		return fsm.Result{Code: fsm.Invalid}
	}
	if cmd.GetConsumer() == 0 && m.since(3) {
		return m.takeDeferred(s, cmd, eff)
	}
	c := s.consumer(cmd.GetConsumer())
	switch {
	case c == nil || c.isGets() || c.cancelled:
		return fsm.Result{Code: fsm.NotFound}
	case !m.consumers.served(c) || c.held.Len()+len(tokens) > maxCredit || c.link.on && c.credit() < len(tokens):
		return fsm.Result{Code: fsm.Reserved}
	}
	m.lease.touch()
	var r fsm.Result
	for _, token := range tokens {
		h := m.firstDeferred(token, eff)
		if h == 0 {
			r.Code = fsm.NotFound
			continue
		}
		r.Count++
		m.aside.take(h)
		if !m.settings.grouped() && m.groupOf(h) != nil {
			m.messages.ungroup(h)
		}
		id, lock := m.hand(h, c, false)
		m.deliver(c, id, h, lock, eff)
	}
	m.consumers.refresh(c)
	return r
}

// takeDeferred hands deferred messages to a session that has no consumer for them, as
// gets do, or settles them at once: all, or none if one is not there. Those that come
// back are deferred again under their tokens. If they are of a group it is not the
// session's with them, and is no lock for them: they have their own.
//
// Refusals: Invalid for a token that comes twice; Reserved if the queue is paused or
// forwards, or the session holds what can not be named by number.
func (m *Machine) takeDeferred(s *session, cmd *logpb.ReceiveDeferred, eff *fsm.Effects) fsm.Result {
	tokens, c := cmd.GetTokens(), s.consumer(0)
	if len(tokens) > namedAtOnce || repeats(tokens) {
		return fsm.Result{Code: fsm.Invalid}
	}
	taken := make([]uint32, len(tokens))
	for i, token := range tokens {
		if taken[i] = m.firstDeferred(token, eff); taken[i] == 0 {
			return fsm.Result{Code: fsm.NotFound}
		}
	}
	switch {
	case m.paused() || m.settings.forwards() || c != nil && c.held.Len() > 0 && !c.numbered:
		return fsm.Result{Code: fsm.Reserved}
	case c == nil && m.consumers.crowded():
		return fsm.Result{Code: fsm.Crowded}
	case c == nil:
		c = m.consumers.register(s, 0)
	}
	m.lease.touch()
	m.sessions.renewSuspicion(s)
	m.scratch.delivered = c.next
	c.numbered, c.lockLength, c.lockGrace = true, duration(cmd.GetLock()), duration(cmd.GetLock())
	m.scratch.taken = m.scratch.taken[:0]
	for i, h := range taken {
		m.aside.take(h)
		if !m.settings.grouped() && m.groupOf(h) != nil {
			m.messages.ungroup(h)
		}
		id, lock := m.hand(h, c, true)
		d := m.deliver(c, id, h, lock, eff)
		d.Ready = m.messages.readyCount()
		if cmd.GetNoAck() {
			d.LockedUntil, d.LockRemaining = 0, 0
			m.consumers.take(c, id, id)
		} else {
			m.aside.mark(h, tokens[i])
		}
	}
	m.renewGroups(c, nil)
	m.ack(m.scratch.taken, eff)
	m.scratch.taken = m.scratch.taken[:0]
	return fsm.Result{Count: uint64(len(taken))}
}

func repeats(tokens []string) bool {
	tokens = slices.Clone(tokens)
	slices.Sort(tokens)
	return len(slices.Compact(tokens)) < len(tokens)
}

// mark notes that message h, which is held, is deferred again under a token when it
// comes back; empty: it is not.
func (p *aside) mark(h uint32, token string) {
	if p.messages.scheduleInfo(h).deferral != token {
		r := *p.messages.scheduleInfo(h)
		r.deferral = strings.Clone(token)
		p.messages.setScheduleInfo(h, r)
	}
}

// again defers message h, which has come back, under the token that it was taken from. It
// returns false if there is none, or another message has it.
func (p *aside) again(h uint32) bool {
	token := p.messages.scheduleInfo(h).deferral
	if token == "" {
		return false
	}
	p.mark(h, "")
	if p.find(token) != 0 {
		return false
	}
	p.put(h, Deferred, 0, token)
	p.counters.Deferred++
	return true
}

// firstDeferred returns the message under a token; 0: there is none. Due
// messages expire, up to the budget, so that deaths keep their order; one that
// is still due counts as gone, and so does one that is due to return.
func (m *Machine) firstDeferred(token string, eff *fsm.Effects) uint32 {
	for {
		h := m.aside.find(token)
		if h == 0 || m.messages.Get(h).due(m.clock.now()) {
			return 0
		}
		at := m.messages.scheduleInfo(h).expireAt
		if at == 0 || at > m.clock.now() {
			return h
		}
		if !m.expireNext(eff) {
			return 0
		}
	}
}
