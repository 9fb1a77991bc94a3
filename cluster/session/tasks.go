package session

import (
	"context"
	"log/slog"
	"sync"

	"github.com/quorate/quorate/cluster/worker"
)

// tasks runs the goroutines of the broker. A panic costs the work in which it happens, not the
// process with all its clients and queues.
//
// Invariant: no goroutine starts once closed, and close returns when the last one has ended.
type tasks struct {
	panics *worker.Guard
	mu     sync.Mutex
	closed bool
	stop   chan struct{} // closed by close
	done   sync.WaitGroup
}

func newTasks(log *slog.Logger) *tasks {
	return &tasks{panics: worker.NewGuard(log.With("part", "broker")), stop: make(chan struct{})}
}

// guard calls f and reports whether it did not panic.
func (t *tasks) guard(doing string, f func()) (ok bool) { return t.panics.Try(doing, f) }

// spawn runs f on a goroutine that close waits for, and returns true; false once the broker closes.
// A panic ends f and nothing else: what others wait for, f has to release by defer.
func (t *tasks) spawn(doing string, f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.done.Go(func() { t.guard(doing, f) })
	}
	return !t.closed
}

// whileOpen is a context that ends with the broker.
func (t *tasks) whileOpen() (context.Context, context.CancelFunc) {
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

// refuse prevents new goroutines, and tells the running ones to end.
func (t *tasks) refuse() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	close(t.stop)
}

// wait returns when the last goroutine has ended.
func (t *tasks) wait() { t.done.Wait() }
