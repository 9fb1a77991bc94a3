package host

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// A replica that opens long after its node could be reached gets what it lacks
// at once, also of a queue in which nothing happens any more: what its leader
// sent before was refused, and raft itself would try again a minute later.
func TestReplicaThatOpensLate(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, func(p *peer.Config) { p.EarlyWait = -1 }, func(c *Config) { c.Heartbeat = 0 }) // raft's timers are those of production
	const groups = 8
	for id := fsm.GroupID(1); id <= groups; id++ {
		c.mustOpenAt(c.hosts[0], id)
		c.mustOpenAt(c.hosts[1], id)
	}
	for id := fsm.GroupID(1); id <= groups; id++ {
		c.mustServe(id, 1)
	}
	for id := fsm.GroupID(1); id <= groups; id++ {
		g := c.mustOpenAt(c.hosts[2], id)
		await(t, "the replica that opened has the message", func() bool { return ready(g) == 1 })
	}
}

// slow is a group with one member that does not get further.
type slow struct {
	term       uint64
	index, end uint64
	busy       bool
	both       bool // n3 has what n2 has
	nudged     int
	requested  int // for its members
	checks     int
	reminded   map[string]int
	done       complete
	lacked     uint64
}

func (s *slow) ID() fsm.GroupID                { return 3 }
func (s *slow) LeadsIn() (uint64, bool)        { s.checks++; return s.term, true }
func (s *slow) LastStored() uint64             { return s.end }
func (s *slow) completed() (*complete, uint64) { return &s.done, s.lacked }
func (s *slow) Configuration() []replica.Member {
	s.requested++
	return []replica.Member{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}
}
func (s *slow) Nudge() { s.nudged++; s.end++ }
func (s *slow) Remind(n string) {
	if s.reminded == nil {
		s.reminded = map[string]int{}
	}
	s.reminded[n]++
}
func (s *slow) Reached(n string, _ uint64) peer.Reached {
	if n == "n3" && !s.both {
		return peer.Reached{} // it is not alive
	}
	return peer.Reached{Index: s.index, Busy: s.busy}
}

// A member that lacks entries and is sent none is sent some, at first soon and
// then ever more rarely; one that gets on, or is about to, is left alone.
func TestLagWatch(t *testing.T) {
	l := &lagWatch{node: "n1", alive: func(n string) bool { return n == "n2" }, behind: map[groupMember]lag{}, beats: func() bool { return false }}
	s := &slow{term: 5, index: 4, end: 4}
	now := time.Unix(1000, 0)
	during := func(d time.Duration, each func()) (nudged int) {
		before := s.nudged
		for end := now.Add(d); now.Before(end); now = now.Add(lagEvery) {
			each()
			l.check(s, now)
			l.forget(now)
		}
		return s.nudged - before
	}
	nothing := func() {}
	if n := during(time.Minute, nothing); n != 0 {
		t.Errorf("one that has everything was nudged %d times", n)
	}
	s.end = 10
	if n := during(lagFirst+2*lagEvery, nothing); n != 1 {
		t.Errorf("nudged %d times in the first moment", n)
	}
	if n := during(10*time.Minute, nothing); n < 20 || n > 25 {
		t.Errorf("nudged %d times in ten minutes", n)
	}
	if n := during(time.Minute, func() { s.index, s.end = s.index+1, s.end+1 }); n != 0 {
		t.Errorf("one that gets on was nudged %d times", n)
	}
	s.busy = true
	if n := during(time.Minute, nothing); n != 0 {
		t.Errorf("one to which something is on its way was nudged %d times", n)
	}
	s.busy, s.index = false, s.end
	during(lagEvery, nothing)
	if len(l.behind) != 0 {
		t.Errorf("%d are remembered for nothing", len(l.behind))
	}
}

// Members that have everything are told what is committed as soon as nothing more comes, once.
func TestLagWatchTellsWhatIsCommitted(t *testing.T) {
	l := &lagWatch{node: "n1", alive: func(n string) bool { return n == "n2" }, behind: map[groupMember]lag{}, beats: func() bool { return false }}
	s := &slow{term: 5, index: 4, end: 4, both: true}
	now := time.Unix(1000, 0)
	during := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(lagEvery) {
			l.round(now)
		}
	}
	for told, change := range []func(){
		func() {},
		func() { s.index, s.end = s.index+1, s.end+1 }, // something has come
		func() { s.lacked++ },                          // a reminder was refused
	} {
		change()
		l.note(s)
		for _, d := range []time.Duration{2 * lagEvery, 10 * lagAgain} {
			if during(d); s.reminded["n2"] != told+1 {
				t.Errorf("change %d: reminded %v after %v", told, s.reminded, d)
			}
		}
	}
	for range 10 { // something comes all the time
		s.index, s.end = s.index+1, s.end+1
		l.note(s)
		during(lagEvery)
	}
	if s.reminded["n2"] != 3 || len(s.reminded) != 1 {
		t.Errorf("reminded %v: n2 alone is alive, and the group is busy", s.reminded)
	}
}

// Members of earlier versions, whose rafts have timers, hear from their leader in time.
func TestLagWatchBeats(t *testing.T) {
	l := &lagWatch{node: "n1", alive: func(n string) bool { return true }, behind: map[groupMember]lag{}, beats: func() bool { return true }}
	s := &slow{term: 5, index: 4, end: 4, both: true}
	for now, end := time.Unix(1000, 0), time.Unix(1300, 0); now.Before(end); now = now.Add(lagEvery) {
		l.check(s, now)
	}
	if n := s.reminded["n2"]; n < 25 || n > 30 || s.reminded["n3"] != n {
		t.Errorf("reminded %v in five minutes", s.reminded)
	}
}

// A group whose members have everything is left alone until that may have changed, and looked at now
// and then even so.
func TestLagWatchRests(t *testing.T) {
	const minute = int(time.Minute / lagEvery)
	for _, tc := range []struct {
		name         string
		change       func(s *slow)
		nudged, asks [2]int // within a minute: at least, at most
	}{
		{"nothing happens", func(*slow) {}, [2]int{}, [2]int{1, 2}},
		{"the log grows", func(s *slow) { s.end++ }, [2]int{5, 7}, [2]int{minute - 1, minute}},
		{"a member lacks what it acknowledged", func(s *slow) { s.index, s.lacked = 3, 1 }, [2]int{5, 7}, [2]int{minute - 1, minute}},
		{"one lacks it without having said so", func(s *slow) { s.index = 3 }, [2]int{3, 6}, [2]int{minute / 3, minute}},
		{"in another term none has acknowledged anything", func(s *slow) { s.index, s.term = 0, 6 }, [2]int{5, 7}, [2]int{minute - 1, minute}},
		{"something is on its way to a member", func(s *slow) { s.end, s.busy = 5, true }, [2]int{}, [2]int{minute - 1, minute}},
		{"a member that is not up lacks something", func(s *slow) { s.both, s.term = false, 6 }, [2]int{}, [2]int{minute - 1, minute}},
	} {
		l := &lagWatch{node: "n1", alive: func(n string) bool { return n == "n2" }, behind: map[groupMember]lag{}, beats: func() bool { return false }}
		s := &slow{term: 5, index: 4, end: 4, both: true}
		now := time.Unix(1000, 0)
		for range 3 {
			l.check(s, now)
			now = now.Add(lagEvery)
		}
		if s.requested != 2 { // the second time they are told what is committed
			t.Errorf("%s: before, the members were asked for %d times", tc.name, s.requested)
		}
		s.requested = 0
		tc.change(s)
		for range minute {
			l.check(s, now)
			l.forget(now)
			now = now.Add(lagEvery)
		}
		if n := s.nudged; n < tc.nudged[0] || n > tc.nudged[1] {
			t.Errorf("%s: nudged %d times", tc.name, n)
		}
		if n := s.requested; n < tc.asks[0] || n > tc.asks[1] {
			t.Errorf("%s: the members were asked for %d times", tc.name, n)
		}
	}
}

// A group whose members have everything is not looked at, but for once in a while, until it is noted.
func TestLagWatchLeavesAlone(t *testing.T) {
	l := &lagWatch{node: "n1", alive: func(string) bool { return true }, behind: map[groupMember]lag{}, beats: func() bool { return false }}
	s := &slow{term: 5, index: 4, end: 4, both: true}
	now := time.Unix(1000, 0)
	during := func(d time.Duration) (checks int) {
		before := s.checks
		for end := now.Add(d); now.Before(end); now = now.Add(lagEvery) {
			l.round(now)
		}
		return s.checks - before
	}
	if l.note(s); during(lagEvery) == 0 {
		t.Error("it is not looked at when it is noted")
	}
	if n := during(10 * time.Minute); n > int(10*time.Minute/lagAgain)+1 || s.reminded["n2"] != 1 {
		t.Errorf("looked at %d times in ten minutes, and reminded %v", n, s.reminded)
	}
	s.index = 3
	if during(lagAgain + lagFirst + lagEvery); s.nudged == 0 {
		t.Error("nobody sees that a member lacks something, which was not noted")
	}
	for range 20 { // each time it rests again
		s.index = s.end
		during(lagFirst)
		s.nudged, s.end = 0, s.end+1
		l.note(s)
		l.note(s)
		if during(lagFirst + lagEvery + 1); s.nudged != 1 {
			t.Errorf("nudged %d times in the first moment after the log has grown", s.nudged)
		}
	}
	if len(l.resting) > 1 || len(l.noted) > 1 {
		t.Errorf("one group rests %d times, and is noted %d times", len(l.resting), len(l.noted))
	}
}

// An entry more has a group looked at by its leader, and nobody else.
func TestLagWatchIsNotified(t *testing.T) {
	c := mustTrio(t)
	g := c.leadAt(1)
	all := c.replicas(1)
	during := func(f func()) {
		for _, r := range all {
			w := c.host(r).lag
			await(t, "the group is not noted", func() bool {
				w.mu.Lock()
				if in(r).complete.noted.Load() {
					w.mu.Unlock()
					return false
				}
				return true
			})
			defer w.mu.Unlock()
		}
		c.hosts[0].tasks.Go(f) // it waits for a lock that is held here
		await(t, "the group is noted by its leader", in(g).complete.noted.Load)
	}
	before := in(g).LastStored()
	during(in(g).Nudge)
	await(t, "all have the entry", func() bool {
		return !slices.ContainsFunc(all, func(r *group.Group) bool { return in(r).LastStored() <= before })
	})
	for _, r := range all {
		if r != g && in(r).complete.noted.Load() {
			t.Errorf("%s looks at the members of a group that it does not lead", in(r).Node())
		}
	}
}

// A member that lags much is sent no more than its share, but gets on faster
// than the log grows; one that is nearly there is not kept waiting.
func TestCatchUpPauses(t *testing.T) {
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	for _, tc := range []struct {
		name  string
		over  time.Duration // since the last request
		took  time.Duration
		n     int
		grown uint64
		pause time.Duration
	}{
		{"the log does not grow", 20 * ms, 10 * ms, 32, 0, 90 * ms},
		{"it grows slowly", 20 * ms, 10 * ms, 32, 2, 90 * ms},
		{"it grows a third as fast", 20 * ms, 10 * ms, 32, 10, 32666666},
		{"it grows two thirds as fast", 20 * ms, 10 * ms, 48, 32, 10 * ms},
		{"it grows as fast", 20 * ms, 14 * ms, 32, 32, 0},
		{"it grows faster", 20 * ms, 10 * ms, 32, 320, 0},
		{"the last request was long ago", 2 * time.Second, 10 * ms, 32, 320, 90 * ms},
		{"not worth a pause", 20 * ms, ms / 8, 32, 0, 0},
		{"a hung disk", 900 * ms, 800 * ms, 32, 0, maxPause},
	} {
		p := &catchUp{}
		p.sent(start.Add(-tc.over), 0, tc.n, 1000)
		if got := p.sent(start, tc.took, tc.n, 1000+tc.grown); got != tc.pause {
			t.Errorf("%s: a pause of %v, want %v", tc.name, got, tc.pause)
		}
	}
	p := &catchUp{}
	p.sent(start, ms/8, 1, 1)
	if got := p.sent(start.Add(ms), ms/8, 1, 1); got != 2250*time.Microsecond {
		t.Errorf("what was owed comes to %v", got)
	}
}

// Who comes first is served first, however little others want, and no more is
// under way than there is. A reservation that is given up before it is granted costs nobody
// anything.
func TestCatchUpBudget(t *testing.T) {
	a := &catchUpBudget{free: 10}
	came := func(of ...*reservation) (yes string) {
		for _, x := range of {
			select {
			case <-x.granted:
				yes += "y"
			default:
				yes += "n"
			}
		}
		return yes
	}
	first, second, third, fourth := a.reserve(6), a.reserve(6), a.reserve(6), a.reserve(1)
	if got := came(first, second, third, fourth); got != "ynnn" {
		t.Errorf("at first: %s", got)
	}
	a.release(third)
	a.release(first)
	if got := came(second, third, fourth); got != "yny" || a.free != 3 {
		t.Errorf("then: %s, %d are free", got, a.free)
	}
	a.release(second)
	a.release(fourth)
	if a.free != 10 || len(a.waiting) != 0 {
		t.Errorf("%d are free, %d wait", a.free, len(a.waiting))
	}
}

// All groups of a node share what it sends to members that lag, however many there
// are. A member without which nothing is committed does not wait for the budget.
func TestCatchUpBudgetOfANode(t *testing.T) {
	c := mustTrio(t)
	g := c.leadAt(1)
	h := c.hosts[0]
	await(t, "all are up", func() bool { return h.mesh.Alive("n2") && h.mesh.Alive("n3") })
	a, throttle := &h.catchUp, newThrottle(&h.catchUp, in(g).Replica, h.stop)
	left := func(bytes, waiting int) {
		t.Helper()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.free != bytes || len(a.waiting) != waiting {
			t.Errorf("%d bytes are free, %d wait; want %d, %d", a.free, len(a.waiting), bytes, waiting)
		}
	}
	for sent, counts := range map[int]int{1: minCatchUpBytes, replica.MaxRequestBytes: replica.MaxRequestBytes, 100 * replica.MaxRequestBytes: catchUpBytes} {
		done := throttle.Reserve("n2", sent)
		left(catchUpBytes-counts, 0)
		done()
	}
	share := func() <-chan func() {
		taken := make(chan func(), 1)
		h.done.Go(func() { taken <- throttle.Reserve("n2", 1) })
		await(t, "it waits", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.waiting) == 1
		})
		return taken
	}
	all := a.reserve(catchUpBytes)
	taken := share()
	left(0, 1)
	a.release(all)
	done := <-taken
	left(catchUpBytes-minCatchUpBytes, 0)
	done()
	all = a.reserve(catchUpBytes)
	taken = share()
	c.mustStop(2)
	(<-taken)()
	left(0, 0)
	done = throttle.Reserve("n2", 1) // has nothing to wait for
	left(0, 0)
	done()
	left(0, 0)
	a.release(all)
	left(catchUpBytes, 0)
}
