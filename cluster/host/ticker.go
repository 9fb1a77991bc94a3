package host

import (
	"container/heap"
	"sync"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
)

// ticker wakes timers when their deadlines may be due. It uses monotonic time; a timer that is
// woken too early arms itself again. One goroutine serves all groups of the node; a group without
// a deadline costs nothing.
type ticker struct {
	clock  func() time.Duration
	worker *worker.Worker

	mu    sync.Mutex
	queue alarms
	at    map[group.Timed]*alarm
}

// alarm says when to wake a timer.
type alarm struct {
	at    time.Duration
	timer group.Timed
	index int // in the queue
}

// longSleep is how long the ticker sleeps when nothing is armed.
const longSleep = time.Hour

func newTicker(now func() time.Duration) *ticker {
	return &ticker{at: map[group.Timed]*alarm{}, worker: worker.New(worker.Options{}), clock: now}
}

// Arm wakes a timer after wait, but not before the given instant, or earlier if it is already
// armed for an earlier time.
func (t *ticker) Arm(of group.Timed, wait, notBefore time.Duration) {
	at := max(t.clock()+wait, notBefore)
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

// Has reports whether something is armed.
func (t *ticker) Has(of group.Timed) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[of] != nil
}

// Now implements group.Ticker.
func (t *ticker) Now() time.Duration { return t.clock() }

// Remove disarms a timer.
func (t *ticker) Remove(of group.Timed) {
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
		due.Fire()
	}
}

// pop returns a timer that is due, or how long none will be.
func (t *ticker) pop() (group.Timed, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		return nil, longSleep
	}
	a := t.queue[0]
	if d := a.at - t.clock(); d > 0 {
		return nil, d
	}
	heap.Pop(&t.queue)
	delete(t.at, a.timer)
	return a.timer, 0
}

// alarms is a heap, the earliest first.
type alarms []*alarm

func (q alarms) Len() int { return len(q) }

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
