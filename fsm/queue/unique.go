package queue

import "github.com/quorate/quorate/proto/logpb"

// uniques are the keys of messages, of which the queue takes no second one while they are there. A message has its
// key from when it is taken in until it ends or becomes a letter.
//
// Invariants:
//
//	of has, for each message with a key (extra.unique), that message; and nothing else
//	purges is not less than extra.purges of any of them, and equal to it unless somebody holds the message, or
//	it was purged
//
// A purge leaves the records as they are, and a message is not freed at the instant at which it expires. So a key may lead
// to a message that is gone: it is free, and so is the key once somebody asks (Machine.withKey).
//
// A snapshot has the keys with the messages. of is never iterated, so the order of a map cannot reach the state.
type uniques struct {
	of map[messageID]uint32
	// purges counts the purges of this machine: replicas need not agree on it. What is held is not purged.
	purges uint32
}

func (u *uniques) clear() { u.of = nil }

func (u *uniques) find(key messageID) uint32 { return u.of[key] }

// survived reports whether a message with a key was not purged, unless it is held: then it does not say.
func (u *uniques) survived(e *extra) bool { return e.purges == u.purges }

// lifted notes that a message is held no more: no purge so far has reached it.
func (u *uniques) lifted(e *extra) { e.purges = u.purges }

// give gives message h, of which e is, a key that no message has.
func (u *uniques) give(h uint32, e *extra, key messageID) {
	if u.of == nil {
		u.of = map[messageID]uint32{}
	}
	u.of[key] = h
	e.unique, e.purges = key, u.purges
}

// drop frees the key of the message of which e is, if it has one.
func (u *uniques) drop(e *extra) {
	if e.unique == (messageID{}) {
		return
	}
	if delete(u.of, e.unique); len(u.of) == 0 {
		u.of = nil
	}
	e.unique = messageID{}
}

func (u *uniques) purged() { u.purges++ }

// uniqueKey returns the key of a message; zero: it has none, or the queue asks for none.
func (s *shared) uniqueKey(cmd *logpb.Enqueue) (key messageID) {
	if s.settings.Unique && len(cmd.UniqueKey) == len(key) && s.since(3) {
		key = messageID(cmd.UniqueKey)
	}
	return key
}

// withKey returns the message that has a key; 0: there is none, and the key is free. What was purged is not there, nor
// is what has expired, unless somebody holds it or its group, or what dies with its group.
func (m *Machine) withKey(key messageID) uint32 {
	h := m.uniques.find(key)
	if h == 0 {
		return 0
	}
	x, e := m.messages.Get(h), m.messages.extra(h)
	expires := x.expireAt
	if x.place.aside() {
		expires = m.messages.scheduleInfo(h).expireAt
	}
	switch {
	case x.place == CheckedOut:
		return h
	case !m.uniques.survived(e), (x.place == Grouped || x.place == Delayed) && m.doomed(h):
	case x.place == Scheduled, x.place == Grouped && m.covered(h), expires == 0, expires > m.clock.now():
		return h
	}
	m.uniques.drop(m.messages.editExtra(h))
	m.messages.dropInfo(h)
	return 0
}

// unique is part of check for message h, which was purged or not.
func (k *checker) unique(h uint32, purged bool) {
	u, x, e := k.m.uniques, k.m.messages.Get(h), k.m.messages.extra(h)
	if e.unique == (messageID{}) {
		return
	}
	k.keyed++
	switch {
	case u.find(e.unique) != h:
		k.fail("message %d is not found by its key", x.seq)
	case (purged || x.place != CheckedOut) && u.survived(e) == purged:
		k.fail("message %d has a key of purge %d of %d", x.seq, e.purges, u.purges)
	case !purged && e.letter != 0:
		k.fail("letter %d has a key", e.letter)
	}
}

func (u *uniques) check(k *checker) {
	k.that(k.keyed == len(u.of), "%d messages have a key, %d keys", k.keyed, len(u.of))
}
