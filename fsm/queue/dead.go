package queue

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// die ends message h, which is in no place: it becomes a letter of the outbox
// or, without a dead-letter exchange, is gone.
func (m *Machine) die(h uint32, reason logpb.Death_Reason, eff *fsm.Effects) {
	if reason == logpb.Death_EXPIRED {
		m.counters.Expired++
	}
	if !m.config.DeadLetter {
		m.free(h, eff)
		return
	}
	m.counters.DeadLettered++
	e := m.mutExtra(h)
	e.reason, e.diedAt, e.letter = reason, m.clock, m.nextLetter
	e.deaths = m.addDeath(e.deaths, reason)
	m.nextLetter++
	m.setPlace(m.messages.mut(h), Outbox)
	m.append(h)
	if m.unrouted == 0 {
		m.unrouted = h
	}
	eff.Outbox = true
}

// addDeath returns the history with one more death in this queue in front.
// The history of a new pair of queue and reason is filled in by whoever
// forwards the letter, from the payload.
func (m *Machine) addDeath(history []*logpb.Death, reason logpb.Death_Reason) []*logpb.Death {
	now := &logpb.Death{Reason: reason, Queue: m.name, Count: 1, Time: int64(m.clock)}
	i := slices.IndexFunc(history, func(d *logpb.Death) bool { return d.Reason == reason && d.Queue == m.name })
	if i < 0 {
		return slices.Concat([]*logpb.Death{now}, history)
	}
	old := history[i]
	now.Count, now.Time = old.Count+1, old.Time
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
		}
	}
	return deaths
}

// letter describes letter h of the outbox.
func (m *Machine) letter(h uint32) Letter {
	x, e := m.messages.get(h), m.extraOf(h)
	return Letter{
		Number: e.letter, Ref: x.ref(), Reason: e.reason, DiedAt: e.diedAt, Priority: x.priority,
		HasExpiration: x.hasExpiration, Deaths: e.deaths, Fresh: e.deaths[0].Count == 1, Transfers: e.transfers,
	}
}

// UnroutedLetters returns up to limit letters without a route, oldest first.
func (m *Machine) UnroutedLetters(limit int) []Letter {
	var letters []Letter
	for h := m.unrouted; h != 0 && len(letters) < limit; h = m.messages.get(h).next {
		letters = append(letters, m.letter(h))
	}
	return letters
}
