package jepsen

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

var (
	lockPlays = flag.String("jepsen.plays", "locked,grouped,parked,scheduled", "workloads (locked, grouped, parked, scheduled) of TestLocksUnderKills")
	lockKills = flag.Int("jepsen.kills", 8, "leaders that TestLocksUnderKills kills")
)

// betweenKills is so long that locks are lost, and renewed, under each leader.
const betweenKills = 1700 * time.Millisecond

// lockTime is how long the locks of these tests last.
const lockTime = 1500 * time.Millisecond

// lockPlays returns the workloads that were asked for.
func (r *run) lockPlays(draw *rand.Rand) []*play {
	all := []*play{r.lockPlay(draw), r.groupPlay(draw), r.deferPlay(draw), r.schedulePlay(draw)}
	return slices.DeleteFunc(all, func(p *play) bool { return !slices.Contains(strings.Split(*lockPlays, ","), p.name) })
}

// Leaders are killed again and again, and one node's clock is an hour wrong, first
// ahead and then behind. Meanwhile consumers hold messages by locks that they renew,
// or not; groups have one holder each; deferred messages are received once; and
// what is scheduled is cancelled or fired when it is due.
func TestLocksUnderKills(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 4*time.Minute+time.Duration(*lockKills)*10*time.Second, cluster.WrongClocks...)
	seed := r.draws("jepsen.seed", *chaosSeed)
	began, plays := time.Now(), r.lockPlays(rand.New(rand.NewPCG(seed, 7)))
	r.mustPlayWhile(plays, func(context.Context) error { return r.killWith(plays) })
	t.Logf("%d leaders killed in %v", len(r.Faults), time.Since(began).Round(time.Second))
	for _, p := range plays {
		if len(p.Ops) < len(p.Attempts) {
			t.Errorf("%s: nothing was tried", p.name)
		}
	}
}

// killWith kills the leaders of all queues in turn while one node's clock is wrong.
func (r *run) killWith(plays []*play) error {
	wrong := r.Nodes[1]
	for k := range *lockKills {
		if half := max(*lockKills/2, 1); k%half == 0 {
			ahead := time.Hour
			if k > 0 {
				ahead = -ahead
			}
			r.reportFault("clock offset", wrong.Number)
			if err := wrong.SetClock(r.ctx, ahead); err != nil {
				return err
			}
		}
		workload.Wait(r.ctx, betweenKills)
		if err := nemesis.KillLeader(plays[k%len(plays)].name).Run(r.ctx, r.Cluster, r.History); err != nil {
			return err
		}
	}
	return wrong.SetClock(r.ctx, 0)
}
