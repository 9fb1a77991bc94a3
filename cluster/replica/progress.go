package replica

import (
	"sync/atomic"
	"time"
)

// Reasons for a leader to resign: the kind of work that makes no progress.
const (
	StuckEntries  = "entries"  // entries in the log, or waiting for it, are not applied
	StuckTick     = "tick"     // something is due and no tick is applied
	StuckSettings = "settings" // of the queue, in a new revision
	StuckEffects  = "effects"  // what was applied is not answered, or not delivered
	StuckDisk     = "disk"     // the node's disk, see host.Host.Withdraw
	StuckCatalog  = "catalog"  // entries of the catalog
)

// Reasons lists all of these in display order.
var Reasons = []string{StuckEntries, StuckTick, StuckSettings, StuckEffects, StuckDisk, StuckCatalog}

// Stalled is a leader whose work makes no progress.
type Stalled struct {
	Reason string
	For    time.Duration
	// Keeps says why the leader does not resign; empty if it does.
	Keeps                       string
	Term, Last, Commit, Applied uint64
}

// Reasons for a stalled leader not to resign.
const (
	KeepsAlone    = "it has no other voter"
	KeepsMajority = "no majority of its members is up"
	KeepsNobody   = "no other member can be elected"
	KeepsPause    = "it resigned a short time ago"
)

// WhyKeep says why a stalled leader keeps its leadership: resigning would not help. It returns ""
// if the leader may resign.
func (r *Replica) WhyKeep(last *Resigning, now time.Duration) string {
	voters := r.Voters()
	switch {
	case len(voters) < 2:
		return KeepsAlone
	case !r.config.Mesh.HasMajority(voters):
		return KeepsMajority
	case last.Until.Load() > int64(now):
		return KeepsPause
	}
	return ""
}

const (
	// WatchEvery is how often leaders with work waiting are checked.
	WatchEvery = 250 * time.Millisecond
	// ShortPause is for how long a leader that has resigned neither resigns again nor stands for election
	// where others can win. The pause doubles each time.
	ShortPause = 5 * time.Second
	// LongestPause is the longest of these pauses. It starts over after another one of them.
	LongestPause = 80 * time.Second
)

// Resigning is what a replica remembers about its last resignation on this node.
type Resigning struct {
	Term  atomic.Uint64 // in which it resigned; 0: none
	Until atomic.Int64  // in the watch's time; before then it neither resigns nor campaigns where others can win
	pause time.Duration // the last pause; owned by the watch's goroutine
	At    time.Duration // when the pause began; likewise
}

// Begin records that the replica resigns in a term.
func (r *Resigning) Begin(term uint64, now time.Duration) {
	if now-r.At > LongestPause+r.pause {
		r.pause = 0
	}
	r.At, r.pause = now, min(max(2*r.pause, ShortPause), LongestPause)
	r.Until.Store(int64(now + r.pause))
	r.Term.Store(term)
}

// Mark records since when one kind of work has waited without progress.
type Mark struct {
	Waits    bool
	Progress uint64
	since    time.Duration
}

// Update records the state of the work and returns for how long it has stalled.
func (m *Mark) Update(waits bool, progress uint64, now time.Duration) time.Duration {
	if !waits || !m.Waits || m.Progress != progress {
		*m = Mark{waits, progress, now}
		return 0
	}
	return now - m.since
}
