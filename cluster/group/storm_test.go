package group

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/worker"
)

// Who uses a queue again and again, a little later than it falls asleep, finds it awake after a few times. One that is
// seldom used sleeps in between each time.
func TestNapsGetRare(t *testing.T) {
	const idle, lasts = 10 * time.Second, 2 * time.Hour
	for _, x := range []struct {
		period      time.Duration
		least, most int // wakes
	}{
		{5 * time.Second, 0, 0},
		{11 * time.Second, 1, 2},
		{25 * time.Second, 1, 3},
		{29 * time.Second, 1, 3},
		{10 * time.Minute, 11, 12},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := &Group{host: &Host{config: Config{IdleAfter: idle}}}
			wakes := 0
			for range int(lasts / x.period) {
				if awake := g.idleAfter(); awake >= x.period {
					time.Sleep(x.period)
				} else {
					time.Sleep(awake)
					r := &record{since: time.Now()}
					time.Sleep(x.period - awake)
					g.slept(r)
					wakes++
				}
			}
			if wakes < x.least || wakes > x.most {
				t.Errorf("used every %v, it wakes %d times in %v", x.period, wakes, lasts)
			}
			if g.idleAfter() > 6*time.Minute {
				t.Errorf("used every %v, it does not sleep before it is idle for %v", x.period, g.idleAfter())
			}
		})
	}
}

// Whatever the reasons are for which groups are woken that nobody waits for, so many wake in a second in all.
func TestWakesShareARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reasons, each = 5, wakesPerSecond
		s := &sleepers{host: &Host{tasks: worker.NewTasks(nil)}}
		began := time.Now()
		var all sync.WaitGroup
		for range reasons {
			all.Go(func() {
				for range each {
					if !s.turn(func() bool { return true }) {
						t.Error("there is a reason")
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took < reasons*time.Second {
			t.Errorf("%d groups are woken in %v", reasons*each, took)
		}
		if s.turn(func() bool { return false }) {
			t.Error("there is no reason any more")
		}
	})
}
