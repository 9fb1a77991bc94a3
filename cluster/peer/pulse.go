package peer

import (
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

// youngPings is how many pings a link sends before it rests between them: by then the clock of the
// other node is known well.
const youngPings = 8

// lateWeight is how often the lateness of this process's timers is added to SuspectAfter. More than that
// makes twice SuspectAfter is not remembered: it would count long after.
const lateWeight = 8

// maxRoundTrip bounds the round trip that is allowed for: a node farther away has no more time than that.
const maxRoundTrip = 1300 * time.Millisecond

// pulse paces the pings of a link, and counts for how long nothing has arrived. That time is counted by
// the pauses between pings, so that a process that stalls does not suspect its peers. A link that rests
// is pinged faster once a ping is not answered, and found unheard as soon as any other.
//
// A peer that is far is given the round trip beside SuspectAfter: what it has sent since is under way.
// Where this process gets a processor late, its peers may as well: they are given more time, up to
// SuspectAfter once more.
//
//	unheard < limit()
//	far ≤ maxRoundTrip
//	late ≤ SuspectAfter / lateWeight
type pulse struct {
	t       *Timing
	pings   int
	heard   time.Duration // when a byte last arrived, as far as is known here
	unheard time.Duration
	woke    time.Duration // when the last pause ended, or the first began
	far     time.Duration // the round trip
	late    time.Duration // by how much pauses have been longer than asked for, of late
}

func newPulse(t *Timing, now, roundTrip time.Duration) pulse {
	return pulse{t: t, woke: now, far: min(roundTrip, maxRoundTrip)}
}

// pause returns the time until the next ping; answered: the ping before this one has been.
func (p *pulse) pause(answered bool) time.Duration {
	pause := p.t.PingInterval
	if p.pings++; answered && p.pings > youngPings && p.t.RestInterval > pause {
		pause = worker.Next(p.t.RestInterval)
	}
	return min(pause, p.limit()-p.unheard)
}

// slack is by how much a bound on what the peer does is longer than that for a near one, if this process
// gets a processor at once.
func (p *pulse) slack() time.Duration { return p.far + lateWeight*p.late }

// limit is after how long without a sign of life the peer is suspected.
func (p *pulse) limit() time.Duration { return p.t.SuspectAfter + p.slack() }

// passed takes a pause that is over, the round trip, and when a byte has last arrived, which is not before
// what has shown the round trip. It reports whether nothing has arrived for too long.
func (p *pulse) passed(pause, roundTrip, heard, now time.Duration) (unheard bool) {
	p.far = min(roundTrip, maxRoundTrip)
	p.late = min(max(now-p.woke-pause, p.late*7/8), p.t.SuspectAfter/lateWeight)
	p.woke = now
	if heard != p.heard {
		p.heard, p.unheard = heard, min(pause, now-heard)
	} else {
		p.unheard += pause
	}
	return p.unheard >= p.limit()
}
