package stream

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/worker"
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
	leaders   leaders
	resent    atomic.Uint64 // commands, see Resent
}

// Resent returns how many commands were to be sent to a leader again.
func (t *Table) Resent() uint64 { return t.resent.Load() }

// leaders are the routes of a table by the nodes that serve their queues.
type leaders struct {
	mu     sync.Mutex // may be taken under Route.mu
	byNode map[string]map[*Route]struct{}
}

// move notes that a queue is served by another node than before; empty: by none.
func (l *leaders) move(r *Route, from, to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from != "" {
		delete(l.byNode[from], r)
	}
	if to == "" {
		return
	}
	if l.byNode[to] == nil {
		if l.byNode == nil {
			l.byNode = map[string]map[*Route]struct{}{}
		}
		l.byNode[to] = map[*Route]struct{}{}
	}
	l.byNode[to][r] = struct{}{}
}

// of returns the routes to a node.
func (l *leaders) of(node string) []*Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.byNode[node]))
}

// Led is how many queues a node serves.
func (t *Table) Led(node string) int {
	t.leaders.mu.Lock()
	defer t.leaders.mu.Unlock()
	return len(t.leaders.byNode[node])
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

// IsOver reports whether a queue that v does not hold is gone rather than not yet known here: its
// id tells which entry of the catalog created it.
func IsOver(v *catalog.View, id fsm.QueueID) bool {
	_, ok := v.QueueByID(id)
	return !ok && uint64(id)>>16 <= v.Index()
}

// Route returns the way to a queue's leader, creating it if needed. Locks of owners may be held.
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
		// The end was reported before r was created: the caller has an older view.
		t.host.Spawn("end a queue", func() { t.host.QueueGone(q.ID) })
	}
	return r
}

// Find returns the way to a queue's leader if it exists.
func (t *Table) Find(id fsm.QueueID) *Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.routes[id]
}

// Stream returns the stream of a session to a queue. There may be none, and nobody waits for what comes for it: of a
// nil Stream, Receive, Answer and Notice do nothing.
func (t *Table) Stream(id fsm.QueueID, s fsm.SessionID) *Stream {
	if r := t.Find(id); r != nil {
		return r.Stream(s)
	}
	return nil
}

// All returns the routes.
func (t *Table) All() []*Route {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.routes))
}

// Lead records which node serves a queue; for a queue that the catalog does not hold yet, the
// leader is remembered.
func (t *Table) Lead(id fsm.QueueID, node string, term uint64) {
	if q := t.queueOrEarly(id, earlyLeader{node, term}); q != nil {
		t.Route(q).Lead(node, term)
	}
}

// queueOrEarly returns the queue, or keeps l until the catalog here holds it. QueueAdded is called
// after the view has changed, and takes the lock.
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

// Lose records that a node does not serve a queue.
func (t *Table) Lose(id fsm.QueueID, node string) {
	if r := t.Find(id); r != nil {
		r.Lose(node)
	}
}

// Pause records that a node leads a queue, and takes no commands for now.
func (t *Table) Pause(id fsm.QueueID, node string) {
	if r := t.Find(id); r != nil {
		r.Pause(node)
	}
}

// NodeDown records that a node cannot be reached, so it serves no queue.
func (t *Table) NodeDown(node string) {
	for _, r := range t.leaders.of(node) {
		r.Lose(node)
	}
}

// NodeUp records that a node can be reached again. Messages may have been lost in between.
func (t *Table) NodeUp(node string) {
	for _, r := range t.leaders.of(node) {
		if r.IsLeader(node) {
			r.refresh(false)
		}
	}
}

// QueueAdded is called when the catalog holds a new queue.
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

// QueueGone is called when the catalog has lost a queue. Its streams end.
func (t *Table) QueueGone(id fsm.QueueID) {
	t.mu.Lock()
	r := t.routes[id]
	delete(t.routes, id)
	t.mu.Unlock()
	if r != nil {
		r.end()
	}
}

// When the watch acts.
const (
	stuckAfter = 3000 // milliseconds without an answer
	askAfter   = 500  // milliseconds without a leader
)

// watchlist passes routes to the watch: those that have no leader, or a stream.
// Of thousands of queues that nobody uses the watch knows nothing.
type watchlist struct {
	mu  sync.Mutex // may be taken under Route.mu
	new []*Route
}

// more appends those that are new.
func (w *watchlist) more(to []*Route) []*Route {
	w.mu.Lock()
	defer w.mu.Unlock()
	to = append(to, w.new...)
	w.new = nil
	return to
}

func (w *watchlist) add(r *Route) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.new = append(w.new, r)
}

// watch puts the route on the list, unless it is there. mu is held.
func (r *Route) watch() {
	if !r.watched {
		r.watched = true
		r.table.watchlist.add(r)
	}
}

// rest takes the route off the list if there is nothing to watch.
func (r *Route) rest() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.submits() && len(r.streams) == 0 {
		r.watched = false
	}
	return !r.watched
}

// Watch checks the routes that need it, once: it asks for leaders that nobody
// has announced, asks leaders about what they do not answer, and ends pauses. A
// panic about one route leaves the others alone. It takes and returns what is watched: nil at first.
func (t *Table) Watch(watched []*Route) []*Route {
	now := t.host.Now()
	watched = slices.DeleteFunc(t.watchlist.more(watched), (*Route).rest)
	var searching []*Route
	for _, r := range watched {
		search := false
		if !t.host.Try("watch a queue", func() { search = r.check(now) }) {
			r.rebuild()
		} else if search {
			searching = append(searching, r)
		}
	}
	if len(searching) > 0 {
		t.host.Spawn("ask for leaders", func() { t.findLeaders(searching) })
	}
	return watched
}

// check says that a leader is wanted, ends a pause, and asks about what is not answered, if it is time. It
// reports whether the members are to be asked for a leader: nobody does that yet.
func (r *Route) check(now int64) (search bool) {
	r.mu.Lock()
	streams, leader, since := len(r.streams), r.leader, r.leaderless
	resumes, submits := r.resume(now), r.submits()
	search = leader == "" && streams > 0 && now-since > askAfter && !r.searching
	r.searching = r.searching || search
	r.mu.Unlock()
	if leader == "" && IsOver(r.host.View(), r.id) {
		r.host.QueueGone(r.id) // somebody with an older view has made this route
		return false
	}
	switch {
	case leader == "":
		r.wantIfUnanswered()
	case resumes:
		r.askAll((*Stream).resume)
	case submits:
		r.askAll(func(s *Stream) []Resync { return s.overdue(now) })
	}
	return search
}

// searched notes that the members have been asked.
func (r *Route) searched() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.searching = false
}

// findLeaders asks the members of queues which of them serves, each node once about all of its queues.
func (t *Table) findLeaders(routes []*Route) {
	defer func() {
		for _, r := range routes {
			r.searched()
		}
	}()
	v := t.host.View()
	members := map[fsm.NodeID][]*Route{}
	for _, r := range routes {
		if q, ok := v.QueueByID(r.id); ok {
			for _, m := range v.Members(q) {
				members[m] = append(members[m], r)
			}
		}
	}
	worker.Each(-1, slices.Collect(maps.Keys(members)), func(_ int, m fsm.NodeID) {
		t.host.Try("ask a node what it leads", func() { t.findLed(t.host.NodeName(m), members[m]) })
	})
}

// findLed asks a node which queues it serves.
func (t *Table) findLed(node string, of []*Route) {
	for i, term := range t.host.Leads(of, node) {
		if term != 0 {
			of[i].Lead(node, term)
		}
	}
}
