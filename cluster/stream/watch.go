package stream

import (
	"slices"
	"sync"
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
	for _, r := range watched {
		if !t.host.Guard("watch a queue", func() { r.check(now) }) {
			r.rebuild()
		}
	}
	return watched
}

// check finds a leader, says that one is wanted, ends a pause, and asks about what is not answered, if it is
// time.
func (r *Route) check(now int64) {
	r.mu.Lock()
	streams, leader, since := len(r.streams), r.leader, r.leaderless
	resumes, submits := r.resume(now), r.submits()
	search := leader == "" && streams > 0 && now-since > askAfter && !r.searching
	r.searching = r.searching || search
	r.mu.Unlock()
	if leader == "" && IsOver(r.host.View(), r.id) {
		r.host.QueueGone(r.id) // somebody with an older view has made this route
		return
	}
	switch {
	case leader == "":
		r.wantIfUnanswered()
	case resumes:
		r.askAll((*Stream).resume)
	case submits:
		r.askAll(func(s *Stream) []Resync { return s.overdue(now) })
	}
	if search {
		r.host.Spawn("ask for a leader", r.findLeader)
	}
}

// findLeader asks the members of the queue which of them serves.
func (r *Route) findLeader() {
	defer func() {
		r.mu.Lock()
		r.searching = false
		r.mu.Unlock()
	}()
	v := r.host.View()
	q, ok := v.QueueByID(r.id)
	if !ok {
		return
	}
	for _, m := range v.Members(q) {
		node := r.host.NodeName(m)
		if term := r.host.Leads(r, node); term != 0 {
			r.Lead(node, term)
			return
		}
	}
}
