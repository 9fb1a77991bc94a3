package cluster

import (
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// openClock makes the node's clock, which runs until stopClock.
func (n *Node) openClock() {
	var none catalog.View
	n.settings.maxSkew.Store(none.Setting(catalog.MaxClockSkew))
	n.settings.lockCredit.Store(none.Setting(catalog.LockCredit))
	began := time.Now()
	n.clock = clock.New(clock.Config{
		Node: n.config.Name, Nodes: []string{n.config.Name}, Logger: n.slog, Wall: n.config.Clock,
		Monotonic: func() time.Duration { return time.Since(began) },
		MaxSkew:   n.maxSkew,
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		n.guard.Loop(stop, "keep time", func() { worker.Every(stop, clock.UpdateInterval, n.clock.Update) })
	}()
	n.stopClock = func() {
		close(stop)
		<-stopped
	}
}

// heardClock takes what another node's wall clock shows.
func (n *Node) heardClock(node string, wall int64, roundTrip time.Duration) {
	n.clock.Read(node, fsm.Time(wall), roundTrip)
}

// clusterSettings are the settings of the whole cluster that this node acts
// on, as far as it knows them.
type clusterSettings struct {
	maxSkew, lockCredit atomic.Int64
}

// settingsChanged takes up the settings of the catalog. It is called after
// each of its entries.
func (n *Node) settingsChanged(v *catalog.View) {
	n.settings.maxSkew.Store(v.Setting(catalog.MaxClockSkew))
	credit := v.Setting(catalog.LockCredit)
	if n.settings.lockCredit.Swap(credit) != credit {
		n.host.ReconfigureAll()
	}
}

func (n *Node) maxSkew() fsm.Millis    { return fsm.Millis(n.settings.maxSkew.Load()) }
func (n *Node) lockCredit() fsm.Millis { return fsm.Millis(n.settings.lockCredit.Load()) }
