package group

import (
	"container/heap"
	"time"
)

// Bounds of a window.
const (
	firstWindow = 16
	minWindow   = 4 // a raft that hangs when it is told to stand keeps a place for long
	maxWindow   = 256
)

// inTime is how long a campaign may take on a machine that has time for it: other members let a candidate
// have a slot, and a machine that needs half of it has too much to do.
const inTime = slotTime / 2

// window bounds how many campaigns of a node are under way, that is, not decided yet: it grows with each
// one that is decided in time, and is halved when one is not. So a machine with little time holds few
// elections at once, each of which is over before the next member stands, and all of them together cost
// what one costs, times their number.
//
//	minWindow ≤ size ≤ maxWindow
type window struct {
	size  int
	under int       // campaigns under way; it may be above size, which may shrink
	cut   time.Time // when it was last halved
}

func newWindow() window { return window{size: firstWindow} }

func (w *window) full() bool { return w.under >= w.size }

// begin records a campaign that stands in a term.
func (w *window) begin(now time.Time, term uint64) *campaign {
	w.under++
	return &campaign{began: now, term: term}
}

// decided records that a campaign is over, with a leader or by a later term.
func (w *window) decided(now time.Time, c *campaign) {
	w.under--
	if w.check(now, c); !c.late {
		w.size = min(w.size+1, maxWindow)
	}
}

// check halves the window if a campaign is late, but for all that are late together only once.
func (w *window) check(now time.Time, c *campaign) {
	if c.late || now.Sub(c.began) < inTime {
		return
	}
	c.late = true
	if now.Sub(w.cut) >= slotTime {
		w.size, w.cut = max(w.size/2, minWindow), now
	}
}

// campaign is one that this node has begun.
type campaign struct {
	began time.Time
	term  uint64 // in which it stands
	late  bool   // it has not been decided in time
}

// attempt is how far a member has got with a campaign of its own.
type attempt struct {
	under      *campaign // nil: none is under way
	candidacy  candidacy // when its turn came
	waits      time.Time // for the window: when the others were last told; zero: it does not wait
	othersWait time.Time // when another member last said that it does
}

// candidacy is what a member knew when its turn to campaign came.
type candidacy struct {
	alive []string
	slots slots
}

// checkCampaign ends the campaign of this node if others have moved on to a later term, or if it has had its time.
func (e *elections) checkCampaign(v *election, now time.Time) {
	if v.under == nil {
		return
	}
	e.window.check(now, v.under)
	if _, term := v.group.role(); term > v.under.term || now.Sub(v.under.began) >= longestSlot {
		e.window.decided(now, v.under)
		v.under = nil
	}
}

// admit chooses those that campaign now: as many of those whose turn it is as the window has room for.
func (e *elections) admit(r *electionRound) (list []electable) {
	for e.waiting.Len() > 0 && !e.window.full() {
		v := heap.Pop(&e.waiting).(*election)
		if v.under != nil {
			e.window.decided(r.now, v.under)
		}
		_, term := v.group.role()
		if !v.waits.IsZero() {
			v.backoff.hold(r.now)
		}
		v.under, v.waits = e.window.begin(r.now, term+1), time.Time{}
		e.tell(v, itemWaits, v.candidacy.alive, r) // whose raft may take long to hear of it
		v.backoff.taken(r.now, v.candidacy.slots)
		e.agenda.add(v, r.now.Add(inTime))
		list = append(list, v.group)
	}
	return list
}

// tellWaiting tells the other members of those that have to wait for the window: they do not count slots
// meanwhile.
func (e *elections) tellWaiting(due []*election, r *electionRound) {
	for _, v := range due {
		if v.waitPlace >= 0 && r.now.Sub(v.waits) >= positionsEvery {
			v.waits = r.now
			e.tell(v, itemWaits, v.candidacy.alive, r)
		}
	}
}
