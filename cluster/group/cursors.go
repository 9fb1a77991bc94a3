package group

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// cursors are, for the sessions that have submitted something in this term, the number of the command
// that is taken next: all before it are applied, in an entry, or queued in this order. See DESIGN.md.
//
// A cursor that is behind the truth costs copies in the log, which the machine drops; one that is ahead
// of it would keep out commands that are missing. So whatever casts doubt on one removes it, and the
// machine says again where the stream stands.
//
// Of the sessions that have ended, only so many are kept:
//
//	len(of) ≤ limit, which is at most twice those the machine had when it was last asked, plus cursorSlack
//	and what was under way
type cursors struct {
	of    map[fsm.SessionID]cursor
	limit int
}

// cursorSlack is how many cursors are not worth looking for those to drop.
const cursorSlack = 64

// cursor is where the stream of a session stands at its leader.
type cursor struct {
	next  uint64
	light uint64 // the last light batch with commands of the session, by its number
	held  uint64 // and the last one that was held back
}

// run is a run of commands in a batch: of one session, in the order of their numbers and without a gap,
// or a single one that belongs to no stream.
type run struct {
	session fsm.SessionID // zero: no stream
	first   uint64
	count   int

	position queue.Position // of the session, if there is no cursor
	known    bool           // position is known
	take     uint64         // the commands from this number on are taken, those before it are copies
	refused  fsm.Result     // unless it is OK: why none is taken
}

func (r *run) end() uint64 { return r.first + uint64(r.count) }

// runsOf appends the runs of a batch.
func runsOf(runs []run, commands []byte) []run {
	for _, c := range heads(commands) {
		if c.seq == 0 || c.session == (fsm.SessionID{}) {
			c.session, c.seq = fsm.SessionID{}, 0
		} else if n := len(runs); n > 0 && runs[n-1].session == c.session && runs[n-1].end() == c.seq {
			runs[n-1].count++
			continue
		}
		runs = append(runs, run{session: c.session, first: c.seq, count: 1})
	}
	return runs
}

// lacks reports whether the position of a session has to be asked for.
func (c *cursors) lacks(runs []run) bool {
	for i := range runs {
		r := &runs[i]
		if _, ok := c.of[r.session]; !ok && r.session != (fsm.SessionID{}) && !r.known {
			return true
		}
	}
	return false
}

// admit decides what is taken of a batch, and moves the cursors behind it. It reports whether that is
// all of it.
func (c *cursors) admit(runs []run) (whole bool) {
	whole = true
	for i := range runs {
		r := &runs[i]
		if r.session != (fsm.SessionID{}) {
			c.admitRun(r)
			whole = whole && r.refused.Code == fsm.OK && r.take == r.first
		}
	}
	return whole
}

// admitRun is admit for one run. What the machine alone can answer is taken.
func (c *cursors) admitRun(r *run) {
	r.take = r.first
	cursor, known := c.of[r.session]
	if !known {
		switch p := r.position; {
		case p.Over:
			return
		case p.Ended || p.Next == 0 && r.first != 1:
			r.refused = fsm.Result{Code: fsm.NoSession}
			return
		default:
			cursor.next = max(p.Next, 1)
		}
	}
	if r.first > cursor.next {
		r.refused = fsm.Result{Code: fsm.Gap, Next: cursor.next}
		return
	}
	r.take = cursor.next
	cursor.next = max(cursor.next, r.end())
	c.put(r.session, cursor)
}

func (c *cursors) put(s fsm.SessionID, to cursor) {
	if c.of == nil {
		c.of = map[fsm.SessionID]cursor{}
	}
	c.of[s] = to
}

// mark notes, for the sessions of a batch, that it is the light or the held back one of a number.
func (c *cursors) mark(runs []run, light, held uint64) {
	for i := range runs {
		if at, ok := c.of[runs[i].session]; ok {
			at.light, at.held = max(at.light, light), max(at.held, held)
			c.of[runs[i].session] = at
		}
	}
}

// newest returns the numbers of the newest light batch and of the newest held back one that have commands
// of the sessions of a batch.
func (c *cursors) newest(runs []run) (light, held uint64) {
	for i := range runs {
		at := c.of[runs[i].session]
		light, held = max(light, at.light), max(held, at.held)
	}
	return light, held
}

// crowded reports whether it is time to forget ended sessions.
func (c *cursors) crowded() bool { return len(c.of) > max(c.limit, cursorSlack) }

// forgetEnded removes the cursors of sessions that have ended.
func (c *cursors) forgetEnded(m *queue.Machine) {
	for s := range c.of {
		if p := queue.PositionOf(m, s); p.Ended || p.Over {
			delete(c.of, s)
		}
	}
	c.limit = 2*len(c.of) + cursorSlack
}

// only returns a batch of those commands of b that are taken.
func (b *Batch) only(runs []run) Batch {
	out := *b
	out.Commands, out.Count, out.Payloads, out.Bytes = make([]byte, 0, len(b.Commands)), 0, nil, 0
	payloads, in := b.Payloads, 0 // the position in the first of runs
	for raw, c := range heads(b.Commands) {
		var payload []byte
		if c.payload && c.size > 0 {
			payload, payloads = cutPayload(payloads, c.size)
		}
		r := &runs[0]
		if r.refused.Code == fsm.OK && r.first+uint64(in) >= r.take {
			out.Commands = append(out.Commands, raw...)
			out.Count++
			if payload != nil {
				out.Payloads = append(out.Payloads, payload)
				out.Bytes += len(payload)
			}
		}
		if in++; in == r.count {
			runs, in = runs[1:], 0
		}
	}
	return out
}

// cutPayload takes a payload off the front of those of a batch. Those of another node are joined.
func cutPayload(from [][]byte, size int) (payload []byte, rest [][]byte) {
	switch {
	case len(from) == 0:
		return nil, nil
	case size >= len(from[0]):
		return from[0], from[1:]
	}
	from = slices.Clone(from)
	payload, from[0] = from[0][:size:size], from[0][size:]
	return payload, from
}
