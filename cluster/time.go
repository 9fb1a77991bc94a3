package cluster

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// nodeClock is the running clock of a node, with the cluster-wide settings about time as far as the
// node knows them.
type nodeClock struct {
	*clock.Clock
	loops *worker.Tasks

	maxSkew, lockCredit atomic.Int64  // ms
	version             atomic.Uint32 // fsm_version: a higher one may tell queues more of their settings
}

// newClock returns a clock that runs until it is stopped.
func newClock(c *Config, guard *worker.Guard) *nodeClock {
	k := &nodeClock{loops: worker.NewTasks(guard)}
	k.learn(&catalog.View{})
	monotonic := c.Monotonic
	if monotonic == nil {
		began := time.Now()
		monotonic = func() time.Duration { return time.Since(began) }
	}
	k.Clock = clock.New(clock.Config{
		Node: c.Name, Nodes: []string{c.Name}, Logger: c.Logger, Wall: c.Clock,
		Monotonic: monotonic,
		MaxSkew:   func() fsm.Millis { return fsm.Millis(k.maxSkew.Load()) },
	})
	k.loops.Loop("keep time", func(ctx context.Context) { worker.Every(ctx.Done(), clock.UpdateInterval, k.Update) })
	return k
}

// heard takes a reading of another node's wall clock.
func (k *nodeClock) heard(node string, wall int64, asked time.Time) {
	now := k.Monotonic()
	k.Read(node, fsm.Time(wall), now, time.Since(asked))
}

// learn applies the settings of a view, and reports whether queues have to apply them, too.
func (k *nodeClock) learn(v *catalog.View) (changed bool) {
	k.maxSkew.Store(v.Setting(catalog.MaxClockSkew))
	credit, version := v.Setting(catalog.LockCredit), v.FSMVersion()
	raised := k.version.Swap(version) != version
	return k.lockCredit.Swap(credit) != credit || raised
}

// credit is the lock credit.
func (k *nodeClock) credit() fsm.Millis { return fsm.Millis(k.lockCredit.Load()) }
