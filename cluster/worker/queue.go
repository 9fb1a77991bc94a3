package worker

import (
	"sync"
	"time"
)

// Queue works on keys: several at a time, and never on one key twice at a time.
// A key that is added while it waits is worked on once; one that is added while
// it is worked on is worked on once more. A key whose work panics is added again
// after PanicPause.
//
// Invariant: 0 ≤ running ≤ limit; running < limit only if no key waits, or the
// queue has not started or is stopped; every key of waiting is in keys as
// keyWaiting, and is in waiting once.
type Queue[K comparable] struct {
	guard *Guard
	doing string
	limit int
	do    func(K)

	mu      sync.Mutex
	waiting []K // in the order in which they came
	keys    map[K]keyState
	running int
	started bool
	stopped bool
	idle    sync.Cond // no key waits or is worked on
	workers sync.WaitGroup
}

type keyState int

const (
	keyWaiting keyState = iota + 1
	keyRunning
	keyRunningAgain // is worked on, and was added since
)

// NewQueue returns a queue that works on limit keys at a time, once it has
// started. doing is what for, in the log.
func NewQueue[K comparable](guard *Guard, doing string, limit int, do func(K)) *Queue[K] {
	q := &Queue[K]{guard: guard, doing: doing, limit: limit, do: do, keys: map[K]keyState{}}
	q.idle.L = &q.mu
	return q
}

// Add has keys worked on. It does not wait.
func (q *Queue[K]) Add(keys ...K) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	for _, k := range keys {
		switch q.keys[k] {
		case keyWaiting, keyRunningAgain:
		case keyRunning:
			q.keys[k] = keyRunningAgain
		default:
			q.push(k)
		}
	}
	q.launch()
}

func (q *Queue[K]) push(k K) {
	q.keys[k] = keyWaiting
	q.waiting = append(q.waiting, k)
}

// Start begins to work.
func (q *Queue[K]) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.launch()
}

// Wait returns when no key waits or is worked on.
func (q *Queue[K]) Wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.keys) > 0 && !q.stopped {
		q.idle.Wait()
	}
}

// Stop drops the keys that wait, and returns when those that are worked on are
// done.
func (q *Queue[K]) Stop() {
	q.mu.Lock()
	q.stopped, q.waiting = true, nil
	q.idle.Broadcast()
	q.mu.Unlock()
	q.workers.Wait()
}

// launch starts goroutines for what waits. The lock is held.
func (q *Queue[K]) launch() {
	for n := min(q.limit-q.running, len(q.waiting)); q.started && !q.stopped && n > 0; n-- {
		q.running++
		q.workers.Go(q.work)
	}
}

// work works on keys until none waits.
func (q *Queue[K]) work() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		k := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.keys[k] = keyRunning
		q.mu.Unlock()
		if !q.guard.Try(q.doing, func() { q.do(k) }) {
			time.AfterFunc(PanicPause, func() { q.Add(k) })
		}
		q.mu.Lock()
		again := q.keys[k] == keyRunningAgain
		if delete(q.keys, k); again && !q.stopped {
			q.push(k)
		}
	}
	if q.running--; len(q.keys) == 0 {
		q.idle.Broadcast()
	}
}
