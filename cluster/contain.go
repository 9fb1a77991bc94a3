package cluster

import (
	"errors"
	"runtime/debug"
	"time"
)

// loopPause is how long a loop that has panicked waits before it goes on.
const loopPause = time.Second

var errPanicked = errors.New("the node's program has failed, its log says how")

// attempt runs f and reports whether it has returned. A panic costs this
// attempt and not the node: its queues and clients do not depend on it.
func (n *Node) attempt(doing string, f func()) (returned bool) {
	defer func() {
		if p := recover(); p != nil {
			n.panics.Add(1)
			n.slog.Error("panic in what the node does of its own accord", "doing", doing, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

// keep runs a loop that ends with the node's life, and runs it again after a
// panic.
func (n *Node) keep(doing string, loop func()) {
	keep(n.life.Done(), func() bool { return n.attempt(doing, loop) })
}

// keep repeats a turn, with pauses, until one has returned, or stop is closed.
func keep(stop <-chan struct{}, turn func() (returned bool)) {
	for !turn() {
		select {
		case <-stop:
			return
		case <-time.After(loopPause):
		}
	}
}
