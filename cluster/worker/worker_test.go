package worker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// run is a worker that notes when it works.
type run struct {
	*Worker
	began time.Time
	done  chan struct{}

	mu    sync.Mutex
	at    []time.Duration // since began
	again time.Duration
	takes time.Duration

	ended sync.WaitGroup
}

func begin(t *testing.T, o Options, again time.Duration) *run {
	r := prepare(o, again)
	r.start(t)
	return r
}

func prepare(o Options, again time.Duration) *run {
	return &run{Worker: New(o), began: time.Now(), again: again, done: make(chan struct{})}
}

func (r *run) start(t *testing.T) {
	r.ended.Go(func() {
		r.Run(r.done, func(now time.Time) time.Duration {
			r.mu.Lock()
			r.at = append(r.at, now.Sub(r.began))
			takes, again := r.takes, r.again
			r.mu.Unlock()
			time.Sleep(takes)
			return again
		})
	})
	t.Cleanup(r.end)
	synctest.Wait()
}

func (r *run) set(again, takes time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again, r.takes = again, takes
}

func (r *run) end() {
	select {
	case <-r.done:
	default:
		close(r.done)
	}
	r.ended.Wait()
}

// expect waits and holds when the worker has worked against what it should.
func (r *run) expect(t *testing.T, wait time.Duration, want ...time.Duration) {
	t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) != len(want) {
		t.Fatalf("it worked at %v, want %v", r.at, want)
	}
	for i := range want {
		if r.at[i] != want[i] {
			t.Fatalf("it worked at %v, want %v", r.at, want)
		}
	}
}

// A worker works once at the start, for all wakes that came before it could work,
// and once when it is woken again.
func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := prepare(Options{}, 0)
		r.Wake()
		r.Wake()
		r.start(t)
		r.expect(t, time.Hour, 0)
		r.Wake()
		r.expect(t, time.Second, 0, time.Hour)
	})
}

// A wake that comes while the worker works is not lost.
func TestWakeWhileWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t, Options{}, 0)
		r.set(0, 3*time.Second)
		r.Wake()
		r.expect(t, time.Second, 0, 0)
		r.Wake()
		r.Wake()
		r.expect(t, time.Minute, 0, 0, 3*time.Second)
	})
}

// A worker works again by itself for as long as it asks for that, counted from
// its last run.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t, Options{}, 10*time.Second)
		r.expect(t, 11*time.Second, 0, 10*time.Second)
		r.Wake()
		r.expect(t, 9*time.Second, 0, 10*time.Second, 11*time.Second)
		r.set(0, 0)
		r.expect(t, time.Hour, 0, 10*time.Second, 11*time.Second, 21*time.Second)
	})
}

// A wake takes the place of the run that was asked for before it.
func TestWakeCancelsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t, Options{}, 10*time.Second)
		r.set(0, 0)
		time.Sleep(time.Second)
		r.Wake()
		r.expect(t, time.Hour, 0, time.Second)
	})
}

// Between two runs is a pause, and no wake in it is lost.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t, Options{Pause: time.Second}, 0)
		r.Wake()
		r.Wake()
		r.expect(t, time.Minute, 0, time.Second)
		r.Wake()
		r.expect(t, time.Minute, 0, time.Second, time.Minute)
	})
}

// The pause grows with what a run takes, between its bounds.
func TestShare(t *testing.T) {
	for takes, pause := range map[time.Duration]time.Duration{
		0:                      time.Second,
		100 * time.Millisecond: time.Second,
		time.Second:            4 * time.Second,
		time.Minute:            10 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := prepare(Options{Pause: time.Second, Share: 4, Longest: 10 * time.Second}, 0)
			r.set(0, takes)
			r.start(t)
			r.Wake()
			r.expect(t, time.Hour, 0, takes+pause)
		})
	}
}

// A run waits for more wakes, and answers those that come meanwhile.
func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := begin(t, Options{Delay: time.Second}, 0)
		r.Wake()
		r.expect(t, time.Second/2, 0)
		r.Wake()
		r.expect(t, time.Minute, 0, time.Second)
	})
}

// A worker ends wherever it waits.
func TestEnd(t *testing.T) {
	for name, o := range map[string]Options{"idle": {}, "in a delay": {Delay: time.Hour}, "in a pause": {Pause: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := begin(t, o, 0)
				r.Wake()
				synctest.Wait()
				r.end()
				r.Wake() // nobody is there, and it does not block
				r.Wake()
				if time.Since(r.began) != 0 {
					t.Error("it has ended late")
				}
			})
		})
	}
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done, runs := make(chan struct{}), 0
		Every(done, time.Second, func() {
			if runs++; runs == 3 {
				close(done)
			}
		})
		if runs != 3 {
			t.Errorf("%d runs", runs)
		}
	})
}

// A loop that panics goes on after a pause, and ends when it has to.
func TestLoopGoesOnAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, done := NewGuard(slog.New(slog.DiscardHandler)), make(chan struct{})
		began, rounds := time.Now(), 0
		g.Loop(done, "test", func() {
			if rounds++; rounds < 3 {
				panic("a fault of the program")
			}
		})
		if took := time.Since(began); rounds != 3 || took != 2*PanicPause || g.Panics() != 2 {
			t.Errorf("%d rounds in %v, %d panics", rounds, took, g.Panics())
		}
		close(done)
		g.Loop(done, "test", func() { panic("a fault of the program") })
		if time.Since(began) != 2*PanicPause {
			t.Error("a loop that has to end goes on")
		}
	})
}

// Loops end together, and who stops them waits for all.
func TestLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLoops(NewGuard(slog.New(slog.DiscardHandler)))
		ended := make([]bool, 3)
		for i := range ended {
			l.Go("test", func(ctx context.Context) {
				<-ctx.Done()
				time.Sleep(time.Duration(i) * time.Second)
				ended[i] = true
			})
		}
		time.Sleep(time.Hour)
		if l.Life().Err() != nil {
			t.Error("their life is over")
		}
		began := time.Now()
		l.Stop()
		if slices.Contains(ended, false) || time.Since(began) != 2*time.Second || l.Life().Err() == nil {
			t.Errorf("ended: %v, after %v", ended, time.Since(began))
		}
		l.Stop()
	})
}

// Loops that began at different moments run at the same ones, and one that has less to do at some of
// them only.
func TestAgainTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, done := time.Now(), make(chan struct{})
		var mu sync.Mutex
		var running sync.WaitGroup
		at := map[int][]time.Duration{}
		loop := func(k int, intervals ...time.Duration) {
			running.Go(func() {
				Again(done, func() time.Duration {
					mu.Lock()
					defer mu.Unlock()
					at[k] = append(at[k], time.Since(begin))
					return intervals[min(len(at[k]), len(intervals))-1]
				})
			})
		}
		const ms = time.Millisecond
		time.Sleep(300 * ms)
		loop(1, 500*ms)
		time.Sleep(30 * ms)
		loop(2, 250*ms, 250*ms, time.Second)
		time.Sleep(169 * ms)
		loop(3, 500*ms) // at 499: 500 counts as past
		time.Sleep(1600 * ms)
		close(done)
		running.Wait()
		for k, want := range map[int][]time.Duration{
			1: {300 * ms, 500 * ms, 1000 * ms, 1500 * ms, 2000 * ms},
			2: {330 * ms, 500 * ms, 750 * ms, 1000 * ms, 2000 * ms},
			3: {499 * ms, 1000 * ms, 1500 * ms, 2000 * ms},
		} {
			if !slices.Equal(at[k], want) {
				t.Errorf("loop %d ran at %v, want %v", k, at[k], want)
			}
		}
	})
}
