package fsmtest

import "github.com/quorate/quorate/proto/logpb"

// scheduled makes a message wait.
func (g *generator) scheduled(e *logpb.Enqueue) {
	if g.oneIn("absolute", 2) {
		e.DueAt = int64(g.meta.Now) + int64(of(g, "due in", 1000, 10, 1, 5000, -5, g.n("any due", 4000)))
	} else {
		e.DelayPlusOne = 1 + uint64(of(g, "delay", 1000, 0, 10, 5000, g.n("any delay", 4000)))
	}
	if g.oneIn("with a name", 2) {
		e.ScheduleId = of(g, "name", "a", "b", "c")
		e.Conflict = of(g, "conflict", logpb.Enqueue_REPLACE, logpb.Enqueue_REJECT, logpb.Enqueue_IGNORE)
	}
}

// later draws a message that waits.
func (g *generator) later() *logpb.Command {
	e := &logpb.Enqueue{Size: uint32(8 + g.n("size", 100))}
	if g.oneIn("message ttl", 2) {
		e.TtlPlusOne = 1 + uint64(of(g, "ttl", 0, 10, 1000))
	}
	g.taste.message(g, e)
	g.scheduled(e)
	return g.client().send(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
}

// schedule draws what is done to scheduled messages.
func (g *generator) schedule() *logpb.Command {
	s := &logpb.Schedule{Action: of(g, "action", logpb.Schedule_CANCEL, logpb.Schedule_MOVE, logpb.Schedule_FIRE)}
	if all := g.q.in(scheduled); len(all) > 0 {
		x := all[g.n("which", len(all))]
		if s.Id = x.id; s.Id == "" || g.oneIn("by number", 3) {
			s.Id, s.Message = "", x.seq
		}
	} else if g.oneIn("in any case", 2) {
		return g.later()
	}
	switch s.Action {
	case logpb.Schedule_MOVE:
		s.DueAt = int64(g.meta.Now) + int64(g.n("due in", 3000))
		if g.oneIn("by delay", 3) {
			s.DueAt, s.DelayPlusOne = 0, 1+uint64(g.n("delay", 2000))
		}
	case logpb.Schedule_FIRE:
		if g.oneIn("several", 2) {
			s.Id, s.Message, s.Count = "", 0, uint64(g.n("count", 4))
		}
	}
	if s.Action == logpb.Schedule_CANCEL && g.oneIn("all or none", 3) {
		s.Id, s.Message = "", 0
		for _, x := range g.q.in(scheduled) {
			if g.oneIn("cancelled", 2) {
				s.Messages = append(s.Messages, x.seq)
			}
		}
		if g.oneIn("another", 4) {
			s.Messages = append(s.Messages, uint64(g.n("any number", 100)))
		}
	}
	c := &logpb.Command{Kind: logpb.Command_SCHEDULE, Schedule: s}
	if g.oneIn("in the stream", 2) {
		return g.client().send(c)
	}
	return c
}
