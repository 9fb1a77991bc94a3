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

// pulse paces the pings of a link, and counts for how long nothing has arrived. That time is counted by
// the pauses between pings, so that a process that stalls does not suspect its peers. A link that rests
// is pinged faster once a ping is not answered, and found unheard as soon as any other.
//
// Where this process gets a processor late, its peers may as well: they are given more time, up to twice
// SuspectAfter.
//
//	unheard < limit()
//	late ≤ SuspectAfter / lateWeight
type pulse struct {
	t       *Timing
	pings   int
	heard   time.Duration // when a byte last arrived, as far as is known here
	unheard time.Duration
	woke    time.Duration // when the last pause ended, or the first began
	late    time.Duration // by how much pauses have been longer than asked for, of late
}

// pause returns the time until the next ping; answered: the ping before this one has been.
func (p *pulse) pause(answered bool) time.Duration {
	pause := p.t.PingInterval
	if p.pings++; answered && p.pings > youngPings && p.t.RestInterval > pause {
		pause = worker.Next(p.t.RestInterval)
	}
	return min(pause, p.limit()-p.unheard)
}

// limit is after how long without a sign of life the peer is suspected.
func (p *pulse) limit() time.Duration {
	return p.t.SuspectAfter + lateWeight*p.late
}

// passed takes a pause that is over, and when a byte has last arrived, and reports whether nothing has
// arrived for too long.
func (p *pulse) passed(pause, heard, now time.Duration) (unheard bool) {
	p.late = min(max(now-p.woke-pause, p.late*7/8), p.t.SuspectAfter/lateWeight)
	p.woke = now
	if heard != p.heard {
		p.heard, p.unheard = heard, min(pause, now-heard)
	} else {
		p.unheard += pause
	}
	return p.unheard >= p.limit()
}
