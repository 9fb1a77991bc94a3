package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

type seedDice struct{ r *rand.Rand }

func (d seedDice) to(n uint64) uint64 { return d.r.Uint64N(n + 1) }

// crash is a disk as a power failure might leave it, and the states that are
// right to find there: the last durable one, and all that came after it.
type crash struct {
	fs   *vfs.MemFS
	want []*model
	at   string
	lags bool // what is appended is synced behind

	segments bool   // there are any
	asleep   uint64 // what the record of a group that sleeps is found to say
}

// witness knows which states are right at any moment, and crashes the disk at
// random filesystem operations, whoever does them.
type witness struct {
	mu      sync.Mutex
	disk    *vfs.MemFS
	r       *rand.Rand
	armed   bool
	states  []*model
	durable int // the position among states of the last durable one
	behind  int // and of the last one that was to be synced behind
	crashes []crash
	every   int
	lags    bool

	segments bool
}

// acted is told what a commit that is about to happen will make of the group.
func (w *witness) acted(m *model, durable bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.reopen()
	w.states = append(w.states, m)
	if durable {
		w.durable = len(w.states) - 1
	}
}

// appended is told of what will be synced behind, and that all of it is durable.
func (w *witness) appended(durable bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if durable {
		w.durable = max(w.durable, w.behind)
	} else {
		w.behind = len(w.states) - 1
	}
}

// synced takes note that all commits are durable.
func (w *witness) synced() []crash {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states = append([]*model(nil), w.states[w.durable:]...)
	w.durable, w.behind = 0, max(0, w.behind-w.durable)
	crashes := w.crashes
	w.crashes = nil
	return crashes
}

// MaybeError implements errorfs.Injector. It never injects an error.
func (w *witness) MaybeError(op errorfs.Op) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && w.armed && w.r.IntN(w.every) == 0 {
		w.crashes = append(w.crashes, crash{
			fs:   w.disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * w.r.IntN(3), RNG: w.r}),
			want: append([]*model(nil), w.states...),
			at:   fmt.Sprintf("%v %s", op.Kind, op.Path),
			lags: w.lags, segments: w.segments,
		})
	}
	return nil
}

// String implements fmt.Stringer.
func (w *witness) String() string { return "(crash)" }

// recovered opens a crashed disk and returns an error if what is there is none
// of the states that it may be.
func (c *crash) recovered(t *testing.T, again bool, r *rand.Rand) (err error) {
	s, err := Open("db", crashOptions(t, c.fs))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c.asleep = 0
	(&Records{Store: s}).All(func(a Asleep) { c.asleep = binary.BigEndian.Uint64(a.Data) })
	g, err := s.Group(1)
	if err != nil {
		return err
	}
	if why := g.Doubt(); why != "" {
		return fmt.Errorf("a crash puts the group in doubt: %s", why)
	}
	var all error
	for i := len(c.want) - 1; i >= 0; i-- {
		found, err := c.compare(g, i)
		if err == nil && c.asleep != found.asleep && (c.asleep != 0 || !c.segments) {
			err = fmt.Errorf("the record says %d, and should say %d", c.asleep, found.asleep)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("not state %d of %d: %w", i+1, len(c.want), err))
			continue
		}
		if again {
			found = found.clone()
			found.asleep = c.asleep
			next := crash{lags: c.lags, segments: c.segments, fs: c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: r})}
			for j := range c.want[:i] {
				next.want = append(next.want, c.state(j, g))
			}
			next.want = append(next.want, found)
			return next.recovered(t, false, r)
		}
		return nil
	}
	return all
}

// compare returns the state that the group is in, if that is the ith right one. Entries that are appended behind, and lost with their
// payload sections, do not take along what was released after them: whoever released it had applied entries that
// a majority has, and these come again.
func (c *crash) compare(g *Group, i int) (*model, error) {
	found := c.state(i, g)
	err := compare(g, found)
	for _, later := range c.want[i+1:] {
		if err == nil || !c.lags {
			break
		}
		less := found.clone()
		for index := range found.pins {
			if _, still := later.pins[index]; !still {
				delete(less.pins, index)
			}
		}
		if len(less.pins) < len(found.pins) && compare(g, less) == nil {
			return less, nil
		}
	}
	return found, err
}

// state is the ith right state, with the term and vote of a later one if the group has those: the
// ledger gives them back though the store has lost them.
func (c *crash) state(i int, g *Group) *model {
	for _, later := range c.want[i:] {
		if later.hasStable(g) {
			m := c.want[i].clone()
			m.stable = later.stable
			return m
		}
	}
	return c.want[i]
}

func crashOptions(t *testing.T, fs vfs.FS) Options {
	o := testOptions(t, fs)
	o.MemTableBytes = 256 << 10 // so that flushes and compactions take part
	return o
}

// TestCrashes runs random histories, crashes the disk in the middle of what
// goes on, and looks what is there afterwards. QUORATE_CRASH_RUNS sets the
// number of histories, QUORATE_CRASH_SEED the first one.
func TestCrashes(t *testing.T) {
	runs, first := envOr("QUORATE_CRASH_RUNS", 4), envOr("QUORATE_CRASH_SEED", 1)
	points := 0
	for seed := first; seed < first+runs; seed++ {
		points += crashRun(t, seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d crash points", points)
	if points < runs*20 {
		t.Errorf("only %d crash points", points)
	}
}

func envOr(name string, n int) int {
	if v, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return v
	}
	return n
}

func crashRun(t *testing.T, seed int) (points int) {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	w := &witness{disk: vfs.NewCrashableMem(), r: rand.New(rand.NewPCG(uint64(seed), 1)), every: 4, states: []*model{newModel()}}
	fs := errorfs.Wrap(w.disk, w)
	o := crashOptions(t, fs)
	if w.segments = seed%4 < 2; !w.segments {
		o = withoutSegments(o)
	}
	s, err := Open("db", o)
	must(t, err)
	a := &actor{g: mustGroup(t, s, 1), m: newModel(), d: seedDice{r}, term: 1, acted: w.acted}
	if seed%2 == 0 {
		w.lags = true
		a.lag(w.appended)
	}
	arm := func(on bool) {
		w.mu.Lock()
		w.armed = on
		w.mu.Unlock()
	}
	arm(true)
	var history []string
	for range 100 {
		what, err := a.step()
		must(t, err)
		history = append(history, what)
		arm(false)
		for _, c := range w.synced() {
			points++
			if err := c.recovered(t, points%5 == 0, r); err != nil {
				t.Errorf("seed %d, crash at %s after %q:\n%v", seed, c.at, history, err)
				return points
			}
		}
		arm(true)
	}
	arm(false)
	must(t, s.Close())
	return points
}
