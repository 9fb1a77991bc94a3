package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// fate is what becomes of those that die for this reason; Death_NONE asks for
// the strategy. What a queue drops because it is too long does not go through
// the outbox, which would grow then, and nothing does while that is full.
func (m *Machine) fate(reason logpb.Death_Reason) Fate {
	switch strategy := m.settings.DeadLetterStrategy; {
	case m.settings.DelayedStore:
		return AtLeastOnce
	case !m.settings.DeadLetter:
		return Dropped
	case reason == logpb.Death_MAXLEN || strategy == logpb.QueueConfig_AT_MOST_ONCE:
		return SentOnce
	case reason != logpb.Death_NONE && m.outboxFull():
		return SentOnce
	case strategy == logpb.QueueConfig_AT_LEAST_ONCE:
		return AtLeastOnce
	}
	return Transactional
}

// outboxFull reports whether the outbox may take no more letters.
func (m *Machine) outboxFull() bool {
	return m.settings.maxLetters.given && m.letters() >= m.settings.maxLetters.value
}

// die ends message h, which is in no place: it becomes a letter of the outbox,
// or is gone, with or without a letter that is sent once.
func (m *Machine) die(h uint32, reason logpb.Death_Reason, eff *fsm.Effects) {
	if reason == logpb.Death_EXPIRED {
		m.counters.Expired++
	}
	fate := m.fate(reason)
	m.counters.Deaths[reason-1][fate]++
	if fate == Dropped {
		m.messages.free(h, eff)
		return
	}
	m.counters.DeadLettered++
	e := m.messages.mutExtra(h)
	e.reason, e.diedAt = reason, m.clock.now()
	e.deaths = m.addDeath(e.deaths, reason)
	if fate == SentOnce {
		eff.DeadLetters = append(eff.DeadLetters, m.deadLetter(h))
		m.messages.free(h, eff)
		return
	}
	m.post(h, eff)
}

// post puts message h, which is in no place, at the end of the outbox.
func (m *Machine) post(h uint32, eff *fsm.Effects) {
	m.messages.mutExtra(h).letter = m.nextLetter
	m.nextLetter++
	m.messages.put(h, Outbox)
	if m.unrouted == 0 {
		m.unrouted = h
	}
	eff.Outbox = true
}

// addDeath returns the history with one more death in this queue in front.
// The history of a new pair of queue and reason is filled in by whoever
// forwards the letter, from the payload.
func (m *Machine) addDeath(history []*logpb.Death, reason logpb.Death_Reason) []*logpb.Death {
	now := &logpb.Death{Reason: reason, Queue: m.name, Count: 1, Time: int64(m.clock.now()), First: len(history) == 0}
	i := slices.IndexFunc(history, func(d *logpb.Death) bool { return d.Reason == reason && d.Queue == m.name })
	if i < 0 {
		return slices.Concat([]*logpb.Death{now}, history)
	}
	old := history[i]
	now.Count, now.Time, now.First = old.Count+1, old.Time, old.First
	now.Exchange, now.RoutingKeys, now.OriginalExpiration = old.Exchange, old.RoutingKeys, old.OriginalExpiration
	return slices.Concat([]*logpb.Death{now}, history[:i], history[i+1:])
}

// copyDeaths returns a history that shares nothing with a command.
func copyDeaths(from []*logpb.Death) []*logpb.Death {
	deaths := make([]*logpb.Death, len(from))
	for i, d := range from {
		deaths[i] = &logpb.Death{
			Reason: d.GetReason(), Queue: d.GetQueue(), Count: d.GetCount(), Time: d.GetTime(), Exchange: d.GetExchange(),
			RoutingKeys: slices.Clone(d.GetRoutingKeys()), OriginalExpiration: d.GetOriginalExpiration(),
			First: d.GetFirst(), LastExchange: d.GetLastExchange(),
		}
	}
	return deaths
}

// deadLetter describes message h, which has died.
func (m *Machine) deadLetter(h uint32) fsm.DeadLetter {
	x, e, r := m.messages.get(h), m.messages.extraOf(h), m.messages.rareOf(h)
	return fsm.DeadLetter{
		Ref: x.ref(), Reason: e.reason, DiedAt: e.diedAt, Priority: x.priority, ScheduledFor: r.scheduledFor,
		HasExpiration: x.hasExpiration(), Deaths: e.deaths, Fresh: e.reason != logpb.Death_NONE && e.deaths[0].Count == 1,
		TTLPlusOne: r.ttl, CeilingPlusOne: r.ceiling,
	}
}

// letter describes letter h.
func (m *Machine) letter(h uint32) Letter {
	e := m.messages.extraOf(h)
	return Letter{Number: e.letter, DeadLetter: m.deadLetter(h), Done: m.messages.rareOf(h).done, Transfers: e.transfers}
}

// letters is the number of letters that have not come to an end.
func (m *Machine) letters() uint64 {
	return m.messages.count(Outbox).Messages + m.messages.count(Waiting).Messages
}

// UnroutedLetters returns up to limit letters without a route, oldest first.
func (m *Machine) UnroutedLetters(limit int) []Letter {
	var letters []Letter
	for h := m.unrouted; h != 0 && len(letters) < limit; h = m.messages.get(h).next {
		letters = append(letters, m.letter(h))
	}
	return letters
}

// WaitingLetters returns up to limit letters that have nowhere to go for now,
// with a number above after, ascending.
func (m *Machine) WaitingLetters(after uint64, limit int) []Letter {
	var letters []Letter
	for _, h := range m.patient.from(key{seq: after + 1}) {
		if len(letters) == limit {
			break
		}
		letters = append(letters, m.letter(*h))
	}
	return letters
}
