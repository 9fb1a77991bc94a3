package peer

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// beating is a link whose other end answers at once until it is frozen.
func beating(t *testing.T, timing *Timing, frozen time.Duration) (pings int, detected time.Duration) {
	t.Helper()
	p, began := newPulse(timing, 0, 0), time.Now()
	var heard, last, answered time.Duration
	for {
		ok := answered >= last
		last = time.Since(began)
		pings++
		if last < frozen {
			heard, answered = last, last
		}
		pause := p.pause(ok)
		if pause <= 0 || pause > 2*timing.RestInterval {
			t.Fatalf("a pause of %v", pause)
		}
		time.Sleep(pause)
		if p.passed(pause, 0, heard, time.Since(began)) {
			return pings, time.Since(began)
		}
	}
}

// Whenever a node freezes, that is noticed after SuspectAfter, although a link that is answered rests.
func TestFrozenWhileResting(t *testing.T) {
	c := Config{}
	c.setDefaults()
	for offset := time.Duration(0); offset < 600*time.Millisecond; offset += 7 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(offset)
			frozen := 10*time.Second + offset/3
			pings, detected := beating(t, &c.Timing, frozen)
			if late := detected - frozen; late > c.SuspectAfter || late < c.SuspectAfter-c.RestInterval-c.RestInterval/64 {
				t.Errorf("noticed after %v", late)
			}
			if pings > 8+20+1+12 || pings < 8+16 {
				t.Errorf("%d pings", pings)
			}
		})
	}
}

// A process that stalls suspects nobody: of the time in which it does not run no more counts than the
// pause in which that happens.
func TestStalledPulse(t *testing.T) {
	c := Config{}
	c.setDefaults()
	synctest.Test(t, func(*testing.T) {
		p := pulse{t: &c.Timing, pings: youngPings}
		pause := p.pause(true)
		if p.passed(pause, 0, 0, time.Hour) {
			t.Error("unheard after a stall in which nothing was heard")
		}
		pause = p.pause(false)
		if pause != c.PingInterval || p.passed(pause, 0, time.Second, 2*time.Hour) || p.unheard != pause {
			t.Errorf("unheard for %v after a stall before which something was heard, a pause of %v", p.unheard, pause)
		}
	})
}

// Where this process's timers are late, its peers have more time, and not without end: a frozen node is
// noticed all the same, and the time is back to normal soon after.
func TestLatePulse(t *testing.T) {
	c := Config{}
	c.setDefaults()
	p, now := pulse{t: &c.Timing}, time.Duration(0)
	wait := func(late, heard time.Duration) (unheard bool) {
		pause := p.pause(false)
		now += pause + late
		return p.passed(pause, 0, heard, now)
	}
	for _, tt := range []struct{ late, limit time.Duration }{
		{0, c.SuspectAfter},
		{50 * time.Millisecond, c.SuspectAfter + 400*time.Millisecond},
		{10 * time.Second, 2 * c.SuspectAfter},
	} {
		for range 100 { // calm
			wait(0, now)
		}
		heard := now
		if unheard := wait(tt.late, heard); unheard || p.limit() != tt.limit {
			t.Errorf("timers %v late: unheard %v, a limit of %v", tt.late, unheard, p.limit())
		}
		for counted := time.Duration(0); !wait(tt.late, heard); counted = p.unheard {
			if p.unheard <= counted || p.unheard >= tt.limit {
				t.Fatalf("timers %v late: unheard for %v, then %v", tt.late, counted, p.unheard)
			}
		}
	}
	for range 20 { // however late they were
		wait(0, now)
	}
	if more := p.limit() - c.SuspectAfter; more > c.SuspectAfter/10 {
		t.Errorf("20 pauses after the last late one, peers have %v more", more)
	}
}

// A node that is frozen when it is dialled answers when it continues. Once there is a link it is found
// frozen as soon as any other: that the link was long in coming is not this process's lateness.
func TestFrozenAfterSlowHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var suspected time.Duration
		c := newCluster(t, false, 2, func(cfg *Config) {
			cfg.SuspectAfter = 0
			cfg.setDefaults()
			suspected = cfg.SuspectAfter
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				time.Sleep(suspected / 3)
				return dial(ctx, addr)
			}
		})
		c.startAll(nil)
		m := c.members["n1"]
		mustEvent(t, m, isUp("n2"), "up")
		time.Sleep(suspected / 3)
		frozen := time.Now()
		c.net.setDeaf(c.addrs["n2"], true)
		mustEvent(t, m, isDown("n2"), "down")
		if noticed := time.Since(frozen); noticed > suspected {
			t.Errorf("noticed after %v, not %v", noticed, suspected)
		}
		for _, m := range c.members {
			m.Close()
		}
	})
}
