package stream

import (
	"maps"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

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
