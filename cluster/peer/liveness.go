package peer

import "time"

// liveness concludes from a node's links, and from attempts to dial it, whether
// it is alive. It rests on the links that are dialled here alone: what cannot be
// reached cannot be used. A node is alive from a link on until there is evidence
// of its death, so that a link that breaks and comes back ends nothing.
//
//	epoch never falls, and rises with each announcement that the node is up
//	incarnation is that of the last link
//	refusedFor > 0 only if all attempts since the last link were refused, or do
//	not count; then refusedAt is when the last one was
type liveness struct {
	alive       bool
	incarnation [16]byte
	epoch       uint64
	lostAt      time.Time // when the last link broke
	refusedAt   time.Time
	refusedFor  time.Duration // leaves out what does not count
}

// replaced reports whether the process that is alive cannot be, because another
// one of the node gives signs of life.
func (l *liveness) replaced(by [16]byte) bool { return l.alive && by != l.incarnation }

// linked notes a link to a process of the node.
func (l *liveness) linked(incarnation [16]byte) {
	l.alive, l.incarnation, l.refusedFor = true, incarnation, 0
}

// lost notes that the link broke.
func (l *liveness) lost(now time.Time) { l.lostAt, l.refusedAt = now, time.Time{} }

// refused notes that the node's host has refused a connection.
func (l *liveness) refused(now time.Time) {
	if !l.refusedAt.IsZero() {
		// Of a pause in which this process was stopped little counts.
		l.refusedFor += min(now.Sub(l.refusedAt), 2*redialMax)
	}
	l.refusedAt = now
}

// failed notes that an attempt to dial has failed in another way.
func (l *liveness) failed() { l.refusedAt, l.refusedFor = time.Time{}, 0 }

// evidence says why the node is not alive, by what is known of attempts to dial
// it; empty: it may be.
func (l *liveness) evidence(now time.Time, t *Timing) (reason string) {
	switch {
	case l.refusedFor >= t.RefusedAfter:
		return Refused
	case now.Sub(l.lostAt) >= t.SuspectAfter:
		return Suspected
	}
	return ""
}
