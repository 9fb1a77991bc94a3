package group

import (
	"container/heap"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// tickSpacing is the least time between two ticks of one queue. The first tick after a quiet
// period goes out at once, and so does the next one while the machine has more due work than one
// tick may do.
const tickSpacing = 10 * time.Millisecond

// timer is one group's part of the ticker.
//
//	serves ∧ ¬transferring ∧ deadline ≠ 0 ⇒ inFlight, or the ticker is armed for it
//
// Whether a deadline is due is decided by the stamp that a tick would get now.
type timer struct {
	ticker   *ticker
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
		t.fire()
	} else {
		t.ticker.arm(t, wait, last+tickSpacing)
	}
}

// count returns how many ticks have been applied on the leader.
func (t *timer) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ticks
}

// fire proposes a tick if one is due and none is under way.
func (t *timer) fire() {
	defer t.guard.contain("propose a tick")
	t.mu.Lock()
	if t.deadline == 0 || t.inFlight || t.lead.term.Load() == 0 {
		t.mu.Unlock()
		return
	}
	if wait := t.proposer.until(t.deadline); wait > 0 {
		t.mu.Unlock()
		t.ticker.arm(t, wait, 0)
		return
	}
	t.inFlight, t.last = t.proposer.proposeTick(), t.ticker.now()
	t.mu.Unlock() // a group that transfers its leadership arms again when it resumes, see begin
}

// lost records that an entry failed: it may have contained a tick.
func (t *timer) lost() {
	t.mu.Lock()
	t.inFlight = false
	deadline, last := t.deadline, t.last
	t.mu.Unlock()
	if deadline != 0 && t.lead.term.Load() != 0 {
		t.ticker.arm(t, t.proposer.until(deadline), last+tickSpacing)
	}
}

// begin starts a leader's term, or resumes it after a failed transfer, with the machine's current
// deadline.
func (t *timer) begin(deadline fsm.Time) {
	t.mu.Lock()
	t.deadline, t.inFlight = deadline, false
	t.mu.Unlock()
	if deadline != 0 {
		t.ticker.arm(t, t.proposer.until(deadline), 0)
	}
}

// stop disarms the timer.
func (t *timer) stop() { t.ticker.remove(t) }

// until returns the least time until a deadline is due; 0 if it is due.
func (t *timer) until(deadline fsm.Time) time.Duration { return t.proposer.until(deadline) }

// ticker wakes timers when their deadlines may be due. It uses monotonic time; a timer that is
// woken too early arms itself again. One goroutine serves all groups of the node; a group without
// a deadline costs nothing.
type ticker struct {
	now    func() time.Duration
	worker *worker.Worker

	mu    sync.Mutex
	queue alarms
	at    map[alarmed]*alarm
}

// alarmed is what a ticker wakes: a timer, or a group that sleeps.
type alarmed interface{ fire() }

// alarm says when to wake a timer.
type alarm struct {
	at    time.Duration
	timer alarmed
	index int // in the queue
}

// longSleep is how long the ticker sleeps when nothing is armed.
const longSleep = time.Hour

func newTicker(now func() time.Duration) *ticker {
	return &ticker{at: map[alarmed]*alarm{}, worker: worker.New(worker.Options{}), now: now}
}

// arm wakes a timer after wait, but not before the given instant, or earlier if it is already
// armed for an earlier time.
func (t *ticker) arm(of alarmed, wait, notBefore time.Duration) {
	at := max(t.now()+wait, notBefore)
	t.mu.Lock()
	a := t.at[of]
	switch {
	case a == nil:
		a = &alarm{at: at, timer: of}
		t.at[of] = a
		heap.Push(&t.queue, a)
	case at < a.at:
		a.at = at
		heap.Fix(&t.queue, a.index)
	}
	first := t.queue[0] == a
	t.mu.Unlock()
	if first {
		t.worker.Wake()
	}
}

// wakeAll wakes all armed timers: the clock has moved ahead.
func (t *ticker) wakeAll() {
	t.mu.Lock()
	for _, a := range t.queue {
		a.at = 0 // equal ones are in order
	}
	t.mu.Unlock()
	t.worker.Wake()
}

func (t *ticker) remove(of alarmed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.at[of]; a != nil {
		heap.Remove(&t.queue, a.index)
		delete(t.at, of)
	}
}

// run wakes timers until stop is closed.
func (t *ticker) run(stop <-chan struct{}) { t.worker.Run(stop, t.fireDue) }

// fireDue wakes the timers that are due, and returns how long none will be.
func (t *ticker) fireDue(time.Time) time.Duration {
	for {
		due, next := t.pop()
		if due == nil {
			return next
		}
		due.fire()
	}
}

// pop returns a timer that is due, or how long none will be.
func (t *ticker) pop() (alarmed, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return nil, longSleep
	}
	a := t.queue[0]
	if d := a.at - t.now(); d > 0 {
		return nil, d
	}
	heap.Pop(&t.queue)
	delete(t.at, a.timer)
	return a.timer, 0
}

// alarms is a heap, the earliest first.
type alarms []*alarm

func (q alarms) Len() int           { return len(q) }
func (q alarms) Less(i, j int) bool { return q[i].at < q[j].at }
func (q alarms) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *alarms) Push(x any) {
	a := x.(*alarm)
	a.index = len(*q)
	*q = append(*q, a)
}
func (q *alarms) Pop() any {
	old := *q
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return a
}
