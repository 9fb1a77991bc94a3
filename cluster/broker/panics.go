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
	s.mu.Lock()
	defer s.release()
	s.refreshing, s.strays = false, nil
	s.fault()
}

// fault tells the client, once, that the session is over. The lock is held.
func (s *Session) fault() {
	if s.isLost || s.closing {
		return
	}
	s.isLost = true
	s.events = append(s.events, event{kind: eventLost, err: errFault})
}

// rebuild begins anew after a panic: what the target and its lanes hold may be
// half changed. Their sessions end, dead letters are forwarded again from where
// their queue's log says, and the leader is asked for once more.
func (t *target) rebuild() {
	t.mu.Lock()
	lanes := t.lanes
	t.lanes, t.dirty, t.running, t.asking = map[fsm.SessionID]*lane{}, nil, false, false
	if !t.local {
		t.leader, t.leaderless = "", t.broker.now()
	}
	t.watch()
	t.mu.Unlock()
	for _, l := range lanes {
		t.broker.guard("end what a queue was used by", l.fail)
	}
}

// fail ends a lane whose target has panicked, and what it belongs to.
func (l *lane) fail() {
	l.owner.lock().Lock()
	defer l.owner.release()
	l.owner.failed(l)
}
