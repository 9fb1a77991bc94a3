package worker

import (
	"context"
	"sync"
)

// Loops are goroutines that end together. Each goes on after a panic, see
// Guard.Loop.
type Loops struct {
	guard *Guard
	life  context.Context // ends when Stop begins
	end   context.CancelFunc
	done  sync.WaitGroup
}

// NewLoops returns no loops yet.
func NewLoops(g *Guard) *Loops {
	l := &Loops{guard: g}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Life ends when Stop begins.
func (l *Loops) Life() context.Context { return l.life }

// Go starts a loop that returns when ctx ends, which is Life. doing is what for,
// in the log.
func (l *Loops) Go(doing string, loop func(ctx context.Context)) {
	l.done.Go(func() { l.guard.Loop(l.life.Done(), doing, func() { loop(l.life) }) })
}

// Stop ends all loops and returns when they have. It may be called again.
func (l *Loops) Stop() {
	l.end()
	l.done.Wait()
}
