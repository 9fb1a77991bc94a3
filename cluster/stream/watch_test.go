package stream

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group/grouptest"

	"github.com/quorate/quorate/fsm"
)

// The watch knows exactly those queues that have no leader or a stream, through
// every way in which that can change.
func TestWatchList(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	r := s.route
	var watched []*Route
	look := func(what string, want bool) {
		t.Helper()
		watched = slices.DeleteFunc(h.table.watchlist.more(watched), (*Route).rest)
		n := 0
		for _, other := range watched {
			if other == r {
				n++
			}
		}
		if want != (n == 1) || n > 1 {
			t.Errorf("%s: it is %d times on the list, want %v", what, n, want)
		}
	}
	look("a stream and no leader", true)
	r.Lead("n1", 1)
	look("a stream and a leader", true)
	r.Detach(s)
	look("a leader and no stream", false)
	look("the same", false)
	r.Lose("n2")
	look("another node is lost", false)
	r.Lose("n1")
	look("neither", true)
	r.Lead("n1", 2)
	r.Lose("n1")
	look("found and lost again", true)
	r.Lead("n1", 3)
	look("found again", false)
	r.Attach(s)
	r.Detach(s)
	r.Attach(s)
	look("two streams came, one went", true)
	r.end()
	look("the queue is gone", false)
}

// Where nobody has announced anything for a while the members are asked, each once about all queues.
func TestWatchAsks(t *testing.T) {
	const queues = 100
	h := newHost(t)
	var routes []*Route
	for i := range queues {
		r := h.table.Route(h.MustQueue(fmt.Sprint("q", i)))
		h.attach(&client{}, r, 1)
		routes = append(routes, r)
	}
	h.serves = map[string]uint64{"n1": 4}
	h.Clock.Add(askAfter)
	watched := h.table.Watch(nil)
	if h.spawned.Load() != 0 || routes[0].IsLeader("n1") {
		t.Error("asked too early")
	}
	h.Clock.Add(1)
	h.table.Watch(watched)
	for _, r := range routes {
		grouptest.Eventually(t, func() bool { return r.IsLeader("n1") })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.questions != 1 {
		t.Errorf("a node was questioned %d times about %d queues", h.questions, queues)
	}
}

// A panic about one route leaves the others alone. That one is made anew, and
// watched on.
func TestWatchPanics(t *testing.T) {
	h, c, other := newHost(t), &client{}, &client{}
	broken, whole := h.table.Route(h.MustQueue("broken")), h.table.Route(h.MustQueue("whole"))
	h.attach(c, broken, 1)
	h.attach(other, whole, 1)
	broken.mu.Lock()
	broken.streams[fsm.SessionID{Num: 99}] = &Stream{} // of nobody
	broken.leader = "n1"
	broken.mu.Unlock()
	watched := h.table.Watch(nil)
	if c.failed != 1 || other.failed != 0 || len(broken.Streams()) != 0 || whole.Stream(other.stream.id) == nil || h.panics.Load() == 0 {
		t.Errorf("failed %d and %d, %d streams, %d panics", c.failed, other.failed, len(broken.Streams()), h.panics.Load())
	}
	panics := h.panics.Load()
	if watched = h.table.Watch(watched); len(watched) != 2 || h.panics.Load() != panics {
		t.Errorf("%d queues are watched, %d panics more", len(watched), h.panics.Load()-panics)
	}
}

// Who waits for a leader says so when it is lost, when something new is to be sent, and again as long as
// it waits; nobody says so of a queue that he merely has used.
func TestRouteWants(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	r := s.route
	want := func(what string, n int64) {
		t.Helper()
		if got := h.wanted.Swap(0); got != n {
			t.Errorf("%s: it is said %d times, want %d", what, got, n)
		}
	}
	watched := h.table.Watch(nil)
	look := func() {
		h.Clock.Add(wantEvery)
		watched = h.table.Watch(watched)
	}
	look()
	want("nothing waits", 0)
	c.publish(1, "m")
	want("a message", 1)
	c.publish(1, "m")
	want("another at once", 0)
	look()
	want("both still wait", 1)
	r.Lead("n1", 1)
	look()
	want("there is a leader", 0)
	r.Lose("n1")
	want("it is lost, and both are unanswered", 1)
	r.Lead("n1", 2)
	r.Lose("n1")
	want("lost again at once", 1)
}
