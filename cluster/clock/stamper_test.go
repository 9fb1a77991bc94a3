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

// Clocks that can be read and do not agree do not stop the time: it goes on from the
// lower of the two. They may still come to agree while the leader is new, not later.
func TestNoAgreement(t *testing.T) {
	const behind = 20 * time.Second
	for _, test := range []struct {
		after time.Duration
		jumps bool
	}{{AgreementWait / 2, true}, {2 * AgreementWait, false}} {
		w := newWorld(3, -behind, 0, 0)
		w.down["c"] = true
		w.pass(time.Second)
		began, last := w.truth(), w.truth()-fsm.Time(behind/ms)
		s := w.begin(w.truth() - 50_000)
		for w.truth()-began < fsm.Time(test.after/ms) {
			mustBe(t, "no agreement", s.Next(), last+w.truth()-began)
			w.pass(100 * ms)
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

// A process that has started after a while without a leader, and hears one of two
// others, which disagrees with it, begins with the lowest time that can be right and
// goes on from there. What is enqueued then loses nothing when a majority agrees.
func TestFirstStampWithoutAgreement(t *testing.T) {
	for _, test := range []struct {
		name     string
		own, b   time.Duration // of the wall clocks
		last     time.Duration // of the log, against the time
		first    time.Duration // what the first stamp is, against the time
		agreeing time.Duration // and what is stamped as soon as a majority agrees
	}{
		{"the other is ahead", 0, hour, -25 * time.Second, 0, 0},
		{"this one is ahead", hour, 0, -25 * time.Second, 0, 0},
		{"the other is behind", 0, -hour, -25 * time.Second, 0, 0},
		{"this one is behind", -hour, 0, -25 * time.Second, 0, 0},
		{"one is between", -10 * time.Second, 0, -25 * time.Second, -10 * time.Second, 0},
		{"the log is ahead of both", 0, -hour, 2 * hour, 2 * hour, 2*hour - time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(3, test.own, test.b)
			w.down["c"] = true
			w.pass(time.Second)
			s := w.begin(w.truth() + fsm.Time(test.last/ms))
			mustBe(t, "first", s.Next(), w.truth()+fsm.Time(test.first/ms))
			w.pass(time.Second)
			mustBe(t, "second", s.Next(), w.truth()+fsm.Time(test.first/ms))
			w.down["c"] = false
			w.pass(500 * ms)
			s.Next()
			w.pass(500 * ms)
			if !w.c.Status().Agreed {
				t.Fatal("no agreement")
			}
			want := w.truth() + fsm.Time(test.agreeing/ms)
			if got := s.Next(); test.last < 0 {
				mustBe(t, "with agreement", got, want)
			} else if got < want {
				t.Errorf("with agreement: %d, want %d at least", got, want)
			}
		})
	}
}

// A reading errs by up to half of its round trip, either way. Beside an own clock that is an hour
// ahead, the first stamp is not beyond what the other clock is sure to show, and that clock
// counts as long as it may show what the log does not refute.
func TestFirstStampOfUncertainClock(t *testing.T) {
	const trip = 400 * ms
	for _, test := range []struct {
		name    string
		b, late time.Duration // the other clock against the time, and how old its answer is
		last    time.Duration // of the log, against the time
		first   time.Duration // what the first stamp is, against the time
	}{
		{"the request is late", 0, 0, -25 * time.Second, 0},
		{"the answer is late", 0, trip, -25 * time.Second, -trip},
		{"it may not be refuted", -900 * ms, trip, 0, 0},
		{"it is refuted", -1100 * ms, trip, 0, hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(3, hour, test.b)
			w.passed += time.Second
			w.read("b", test.late, trip)
			mustBe(t, "first", w.begin(w.truth()+fsm.Time(test.last/ms)).Next(), w.truth()+fsm.Time(test.first/ms))
		})
	}
}

// A process that has started hears one other, whose answers take seconds, as on a machine that has too much to
// do: they do not refute its own clock, which counts at once. What is enqueued then loses nothing when answers are quick.
func TestSlowAnswersAfterStart(t *testing.T) {
	const trip = 2500 * ms
	for _, late := range []time.Duration{0, trip / 2, trip} {
		w := newWorld(3)
		last := w.truth()
		w.pass(10 * time.Second)
		w.boot()
		w.passed += trip
		w.read("b", late, trip)
		s := w.begin(last)
		for range 30 {
			mustBe(t, "with answers late by "+late.String(), s.Next(), w.truth())
			w.passed += 100 * ms
		}
		w.pass(time.Second)
		mustBe(t, "with quick answers", s.Next(), w.truth())
	}
}

// A node that restarts beside one other node, which disagrees, loses no time.
func TestRestartWithoutMajority(t *testing.T) {
	w := newWorld(3, -hour, 0, 0)
	w.pass(time.Second)
	s := w.begin(w.truth())
	last := s.Next()
	w.down["c"] = true
	w.boot()
	w.pass(100 * ms)
	s = w.begin(last)
	mustBe(t, "at the restart", s.Next(), w.truth())
	w.pass(10 * time.Second)
	mustBe(t, "after the restart", s.Next(), w.truth())
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
// stamps by no more than the skew, and what the longest round trip leaves uncertain, whoever leads and
// however often. A process that has started may be behind by more, until a majority agrees; not ahead.
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
		s, booted, longest := w.begin(w.truth()), false, w.trip
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * ms) },
			"lie": func(t *rapid.T) {
				w.off[rapid.SampledFrom(wrong).Draw(t, "node")] = lie.Draw(t, "lie")
			},
			"term": func(t *rapid.T) { s.Begin(w.c, s.Next()) },
			"boot": func(t *rapid.T) {
				last := s.Next()
				w.boot()
				w.pass(time.Duration(rapid.IntRange(0, 30_000).Draw(t, "leaderless")) * ms)
				s.Begin(w.c, last)
				booted = true
			},
			"down": func(t *rapid.T) {
				name := rapid.SampledFrom(w.names).Draw(t, "node")
				for other := range w.down {
					w.down[other] = false
				}
				w.down[name] = true
			},
			"up": func(*rapid.T) { clear(w.down) },
			"slow": func(t *rapid.T) {
				w.trip = time.Duration(rapid.SampledFrom([]int{2, 100, 500}).Draw(t, "trip")) * ms
				w.late = w.trip * time.Duration(rapid.IntRange(0, 2).Draw(t, "late")) / 2
				longest = max(longest, w.trip)
			},
			"": func(t *rapid.T) {
				allowed := fsm.Time(maxSkew) + fsm.Time(longest/ms) - 2
				if off := s.Next() - w.truth(); off > allowed || off < -allowed && !booted {
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
