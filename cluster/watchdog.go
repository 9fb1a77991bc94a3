package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/vitals"
)

// Bounds are how long what should go on may stand still. 0: the default.
type Bounds struct {
	// Disk is how long a write to the stores may take before the node withdraws.
	Disk time.Duration
	// DiskExit is how long before its process ends; negative: it never does.
	DiskExit time.Duration
}

// Defaults of Bounds.
const (
	DefaultDiskBound     = 2 * time.Second
	DefaultDiskExitBound = 30 * time.Second
)

const (
	// diskEvery is how often the disk is looked at.
	diskEvery = 100 * time.Millisecond
	// calm is for how long a disk that has hung must take what is written, each
	// time within half of the bound, before the node returns. It is twice as long
	// after each time, up to longestCalm, and begins anew after a good time.
	calm        = 500 * time.Millisecond
	longestCalm = 8 * time.Second
	goodTime    = time.Minute
	// partingTime bounds each thing that a node does on a disk that hangs before
	// its process ends.
	partingTime = time.Second
)

// diskHang is the name of the alarm.
const diskHang = "disk_hang"

// watchdog withdraws the node while its disk hangs: it cannot store anything, so
// it must not lead, or count as one that follows. Raft itself cannot step down
// then, as it would have to store that. So the node leaves the company of the
// others, who elect without it, and comes back when the disk does.
//
// Nothing here may wait for the disk, not even for a line of the log, which may
// lie there as well.
type watchdog struct {
	node   *Node
	bounds Bounds
	pulse  vitals.Pulse
	disk   *vitals.Disk

	hung  atomic.Bool
	hangs atomic.Uint64

	ending  chan struct{}
	running sync.WaitGroup

	// Of the goroutine that looks, in awake time.
	since  time.Duration // when the disk was found to hang
	better time.Duration // since when it has been calm; 0: it is not
	back   time.Duration // when the node returned last
	calm   time.Duration // how long the disk must be calm next time
}

func newWatchdog(n *Node) *watchdog {
	w := &watchdog{node: n, bounds: n.config.Watchdog, ending: make(chan struct{}), calm: calm}
	if w.bounds.Disk == 0 {
		w.bounds.Disk = DefaultDiskBound
	}
	if w.bounds.DiskExit == 0 {
		w.bounds.DiskExit = DefaultDiskExitBound
	}
	w.disk = vitals.NewDisk(&w.pulse, n.config.DiskGate)
	return w
}

// start begins to look; stop ends it, after everything that may hang.
func (w *watchdog) start() {
	w.running.Go(func() { w.pulse.Run(w.ending) })
	w.running.Go(w.run)
}

func (w *watchdog) stop() {
	close(w.ending)
	w.running.Wait()
}

func (w *watchdog) run() {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.ending:
			return
		case <-tick.C:
			w.look(w.disk.Waiting(), w.pulse.Awake())
		}
	}
}

// look acts on how long the disk has kept a write waiting.
func (w *watchdog) look(waiting, now time.Duration) {
	switch hung := w.hung.Load(); {
	case !hung && waiting >= w.bounds.Disk:
		w.since, w.better = now, 0
		if now-w.back > goodTime {
			w.calm = calm
		}
		w.withdraw(waiting)
	case !hung:
	case w.bounds.DiskExit > 0 && waiting >= w.bounds.DiskExit:
		w.end(waiting)
	case waiting > w.bounds.Disk/2:
		w.better = 0
	case w.better == 0:
		w.better = max(now, 1)
	case now-w.better >= w.calm:
		w.calm, w.back = min(2*w.calm, longestCalm), now
		w.comeBack(now - w.since)
	}
}

// withdraw gives up everything that the node leads, and takes it out of the
// company of the others.
func (w *watchdog) withdraw(waiting time.Duration) {
	w.hung.Store(true)
	w.hangs.Add(1)
	w.node.mesh.Withdraw()
	w.node.host.Withdraw()
	w.say(func() {
		w.node.slog.Error("the disk hangs: the node leads nothing and leaves the others until it is back",
			"waiting", waiting.Round(time.Millisecond), "bound", w.bounds.Disk, "ends_after", w.bounds.DiskExit)
	})
}

// comeBack has the node follow again.
func (w *watchdog) comeBack(after time.Duration) {
	w.hung.Store(false)
	w.node.mesh.Return()
	w.node.host.Return()
	w.say(func() {
		w.node.slog.Warn("the disk is back: the node follows again", "after", after.Round(time.Millisecond))
	})
}

// end ends the process. A thread that waits for the disk may keep it, and its
// sockets, from going away; so these are closed first.
func (w *watchdog) end(waiting time.Duration) {
	said := w.say(func() {
		w.node.slog.Error("stopping: the disk hangs", "waiting", waiting.Round(time.Millisecond), "bound", w.bounds.DiskExit)
	})
	w.node.mesh.Refuse()
	if d := w.node.door; d != nil {
		ctx, cancel := context.WithTimeout(context.Background(), partingTime)
		shut := w.say(func() { d.Shut(ctx, "The disk of the node hangs") })
		w.await(shut)
		cancel()
	}
	w.await(said)
	w.node.config.Exit(raftlog.ExitCode)
	<-w.ending
}

// say does something that may hang on a goroutine of its own.
func (w *watchdog) say(f func()) (done <-chan struct{}) {
	c := make(chan struct{})
	w.running.Go(func() {
		defer close(c)
		f()
	})
	return c
}

func (w *watchdog) await(done <-chan struct{}) {
	limit := time.NewTimer(partingTime + partingTime/2)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// Unfit says why this node, which runs, cannot serve; empty: it can.
func (n *Node) Unfit() string {
	if !n.watchdog.hung.Load() {
		return ""
	}
	return fmt.Sprintf("the disk hangs: a write has not returned for more than %v", n.watchdog.bounds.Disk)
}
