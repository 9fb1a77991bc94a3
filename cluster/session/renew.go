package session

import (
	"slices"

	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// renewal is what a consumer has to renew. While a command is on its way what comes is joined, so that a client that
// renews often fills neither the log nor, without a leader, memory.
type renewal struct {
	onWay   bool
	waiting []uint64 // deliveries, ascending; at most what the client holds
}

// renewing is the note of a command that renews deliveries.
type renewing struct {
	consumer uint64
	ids      []uint64
}

// Renew lets deliveries of a consumer be held for longer.
func (x *consumers) Renew(number uint64, ids []uint64) {
	x.session.lock()
	defer x.session.unlock()
	if c := x.known[number]; c != nil {
		c.renewal.waiting = joined(c.renewal.waiting, ids)
		x.renew(number, c)
	}
}

// renew sends what waits, unless a command is on its way. The lock is held.
func (x *consumers) renew(number uint64, c *consumer) {
	r, to := &c.renewal, c.at.stream
	if r.onWay || len(r.waiting) == 0 || to.Over() || to.Ending() {
		return
	}
	note := &renewing{number, r.waiting}
	r.onWay, r.waiting = true, nil
	to.Add(&logpb.Command{Kind: logpb.Command_RENEW, Renew: &logpb.Renew{
		Consumer: number, Ranges: stream.AppendRanges(nil, note.ids),
	}}, stream.Pending{Note: note})
}

// renewed takes the answer to a command. One command may not do all: then the rest follows. The lock is held. Nothing
// is sent here, since the stream is reporting answers: renewOn does it.
func (x *consumers) renewed(a *renewing, answer fsm.Result) {
	c := x.known[a.consumer]
	if c == nil {
		return
	}
	c.renewal.onWay = false
	if answer.Code == fsm.OK && answer.Next != 0 {
		from, _ := slices.BinarySearch(a.ids, answer.Next)
		c.renewal.waiting = joined(c.renewal.waiting, a.ids[from:])
	}
	x.renewals = append(x.renewals, a.consumer)
}

// renewOn sends what has waited for answers. The lock is held.
func (x *consumers) renewOn() {
	for _, number := range x.renewals {
		if c := x.known[number]; c != nil {
			x.renew(number, c)
		}
	}
	x.renewals = x.renewals[:0]
}

// joined returns what is in one of two ascending lists, in a list of its own.
func joined(a, b []uint64) []uint64 {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
