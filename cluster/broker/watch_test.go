package broker

import (
	"slices"
	"testing"
)

// The watch knows exactly those queues that have no leader or a lane, through
// every way in which that can change.
func TestWatchList(t *testing.T) {
	w, _, s, l := mustLane(t)
	way := l.target
	var watched []*target
	look := func(what string, want bool) {
		t.Helper()
		watched = slices.DeleteFunc(w.broker.watched.more(watched), (*target).rest)
		n := 0
		for _, other := range watched {
			if other == way {
				n++
			}
		}
		if want != (n == 1) || n > 1 {
			t.Errorf("%s: it is %d times on the list, want %v", what, n, want)
		}
	}
	look("a lane and no leader", true)
	way.lead("n1", 1)
	look("a lane and a leader", true)
	way.detach(l)
	look("a leader and no lane", false)
	look("the same", false)
	way.lose("n2")
	look("another node is lost", false)
	way.lose("n1")
	look("neither", true)
	way.lead("n1", 2)
	way.lose("n1")
	look("found and lost again", true)
	way.lead("n1", 3)
	look("found again", false)
	s.mu.Lock()
	way.attach(l)
	s.mu.Unlock()
	way.detach(l)
	way.attach(l)
	look("two lanes came, one went", true)
	way.end()
	look("the queue is gone", false)
}
