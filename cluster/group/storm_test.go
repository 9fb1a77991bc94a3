package group

import (
	"testing"
	"testing/synctest"
	"time"
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
			g := &Group{node: &Node{config: Config{IdleAfter: idle}}}
			wakes := 0
			for range int(lasts / x.period) {
				if awake := g.IdleAfter(); awake >= x.period {
					time.Sleep(x.period)
				} else {
					time.Sleep(awake)
					r := &Record{since: time.Now()}
					time.Sleep(x.period - awake)
					g.slept(r)
					wakes++
				}
			}
			if wakes < x.least || wakes > x.most {
				t.Errorf("used every %v, it wakes %d times in %v", x.period, wakes, lasts)
			}
			if g.IdleAfter() > 6*time.Minute {
				t.Errorf("used every %v, it does not sleep before it is idle for %v", x.period, g.IdleAfter())
			}
		})
	}
}
