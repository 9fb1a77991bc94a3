package group

import (
	"container/heap"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
)

// tickSpacing is the least time between two ticks of one queue. The first
// tick after a quiet spell goes out at once, and so does the next one while
// the machine has more due work than one tick may do.
const tickSpacing = 10 * time.Millisecond

// timer is one group's part of the ticker. While the group leads, does not yield
// and deadline is not 0, either a tick is in flight or the ticker is armed for it.
//
// Whether a deadline is due is decided by the stamp that a tick would get now.
type timer struct {
	mu       sync.Mutex    // may be taken under Group.mu, and before proposer.mu
	deadline fsm.Time      // the machine's, when last looked at
	inFlight bool          // a tick has been taken for an entry and is not applied
	last     time.Duration // when the last tick was proposed, monotonic
	ticks    uint64        // that were applied
}

// applied is told after entries were applied on the leader.
func (t *timer) applied(g *Group, deadline fsm.Time, ticked bool) {
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
	if wait := g.proposer.until(deadline); wait == 0 && ticked && g.moreDue() {
		t.fire(g)
	} else {
		g.host.ticker.arm(g, wait, last+tickSpacing)
	}
}

// count is how many ticks have been applied on the leader.
func (t *timer) count() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ticks
}

// moreDue reports whether the machine still has work that is due at its own
// clock: the last tick stopped at its bound.
func (g *Group) moreDue() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.machine.NextDeadline()
	return d != 0 && d <= g.machine.Clock()
}

// fire proposes a tick if one is due and none is under way.
func (t *timer) fire(g *Group) {
	defer g.contain("propose a tick")
	t.mu.Lock()
	if t.deadline == 0 || t.inFlight || g.leading.Load() == 0 {
		t.mu.Unlock()
		return
	}
	if wait := g.proposer.until(t.deadline); wait > 0 {
		t.mu.Unlock()
		g.host.ticker.arm(g, wait, 0)
		return
	}
	t.inFlight, t.last = g.proposeTick(), g.host.clock.Monotonic()
	t.mu.Unlock() // a group that yields arms again when it goes on, see begin
}

// lost is told that an entry failed: a tick may have been in it.
func (t *timer) lost(g *Group) {
	t.mu.Lock()
	t.inFlight = false
	deadline, last := t.deadline, t.last
	t.mu.Unlock()
	if deadline != 0 && g.leading.Load() != 0 {
		g.host.ticker.arm(g, g.proposer.until(deadline), last+tickSpacing)
	}
}

// begin starts a term of office, or goes on with it after a transfer that came
// to nothing, with the machine's present deadline.
func (t *timer) begin(g *Group, deadline fsm.Time) {
	t.mu.Lock()
	t.deadline, t.inFlight = deadline, false
	t.mu.Unlock()
	if deadline != 0 {
		g.host.ticker.arm(g, g.proposer.until(deadline), 0)
	}
}

// ticker wakes groups when their deadlines may be due. It goes by monotonic
// time; a group that is woken too early arms again. One goroutine serves all
// groups of the node; a group without a deadline costs nothing.
type ticker struct {
	mu    sync.Mutex
	queue wakes
	at    map[*Group]*wake
	kick  kicks
	now   func() time.Duration
}

type wake struct {
	at    time.Duration
	group *Group
	index int
}

func newTicker(now func() time.Duration) *ticker {
	return &ticker{at: map[*Group]*wake{}, kick: newKicks(), now: now}
}

// arm wakes g in a while, but not before the given instant; or earlier if it
// is armed for earlier.
func (t *ticker) arm(g *Group, wait, notBefore time.Duration) {
	at := max(t.now()+wait, notBefore)
	t.mu.Lock()
	w := t.at[g]
	switch {
	case w == nil:
		w = &wake{at: at, group: g}
		t.at[g] = w
		heap.Push(&t.queue, w)
	case at < w.at:
		w.at = at
		heap.Fix(&t.queue, w.index)
	}
	first := t.queue[0] == w
	t.mu.Unlock()
	if first {
		t.look()
	}
}

// hurry wakes all groups that wait: the clock has moved ahead.
func (t *ticker) hurry() {
	t.mu.Lock()
	for _, w := range t.queue {
		w.at = 0 // equal ones are in order
	}
	t.mu.Unlock()
	t.look()
}

func (t *ticker) look() { t.kick.wake() }

func (t *ticker) remove(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w := t.at[g]; w != nil {
		heap.Remove(&t.queue, w.index)
		delete(t.at, g)
	}
}

// run wakes groups until stop is closed.
func (t *ticker) run(stop <-chan struct{}) {
	alarm := time.NewTimer(time.Hour)
	defer alarm.Stop()
	for {
		wait := time.Hour
		for {
			g, next := t.pop()
			if g == nil {
				wait = next
				break
			}
			g.timer.fire(g)
		}
		alarm.Reset(wait)
		select {
		case <-stop:
			return
		case <-t.kick:
		case <-alarm.C:
		}
	}
}

// pop takes a group that is due, or says how long nobody is.
func (t *ticker) pop() (*Group, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return nil, time.Hour
	}
	w := t.queue[0]
	if d := w.at - t.now(); d > 0 {
		return nil, d
	}
	heap.Pop(&t.queue)
	delete(t.at, w.group)
	return w.group, 0
}

type wakes []*wake

func (w wakes) Len() int           { return len(w) }
func (w wakes) Less(i, j int) bool { return w[i].at < w[j].at }
func (w wakes) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].index, w[j].index = i, j
}
func (w *wakes) Push(x any) {
	e := x.(*wake)
	e.index = len(*w)
	*w = append(*w, e)
}
func (w *wakes) Pop() any {
	old := *w
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return e
}
