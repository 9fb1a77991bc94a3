package raftlog

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// restGarbage is how much of the segments may be dead while the store rests, and busyGarbage while it
	// does not, in addition to as much as is not.
	restGarbage = 16 << 20
	busyGarbage = 256 << 20
	// rewriteStep is how much is written to another segment before the records are changed.
	rewriteStep = 8 << 20
)

// sparse chooses segments that are to be rewritten, those with the least in them first: none if no more than
// garbage is dead, and as much again as is live; or else of those that are at least half dead as many as make it so.
func (s *segments) sparse(garbage int64) map[uint32]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*segment
	excess := -garbage
	for _, seg := range s.all {
		if seg.file != nil || seg.old {
			continue
		}
		excess += seg.length - 2*seg.live
		if seg.live > 0 && 2*seg.live <= seg.length {
			list = append(list, seg)
		}
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.live, b.live) })
	victims := map[uint32]bool{}
	for _, seg := range list {
		if excess <= 0 {
			break
		}
		excess -= seg.length - seg.live
		victims[seg.number] = true
	}
	return victims
}

// mover writes payload sections of a group to other segments.
type mover struct {
	g       *Group
	moves   []move
	written int64
}

// move is a payload section that was written a second time.
type move struct {
	index    uint64
	from, to span
}

// rewrite moves what the group has in segments.
func (m *mover) rewrite(victims map[uint32]bool) {
	g := m.g
	for _, p := range m.sectionsIn(victims) {
		key := indexKey(kindPayload, g.id, p.index)
		v, err := g.s.segments.read(p.span(), key)
		if err != nil {
			if g.locate(p.index).extent == p.extent {
				g.s.readFailed(g.id, fmt.Sprintf("payload of entry %d", p.index), lost(err))
			}
			continue
		}
		at, _ := g.s.segments.append(key, v)
		to := span{at, p.size}
		m.moves = append(m.moves, move{p.index, p.span(), to})
		if m.written += to.bytes(); m.written >= rewriteStep {
			m.commit()
		}
	}
	m.commit()
}

// sectionsIn lists the group's payload sections in some segments. Mostly there are few: the others are not copied.
func (m *mover) sectionsIn(segments map[uint32]bool) (list []pin) {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pins.items {
		if p.size > 0 && segments[p.segment] {
			list = append(list, p)
		}
	}
	for index := g.entries.begin(); index > 0 && index <= g.entries.last(); index++ {
		if i := g.entries.at(index); i.payload > 0 && segments[i.segment] {
			list = append(list, pin{index: index, size: i.payload, check: i.check, extent: i.extent})
		}
	}
	return list
}

// commit has the records say where sections were written, which are durable there by then: a power failure
// must not find a record that has lost what it had. Of those that were released meanwhile, or replaced, what was
// written is garbage.
func (m *mover) commit() {
	if len(m.moves) == 0 {
		return
	}
	g := m.g
	g.s.segments.sync()
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.s.db.NewBatch()
	for _, one := range m.moves {
		at := m.noted(one.index)
		if at == nil || *at != one.from.extent {
			g.loose.add(one.to)
			continue
		}
		g.s.setSealed(b, indexKey(kindExtent, g.id, one.index), putExtent(one.to, 0))
		g.loose.add(one.from)
		*at = one.to.extent
	}
	g.loose.commit(g.s, b, pebble.NoSync)
	m.moves, m.written = m.moves[:0], 0
}

// noted is where in memory it says where an entry's payload section lies, nil if nothing does. The caller
// holds Group.mu.
func (m *mover) noted(index uint64) *extent {
	if i := m.g.entries.at(index); i != nil {
		return &i.extent
	}
	if at := m.g.pins.find(index); at >= 0 {
		return &m.g.pins.items[at].extent
	}
	return nil
}

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
