package worker

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Tasks are goroutines that end together: their owner tells them to end, and waits for them.
//
// Invariant: no goroutine starts once Refuse has been called, and Wait returns when the last one has ended.
type Tasks struct {
	*Guard
	life context.Context // ends with Refuse
	end  context.CancelFunc
	mu   sync.Mutex // held while a goroutine starts, and while life ends
	done sync.WaitGroup
}

// NewTasks returns an empty set of tasks. g contains the panics of Spawn and Loop; nil: only Go is used.
func NewTasks(g *Guard) *Tasks {
	t := &Tasks{Guard: g}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// Go runs f on a goroutine that Wait waits for; after Refuse it does nothing. A panic ends the process: what f
// works on must not be used by anybody after it.
func (t *Tasks) Go(f func()) { t.begin(f) }

// Spawn is Go for work that may fail alone, and returns false after Refuse. A panic ends f and nothing else:
// what others wait for, f has to release by defer.
func (t *Tasks) Spawn(doing string, f func()) bool {
	return t.begin(func() { t.Try(doing, f) })
}

// Loop is Go for a loop that returns when ctx, which is Life, ends. It continues after a panic.
func (t *Tasks) Loop(doing string, loop func(ctx context.Context)) {
	t.begin(func() {
		for !t.Try(doing, func() { loop(t.life) }) && wait(t.life.Done(), PanicPause) {
		}
	})
}

func (t *Tasks) begin(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life.Err() != nil {
		return false
	}
	t.done.Go(f)
	return true
}

// Life ends with Refuse.
func (t *Tasks) Life() context.Context { return t.life }

// Refuse prevents new goroutines, and tells the running ones to end. It may be called again.
func (t *Tasks) Refuse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

// Wait returns when the last goroutine has ended.
func (t *Tasks) Wait() { t.done.Wait() }

// Stop is Refuse and Wait.
func (t *Tasks) Stop() {
	t.Refuse()
	t.Wait()
}

// Each calls f with each of all and its index, up to limit at a time, and returns when all calls have. A panic in
// one of them is the caller's, with the stack of where it happened.
func Each[T any](limit int, all []T, f func(i int, of T)) {
	var calls errgroup.Group
	calls.SetLimit(limit)
	for i, of := range all {
		calls.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("%v\n%s", p, debug.Stack())
				}
			}()
			f(i, of)
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		panic(err)
	}
}
