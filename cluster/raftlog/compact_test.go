package raftlog

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// compacting is a database that has compactions to run.
type compacting struct {
	s *compactions

	mu                      sync.Mutex
	allowed, waits, started int
	queries                 int // how often it was asked what is allowed
	handles                 []pebble.CompactionGrantHandle
}

func (d *compacting) GetAllowedWithoutPermission() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queries++
	return d.allowed
}

func (d *compacting) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waits > 0, pebble.WaitingCompaction{}
}

func (d *compacting) Schedule(h pebble.CompactionGrantHandle) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waits == 0 {
		return false
	}
	d.waits--
	d.started++
	d.handles = append(d.handles, h)
	return true
}

// more has the database try to run one more.
func (d *compacting) more() {
	ok, h := d.s.TrySchedule()
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok {
		d.started++
		d.handles = append(d.handles, h)
	} else {
		d.waits++
	}
}

func (d *compacting) done() {
	d.mu.Lock()
	h := d.handles[0]
	d.handles = d.handles[1:]
	d.mu.Unlock()
	h.Done()
}

func (d *compacting) set(allowed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allowed = allowed
}

func (d *compacting) expect(t *testing.T, when string, started int) {
	t.Helper()
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started != started {
		t.Fatalf("%s: %d compactions have started, want %d", when, d.started, started)
	}
}

// A compaction that waits runs when another one ends, or when more are allowed; and nobody asks while
// nothing runs.
func TestCompactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &compactions{}
		d := &compacting{s: c, allowed: 1}
		c.Register(1, d)
		for range 4 {
			d.more()
		}
		d.expect(t, "one is allowed", 1)
		d.done()
		d.expect(t, "one has ended", 2)
		d.set(2)
		time.Sleep(grantEvery)
		d.expect(t, "two are allowed", 3)
		d.set(3)
		c.UpdateGetAllowedWithoutPermission()
		time.Sleep(time.Nanosecond)
		d.expect(t, "three are allowed, and it is said", 4)
		d.set(1)
		d.more()
		for range 2 {
			d.done()
			d.expect(t, "one is allowed, others run", 4)
		}
		d.done()
		d.expect(t, "one is allowed, none runs", 5)
		d.done()
		queries := d.queries
		time.Sleep(time.Hour)
		if d.queries != queries {
			t.Errorf("asked %d times while nothing runs", d.queries-queries)
		}
		d.more()
		d.expect(t, "after a rest", 6)
		d.more()
		c.Unregister()
		d.done()
		d.expect(t, "after the end", 6)
		if ok, _ := c.TrySchedule(); ok {
			t.Error("something may run after the end")
		}
		time.Sleep(time.Hour)
		d.expect(t, "long after the end", 6)
	})
}
