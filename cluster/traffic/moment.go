package traffic

import "time"

// moment is when samples were taken. The zero value: there are none yet.
//
// Invariant: slot > 0 implies since >= shortest.
type moment struct {
	slot  int64
	at    time.Time
	since time.Duration // from the samples before, on the monotonic clock; of the first: Interval
}

// shortest is the least time that a rate is taken over. Samples that were late, or are the first,
// may be followed by others at once; what came in these few milliseconds says nothing of a second.
const shortest = time.Second

// next returns the moment of samples that follow those of m. It returns false if their slot is not
// above that of m: the same slot, or the clock was set back.
func (m moment) next(at time.Time) (moment, bool) {
	n := moment{slot: SlotAt(at), at: at, since: Interval}
	if n.slot <= m.slot {
		return m, false
	}
	if m.slot > 0 {
		n.since = max(at.Sub(m.at), shortest)
	}
	return n, true
}
