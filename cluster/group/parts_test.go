package group

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// The parts of a group do their work without one.

// freeGuard is a guard of a group that is open in term 3 and has applied entry 9.
func freeGuard() (g *guard, ended *int) {
	ended = new(int)
	return &guard{
		spec: &Spec{}, slog: slog.New(slog.DiscardHandler), now: func() fsm.Time { return 5 }, panics: &atomic.Uint64{},
		position: func() (term, index uint64, ok bool) { return 3, 9, true },
		ended:    func() { *ended++ },
	}, ended
}

// The first panic ends the leadership and is the one that is shown; that of the
// machine outweighs it. All are counted.
func TestGuard(t *testing.T) {
	g, ended := freeGuard()
	if !g.run("nothing", func() {}) || g.quarantined.Load() != nil {
		t.Error("quarantined for nothing")
	}
	if g.run("the first", func() { panic("a") }) || g.run("the second", func() { panic("b") }) {
		t.Error("a panic is not reported")
	}
	if q := g.quarantined.Load(); q == nil || q.Doing != "the first" || q.Panic != "a" || q.Term != 3 || q.Index != 9 || q.Since != 5 || q.Stopped {
		t.Errorf("shown: %+v", q)
	}
	g.quarantine("the machine", "c", true)
	if q := g.quarantined.Load(); q.Doing != "the machine" || !q.Stopped {
		t.Errorf("shown: %+v", q)
	}
	if *ended != 1 || g.panics.Load() != 3 {
		t.Errorf("the leadership has ended %d times, %d panics", *ended, g.panics.Load())
	}
}

// A group serves in its term unless it hands over, or must not lead: it is
// quarantined, its node has withdrawn, or it has resigned in the present term.
func TestLeadershipServes(t *testing.T) {
	g, _ := freeGuard()
	raftTerm := uint64(7)
	withdrawn := &atomic.Bool{}
	l := &leadership{guard: g, withdrawn: withdrawn, raftTerm: func() uint64 { return raftTerm }}
	expect := func(what string, want uint64) {
		t.Helper()
		if got := l.serving(); got != want {
			t.Errorf("%s: it serves in term %d, want %d", what, got, want)
		}
	}
	expect("at first", 0)
	l.term.Store(7)
	expect("in term 7", 7)
	l.transferring.Store(true)
	expect("while it hands over", 0)
	l.transferring.Store(false)
	withdrawn.Store(true)
	expect("while the node has withdrawn", 0)
	withdrawn.Store(false)
	l.resigned.Begin(7, time.Hour)
	expect("having resigned", 0)
	raftTerm = 8
	expect("in a later term", 7)
	g.quarantine("a test", "p", false)
	expect("quarantined", 0)
	g.quarantined.Store(nil)
	l.end()
	expect("at the end", 0)
}

// future is one of raft that ends when the test says so.
type future struct {
	raft.ApplyFuture
	err chan error
}

func (f future) Error() error { return <-f.err }

// free is a proposer whose entries go where the test says.
type free struct {
	proposer
	clock     *clock.Clock
	mu        sync.Mutex
	entries   []*logpb.Entry
	futures   []future
	undecided []string
	lost      int
}

func newFree(t *testing.T) *free {
	t.Helper()
	g, _ := freeGuard()
	x := &free{}
	x.proposer = proposer{
		lead: &leadership{guard: g, raftTerm: func() uint64 { return 1 }}, admission: newAdmission(), guard: g,
		version: func() uint32 { return 4 }, active: func() {}, committed: func(time.Duration) {}, roundTrip: func() time.Duration { return 0 },
		commit: func(l *raft.Log) raft.ApplyFuture {
			e := &logpb.Entry{}
			if err := e.UnmarshalVT(l.Data); err != nil {
				t.Error(err)
			}
			f := future{err: make(chan error, 1)}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.entries, x.futures = append(x.entries, e), append(x.futures, f)
			return f
		},
		undecided: func(from string) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.undecided = append(x.undecided, from)
		},
		lost: func() {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.lost++
		},
	}
	x.positions, x.meters = func([]run) {}, &meters{}
	x.changed.L = &x.proposer.mu
	x.clock = clock.New(clock.Config{
		Node: "n1", Nodes: []string{"n1"}, Logger: slog.New(slog.DiscardHandler),
		Wall: time.Now, Monotonic: func() time.Duration { return time.Hour }, MaxSkew: func() fsm.Millis { return 1000 },
	})
	x.begin(x.clock, 0)
	x.lead.term.Store(1)
	return x
}

// entered waits until so many entries have been made.
func (x *free) entered(t *testing.T, n int) {
	t.Helper()
	await(t, "entries", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.entries) >= n
	})
}

// While as many entries are under way as may be, no other one is made.
func TestPendingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFree(t)
		for seq := uint64(1); seq <= 2*maxPending; seq++ {
			if err := x.submit(Batch{Commands: AppendCommand(nil, &logpb.Command{Kind: logpb.Command_SETTLE, Seq: seq}), Count: 1}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := len(x.entries); n != int(min(seq, maxPending)) {
				t.Fatalf("after %d batches %d entries are under way", seq, n)
			}
		}
		for answered := 0; answered < len(x.futures); answered++ {
			x.futures[answered].err <- nil
			synctest.Wait()
		}
	})
}

// Where the links take long, as many entries more are under way as keep a command from waiting for the answer
// to another one; where something else does, as many as ever.
func TestMoreIsPendingFarAway(t *testing.T) {
	const trip = time.Second
	for _, far := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			x := newFree(t)
			if far {
				x.roundTrip = func() time.Duration { return trip }
			}
			x.commit = func(*raft.Log) raft.ApplyFuture {
				x.mu.Lock()
				defer x.mu.Unlock()
				f := future{err: make(chan error, 1)}
				x.entries = append(x.entries, nil)
				time.AfterFunc(trip, func() { f.err <- nil })
				return f
			}
			submit := func(bytes int) {
				if err := x.submit(Batch{Commands: AppendCommand(nil, &tickCommand), Count: 1, Bytes: bytes}); err != nil {
					t.Fatal(err)
				}
			}
			submit(0)
			time.Sleep(2 * trip) // the first answer tells
			most := 0
			for range 2 * int(trip/perPending) {
				submit(0)
				time.Sleep(perPending)
				x.proposer.mu.Lock()
				if most = max(most, len(x.pending)); far && x.queued.any() {
					t.Error("a command waits for an answer")
				}
				x.proposer.mu.Unlock()
			}
			if want := map[bool]int{true: int(trip / perPending), false: maxPending}[far]; most > want+1 || most < want {
				t.Errorf("far: %v; at most %d entries are under way, want %d", far, most, want)
			}
			time.Sleep(10 * trip)
			for range 2 * int(trip/perPending) {
				submit(maxEntryBytes)
			}
			synctest.Wait()
			if want := map[bool]int{true: maxPending + int(trip/perPending), false: maxPending}[far]; len(x.pending) != want {
				t.Errorf("far: %v; %d long entries are under way, want %d", far, len(x.pending), want)
			}
			for x.busy() {
				time.Sleep(trip)
			}
		})
	}
}

// At most maxPending entries are under way: what comes meanwhile makes the next one
// larger, and what may overtake is first. An entry that fails is reported to those
// who have something in it, once each, and to the group.
func TestProposerAlone(t *testing.T) {
	x := newFree(t)
	batch := func(from string, seq uint64, light bool) Batch {
		return Batch{Commands: AppendCommand(nil, &logpb.Command{Kind: logpb.Command_SETTLE, Seq: seq}), Count: 1, From: from, Light: light}
	}
	for i := range maxPending {
		if err := x.submit(batch("n2", uint64(i+1), false)); err != nil {
			t.Fatal(err)
		}
		x.entered(t, i+1)
	}
	for _, b := range []Batch{batch("n2", 5, false), batch("n3", 6, false), batch("n3", 7, false), batch("", 8, true)} {
		if err := x.submit(b); err != nil {
			t.Fatal(err)
		}
	}
	if x.mu.Lock(); len(x.entries) != maxPending {
		t.Errorf("%d entries are under way", len(x.entries))
	}
	x.mu.Unlock()
	x.futures[0].err <- nil
	x.entered(t, maxPending+1)
	var seqs []uint64
	for _, c := range x.entries[maxPending].Commands {
		seqs = append(seqs, c.Seq)
	}
	if !slices.Equal(seqs, []uint64{8, 5, 6, 7}) || x.entries[maxPending].Version != 4 {
		t.Errorf("an entry of version %d with %v", x.entries[maxPending].Version, seqs)
	}
	for i, f := range x.futures[1:] {
		if err := error(nil); i == maxPending-1 {
			f.err <- errors.New("lost")
		} else {
			f.err <- err
		}
	}
	if !x.drained(patience) {
		t.Fatal("it does not come to rest")
	}
	x.wait()
	if slices.Sort(x.undecided); !slices.Equal(x.undecided, []string{"", "n2", "n3"}) || x.lost != 1 {
		t.Errorf("undecided: %q, lost %d times", x.undecided, x.lost)
	}
	if x.admission.all != 0 || x.bytes != 0 || x.busy() {
		t.Errorf("left over: %d bytes admitted, %d under way, busy %v", x.admission.all, x.bytes, x.busy())
	}
}

// stoppedTicker wakes nobody, in no time.
type stoppedTicker struct{ Ticker }

func (stoppedTicker) Arm(Timed, time.Duration, time.Duration) {}
func (stoppedTicker) Now() time.Duration                      { return 0 }

// While a tick is under way no other one is proposed; once it is lost, another one is.
func TestOneTickUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFree(t)
		timer := &timer{ticker: stoppedTicker{}, proposer: &x.proposer, lead: x.lead, guard: x.guard}
		timer.begin(1)
		fire := func(want int) {
			t.Helper()
			timer.Fire()
			if synctest.Wait(); len(x.entries) != want {
				t.Fatalf("%d ticks are proposed, want %d", len(x.entries), want)
			}
		}
		fire(1)
		fire(1)
		timer.lost()
		fire(2)
		for _, f := range x.futures {
			f.err <- nil
		}
	})
}

// What waits when a leadership ends is given up, and nothing is taken after that.
func TestProposerGivesUp(t *testing.T) {
	x := newFree(t)
	for i := range maxPending {
		if err := x.submit(Batch{From: "n2"}); err != nil {
			t.Fatal(err)
		}
		x.entered(t, i+1)
	}
	if err := x.submit(Batch{From: "n3"}); err != nil {
		t.Fatal(err)
	}
	x.lead.term.Store(0)
	x.leadershipEnded()
	if err := x.submit(Batch{}); err != replica.ErrNotLeading {
		t.Errorf("taken: %v", err)
	}
	for _, f := range x.futures {
		f.err <- nil
	}
	x.wait()
	if !slices.Equal(x.undecided, []string{"n3"}) || len(x.entries) != maxPending {
		t.Errorf("%d entries, undecided: %q", len(x.entries), x.undecided)
	}
}

// Settings are proposed when the catalog's differ from the log's and are no older,
// and again when what was proposed may be lost.
func TestSettingsAlone(t *testing.T) {
	g, _ := freeGuard()
	machine := queue.New("q", 1)
	want := &QueueConfig{Revision: 2, DeliveryLimit: 7}
	var submitted []Batch
	var later []func()
	s := &settings{
		wanted: func() *QueueConfig { return want }, view: func(f func(*queue.Machine)) { f(machine) },
		submit: func(b Batch) error { submitted = append(submitted, b); return nil }, active: func() {},
		leads: func() bool { return true }, spawn: func(f func()) { later = append(later, f) }, ending: closedChannel(), guard: g, slog: g.slog,
	}
	expect := func(what string, proposals int) {
		t.Helper()
		if len(submitted) != proposals {
			t.Errorf("%s: %d proposals, want %d", what, len(submitted), proposals)
		}
	}
	s.propose(true)
	expect("a new leader", 1)
	s.propose(false)
	expect("the same again", 1)
	want = &QueueConfig{Revision: 1}
	s.propose(false)
	expect("from an older view", 1)
	want = &QueueConfig{Revision: 2, DeliveryLimit: 7}
	s.lost()
	s.lost()
	if len(later) != 1 {
		t.Fatalf("an entry that may be lost is proposed again %d times", len(later))
	}
	later[0]()
	expect("the entry may be lost", 2)
	s.change()
	if !s.wait(machine.Config()) {
		t.Error("what the log does not have is not waited for")
	}
	if s.wait(want) || s.changed.Load() {
		t.Error("what the log has is waited for")
	}
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// What a group has to apply again counts for the node until it is captured.
func TestUsage(t *testing.T) {
	total, noted := &atomic.Int64{}, 0
	a, b := Usage{note: func() { noted++ }, total: total}, Usage{total: total}
	a.toReplay(10)
	b.toReplay(5)
	a.applied(2, 300)
	if got := a.captured(); got != 10 || total.Load() != 5 || a.captured() != 0 {
		t.Errorf("%d were captured, %d are left", got, total.Load())
	}
	if a.Entries.Load() != 2 || a.Bytes.Load() != 300 || a.Unnoted.Load() != 300+2*Noteworthy/NotedEntries || noted != 1 {
		t.Errorf("%d entries of %d bytes, noted %d times", a.Entries.Load(), a.Bytes.Load(), noted)
	}
}
