package watchdog

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/worker"
)

// Bounds limit how long the node may make no progress. 0: the default.
type Bounds struct {
	// Progress is how long a leader with waiting work may make no progress before it gives way to
	// another member.
	Progress time.Duration
	// Disk is how long a read or write of the stores may take before the node withdraws.
	Disk time.Duration
	// DiskExit is how long one may take before the node's process ends; negative: it never
	// ends.
	DiskExit time.Duration
}

// Defaults of Bounds.
const (
	DefaultProgressBound = 2 * time.Second
	DefaultDiskBound     = 2 * time.Second
	DefaultDiskExitBound = 30 * time.Second
)

const (
	// diskEvery is how often the disk is checked.
	diskEvery = 100 * time.Millisecond
	// calmTime is how long a disk that has hung must complete everything, each operation within half of the
	// bound, before the node returns. It doubles each time, up to maxCalmTime, and starts anew
	// after goodTime without a hang.
	calmTime    = 500 * time.Millisecond
	maxCalmTime = 8 * time.Second
	goodTime    = time.Minute
	// exitStepTime bounds each step that a node with a hanging disk takes before its process ends.
	exitStepTime = time.Second
	// standstillTime is how long the watchdog may not get to its next check, or not succeed in ending
	// the process, before the process counts as dead.
	standstillTime = 10 * time.Second
)

// Config says what a watchdog watches and how it ends the process.
type Config struct {
	Bounds
	// Gate is called before each write and may block, like a disk that hangs; nil: it is not
	// called.
	Gate   func()
	Exit   func(code int)
	Logger *slog.Logger
}

// Actions are what the watchdog does to its node. Withdraw, Return and Refuse do not wait.
type Actions struct {
	// Withdraw gives up the node's leaderships and stops its taking part in the cluster; Return
	// makes it follow again.
	Withdraw, Return func()
	// Refuse closes the node to the others for good.
	Refuse func()
	// Shut disconnects the clients, and returns when they are gone or ctx ends.
	Shut func(ctx context.Context, reason string)
}

// Watchdog withdraws the node while its disk hangs: the node cannot store or read anything, so it must
// neither lead nor count as a follower. Raft itself cannot step down then, since it would have to
// store that. So the node stops taking part in the cluster, the others elect without it, and it
// comes back when the disk does.
//
// Nothing here may wait for the disk, not even for a log line, since the log may be on it as well.
type Watchdog struct {
	config Config
	clock  AwakeClock
	disk   *Disk
	node   Actions

	hung    atomic.Bool
	hangs   atomic.Uint64
	began   time.Time
	checked atomic.Int64 // when the disk was last checked, in ns since began; 0: not started

	ending  chan struct{}
	running sync.WaitGroup
}

// New returns a watchdog. Before Start its clock does not run and nothing is watched.
func New(c Config) *Watchdog {
	c.Progress = cmp.Or(c.Progress, DefaultProgressBound)
	c.Disk = cmp.Or(c.Disk, DefaultDiskBound)
	c.DiskExit = cmp.Or(c.DiskExit, DefaultDiskExitBound)
	w := &Watchdog{config: c, ending: make(chan struct{}), began: time.Now()}
	w.disk = NewDisk(&w.clock, c.Gate)
	return w
}

// FS returns a filesystem that is watched.
func (w *Watchdog) FS(fs vfs.FS) vfs.FS { return w.disk.FS(fs) }

// Bounds returns the bounds in effect.
func (w *Watchdog) Bounds() Bounds { return w.config.Bounds }

// Awake returns how long the process has been able to run.
func (w *Watchdog) Awake() time.Duration { return w.clock.Awake() }

// Stats are the findings of a watchdog so far.
type Stats struct {
	Hung    bool // the disk, at present
	Hangs   uint64
	Waiting time.Duration // age of the oldest read or write in progress
	Syncs   uint64        // of the stores' files and folders
	// How long the process was not able to run, in total and at most at a time.
	Stalled, LongestStall time.Duration
}

// Stats returns the findings so far.
func (w *Watchdog) Stats() Stats {
	s := Stats{Hung: w.hung.Load(), Hangs: w.hangs.Load(), Waiting: w.disk.Waiting(), Syncs: w.disk.syncs.Load()}
	s.Stalled, s.LongestStall = w.clock.Stalls()
	return s
}

// Unfit says why the node, although running, cannot serve; empty: it can.
func (w *Watchdog) Unfit() string {
	if !w.hung.Load() {
		return ""
	}
	return fmt.Sprintf("the disk hangs: a read or write has not returned for more than %v", w.config.Disk)
}

// Dead says why the process should be ended from outside; empty: it makes progress, or deals with
// what keeps it from that. A hanging disk is no such reason before the watchdog has tried to end the
// process for it.
func (w *Watchdog) Dead() string {
	if checked := w.checked.Load(); checked == 0 || time.Since(w.began)-time.Duration(checked) <= standstillTime {
		return ""
	}
	return fmt.Sprintf("the watchdog has not run for more than %v", standstillTime)
}

// Start starts watching. The node must be ready for all actions.
func (w *Watchdog) Start(node Actions) {
	w.node = node
	w.checked.Store(int64(time.Since(w.began)) + 1)
	w.running.Go(func() { w.clock.Run(w.ending, w.idler()) })
	w.running.Go(w.run)
}

// Stop ends the watchdog, after everything that may hang.
func (w *Watchdog) Stop() {
	close(w.ending)
	w.running.Wait()
}

// idler returns what says whether nothing has been done on the disk since it was last asked.
func (w *Watchdog) idler() (idle func() bool) {
	last := uint64(0)
	return func() bool {
		begun := w.disk.begun.Load()
		same := begun == last
		last = begun
		return same && w.disk.Waiting() == 0 && !w.hung.Load()
	}
}

func (w *Watchdog) run() {
	next := time.NewTimer(diskEvery)
	defer next.Stop()
	d := diskState{bounds: w.config.Bounds, calm: calmTime}
	for idle := w.idler(); ; {
		select {
		case <-w.ending:
			return
		case <-next.C:
		}
		if again := diskEvery; idle() { // one that begins is soon found to wait
			next.Reset(min(worker.Next(restEvery), max(again, d.bounds.Disk/4)))
		} else {
			next.Reset(again)
		}
		w.checked.Store(int64(time.Since(w.began)) + 1)
		waiting, now := w.disk.Waiting(), w.clock.Awake()
		switch d.evaluate(waiting, now) {
		case withdraw:
			w.withdraw(waiting)
		case comeBack:
			w.comeBack(now - d.since)
		case exit:
			w.exit(waiting)
			return
		}
	}
}

// diskState is the state of the disk, in awake time.
type diskState struct {
	bounds Bounds
	hung   bool
	since  time.Duration // when it was found to hang
	better time.Duration // since when it has been calm; 0: it is not
	back   time.Duration // when it was last found well again; 0: never
	calm   time.Duration // how long it must be calm next time
}

// action is what the state of the disk requires.
type action int

const (
	none action = iota
	withdraw
	comeBack
	exit
)

// evaluate processes how long the disk has kept an operation waiting.
func (d *diskState) evaluate(waiting, now time.Duration) action {
	switch {
	case !d.hung && waiting >= d.bounds.Disk:
		if d.back != 0 && now-d.back > goodTime {
			d.calm = calmTime
		}
		d.hung, d.since, d.better = true, now, 0
		return withdraw
	case !d.hung:
	case d.bounds.DiskExit > 0 && waiting >= d.bounds.DiskExit:
		return exit
	case waiting > d.bounds.Disk/2:
		d.better = 0
	case d.better == 0:
		d.better = now
	case now-d.better >= d.calm:
		d.hung, d.back, d.calm = false, now, min(2*d.calm, maxCalmTime)
		return comeBack
	}
	return none
}

// withdraw gives up the node's leaderships and stops its taking part in the cluster.
func (w *Watchdog) withdraw(waiting time.Duration) {
	w.hung.Store(true)
	w.hangs.Add(1)
	w.node.Withdraw()
	w.spawn(func() {
		w.config.Logger.Error("the disk hangs: the node gives up its leaderships and withdraws until the disk is back",
			"waiting", waiting.Round(time.Millisecond), "bound", w.config.Disk, "ends_after", w.config.DiskExit)
	})
}

// comeBack makes the node follow again.
func (w *Watchdog) comeBack(after time.Duration) {
	w.hung.Store(false)
	w.node.Return()
	w.spawn(func() {
		w.config.Logger.Warn("the disk is back: the node takes part again", "after", after.Round(time.Millisecond))
	})
}

// exit ends the process. A thread that waits for the disk may keep the process and its sockets from
// going away, so the sockets are closed first.
func (w *Watchdog) exit(waiting time.Duration) {
	logged := w.spawn(func() {
		w.config.Logger.Error("stopping: the disk hangs", "waiting", waiting.Round(time.Millisecond), "bound", w.config.DiskExit)
	})
	w.node.Refuse()
	ctx, cancel := context.WithTimeout(context.Background(), exitStepTime)
	w.await(w.spawn(func() { w.node.Shut(ctx, "The disk of the node hangs") }))
	cancel()
	w.await(logged)
	w.config.Exit(raftlog.ExitCode)
	<-w.ending
}

// spawn runs f, which may hang, on a goroutine of its own.
func (w *Watchdog) spawn(f func()) (done <-chan struct{}) {
	c := make(chan struct{})
	w.running.Go(func() {
		defer close(c)
		f()
	})
	return c
}

func (w *Watchdog) await(done <-chan struct{}) {
	limit := time.NewTimer(exitStepTime + exitStepTime/2)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}
