package worker

import (
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// PanicPause is how long work that has panicked waits before it continues.
const PanicPause = time.Second

// ErrPanicked is the result of work that has panicked.
var ErrPanicked = errors.New("internal error of the node; see its log")

// Guard runs the node's background work. A panic costs that attempt and not the process: its queues
// and clients do not depend on it.
type Guard struct {
	slog   *slog.Logger
	panics atomic.Uint64
}

// NewGuard returns a guard that logs panics.
func NewGuard(log *slog.Logger) *Guard { return &Guard{slog: log} }

// Panics counts the panics so far.
func (g *Guard) Panics() uint64 { return g.panics.Load() }

// Try runs f and reports whether it has returned.
func (g *Guard) Try(doing string, f func()) (returned bool) {
	defer func() {
		if p := recover(); p != nil {
			g.panics.Add(1)
			g.slog.Error("panic in a background task", "doing", doing, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}
