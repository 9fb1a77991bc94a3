package group

import (
	"time"

	"github.com/quorate/quorate/cluster/replica"
)

// Watched holds the progress of a group under watch.
type Watched struct {
	Entries                 replica.Mark
	tick, settings, effects replica.Mark
}

// Stall returns for how long work of the group has made no progress, and whether the group has any
// work.
func (g *Instance) Stall(x *Watched, now time.Duration) (s replica.Stalled, busy bool) {
	if g.IsClosed() || !g.IsLeader() || g.Barred() {
		*x = Watched{}
		return replica.Stalled{}, g.leadsNobody(now)
	}
	r, l := g.Raft(), &g.leadership
	s = replica.Stalled{Term: r.CurrentTerm(), Last: r.LastIndex(), Commit: r.CommitIndex(), Applied: r.AppliedIndex()}
	serves := l.term.Load() != 0
	entries := s.Last > s.Applied || g.proposer.busy()
	if l.pauses() { // which has time limits of its own
		*x = Watched{}
		return s, true
	}
	s.For, s.Reason = x.Entries.Update(entries, s.Applied, now), replica.StuckEntries
	performs, steps := g.outgoing.progress()
	if d := x.effects.Update(performs, steps, now); d > s.For {
		s.For, s.Reason = d, replica.StuckEffects
	}
	tick, settings := x.tick.Waits, x.settings.Waits
	if w, ok := g.applier.waiting(serves, &g.settings); ok {
		tick, settings = w.tick, w.settings
		if d := x.tick.Update(w.tick, w.ticks, now); d > s.For {
			s.For, s.Reason = d, replica.StuckTick
		}
		if d := x.settings.Update(w.settings, w.revision, now); d > s.For {
			s.For, s.Reason = d, replica.StuckSettings
		}
	}
	return s, entries || tick || settings || performs || !serves
}

// leadsNobody reports whether raft leads here in a term in which the group has resigned. If nobody
// takes over for a long time, the group resumes its leadership.
func (g *Instance) leadsNobody(now time.Duration) bool {
	l := &g.leadership
	if g.IsClosed() || !g.IsLeader() || !l.hasResigned() {
		return false
	}
	if now-l.resigned.At > 3*g.node.Bound {
		g.slog.Warn("a leader that makes no progress keeps leading: no member has taken over")
		l.resigned.Term.Store(0)
		g.node.Tasks.Go(g.Review)
	}
	return true
}

// Busy reports whether the group has work that is not under watch.
func (g *Instance) Busy() bool {
	if g.IsClosed() || !g.IsLeader() || g.Barred() {
		return false
	}
	r := g.Raft()
	performs, _ := g.outgoing.progress()
	return performs || g.proposer.busy() || r.LastIndex() > r.AppliedIndex()
}

// WhyKeep says why a leader that makes no progress does not resign; empty: it does.
func (g *Instance) WhyKeep(now time.Duration) string {
	return g.Replica.WhyKeep(&g.leadership.resigned, now)
}

// Resign gives up the leadership of a stalled group. Its raft may hang, so Resign does not depend
// on it: this node stops serving the group in this term, asks the members which of them can be
// elected, and tells that member to stand.
func (g *Instance) Resign(s replica.Stalled, now time.Duration) {
	g.leadership.resigned.Begin(s.Term, now)
	g.slog.Warn("a leader is making no progress and resigns", "reason", s.Reason, "for", s.For.Round(time.Millisecond),
		"term", s.Term, "last", s.Last, "commit", s.Commit, "applied", s.Applied)
	g.node.Tasks.Go(g.Review)
	g.node.Elections.Begin(g)
}

// TransferTo implements election.Electable. This replica is raft's leader and must not serve.
func (g *Instance) TransferTo(node string, wins bool) {
	g.node.Tasks.Go(func() {
		term, leads := g.LeadsIn()
		resigned := g.leadership.hasResigned() && g.Quarantined() == nil
		switch {
		case !leads || !g.Barred() || g.IsClosed():
		case resigned && !wins:
			g.slog.Warn("a leader that makes no progress keeps leading: " + replica.KeepsNobody)
			g.leadership.resigned.Term.Store(0)
			g.Review()
		default:
			g.Yield(node, term, resigned)
		}
	})
}
