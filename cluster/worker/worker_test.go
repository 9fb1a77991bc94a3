package worker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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
		l := NewTasks(NewGuard(slog.New(slog.DiscardHandler)))
		began, rounds := time.Now(), 0
		l.Loop("test", func(context.Context) {
			if rounds++; rounds < 3 {
				panic("a fault of the program")
			}
		})
		if l.Wait(); rounds != 3 || time.Since(began) != 2*PanicPause || l.Panics() != 2 {
			t.Errorf("%d rounds in %v, %d panics", rounds, time.Since(began), l.Panics())
		}
		l.Loop("test", func(ctx context.Context) {
			<-ctx.Done()
			if rounds++; rounds == 4 {
				panic("a fault of the program")
			}
		})
		if l.Stop(); rounds != 4 || time.Since(began) != 2*PanicPause || l.Panics() != 3 {
			t.Error("a loop that has to end goes on")
		}
	})
}

// Tasks end together, and who stops them waits for all, however they were started.
func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewTasks(NewGuard(slog.New(slog.DiscardHandler)))
		ended := make([]bool, 3)
		until := func(i int) func() {
			return func() {
				<-l.Life().Done()
				time.Sleep(time.Duration(i) * time.Second)
				ended[i] = true
			}
		}
		l.Go(until(0))
		started := l.Spawn("test", until(1))
		l.Loop("test", func(context.Context) { until(2)() })
		time.Sleep(time.Hour)
		if l.Life().Err() != nil || !started {
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

// Once tasks refuse, none starts, and who starts one can know it.
func TestTasksRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewTasks(NewGuard(slog.New(slog.DiscardHandler)))
		l.Refuse()
		late := func() { t.Error("a goroutine starts after the end") }
		l.Go(late)
		l.Loop("test", func(context.Context) { late() })
		if l.Spawn("test", late) {
			t.Error("it says that it has started one")
		}
		l.Wait()
	})
}

// A panic ends what was spawned and nothing else.
func TestSpawnContainsPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewTasks(NewGuard(slog.New(slog.DiscardHandler)))
		ended := false
		l.Spawn("test", func() { panic("a fault of the program") })
		l.Spawn("test", func() {
			time.Sleep(time.Second)
			ended = true
		})
		if l.Stop(); !ended || l.Panics() != 1 {
			t.Errorf("ended: %v, %d panics", ended, l.Panics())
		}
	})
}

// Each calls a few at a time, waits for all, and hands on the panic of one of them with the place where it
// happened.
func TestEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, sum := time.Now(), make([]string, 5)
		work := func(i int, of string) {
			time.Sleep(time.Second)
			sum[i] = of + of
			if of == "d" {
				panic("a fault of the program")
			}
		}
		Each(2, []string{"a", "b", "c"}, work)
		if took := time.Since(began); took != 2*time.Second || !slices.Equal(sum, []string{"aa", "bb", "cc", "", ""}) {
			t.Errorf("%v in %v", sum, took)
		}
		defer func() {
			p := fmt.Sprint(recover())
			if !strings.HasPrefix(p, "a fault of the program\n") || !strings.Contains(p, "worker_test.go") || sum[4] != "ee" {
				t.Errorf("the caller gets %.60q, and all others %v", p, sum)
			}
		}()
		Each(-1, []string{"a", "b", "c", "d", "e"}, work)
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
