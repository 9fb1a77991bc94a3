package fsmtest

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// unit performs publishes and settlements by number together, or none of them.
func (q *model) unit(m fsm.Meta, u *logpb.Unit) (r fsm.Result) {
	sends, settles, ok := q.parts(u)
	if !ok {
		return fsm.Result{Code: fsm.Invalid}
	}
	if code := q.refusesUnit(u); code != fsm.OK {
		if len(sends) > 0 {
			q.unneeded = m.Index
		}
		return fsm.Result{Code: code}
	}
	if r.Count = uint64(len(sends)); r.Count > 0 {
		r.Next = q.nextMessage
	}
	q.hasSpace = true
	for _, e := range sends {
		number := q.nextMessage
		if e.SendTo != 0 {
			q.sendOn(m, e)
		} else {
			q.enqueue(m, e)
		}
		q.nextMessage = number + 1
		m.Offset += e.Size
	}
	q.hasSpace = false
	for _, d := range settles {
		q.settleNumbered(d)
	}
	return r
}

// parts are what a unit consists of. ok: it may be performed.
func (q *model) parts(u *logpb.Unit) (sends []*logpb.Enqueue, settles []*logpb.Settle, ok bool) {
	size, named, tokens := uint32(0), map[uint64]bool{}, map[string]bool{}
	for _, c := range u.GetCommands() {
		switch e, d := c.GetEnqueue(), c.GetSettle(); c.GetKind() {
		case logpb.Command_ENQUEUE:
			if e.GetSize() == 0 || e.Head > e.Size || len(e.Deaths) > 0 || e.ScheduleId != "" || e.Restored != nil || e.SendTo == uint64(machineID) {
				return nil, nil, false
			}
			sends, size = append(sends, e), size+e.Size
		case logpb.Command_SETTLE:
			_, _, ok := q.named(d.GetNumbers())
			defers := d.GetOutcome() == logpb.Settle_DEFER
			if !ok || len(d.Numbers) == 0 || d.Outcome < 0 || d.Outcome > logpb.Settle_DEFER || defers && (len(d.Numbers) != 2 || d.Deferral == "" || tokens[d.Deferral]) {
				return nil, nil, false
			}
			for i := 0; i < len(d.Numbers); i += 2 {
				if named[d.Numbers[i]] {
					return nil, nil, false
				}
				named[d.Numbers[i]] = true
			}
			settles, tokens[d.Deferral] = append(settles, d), defers
		default:
			return nil, nil, false
		}
	}
	return sends, settles, q.version >= 3 && len(sends)+len(settles) > 0 && size == u.GetSize()
}

func (q *model) refusesUnit(u *logpb.Unit) fsm.Code {
	var more queue.Count
	for _, c := range u.Commands {
		if d := c.GetSettle(); d != nil {
			if _, found, _ := q.named(d.Numbers); !found {
				return fsm.NotFound
			}
			if d.Outcome == logpb.Settle_DEFER && q.findDeferred(d.Deferral) != nil {
				return fsm.InUse
			}
			continue
		}
		if e := c.GetEnqueue(); e.SendTo == 0 && e.GroupId == "" && q.config.GroupRequired && q.hasGroups() {
			return fsm.Rejected
		}
		more = plus(more, q.sizeOf(c.GetEnqueue()))
	}
	if more.Messages > 0 && q.isFullFor(more) {
		q.counters.Refused += more.Messages
		return fsm.Rejected
	}
	return fsm.OK
}

// sendOn makes a message a letter to another queue at once.
func (q *model) sendOn(m fsm.Meta, e *logpb.Enqueue) {
	x := q.newMessage(m, e)
	x.seq, x.scheduledFor = q.nextMessage, fsm.Time(e.ScheduledFor)
	q.messages = append(q.messages, x)
	q.counters.Enqueued++
	q.active = q.clock
	x.group = ""
	x.letterState = letterState{diedAt: q.clock, forwarded: true, taken: taken{e.SendTo, logpb.Take_MOVE}}
	x.hops = 1
	q.post(x)
}

// unit draws publishes and settlements by number, most of which can be performed.
func (g *generator) unit() *logpb.Command {
	u := &logpb.Unit{}
	add := func(c *logpb.Command) {
		c.Session, c.Seq, c.OpenedAt = nil, 0, 0
		u.Commands = append(u.Commands, c)
	}
	for range g.n("publishes", 4) {
		e := &logpb.Enqueue{Size: uint32(1 + g.n("size", 60)), Routed: g.oneIn("routed", 2)}
		if g.oneIn("message ttl", 3) {
			e.TtlPlusOne = 1 + uint64(of(g, "ttl", 0, 10, 1000))
		}
		g.taste.message(g, e)
		if g.oneIn("later", 4) {
			g.scheduled(e)
			if !g.oneIn("named", 12) {
				e.ScheduleId, e.Conflict = "", 0
			}
		}
		if g.oneIn("sent on", 4) {
			e.SendTo, e.TtlPlusOne, e.UniqueKey = uint64(500+g.n("send to", 3)), 0, nil
		}
		u.Size += e.Size
		add(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: e})
	}
	for i, x := range g.q.messages {
		if x.place == checkedOut && x.holder != nil && x.holder.numbered && g.oneIn("settled", 2) {
			d := &logpb.Settle{Outcome: logpb.Settle_Outcome(g.n("outcome", 5)), Numbers: []uint64{x.seq, uint64(x.acquired)}}
			if d.Outcome == logpb.Settle_DEFER {
				d.Deferral = fmt.Sprint("t", i)
			}
			add(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: d})
		}
	}
	if g.oneIn("odd unit", 12) {
		u.Size += uint32(g.n("too much", 2))
		if n := g.numbers(); n != nil {
			add(&logpb.Command{Kind: logpb.Command_SETTLE, Settle: &logpb.Settle{Numbers: n}})
		}
	}
	c := &logpb.Command{Kind: logpb.Command_UNIT, Unit: u}
	if g.oneIn("outside of a stream", 4) {
		return c
	}
	return g.client().send(c)
}

// payloadOf is how much payload a command brings.
func payloadOf(c *logpb.Command) uint32 {
	if c.GetKind() == logpb.Command_UNIT {
		return c.Unit.GetSize()
	}
	return c.GetEnqueue().GetSize()
}
