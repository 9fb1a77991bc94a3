package broker

import (
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/quorate/quorate/fsm"
)

// Panics counts the panics in the broker's own work since the node started.
func (b *Broker) Panics() uint64 { return b.panics.Load() }

// contain is deferred around work of the broker's own goroutines. A panic costs
// that work, and not the process with all its clients and queues.
func (b *Broker) contain(doing string) {
	if p := recover(); p != nil {
		b.panics.Add(1)
		b.slog.Error("panic in work of the broker", "doing", doing, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	}
}

// guard does something and reports whether there was no panic.
func (b *Broker) guard(doing string, f func()) (ok bool) {
	defer b.contain(doing)
	f()
	return true
}

// inParallel runs f beside others that wait is waited for.
func (b *Broker) inParallel(wait *sync.WaitGroup, doing string, f func()) {
	wait.Go(func() { b.guard(doing, f) })
}

// errFault is what the users of a session are told whose work has panicked.
var errFault = fsm.Refuse(fsm.Internal, "the node has failed in work for this channel and has ended it")

// fail ends the session: work for it has panicked, and what it knows may be half
// changed. Its queues are told as for a channel that is closed.
func (s *Session) fail() {
	s.lock()
	defer s.unlock()
	s.refreshing, s.strays = false, nil
	s.lose(errFault)
}
