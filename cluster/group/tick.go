package group

import (
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
)

// tickSpacing is the least time between two ticks of one queue. The first tick after a quiet
// period goes out at once, and so does the next one while the machine has more due work than one
// tick may do.
const tickSpacing = 10 * time.Millisecond

// Ticker wakes what is armed, at about the time for which it is. There is one for all groups of a node.
type Ticker interface {
	// Arm has something woken after wait, but not before the given instant, or earlier if it is already armed for an
	// earlier time.
	Arm(of Timed, wait, notBefore time.Duration)
	Remove(of Timed)
	Has(of Timed) bool
	// Now is monotonic.
	Now() time.Duration
}

// Timed is what a ticker wakes: a timer, or a group that sleeps. If it is woken too early it arms itself again.
type Timed interface{ Fire() }

// timer is one group's part of the ticker.
//
//	serves ∧ ¬transferring ∧ deadline ≠ 0 ⇒ inFlight, or the ticker is armed for it
//
// Whether a deadline is due is decided by the stamp that a tick would get now.
type timer struct {
	ticker   Ticker
	applier  *applier
	proposer *proposer
	lead     *leadership
	guard    *guard

	mu       sync.Mutex    // may be taken under applier.mu, and before proposer.mu
	deadline fsm.Time      // the machine's, when last read
	inFlight bool          // a tick has been taken for an entry and is not applied
	last     time.Duration // when the last tick was proposed, monotonic
	ticks    uint64        // that were applied
}

// applied takes over the machine's deadline after entries were applied on the leader.
func (t *timer) applied(deadline fsm.Time, ticked bool) {
	t.mu.Lock()
	if ticked {
		t.inFlight = false
		t.ticks++
	}
	changed := deadline != t.deadline || ticked
	t.deadline = deadline
	if !changed || deadline == 0 || t.inFlight {
		t.mu.Unlock()
		return
	}
	last := t.last
	t.mu.Unlock()
	if wait := t.proposer.until(deadline); wait == 0 && ticked && t.applier.moreDue() {
		t.Fire()
	} else {
		t.ticker.Arm(t, wait, last+tickSpacing)
	}
}

// count returns how many ticks have been applied on the leader.
func (t *timer) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ticks
}

// Fire proposes a tick if one is due and none is under way.
func (t *timer) Fire() {
	defer t.guard.contain("propose a tick")
	t.mu.Lock()
	if t.deadline == 0 || t.inFlight || t.lead.term.Load() == 0 {
		t.mu.Unlock()
		return
	}
	if wait := t.proposer.until(t.deadline); wait > 0 {
		t.mu.Unlock()
		t.ticker.Arm(t, wait, 0)
		return
	}
	t.inFlight, t.last = t.proposer.proposeTick(), t.ticker.Now()
	t.mu.Unlock() // a group that transfers its leadership arms again when it resumes, see begin
}

// lost records that an entry failed: it may have contained a tick.
func (t *timer) lost() {
	t.mu.Lock()
	t.inFlight = false
	deadline, last := t.deadline, t.last
	t.mu.Unlock()
	if deadline != 0 && t.lead.term.Load() != 0 {
		t.ticker.Arm(t, t.proposer.until(deadline), last+tickSpacing)
	}
}

// begin starts a leader's term, or resumes it after a failed transfer, with the machine's current
// deadline.
func (t *timer) begin(deadline fsm.Time) {
	t.mu.Lock()
	t.deadline, t.inFlight = deadline, false
	t.mu.Unlock()
	if deadline != 0 {
		t.ticker.Arm(t, t.proposer.until(deadline), 0)
	}
}

// stop disarms the timer.
func (t *timer) stop() { t.ticker.Remove(t) }

// until returns the least time until a deadline is due; 0 if it is due.
func (t *timer) until(deadline fsm.Time) time.Duration { return t.proposer.until(deadline) }
