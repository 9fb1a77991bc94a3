package peer

import "time"

// liveness concludes from a node's links, and from attempts to dial it, whether
// it is alive. It rests on the links that are dialled here alone: what cannot be
// reached cannot be used. A node is alive from a link on until there is evidence
// of its death, so that a link that breaks and comes back ends nothing.
//
//	epoch never falls, and rises with each announcement that the node is up
//	incarnation is that of the last link
type liveness struct {
	alive       bool
	incarnation [16]byte
	epoch       uint64
	lostAt      time.Time // when the last link broke
}

// replaced reports whether the process that is alive cannot be, because another
// one of the node gives signs of life.
func (l *liveness) replaced(by [16]byte) bool { return l.alive && by != l.incarnation }

// linked notes a link to a process of the node.
func (l *liveness) linked(incarnation [16]byte) { l.alive, l.incarnation = true, incarnation }

// evidence says why the node is not alive, by what is known of attempts to dial
// it, which have been refused for so long; empty: it may be. slack is that of the
// last link: where it is long, so are the attempts, and a node that is declared dead
// loses the link that it has got meanwhile.
func (l *liveness) evidence(now time.Time, refusedFor, slack time.Duration, t *Timing) (reason string) {
	switch {
	case refusedFor >= t.RefusedAfter:
		return Refused
	case now.Sub(l.lostAt) >= t.SuspectAfter+slack:
		return Suspected
	}
	return ""
}
