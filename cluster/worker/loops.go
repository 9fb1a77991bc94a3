package worker

import (
	"context"
	"sync"
)

// Loops are goroutines that end together. Each continues after a panic, see Guard.Loop.
type Loops struct {
	guard *Guard
	life  context.Context // ends when Stop begins
	end   context.CancelFunc
	done  sync.WaitGroup
}

// NewLoops returns an empty set of loops.
func NewLoops(g *Guard) *Loops {
	l := &Loops{guard: g}
	l.life, l.end = context.WithCancel(context.Background())
	return l
}

// Life ends when Stop begins.
func (l *Loops) Life() context.Context { return l.life }

// Go starts a loop that returns when ctx, which is Life, ends. doing describes it in the log.
func (l *Loops) Go(doing string, loop func(ctx context.Context)) {
	l.done.Go(func() { l.guard.Loop(l.life.Done(), doing, func() { loop(l.life) }) })
}

// Stop ends all loops and returns when they have ended. It may be called again.
func (l *Loops) Stop() {
	l.end()
	l.done.Wait()
}
