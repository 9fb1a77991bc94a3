package stream

import (
	"maps"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Table holds the routes of a node, by queue.
type Table struct {
	host Host

	mu     sync.RWMutex // may be taken under the lock of an owner
	routes map[fsm.QueueID]*Route
	early  map[fsm.QueueID]earlyLeader // of queues that this node's catalog does not hold yet

	watchlist watchlist
}

// maxEarly bounds how many leaders of unknown queues are kept.
const maxEarly = 1 << 16

type earlyLeader struct {
	node string
	term uint64
}

// NewTable returns an empty table.
func NewTable(h Host) *Table {
	return &Table{host: h, routes: map[fsm.QueueID]*Route{}, early: map[fsm.QueueID]earlyLeader{}}
}

// IsOver reports whether a queue that v does not hold is gone, and not only
// unknown here so far: its id tells which entry of the catalog created it.
func IsOver(v *catalog.View, id fsm.QueueID) bool {
	_, ok := v.QueueByID(id)
	return !ok && uint64(id)>>16 <= v.Index()
}

// Route finds or makes the way to a queue's leader. Locks of owners may be held.
func (t *Table) Route(q *catalog.Queue) *Route {
	if r := t.Find(q.ID); r != nil {
		return r
	}
	t.mu.Lock()
	r := t.routes[q.ID]
	if r == nil {
		r = newRoute(t, q)
		t.routes[q.ID] = r
	}
	t.mu.Unlock()
	if IsOver(t.host.View(), q.ID) {
		// It was told before r was made: who asks has an older view.
		t.host.Spawn("end a queue", func() { t.host.QueueGone(q.ID) })
	}
	return r
}

// Find returns the way to a queue's leader if there is one already.
func (t *Table) Find(id fsm.QueueID) *Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.routes[id]
}

// Stream finds the stream of a session to a queue; nil: there is none.
func (t *Table) Stream(id fsm.QueueID, s fsm.SessionID) *Stream {
	if r := t.Find(id); r != nil {
		return r.Stream(s)
	}
	return nil
}

// Deliver gives messages of a queue to the stream of a session. If there is none,
// as with Answer and Notice, nobody waits for them.
func (t *Table) Deliver(id fsm.QueueID, s fsm.SessionID, d DeliveryBatch) {
	if to := t.Stream(id, s); to != nil {
		to.Receive(d)
	}
}

// Answer gives outcomes, which came from a node, to the stream that they belong to.
func (t *Table) Answer(from string, id fsm.QueueID, s fsm.SessionID, outcomes []group.Outcome) {
	if to := t.Stream(id, s); to != nil {
		to.Answer(from, outcomes)
	}
}

// Notice passes on what a queue's leader has to say to a session.
func (t *Table) Notice(id fsm.QueueID, s fsm.SessionID, n Notice) {
	if to := t.Stream(id, s); to != nil {
		to.Notice(n)
	}
}

// All lists the routes.
func (t *Table) All() []*Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.routes))
}

// Lead records who serves a queue; one that the catalog does not hold yet is
// remembered.
func (t *Table) Lead(id fsm.QueueID, node string, term uint64) {
	if q := t.queueOrEarly(id, earlyLeader{node, term}); q != nil {
		t.Route(q).Lead(node, term)
	}
}

// queueOrEarly returns the queue, or keeps l until the catalog holds it here.
// QueueAdded comes after the view has changed, and takes the lock.
func (t *Table) queueOrEarly(id fsm.QueueID, l earlyLeader) *catalog.Queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.host.View()
	q, ok := v.QueueByID(id)
	if !ok && !IsOver(v, id) && len(t.early) < maxEarly {
		t.early[id] = l
	}
	return q
}

// Lose: a node does not serve a queue.
func (t *Table) Lose(id fsm.QueueID, node string) {
	if r := t.Find(id); r != nil {
		r.Lose(node)
	}
}

// NodeDown: a node cannot be reached, so it serves no queue.
func (t *Table) NodeDown(node string) {
	for _, r := range t.All() {
		r.Lose(node)
	}
}

// NodeUp: a node can be reached again. Messages in between may have been lost.
func (t *Table) NodeUp(node string) {
	for _, r := range t.All() {
		if r.IsLeader(node) {
			r.Refresh()
		}
	}
}

// QueueAdded: the catalog holds a new queue.
func (t *Table) QueueAdded(q *catalog.Queue) {
	r := t.Route(q)
	t.mu.Lock()
	l, known := t.early[q.ID]
	delete(t.early, q.ID)
	t.mu.Unlock()
	if known {
		r.Lead(l.node, l.term)
	}
}

// QueueGone: the catalog has lost a queue. Its streams end.
func (t *Table) QueueGone(id fsm.QueueID) {
	t.mu.Lock()
	r := t.routes[id]
	delete(t.routes, id)
	t.mu.Unlock()
	if r != nil {
		r.end()
	}
}
