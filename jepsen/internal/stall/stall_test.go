package stall

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestIdleMachineDoesNotStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		m := start()
		time.Sleep(time.Minute)
		if longest := m.Longest(began); longest != 0 {
			t.Errorf("a stall of %v", longest)
		}
		m.Stop()
	})
}

// A longer stall replaces the shorter ones before it, and each counts only for
// instants before its end.
func TestLongestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start()
		defer m.Stop()
		began := time.Now()
		var at []time.Time // just before the end of each stall
		for _, lasted := range []time.Duration{50, 3000, 200, 20} {
			time.Sleep(5 * time.Second)
			at = append(at, time.Now().Add(-1))
			m.mu.Lock()
			m.due[0] = time.Now().Add(-lasted * time.Millisecond)
			m.mu.Unlock()
			m.woke(0, time.Now(), true)
		}
		at = append(at, time.Now())
		for i, want := range []time.Duration{3000, 3000, 200, 20, 0} {
			if have := m.Longest(at[i]); have != want*time.Millisecond {
				t.Errorf("since %v: %v, not %v", at[i].Sub(began), have, want*time.Millisecond)
			}
		}
		if len(m.stalls) > 3 {
			t.Errorf("%d stalls are remembered", len(m.stalls))
		}
	})
}

func TestStallThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start()
		defer m.Stop()
		m.mu.Lock()
		m.due[1] = time.Now().Add(-time.Second)
		m.mu.Unlock()
		if have := m.Longest(time.Now()); have != time.Second {
			t.Errorf("%v", have)
		}
	})
}

// Waits of threads add up within a window, and a third of the sum counts.
func TestNodesThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start()
		began, per := time.Now(), time.Duration(0)
		total := map[string]time.Duration{"a": time.Hour, "b": 0}
		m.done.Go(func() {
			m.sample(func() map[string]time.Duration {
				total = map[string]time.Duration{"a": total["a"] + per/2, "b": total["b"] + per}
				return total
			})
		})
		var at []time.Time
		for _, lasted := range []time.Duration{0, 300, 30, 0} {
			per = lasted * time.Millisecond // of each half second
			at = append(at, time.Now())
			time.Sleep(20 * time.Second)
		}
		at = append(at, time.Now())
		synctest.Wait()
		for i, want := range []time.Duration{6000, 6000, 0, 0, 0} {
			have := 3 * m.Longest(at[i])
			if i == 2 { // only the samples within a window
				if have < 570*time.Millisecond || have > 900*time.Millisecond {
					t.Errorf("since %v: %v", at[i].Sub(began), have)
				}
				continue
			}
			if have != want*time.Millisecond {
				t.Errorf("since %v: %v, not %v", at[i].Sub(began), have, want*time.Millisecond)
			}
		}
		m.Stop()
	})
}

// The system on which the tests run reports how long threads wait.
func TestNodeWaits(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("the system does not tell how long threads wait:", err)
	}
	for thread, waited := range nodeWaits() {
		if waited < 0 {
			t.Errorf("%s has waited %v", thread, waited)
		}
	}
}

var stopped = flag.Bool("stopped", false, "this process is the one that TestStoppedProcess stops")

// A process that was stopped for a while detects the stall when it resumes.
func TestStoppedProcess(t *testing.T) {
	if *stopped {
		m, began := Start(), time.Now()
		fmt.Println("measuring")
		fmt.Scanln()
		fmt.Println(m.Longest(began))
		m.Stop()
		return
	}
	const pause = 300 * time.Millisecond
	p := exec.Command(os.Args[0], "-test.run", "^TestStoppedProcess$", "-stopped")
	in, err := p.StdinPipe()
	must(t, err)
	out, err := p.StdoutPipe()
	must(t, err)
	must(t, p.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	must(t, p.Process.Signal(syscall.SIGSTOP))
	<-time.After(pause)
	must(t, p.Process.Signal(syscall.SIGCONT))
	fmt.Fprintln(in)
	lines.Scan()
	longest, err := time.ParseDuration(lines.Text())
	must(t, err)
	if longest < pause-2*every {
		t.Errorf("stopped for %v, it saw %v", pause, longest)
	}
	must(t, p.Wait())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRealClock(t *testing.T) {
	began := time.Now()
	m := Start()
	<-time.After(5 * every)
	m.Stop()
	took := time.Since(began)
	if longest := m.Longest(began); longest <= 0 || longest > took {
		t.Errorf("a stall of %v in %v", longest, took)
	}
}

func TestTolerance(t *testing.T) {
	if have := Tolerance(200 * time.Millisecond); have != 1600*time.Millisecond {
		t.Errorf("%v", have)
	}
}
