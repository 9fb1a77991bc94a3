package worker

import (
	"context"
	"sync"
)

// Tasks are goroutines that each do one thing, and end together. A panic costs the work in which it
// happens, not the process with all its clients and queues.
//
// Invariant: no goroutine starts once closed, and Wait returns when the last one has ended.
type Tasks struct {
	*Guard
	mu     sync.Mutex
	closed bool
	stop   chan struct{} // closed by Refuse
	done   sync.WaitGroup
}

// NewTasks returns an empty set of tasks.
func NewTasks(g *Guard) *Tasks { return &Tasks{Guard: g, stop: make(chan struct{})} }

// Spawn runs f on a goroutine that Wait waits for, and returns true; false after Refuse. A panic
// ends f and nothing else: what others wait for, f has to release by defer.
func (t *Tasks) Spawn(doing string, f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.done.Go(func() { t.Try(doing, f) })
	}
	return !t.closed
}

// Stopping is closed by Refuse.
func (t *Tasks) Stopping() <-chan struct{} { return t.stop }

// WhileOpen is a context that ends with Refuse.
func (t *Tasks) WhileOpen() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-t.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Refuse prevents new goroutines, and tells the running ones to end.
func (t *Tasks) Refuse() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	close(t.stop)
}

// Wait returns when the last goroutine has ended.
func (t *Tasks) Wait() { t.done.Wait() }
