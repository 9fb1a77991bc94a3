package cluster

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/vitals"
)

// Bounds are how long what should go on may stand still. 0: the default.
type Bounds struct {
	// Progress is how long a leader with work waiting may stand still before it
	// gives way to another member.
	Progress time.Duration
	// Disk is how long a write to the stores may take before the node withdraws.
	Disk time.Duration
	// DiskExit is how long before its process ends; negative: it never does.
	DiskExit time.Duration
}

// Defaults of Bounds.
const (
	DefaultProgressBound = 2 * time.Second
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
}

func newWatchdog(n *Node) *watchdog {
	w := &watchdog{node: n, bounds: n.config.Watchdog, ending: make(chan struct{})}
	w.bounds.Progress = cmp.Or(w.bounds.Progress, DefaultProgressBound)
	w.bounds.Disk = cmp.Or(w.bounds.Disk, DefaultDiskBound)
	w.bounds.DiskExit = cmp.Or(w.bounds.DiskExit, DefaultDiskExitBound)
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
	v := verdict{bounds: w.bounds, calm: calm}
	for {
		select {
		case <-w.ending:
			return
		case <-tick.C:
		}
		waiting, now := w.disk.Waiting(), w.pulse.Awake()
		switch v.judge(waiting, now) {
		case withdraws:
			w.withdraw(waiting)
		case returns:
			w.comeBack(now - v.since)
		case ends:
			w.end(waiting)
			return
		}
	}
}

// verdict is what is known of the disk, in awake time.
type verdict struct {
	bounds Bounds
	hung   bool
	since  time.Duration // when it was found to hang
	better time.Duration // since when it has been calm; 0: it is not
	back   time.Duration // when it was found well again last; 0: never
	calm   time.Duration // how long it must be calm next time
}

// What follows from a verdict.
const (
	stays = iota
	withdraws
	returns
	ends
)

// judge takes how long the disk keeps a write waiting.
func (v *verdict) judge(waiting, now time.Duration) int {
	switch {
	case !v.hung && waiting >= v.bounds.Disk:
		if v.back != 0 && now-v.back > goodTime {
			v.calm = calm
		}
		v.hung, v.since, v.better = true, now, 0
		return withdraws
	case !v.hung:
	case v.bounds.DiskExit > 0 && waiting >= v.bounds.DiskExit:
		return ends
	case waiting > v.bounds.Disk/2:
		v.better = 0
	case v.better == 0:
		v.better = now
	case now-v.better >= v.calm:
		v.hung, v.back, v.calm = false, now, min(2*v.calm, longestCalm)
		return returns
	}
	return stays
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

// StandingStill lists the queues that this node leads and whose work makes no
// progress, the catalog before them.
func (n *Node) StandingStill() []api.Standstill {
	list := []api.Standstill{}
	if s := n.catalog.Stall(); s != nil {
		list = append(list, standstill(s))
	}
	for _, s := range n.host.Stalls() {
		list = append(list, standstill(&s))
	}
	return list
}

// describeProgress says what the watchdog has found and done.
func (n *Node) describeProgress(s *api.Status) {
	s.DiskWaitMS = n.watchdog.disk.Waiting().Milliseconds()
	s.StandingStill, s.Resignations = n.StandingStill(), []api.Resignation{}
	count, last := n.host.Resignations()
	for _, c := range count {
		s.ResignationsTotal += c
	}
	for _, r := range last {
		s.Resignations = append(s.Resignations, api.Resignation{Standstill: standstill(&r.Stall), AtMS: int64(r.At)})
	}
}

func standstill(s *group.Stall) api.Standstill {
	var of group.Spec
	if s.Group != nil { // else it is the catalog
		of = s.Group.Spec()
	}
	return api.Standstill{
		VHost: of.VHost, Name: of.Name, Group: uint32(of.Group), Reason: s.Reason, ForMS: s.For.Milliseconds(), Keeps: s.Keeps,
		Term: s.Term, Last: s.Last, Commit: s.Commit, Applied: s.Applied,
	}
}
