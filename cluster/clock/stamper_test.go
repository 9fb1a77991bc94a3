package clock

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
)

func (w *world) begin(last fsm.Time) *Stamper {
	var s Stamper
	s.Begin(w.c, last)
	return &s
}

func TestFirstStampOfAll(t *testing.T) {
	w := newWorld(3, hour)
	w.pass(time.Second)
	mustBe(t, "first stamp", w.begin(0).Next(), w.truth())
}

// Time that passed while nobody led counts, if the clocks agree on it.
func TestStepAtTheBeginning(t *testing.T) {
	w := newWorld(3, hour, 0, 0)
	w.pass(time.Second)
	s := w.begin(w.truth() - 86_400_000)
	mustBe(t, "first stamp", s.Next(), w.truth())
	if w.c.Status().JumpsRefused != 0 {
		t.Error("a jump was refused")
	}
}

// Later steps of all clocks are followed up to the skew, and refused beyond it
// until the next term.
func TestStepInTheMiddle(t *testing.T) {
	w := newWorld(3)
	w.pass(time.Second)
	s := w.begin(w.truth())
	s.Next()
	step := func(by time.Duration) {
		for _, name := range w.names {
			w.off[name] += by
		}
		w.pass(2 * time.Second)
	}
	step(800 * ms)
	mustBe(t, "small step", s.Next(), w.truth()+800)
	step(time.Minute)
	for range 5 {
		mustBe(t, "large step", s.Next(), w.truth()+800)
		w.pass(time.Second)
	}
	if n := w.c.Status().JumpsRefused; n != 1 {
		t.Errorf("%d jumps refused, want 1", n)
	}
	s.Begin(w.c, s.Next())
	mustBe(t, "next term", s.Next(), w.truth()+60_800)
}

// A leader behind what the log says goes at half speed until it has caught up.
func TestHalfSpeed(t *testing.T) {
	w := newWorld(3)
	w.pass(time.Second)
	began := w.truth()
	s := w.begin(began + 900)
	if ahead := w.c.Status().LogAhead; ahead < 890 || ahead > 910 {
		t.Errorf("the log is %d ms ahead", ahead)
	}
	for range 18 {
		w.pass(100 * ms)
		mustBe(t, "behind", s.Next(), began+900+(w.truth()-began)/2)
	}
	for range 5 {
		w.pass(100 * ms)
		mustBe(t, "caught up", s.Next(), w.truth())
	}
	// The same when nobody asked for a stamp meanwhile, and when all do.
	s = w.begin(w.truth() + 900)
	from := w.truth()
	w.pass(1000 * ms)
	mustBe(t, "one stamp", s.Peek(), from+900+500)
	for range 2000 {
		w.passed += 100 * time.Microsecond
		s.Next()
	}
	mustBe(t, "many stamps", s.Next(), from+900+600)
	w.pass(5 * time.Second)
	mustBe(t, "long silence", s.Next(), w.truth())
}

// Without the clocks of a majority stamps go on from the last one; what was
// missed is caught up with when the clocks are known, however late.
func TestNoSamples(t *testing.T) {
	w := newWorld(3, hour, 0, 0)
	last := epoch - 50_000
	s := w.begin(last)
	for range 50 {
		w.passed += 100 * ms
		mustBe(t, "no samples", s.Next(), last+fsm.Time(w.passed/ms))
	}
	w.hear()
	mustBe(t, "samples", s.Next(), w.truth())
	if w.c.Status().JumpsRefused != 0 {
		t.Error("a jump was refused")
	}
}

// Clocks that can be read and do not agree do not stop the time. They may
// still come to agree while the leader is new, not later.
func TestNoAgreement(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		jumps bool
	}{{AgreementWait / 2, true}, {2 * AgreementWait, false}} {
		w := newWorld(3, 2*hour, 0, 0)
		w.down["c"] = true
		w.pass(time.Second)
		last, began := w.truth()-50_000, w.truth()
		s := w.begin(last)
		for w.truth()-began < fsm.Time(test.after/ms) {
			w.pass(100 * ms)
			mustBe(t, "no agreement", s.Next(), last+w.truth()-began)
		}
		w.down["c"] = false
		w.pass(200 * ms)
		want := last + w.truth() - began
		if test.jumps {
			want = w.truth()
		}
		mustBe(t, "agreement after "+test.after.String(), s.Next(), want)
		if refused := w.c.Status().JumpsRefused > 0; refused == test.jumps {
			t.Errorf("after %v: refused %v", test.after, refused)
		}
	}
}

// A node that restarts beside one other node, which disagrees, goes on from
// the log.
func TestRestartWithoutMajority(t *testing.T) {
	w := newWorld(3, -hour, 0, 0)
	w.pass(time.Second)
	s := w.begin(w.truth())
	last := s.Next()
	w.down["c"] = true
	w.boot()
	w.pass(100 * ms)
	s = w.begin(last)
	w.pass(10 * time.Second)
	mustBe(t, "after the restart", s.Next(), last+10_000)
}

func TestWait(t *testing.T) {
	w := newWorld(3)
	w.pass(time.Second)
	s := w.begin(w.truth())
	at := s.Next() + 500
	for waits := 0; ; waits++ {
		d := s.Wait(at)
		if d == 0 {
			if waits == 0 || waits > 5 {
				t.Errorf("%d waits", waits)
			}
			break
		}
		w.passed += d
	}
	if late := s.Peek() - at; late < 0 || late > 1 {
		t.Errorf("%d ms late", late)
	}
	if d := s.Wait(fsm.MaxTime); d != time.Hour {
		t.Errorf("for ever is %v", d)
	}
	// At half speed it takes more than one look.
	s = w.begin(w.truth() + 600)
	at = w.truth() + 700
	for range 20 {
		if d := s.Wait(at); d > 0 {
			w.passed += d
		}
	}
	if late := s.Peek() - at; late < 0 || late > 1 {
		t.Errorf("%d ms late at half speed", late)
	}
}

// Whatever the clocks do, stamps never run back, never stand still for longer
// than twice the grain of a stamp, and step ahead by no more than the skew but
// for the first time in a term.
func TestStampsProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SampledFrom([]int{3, 1, 2, 5}).Draw(t, "nodes")
		w := newWorld(nodes)
		someOffset := rapid.OneOf(
			rapid.Map(rapid.IntRange(-900, 900), func(n int) time.Duration { return time.Duration(n) * ms }),
			rapid.Map(rapid.IntRange(-7200, 7200), func(n int) time.Duration { return time.Duration(n) * time.Second }))
		s := w.begin(fsm.Time(rapid.Int64Range(0, 1).Draw(t, "fresh")) * (epoch - 5000))
		last, at, jumped := fsm.Time(0), w.passed, false
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * ms) },
			"step": func(t *rapid.T) {
				w.off[rapid.SampledFrom(w.names).Draw(t, "node")] = someOffset.Draw(t, "offset")
			},
			"down": func(t *rapid.T) {
				name := rapid.SampledFrom(w.names).Draw(t, "node")
				w.down[name] = !w.down[name]
			},
			"term": func(t *rapid.T) {
				s.Begin(w.c, last+fsm.Time(rapid.IntRange(0, 2000).Draw(t, "ahead")))
				last, at, jumped = s.last, w.passed, false
			},
			"boot": func(t *rapid.T) {
				w.boot()
				s.Begin(w.c, last)
				at, jumped = w.passed, false
			},
			"stamp": func(t *rapid.T) {
				peek := s.Peek()
				stamp, passed := s.Next(), fsm.Time((w.passed-at)/ms)
				if stamp != peek {
					t.Fatalf("stamp %d, announced %d", stamp, peek)
				}
				if last != 0 && stamp < last+passed/2-1 {
					t.Fatalf("stamp %d after %d, %d ms later", stamp, last, passed)
				}
				if ahead := last != 0 && stamp > last+passed+fsm.Time(maxSkew)+2; ahead && jumped {
					t.Fatalf("stamp %d after %d, %d ms later, is not the first", stamp, last, passed)
				}
				jumped = jumped || !s.young
				last, at = stamp, w.passed
			},
		})
	})
}

// While most clocks are right, the others, and the own one among them, move
// stamps by no more than the skew, whoever leads and however often.
func TestMinorityProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.SampledFrom([]int{3, 5}).Draw(t, "nodes"))
		wrong := rapid.Permutation(w.names).Draw(t, "order")[:len(w.names)/2]
		lie := rapid.Map(rapid.IntRange(-7200, 7200), func(n int) time.Duration { return time.Duration(n) * time.Second })
		small := rapid.Map(rapid.IntRange(-450, 450), func(n int) time.Duration { return time.Duration(n) * ms })
		for _, name := range w.names {
			w.off[name] = small.Draw(t, "offset")
		}
		for _, name := range wrong {
			w.off[name] = lie.Draw(t, "lie")
		}
		w.boot()
		w.pass(time.Second)
		s := w.begin(w.truth())
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * ms) },
			"lie": func(t *rapid.T) {
				w.off[rapid.SampledFrom(wrong).Draw(t, "node")] = lie.Draw(t, "lie")
			},
			"term": func(t *rapid.T) { s.Begin(w.c, s.Next()) },
			"down": func(t *rapid.T) {
				name := rapid.SampledFrom(w.names).Draw(t, "node")
				for other := range w.down {
					w.down[other] = false
				}
				w.down[name] = true
			},
			"up": func(*rapid.T) { clear(w.down) },
			"": func(t *rapid.T) {
				if off := s.Next() - w.truth(); off > fsm.Time(maxSkew) || off < -fsm.Time(maxSkew) {
					t.Fatalf("stamps are %d ms off\nclocks %v down %v\n%+v", off, w.off, w.down, w.c.Status())
				}
			},
		})
	})
}

func BenchmarkNext(b *testing.B) {
	w := newWorld(3)
	w.pass(time.Second)
	start := time.Now()
	w.c.config.Monotonic = func() time.Duration { return time.Since(start) }
	s := w.begin(epoch)
	b.ReportAllocs()
	for b.Loop() {
		s.Next()
	}
}
