package worker

import (
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bench is a queue whose keys take a second each, and what it has worked on.
type bench struct {
	*Queue[string]
	guard *Guard
	began time.Time

	mu    sync.Mutex
	log   []string
	now   map[string]int // is worked on
	peak  int
	fails string // key whose work panics
	again time.Duration
}

func newBench(t *testing.T, limit int) *bench {
	b := &bench{guard: NewGuard(slog.New(slog.DiscardHandler)), began: time.Now(), now: map[string]int{}}
	b.Queue = NewQueue(b.guard, "test", limit, func(key string) time.Duration {
		b.mu.Lock()
		b.log = append(b.log, key)
		b.now[key]++
		b.peak = max(b.peak, len(b.now))
		if b.now[key] > 1 {
			t.Errorf("%s is worked on twice at a time", key)
		}
		b.mu.Unlock()
		time.Sleep(time.Second)
		b.mu.Lock()
		delete(b.now, key)
		fails, again := key == b.fails, b.again
		b.mu.Unlock()
		if fails {
			panic("a fault of the program")
		}
		return again
	})
	return b
}

// done waits for the queue and takes what it has worked on.
func (b *bench) done() (log []string, took time.Duration) {
	b.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	log, b.log = b.log, nil
	slices.Sort(log)
	return log, time.Since(b.began)
}

// A queue works on so many keys at a time, on each once for all times that it was
// added before, and begins when it is started.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.Add("a", "b", "c", "a")
		b.Add("b", "d")
		time.Sleep(time.Second)
		synctest.Wait()
		if len(b.log) > 0 {
			t.Fatalf("it works before it is started: %v", b.log)
		}
		b.Start()
		if log, took := b.done(); !slices.Equal(log, []string{"a", "b", "c", "d"}) || took != 3*time.Second || b.peak != 2 {
			t.Errorf("%v in %v, %d at a time", log, took, b.peak)
		}
		b.Stop()
	})
}

// A key that is added while it is worked on is worked on once more.
func TestQueueAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.Start()
		b.Add("a")
		synctest.Wait()
		b.Add("a")
		b.Add("a")
		if log, took := b.done(); !slices.Equal(log, []string{"a", "a"}) || took != 2*time.Second || b.peak != 1 {
			t.Errorf("%v in %v, %d at a time", log, took, b.peak)
		}
		b.Stop()
	})
}

// Work that panics leaves the work on other keys alone, and is done again after
// a pause.
func TestQueuePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.fails = "a"
		b.Start()
		b.Add("a", "b")
		if log, took := b.done(); !slices.Equal(log, []string{"a", "b"}) || took != time.Second || b.guard.Panics() != 1 {
			t.Errorf("%v in %v, %d panics", log, took, b.guard.Panics())
		}
		b.mu.Lock()
		b.fails = ""
		b.mu.Unlock()
		time.Sleep(PanicPause)
		synctest.Wait()
		if log, _ := b.done(); !slices.Equal(log, []string{"a"}) || b.guard.Panics() != 1 {
			t.Errorf("then %v, %d panics", log, b.guard.Panics())
		}
		b.Stop()
	})
}

// A key is worked on again after the time that its work asks for, once however often it was added meanwhile, and
// not after the queue was stopped.
func TestQueueLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 2)
		b.again = time.Minute
		b.Start()
		b.Add("a")
		time.Sleep(30 * time.Second)
		b.Add("a")
		time.Sleep(time.Second)
		b.Add("a")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if log, _ := b.done(); len(log) != 3+9 {
			t.Errorf("it was worked on %d times", len(log))
		}
		b.Stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(b.log) > 0 {
			t.Errorf("%d times after the end", len(b.log))
		}
	})
}

// A queue that is stopped ends what it works on and nothing else.
func TestQueueStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 1)
		b.fails = "a"
		b.Start()
		b.Add("a", "b")
		synctest.Wait()
		b.Add("a")
		var waits sync.WaitGroup
		waits.Go(b.Wait)
		b.Stop()
		waits.Wait()
		b.Add("c")
		time.Sleep(2 * PanicPause)
		synctest.Wait()
		if !slices.Equal(b.log, []string{"a"}) || time.Since(b.began) != time.Second+2*PanicPause {
			t.Errorf("%v in %v", b.log, time.Since(b.began))
		}
	})
}
