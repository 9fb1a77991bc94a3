package clock

import (
	"log/slog"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

const (
	ms      = time.Millisecond
	hour    = time.Hour
	epoch   = fsm.Time(1_700_000_000_000)
	maxSkew = fsm.Millis(1000)
)

// world is true time, and the clocks of three nodes or more in it. The first
// node is the one under test.
type world struct {
	passed time.Duration
	names  []string
	off    map[string]time.Duration // wall clocks against true time
	down   map[string]bool
	trip   time.Duration // of what is read, and how late answers are
	late   time.Duration
	pause  time.Duration // of the process before and after it reads its wall clock the next time
	skew   fsm.Millis
	c      *Clock
}

func newWorld(nodes int, offs ...time.Duration) *world {
	w := &world{off: map[string]time.Duration{}, down: map[string]bool{}, skew: maxSkew, trip: 2 * ms}
	for i := range nodes {
		name := string(rune('a' + i))
		w.names = append(w.names, name)
		if i < len(offs) {
			w.off[name] = offs[i]
		}
	}
	w.boot()
	return w
}

// boot starts the node's process.
func (w *world) boot() {
	began := w.passed
	w.c = New(Config{
		Node: "a", Nodes: w.names, Logger: slog.New(slog.DiscardHandler),
		Wall: func() time.Time {
			pause := w.pause
			w.passed, w.pause = w.passed+pause, 0
			shows := time.UnixMilli(int64(epoch)).Add(w.passed + w.off["a"])
			w.passed += pause
			return shows
		},
		Monotonic: func() time.Duration { return w.passed - began },
		MaxSkew:   func() fsm.Millis { return w.skew },
	})
}

func (w *world) truth() fsm.Time { return epoch + fsm.Time(w.passed/ms) }

func (w *world) wall(node string) fsm.Time { return epoch + fsm.Time((w.passed+w.off[node])/ms) }

// pass lets time go by in steps of at most 100 ms; the nodes hear each other.
func (w *world) pass(d time.Duration) {
	for ; d > 0; d -= 100 * ms {
		w.passed += min(d, 100*ms)
		w.hear()
	}
}

// hear reads the other nodes' clocks.
func (w *world) hear() {
	w.c.Update()
	for _, name := range w.names[1:] {
		if !w.down[name] {
			w.read(name, w.late, w.trip)
		}
	}
}

// read takes an answer of another node that has been on its way for a while.
func (w *world) read(node string, late, trip time.Duration) {
	w.c.Read(node, w.wall(node)-fsm.Time(late/ms), w.c.Monotonic(), trip)
}

// mustBe checks that got is want, but for the error of a reading.
func mustBe(t testing.TB, what string, got, want fsm.Time) {
	t.Helper()
	const within = fsm.Time(grain/ms) + 2
	if got < want-within || got > want+within {
		t.Errorf("%s: %d, want %d (%+d)", what, got, want, got-want)
	}
}

// A process that starts is alone until it is told of its cluster's nodes, perhaps one by one. That
// it agreed with itself then says nothing: its wall clock, an hour ahead, moves no stamp, whether
// the clocks of the others come soon or late.
func TestStartsAlone(t *testing.T) {
	for _, unheard := range []string{"b", "c"} {
		w := newWorld(3, hour)
		names := w.names
		w.names = names[:1]
		w.boot()
		w.c.SetNodes(nil)
		w.c.SetNodes(names[:1])
		w.pass(300 * ms)
		w.names = names
		w.down[unheard] = true
		w.c.SetNodes(names)
		select {
		case <-w.c.Agreed():
			t.Error("its own clock is said to be that of a majority")
		default:
		}
		w.pass(300 * ms)
		if s := w.c.Status(); s.Agreed || !s.Sampled {
			t.Errorf("with one that disagrees: agreed %v, sampled %v", s.Agreed, s.Sampled)
		}
		var s Stamper
		last := w.truth()
		s.Begin(w.c, last)
		w.pass(500 * ms)
		mustBe(t, "the time that has passed since the log's last stamp", s.Next(), last+500)
		w.down[unheard] = false
		w.pass(500 * ms)
		mustBe(t, "once a majority agrees", s.Next(), w.truth())
		select {
		case <-w.c.Agreed():
		default:
			t.Error("no majority agrees")
		}
	}
}

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		name    string
		offs    []time.Duration // all nodes' wall clocks
		unheard int             // that many of the last nodes are not heard
		want    time.Duration   // the corrected clock against true time
		agreed  bool
		skewed  bool
	}{
		{"all right", []time.Duration{0, 0, 0}, 0, 0, true, false},
		{"own clock ahead", []time.Duration{hour, 0, 0}, 0, 0, true, true},
		{"own clock behind", []time.Duration{-hour, 0, 0}, 0, 0, true, true},
		{"another one ahead", []time.Duration{0, 0, hour}, 0, 0, true, false},
		{"small differences", []time.Duration{-300 * ms, 400 * ms, 100 * ms}, 0, 100 * ms, true, false},
		{"even number: the lower one", []time.Duration{300 * ms, 100 * ms, 0}, 1, 100 * ms, true, false},
		{"four: the lower one of the middle", []time.Duration{3 * ms, 100 * ms, 200 * ms, 300 * ms}, 0, 100 * ms, true, false},
		{"two that disagree", []time.Duration{0, hour, 0}, 1, 0, false, false},
		{"two that disagree, own one ahead", []time.Duration{hour, 0, 0}, 1, 0, false, true},
		{"three that disagree", []time.Duration{0, 2 * hour, hour}, 0, hour, false, true},
		{"five, two wrong", []time.Duration{hour, -hour, 0, 10 * ms, 0}, 0, 0, true, true},
		{"alone among three", []time.Duration{hour, 0, 0}, 2, hour, false, false},
		{"alone", []time.Duration{hour}, 0, hour, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(len(test.offs), test.offs...)
			for _, name := range w.names[len(w.names)-test.unheard:] {
				w.down[name] = true
			}
			w.pass(time.Second)
			mustBe(t, "now", w.c.Now(), w.truth()+fsm.Time(test.want/ms))
			if s := w.c.Status(); s.Agreed != test.agreed || s.Skewed != test.skewed {
				t.Errorf("agreed %v, skewed %v, want %v, %v", s.Agreed, s.Skewed, test.agreed, test.skewed)
			}
		})
	}
}

// Bytes take longer in one direction than in the other, so all readings err by half of
// their round trip in the same direction: a right clock is not corrected. A wrong one
// is, as far as the readings are certain.
func TestUnevenDelays(t *testing.T) {
	const trip = 200 * ms
	for name, late := range map[string]time.Duration{"requests are late": 0, "answers are late": trip} {
		w := newWorld(3)
		w.pass(time.Second)
		listen := func() {
			for range 20 {
				w.passed += 100 * ms
				for _, node := range w.names[1:] {
					w.read(node, late, trip)
				}
			}
		}
		listen()
		mustBe(t, name, w.c.Now(), w.truth())
		w.off["b"], w.off["c"] = 700*ms, 700*ms
		listen()
		if off := time.Duration(w.c.Now()-w.truth()) * ms; off < 500*ms || off > 700*ms {
			t.Errorf("%s: the others are 700 ms ahead, this node is by %v", name, off)
		}
		w.pass(time.Second)
		mustBe(t, name+", then they are not", w.c.Now(), w.truth()+700)
	}
}

// A step of the own wall clock, or the loss of a node, moves nothing once a
// majority has agreed.
func TestNothingMoves(t *testing.T) {
	w := newWorld(3)
	w.pass(time.Second)
	for _, step := range []time.Duration{5 * time.Second, -5 * time.Second, 24 * hour, -hour} {
		w.off["a"] = step
		for range 40 {
			w.pass(100 * ms)
			mustBe(t, "now after "+step.String(), w.c.Now(), w.truth())
		}
		if s := w.c.Status(); !s.Skewed || (s.Offset-step).Abs() > 2*grain {
			t.Errorf("offset %v, skewed %v after a step of %v", s.Offset, s.Skewed, step)
		}
	}
	w.down["b"] = true
	w.pass(10 * time.Second)
	mustBe(t, "now with one node less", w.c.Now(), w.truth())
	w.off["a"], w.down["b"] = 0, false
	w.pass(time.Second)
	if s := w.c.Status(); s.Skewed {
		t.Error("the alarm stays")
	}
}

// Nor does a median on which no majority agrees.
func TestNothingMovesWithoutMajority(t *testing.T) {
	w := newWorld(5)
	w.pass(time.Second)
	w.down["d"], w.down["e"] = true, true
	w.off["a"], w.off["b"] = 2*hour, hour
	for range 50 {
		w.pass(100 * ms)
		mustBe(t, "now", w.c.Now(), w.truth())
	}
}

// A node that is not heard any more does not vote.
func TestUnheardNode(t *testing.T) {
	for unheard, want := range map[time.Duration]fsm.Time{fresh / 2: 0, 2 * fresh: 100} {
		w := newWorld(3, 100*ms, 0, 200*ms)
		w.pass(time.Second)
		mustBe(t, "now", w.c.Now(), w.truth()+100)
		w.down["b"] = true
		w.pass(unheard)
		w.off["a"] = -50 * ms
		w.pass(200 * ms)
		mustBe(t, "with a reading of "+unheard.String()+" ago", w.c.Now(), w.truth()+want)
	}
}

// Of two clocks that remain, none is more right than the other: the clock does not move while a node
// is away, which would take time from messages when it comes back.
func TestNodeComesBack(t *testing.T) {
	for _, other := range []time.Duration{-400 * ms, 400 * ms} {
		w := newWorld(3, 0, 0, other)
		w.pass(time.Second)
		w.down["b"] = true
		for range 100 {
			w.pass(100 * ms)
			mustBe(t, "now beside a clock "+other.String()+" ahead", w.c.Now(), w.truth())
		}
		w.down["b"] = false
		w.pass(time.Second)
		mustBe(t, "when the node is back", w.c.Now(), w.truth())
	}
}

// A clock that has been set right counts at once: what it showed before is not held against it.
func TestClockIsSetRight(t *testing.T) {
	w := newWorld(3)
	w.pass(time.Second)
	w.off["a"], w.off["c"] = 300*ms, hour // two of three are wrong, and so is the time
	w.pass(2 * fresh)
	w.off["c"] = 0
	w.pass(200 * ms)
	mustBe(t, "now with one wrong clock", w.c.Now(), w.truth())
}

// The process stands still between two looks at its clocks, as on a machine that has too much to do: what
// it has read is less certain then, not wrong.
func TestPausedReading(t *testing.T) {
	w := newWorld(3, 0, 0, hour)
	w.pass(time.Second)
	for range 3 {
		w.pause = 200 * ms
		w.c.Update()
		mustBe(t, "now", w.c.Now(), w.truth())
	}
	if s := w.c.Status(); s.Offset.Abs() > 200*ms+2*grain {
		t.Errorf("this node's clock is said to be %v ahead", s.Offset)
	}
}

// A node alone goes by its first reading; the alarm says that the wall clock
// has been set since.
func TestAlone(t *testing.T) {
	w := newWorld(1)
	w.off["a"] = hour
	w.pass(time.Second)
	mustBe(t, "now", w.c.Now(), w.truth())
	if s := w.c.Status(); !s.Skewed || !s.Agreed || !s.Sampled {
		t.Errorf("%+v", s)
	}
}

// A node that does not know yet which nodes there are goes by its own clock.
func TestNobodyKnown(t *testing.T) {
	w := newWorld(3)
	w.c.SetNodes(nil)
	w.pass(5000 * ms)
	if now := w.c.Now(); now != w.truth() {
		t.Errorf("the clock shows %d, want %d", now, w.truth())
	}
}

// The reading with the shortest round trip counts: a delay on the way back
// does not move the clock, and what is certain moves it at once.
func TestShortestRoundTrip(t *testing.T) {
	w := newWorld(3, 0, 50*ms, 50*ms)
	w.pass(time.Second)
	now := w.c.Now()
	for n := range keep - 1 {
		for _, name := range w.names[1:] {
			w.read(name, time.Duration(n%2)*300*ms, 300*ms)
		}
	}
	if moved := w.c.Now() - now; moved < -fsm.Time(grain/ms) || moved > fsm.Time(grain/ms) {
		t.Errorf("slow answers moved the clock by %d ms", moved)
	}
	w.read("nobody", hour, ms)
	w.read("b", hour, -ms)
	if w.c.Now() != now {
		t.Error("a reading of nobody counted")
	}
	w.off["b"], w.off["c"] = 350*ms, 350*ms
	w.hear()
	mustBe(t, "once an answer is quick", w.c.Now(), w.truth()+350)
}

func TestStatus(t *testing.T) {
	w := newWorld(3, 40*ms, 0, 140*ms)
	if s := w.c.Status(); s.Sampled || s.Agreed || len(s.Peers) != 2 || s.Peers[0].Known {
		t.Errorf("before anything was heard: %+v", s)
	}
	w.pass(time.Second)
	w.down["c"] = true
	w.pass(10 * time.Second)
	s := w.c.Status()
	if len(s.Peers) != 2 || s.Peers[0].Node != "b" || s.Peers[1].Node != "c" {
		t.Fatalf("peers %+v", s.Peers)
	}
	if b := s.Peers[0]; !b.Known || (b.Offset+40*ms).Abs() > 3*ms || b.Age > 100*ms || b.RoundTrip != 2*ms {
		t.Errorf("b %+v", b)
	}
	if c := s.Peers[1]; !c.Known || (c.Offset-100*ms).Abs() > 3*ms || c.Age != 10*time.Second {
		t.Errorf("c %+v", c)
	}
}

// Whoever waits for an instant is told when it may be nearer than it was.
func TestWhenAhead(t *testing.T) {
	w := newWorld(3)
	calls := 0
	w.c.WhenAhead(func() { calls++ })
	w.pass(time.Second)
	if calls != 1 {
		t.Errorf("%d calls for the first agreement", calls)
	}
	w.pass(10 * time.Second)
	if calls != 1 {
		t.Errorf("%d calls for nothing", calls-1)
	}
	for _, name := range w.names {
		w.off[name] += 500 * ms
	}
	w.pass(3 * time.Second)
	if calls < 2 {
		t.Error("no call for a step ahead")
	}
	calls = 0
	for _, name := range w.names {
		w.off[name] -= 500 * ms
	}
	w.pass(3 * time.Second)
	if calls != 0 {
		t.Errorf("%d calls for a step back", calls)
	}
}

func TestMaxSkewIsRead(t *testing.T) {
	w := newWorld(3, 0, 3*time.Second, 0)
	w.down["c"] = true
	w.pass(time.Second)
	if w.c.Status().Agreed {
		t.Fatal("clocks 3 s apart agree")
	}
	w.skew = 5000
	w.pass(time.Second)
	if s := w.c.Status(); !s.Agreed || s.MaxSkew != 5000 {
		t.Errorf("%+v", s)
	}
}
