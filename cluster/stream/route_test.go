package stream

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// submissions records what a route hands to leaders.
type submissions struct {
	mu   sync.Mutex
	made []string
	gate chan struct{}
	came chan struct{}
	err  error
}

func (s *submissions) submit(t grouptest.Fatal) func(string, group.Batch) error {
	return func(leader string, b group.Batch) error {
		s.came <- struct{}{}
		<-s.gate
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range grouptest.Commands(t, b) {
			s.made = append(s.made, fmt.Sprint(leader, " ", c.Seq))
		}
		return s.err
	}
}

func (r *Route) isRunning() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// Commands that were on their way to a leader when another one took over are
// sent to that one too, whether the former took them or not.
func TestLeaderMovesDuringSubmit(t *testing.T) {
	for _, err := range []error{nil, replica.ErrNotLeading, group.ErrFull, replica.ErrTransferring} {
		t.Run(fmt.Sprint(err), func(t *testing.T) {
			h, c := newHost(t), &client{}
			s := h.mustStream(c)
			sub := &submissions{gate: make(chan struct{}), came: make(chan struct{}, 10), err: err}
			h.submits(sub.submit(t))
			s.route.Lead("n2", 5)
			c.publish(1, "m")
			<-sub.came
			s.route.Lead("n3", 6)
			sub.gate <- struct{}{}
			<-sub.came
			sub.mu.Lock()
			sub.err = nil
			sub.mu.Unlock()
			close(sub.gate)
			grouptest.Eventually(t, func() bool { return !s.route.isRunning() })
			if want := []string{"n2 1", "n3 1"}; !slices.Equal(sub.made, want) {
				t.Errorf("submitted %q, want %q", sub.made, want)
			}
		})
	}
}

// A route takes the leader of the highest term it has heard of.
func TestLeaders(t *testing.T) {
	h := newHost(t)
	r := h.mustStream(&client{}).route
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() { r.Lead("n2", 5) }, "n2"},
		{func() { r.Lead("n3", 4) }, "n2"},
		{func() { r.Lose("n3") }, "n2"},
		{func() { h.table.NodeDown("n2") }, ""},
		{func() { r.Lead("n2", 5) }, "n2"},
		{func() { h.table.Lead(r.id, "n3", 6) }, "n3"},
		{func() { r.Lead("n2", 5) }, "n3"},
		{func() { h.table.Lose(r.id, "n3") }, ""},
	} {
		step.do()
		if got, _, _ := r.Leader(); got != step.want {
			t.Fatalf("leader is %q, want %q", got, step.want)
		}
	}
}

// What happens to a node concerns the queues that it serves, and no others.
func TestRoutesOfANode(t *testing.T) {
	h := newHost(t)
	var all []*Route
	for i, name := range []string{"a", "b", "c", "d"} {
		r := h.table.Route(h.MustQueue(name))
		r.Lead("n2", 1)
		if i > 0 {
			r.Lead("n3", 2)
		}
		all = append(all, r)
	}
	must := func(node string, want int) {
		t.Helper()
		if got := len(h.table.leaders.of(node)); got != want {
			t.Errorf("%s serves %d queues, want %d", node, got, want)
		}
	}
	must("n2", 1)
	must("n3", 3)
	all[1].Lose("n3")
	h.table.QueueGone(all[2].id)
	all[2].Lead("n3", 3) // too late
	must("n3", 1)
	h.table.NodeDown("n3")
	must("n3", 0)
	must("n2", 1)
	all[3].Lead("n2", 3)
	all[3].rebuild()
	must("n2", 1)
}

// A leader that this node hears of before the catalog holds its queue is
// remembered; one of a queue that is gone is not.
func TestEarlyLeader(t *testing.T) {
	h := newHost(t)
	old := h.MustQueue("old")
	h.deleteQueue(old)
	h.table.Lead(old.ID, "n2", 3)
	next := h.NextQueue()
	h.table.Lead(next, "n3", 4)
	q := h.MustQueue("new")
	if q.ID != next {
		t.Fatalf("the queue has the id %d, expected %d", q.ID, next)
	}
	h.table.QueueAdded(q)
	if !h.table.Find(next).IsLeader("n3") {
		t.Error("the leader is forgotten")
	}
	if len(h.table.early) != 0 || h.table.Find(old.ID) != nil {
		t.Errorf("left behind: %v, %v", h.table.early, h.table.Find(old.ID))
	}
}

// With its queue each stream ends: everything is answered and its owner told,
// also beside one that panics. Nothing begins anew.
func TestEndOfQueue(t *testing.T) {
	h := newHost(t)
	q := h.MustQueue("q")
	r := h.table.Route(q)
	var clients []*client
	var calls []*Call
	for n := range uint64(3) {
		c := &client{}
		h.attach(c, r, n+1)
		clients = append(clients, c)
		c.publish(1, "m")
		calls = append(calls, c.request(&logpb.Command{Kind: logpb.Command_PURGE}))
	}
	brittle := &client{brittle: true}
	h.attach(brittle, r, 4)
	r.mu.Lock()
	for i := range uint64(20) { // of nobody
		r.streams[fsm.SessionID{Num: 100 + i}] = &Stream{}
	}
	r.mu.Unlock()
	h.deleteQueue(q)
	for i, c := range clients {
		if !isDone(calls[i]) || calls[i].Result.Code != fsm.Gone || c.answered[1] != 1 || c.refused != 1 || !c.stream.Gone() {
			t.Errorf("stream %d: %+v, answered %v", i, calls[i].Result, c.answered)
		}
		if c.gone != 1 || len(c.notices) != 0 {
			t.Errorf("the owner of stream %d learns %d times that it is gone, and %v", i, c.gone, c.notices)
		}
	}
	if brittle.failed != 1 {
		t.Errorf("one that panics has failed %d times", brittle.failed)
	}
	late := &client{}
	if s := h.attach(late, r, 9); !s.Over() || !isDone(late.request(&logpb.Command{Kind: logpb.Command_PURGE})) {
		t.Error("a stream to a queue that is gone goes on")
	}
}

// A panic while commands are submitted ends the streams of that route; the next
// ones use it as ever, once it has a leader again.
func TestSubmittingPanics(t *testing.T) {
	h, c := newHost(t), &client{}
	s := h.mustStream(c)
	h.submits(func(string, group.Batch) error { panic("injected") })
	s.route.Lead("n2", 1)
	c.publish(1, "m")
	grouptest.Eventually(t, func() bool { return !s.route.isRunning() })
	grouptest.Eventually(t, func() bool {
		c.Lock()
		defer c.Unlock()
		return c.failed == 1
	})
	if s.route.IsLeader("n2") || len(s.route.Streams()) != 0 || h.panics.Load() != 1 {
		t.Errorf("%d streams, %d panics", len(s.route.Streams()), h.panics.Load())
	}
	sent := make(chan int, 1)
	h.submits(func(_ string, b group.Batch) error {
		sent <- b.Count
		return nil
	})
	next := &client{}
	h.attach(next, s.route, 2)
	next.publish(1, "m")
	s.route.Lead("n2", 1)
	if n := <-sent; n != 1 {
		t.Errorf("%d commands are submitted", n)
	}
}

// A leader that is full, or hands its leadership over, is paused for, longer each time, and not left: when the
// pause is over it is asked what it has, and gets the rest. One that announces itself again ends the pause.
func TestPause(t *testing.T) {
	for _, why := range []error{group.ErrFull, replica.ErrTransferring} {
		h, c := newHost(t), &client{}
		s := h.mustStream(c)
		r := s.route
		refuse, tries := why, make(chan int, 100)
		h.submits(func(_ string, b group.Batch) error {
			tries <- b.Count
			return refuse
		})
		rest := func() {
			t.Helper()
			grouptest.Eventually(t, func() bool { return !r.isRunning() })
		}
		var watched []*Route
		pass := func(ms int64) {
			h.Clock.Add(ms)
			watched = h.table.Watch(watched)
			rest()
		}
		r.Lead("n2", 5)
		c.publish(1, "m")
		rest()
		if len(tries) != 1 || !r.IsLeader("n2") {
			t.Fatalf("%v: tried %d times, the leader is lost: %v", why, len(tries), !r.IsLeader("n2"))
		}
		pass(minPause - 1)
		if len(tries) != 1 || len(h.requested) != 0 {
			t.Errorf("%v: tried %d times, asked %v before the pause is over", why, len(tries), h.requested)
		}
		pass(1)
		if want := []Resync{{Session: s.id, After: ^uint64(0), Commands: 1}}; !slices.Equal(h.requested, want) {
			t.Errorf("%v: asked %v after the pause, want %v", why, h.requested, want)
		}
		s.Answer("n2", []group.Outcome{gapAt(1, 1)})
		rest()
		pass(minPause)
		if len(tries) != 2 {
			t.Errorf("%v: tried %d times in the second pause, which is longer", why, len(tries))
		}
		for range 10 {
			pass(maxPause)
			s.Answer("n2", []group.Outcome{gapAt(1, 1)})
			rest()
		}
		if len(tries) != 2+10 {
			t.Errorf("%v: tried %d times in ten of the longest pauses", why, len(tries)-2)
		}
		for len(tries) > 0 {
			<-tries
		}
		refuse = nil
		r.Lead("n2", 5) // it takes commands again
		s.Answer("n2", []group.Outcome{gapAt(1, 1)})
		rest()
		if len(tries) != 1 {
			t.Errorf("%v: tried %d times when it takes commands again", why, len(tries))
		}
		c.publish(2, "m")
		rest()
		if len(tries) != 2 {
			t.Errorf("%v: the pause goes on", why)
		}
	}
}

// Only another leader, or another term, is sent everything again. The one there was is asked: after a link that
// was broken, and when it was lost and has come back.
func TestOnlyNewLeaderGetsEverything(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(h *host, r *Route)
		all  bool
	}{
		{"another node", func(_ *host, r *Route) { r.Lead("n3", 6) }, true},
		{"another term", func(_ *host, r *Route) { r.Lead("n2", 6) }, true},
		{"an older one", func(_ *host, r *Route) { r.Lead("n3", 4) }, false},
		{"the same", func(_ *host, r *Route) { r.Lead("n2", 5) }, false},
		{"it was lost", func(_ *host, r *Route) { r.Lose("n2"); r.Lead("n2", 5) }, false},
		{"the link is back", func(h *host, _ *Route) { h.table.NodeUp("n2") }, false},
		{"it was full", func(h *host, r *Route) { h.table.Pause(r.id, "n2"); h.Clock.Add(maxPause); h.table.Watch(nil) }, false},
	} {
		h, c := newHost(t), &client{}
		s := h.mustStream(c)
		sent := make(chan int, 10)
		h.submits(func(_ string, b group.Batch) error {
			sent <- b.Count
			return nil
		})
		s.route.Lead("n2", 5)
		c.publish(1, "m")
		grouptest.Eventually(t, func() bool { return !s.route.isRunning() })
		<-sent
		x.do(h, s.route)
		grouptest.Eventually(t, func() bool { return !s.route.isRunning() })
		if all := len(sent) == 1; all != x.all || !all && x.name != "an older one" && len(h.requested) != 1 {
			t.Errorf("%s: sent %d times, asked %v", x.name, len(sent), h.requested)
		}
	}
}
