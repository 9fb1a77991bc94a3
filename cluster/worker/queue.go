package worker

import (
	"sync"
	"time"
)

// Queue processes keys: several at a time, and never the same key twice at a time. A key that is
// added while it waits is processed once; one that is added while it is being processed is
// processed once more. A key is added again after the time that its processing asks for, or after
// PanicPause if that panics; only the newest such request counts.
//
// Invariant: 0 ≤ running ≤ limit; running < limit only if no key waits, or the queue has not
// started or is stopped; every key of waiting is in keys as keyWaiting, and is in waiting once.
type Queue[K comparable] struct {
	guard *Guard
	doing string
	limit int
	do    func(K) (again time.Duration)

	mu      sync.Mutex
	waiting []K // in the order of arrival
	keys    map[K]keyState
	later   map[K]*time.Timer // keys that will be added again
	running int
	started bool
	stopped bool
	idle    sync.Cond // no key waits or is being processed
	workers sync.WaitGroup
}

type keyState int

const (
	keyWaiting keyState = iota + 1
	keyRunning
	keyRunningAgain // is being processed, and was added since
)

// NewQueue returns a queue that processes up to limit keys at a time, once started. doing describes
// the work in the log. do returns after which time the key is to be added again; 0: it is not.
func NewQueue[K comparable](guard *Guard, doing string, limit int, do func(K) (again time.Duration)) *Queue[K] {
	q := &Queue[K]{guard: guard, doing: doing, limit: limit, do: do, keys: map[K]keyState{}, later: map[K]*time.Timer{}}
	q.idle.L = &q.mu
	return q
}

// Add schedules keys. It does not wait.
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

// Start starts processing.
func (q *Queue[K]) Start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = true
	q.launch()
}

// Wait returns when no key waits or is being processed.
func (q *Queue[K]) Wait() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.keys) > 0 && !q.stopped {
		q.idle.Wait()
	}
}

// Stop drops the waiting keys, and returns when those in progress are done.
func (q *Queue[K]) Stop() {
	q.mu.Lock()
	q.stopped, q.waiting = true, nil
	for k := range q.later {
		q.forget(k)
	}
	q.idle.Broadcast()
	q.mu.Unlock()
	q.workers.Wait()
}

// launch starts goroutines for waiting keys. The lock is held.
func (q *Queue[K]) launch() {
	for n := min(q.limit-q.running, len(q.waiting)); q.started && !q.stopped && n > 0; n-- {
		q.running++
		q.workers.Go(q.work)
	}
}

// work processes keys until none waits.
func (q *Queue[K]) work() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) > 0 {
		k := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.keys[k] = keyRunning
		q.forget(k)
		q.mu.Unlock()
		again := PanicPause
		q.guard.Try(q.doing, func() { again = q.do(k) })
		q.mu.Lock()
		if again > 0 && !q.stopped {
			q.later[k] = time.AfterFunc(again, func() { q.Add(k) })
		}
		added := q.keys[k] == keyRunningAgain
		if delete(q.keys, k); added && !q.stopped {
			q.push(k)
		}
	}
	if q.running--; len(q.keys) == 0 {
		q.idle.Broadcast()
	}
}

// forget ends a key's wait to be added again. The lock is held.
func (q *Queue[K]) forget(k K) {
	if t := q.later[k]; t != nil {
		t.Stop()
		delete(q.later, k)
	}
}
