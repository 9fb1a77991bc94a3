package host

import (
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/peer/peertest"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
)

// A node that nobody hears of for a moment keeps what it leads where nothing happens, and nobody stands for election,
// whether the groups sleep or not.
func TestFalseAlarmCostsNoTerm(t *testing.T) {
	for _, x := range []struct {
		name string
		idle time.Duration
	}{{"asleep", 20 * time.Millisecond}, {"awake", 0}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			for tries := 1; !falseAlarm(t, x.idle); tries++ {
				if tries == 10 {
					t.Fatal("the machine is too slow for an alarm that ends soon")
				}
			}
		})
	}
}

// falseAlarm returns false if the alarm was so long that others may stand.
func falseAlarm(t *testing.T, idle time.Duration) bool {
	t.Helper()
	v := peertest.NewValve()
	c := mustTrio(t, sleepy, v.Tune, func(c *Config) { c.IdleAfter = idle })
	terms := map[fsm.GroupID]uint64{}
	for id := fsm.GroupID(1); id <= 8; id++ {
		mustSubmit(t, c.mustOpen(id)[0], enqueues(1, -1, "a"))
	}
	for id := fsm.GroupID(1); id <= 8; id++ {
		for _, g := range c.replicas(id) {
			await(t, "the message is taken", func() bool { return ready(g) == 1 })
			await(t, "nobody would miss a leader", func() bool {
				return g.Asleep() || idle == 0 && in(g).Patience() == replica.Never
			})
			terms[id] = g.Term()
		}
	}
	links := func(up bool) {
		for _, h := range c.hosts[1:] {
			await(t, "the links have changed", func() bool { return h.linked("n1") == up && c.hosts[0].linked(h.config.Node) == up })
		}
	}
	began := time.Now()
	v.Set("n1", true)
	links(false)
	<-time.After(3 * time.Second / 2)
	v.Set("n1", false)
	links(true)
	for _, h := range c.hosts {
		for id := range terms {
			await(t, "nobody looks for a leader", func() bool { return !h.elections.Runs(id) })
		}
	}
	if time.Since(began) > election.DeathPatience-longestSleepWait {
		return false
	}
	for id, term := range terms {
		for _, g := range c.replicas(id) {
			if g.Term() != term {
				t.Errorf("group %d at %s: term %d has become %d", id, c.nodeOf(g), term, g.Term())
			}
		}
	}
	return true
}
