package raftlog

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// grantEvery is how often it is checked, while something is compacted, whether more may be compacted
// at a time than before.
const grantEvery = 100 * time.Millisecond

// compactions lets Pebble run as many compactions at a time as it asks for. It does what Pebble's own
// scheduler does, except that it has no timer while nothing is compacted: that timer alone would wake
// an idle process twenty times a second. Nothing waits unless something runs, whose end lets it run.
//
// Pebble's locks come after turn and before mu.
type compactions struct {
	db   pebble.DBForCompaction
	turn sync.Mutex // who grants

	mu      sync.Mutex
	running int
	allowed int         // when last asked
	check   *time.Timer // nil: nothing has run
	ended   bool
}

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister implements pebble.CompactionScheduler.
func (c *compactions) Unregister() {
	c.mu.Lock()
	c.ended = true
	c.checkIn(0)
	c.mu.Unlock()
	c.turn.Lock() // whoever grants has finished
	defer c.turn.Unlock()
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if c.take() {
		return true, c
	}
	return false, nil
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (c *compactions) UpdateGetAllowedWithoutPermission() {
	c.mu.Lock()
	defer c.mu.Unlock()
	allowed := c.db.GetAllowedWithoutPermission()
	if allowed > c.allowed && c.running > 0 {
		c.checkIn(time.Nanosecond) // by another goroutine: this one has Pebble's lock
	}
	c.allowed = allowed
}

// Started implements pebble.CompactionGrantHandle.
func (c *compactions) Started() {}

// MeasureCPU implements pebble.CompactionGrantHandle.
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats implements pebble.CompactionGrantHandle.
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle.
func (c *compactions) Done() {
	c.put()
	c.grant()
}

// grant starts compactions that wait, as many as are allowed.
func (c *compactions) grant() {
	c.turn.Lock()
	defer c.turn.Unlock()
	for c.take() {
		if waits, _ := c.db.GetWaitingCompaction(); !waits || !c.db.Schedule(c) {
			c.put()
			return
		}
	}
}

// take reports whether one more may run, which counts as running then.
func (c *compactions) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	if c.allowed = c.db.GetAllowedWithoutPermission(); c.running >= c.allowed {
		return false
	}
	c.running++
	c.checkIn(grantEvery)
	return true
}

func (c *compactions) put() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 {
		c.checkIn(0)
	}
}

// checkIn has a check made after d; 0: none. c.mu is held.
func (c *compactions) checkIn(d time.Duration) {
	switch {
	case d == 0 && c.check != nil:
		c.check.Stop()
	case d == 0:
	case c.check == nil:
		c.check = time.AfterFunc(d, c.checkNow)
	default:
		c.check.Reset(d)
	}
}

func (c *compactions) checkNow() {
	c.grant()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 && !c.ended {
		c.checkIn(grantEvery)
	}
}
