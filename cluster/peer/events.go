package peer

import "sync"

// Reasons of a Down event.
const (
	Refused   = "refused"   // nothing listens at its address
	Suspected = "silent"    // no sign of life
	Restarted = "restarted" // it is back under a new incarnation
	Removed   = "removed"   // RemovePeer
	Withdrawn = "withdrawn" // it says so: see Withdraw. To itself, all others are
)

// Event is a change of a peer.
//
// Up: the peer can be sent to. A further Up without a Down between means that
// the link was broken in one direction or both; whatever was under way may be
// lost. Each Up has a new, higher Epoch.
//
// Down: the peer is dead, for the Reason given; Incarnation and Epoch are the
// last ones it was up with. A new incarnation's Up is always preceded by the
// Down of the old one.
type Event struct {
	Node        string
	Up          bool
	Incarnation [16]byte
	Epoch       uint64
	Reason      string
}

// events hands events to watchers on one goroutine.
type events struct {
	mu       sync.Mutex
	cond     sync.Cond
	queue    []delivery
	watchers []func(Event)
	closed   bool
}

// delivery is an event for one watcher.
type delivery struct {
	to func(Event)
	ev Event
}

func (e *events) init() { e.cond.L = &e.mu }

// watch adds f and replays current() to it first. current takes the locks of
// peers, and emit is called with one held, so it cannot run under e.mu: events
// emitted meanwhile wait in a gate until the replay.
func (e *events) watch(f func(Event), current func() []Event) {
	g := &gate{to: f}
	e.mu.Lock()
	e.watchers = append(e.watchers, g.event)
	e.mu.Unlock()
	evs := current()
	e.mu.Lock()
	e.queue = append(e.queue, delivery{to: func(Event) { g.open(evs) }})
	e.cond.Signal()
	e.mu.Unlock()
}

// gate holds a new watcher's events back until it knows where it starts. All
// calls come from the events goroutine.
type gate struct {
	to     func(Event)
	opened bool
	early  []Event
}

func (g *gate) event(ev Event) {
	if !g.opened {
		g.early = append(g.early, ev)
		return
	}
	g.to(ev)
}

// open replays the state a watcher starts from, then those early events that
// are newer than it.
func (g *gate) open(start []Event) {
	g.opened = true
	seen := make(map[string]uint64)
	for _, ev := range start {
		seen[ev.Node] = ev.Epoch
		g.to(ev)
	}
	for _, ev := range g.early {
		last := seen[ev.Node] // 0: down
		if ev.Up && ev.Epoch <= last || !ev.Up && (last == 0 || ev.Epoch < last) {
			continue
		}
		seen[ev.Node] = ev.Epoch
		if !ev.Up {
			delete(seen, ev.Node)
		}
		g.to(ev)
	}
	g.early = nil
}

// emit queues ev for all watchers. Callers hold the lock of the peer, which
// makes the order of events that of the changes.
func (e *events) emit(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.watchers {
		e.queue = append(e.queue, delivery{w, ev})
	}
	e.cond.Signal()
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.cond.Signal()
}

func (e *events) run() {
	for {
		e.mu.Lock()
		for len(e.queue) == 0 && !e.closed {
			e.cond.Wait()
		}
		if e.closed {
			e.mu.Unlock()
			return
		}
		queue := e.queue
		e.queue = nil
		e.mu.Unlock()
		for _, d := range queue {
			d.to(d.ev)
		}
	}
}
