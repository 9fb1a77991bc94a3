package queue

import (
	"github.com/quorate/quorate/fsm"
)

// aside are the messages that were handed out and set aside: delayed ones,
// which are tried again at an instant, and deferred ones, which wait for
// somebody who asks for them by their token. Both expire meanwhile.
//
// Invariants:
//
//	tokens has exactly the deferred messages, each under scheduleInfo.deferral
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

// clear forgets all tokens. The messages are cleared or purged by their part.
func (p *aside) clear() { p.tokens = nil }

// delay makes message h, which is in no place, wait until an instant. Requires:
// until ≥ 1. take is the inverse.
func (p *aside) delay(h uint32, until fsm.Time) { p.put(h, Delayed, until, "") }

// put sets message h aside, which is in no place. Its expiry, if it has one, is
// in expireAt.
func (p *aside) put(h uint32, in Place, until fsm.Time, token string) {
	x := p.messages.mut(h)
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

// find returns the message that is deferred under a token; 0: there is none.
func (p *aside) find(token string) uint32 { return p.tokens[token] }

// take removes message h, which is set aside, and leaves it in no place. Its expiry is in
// expireAt again, even if it has passed, but in no timer; its token is free.
func (p *aside) take(h uint32) {
	p.messages.remove(h)
	x, r := p.messages.mut(h), *p.messages.scheduleInfo(h)
	x.expireAt = r.expireAt
	if r.expireAt == 0 && r.deferral == "" {
		return
	}
	p.timers.neverExpire(r.expireAt, x.seq)
	delete(p.tokens, r.deferral)
	r.expireAt, r.deferral = 0, ""
	p.messages.setScheduleInfo(h, r)
}

// takeWaiting is take for a message that is set aside, ready or parked.
func (p *aside) takeWaiting(h uint32) {
	if p.messages.get(h).place.aside() {
		p.take(h)
	} else {
		p.messages.remove(h)
	}
}
