package raftlog

import (
	"cmp"
	"fmt"
	"slices"

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

// tidySegments gives back segments that nothing refers to, but for so many spare ones, and has what is left
// in sparse ones written to others, if more than so many bytes are dead.
func (s *Store) tidySegments(garbage int64, spare int) {
	if victims := s.segments.sparse(garbage); len(victims) > 0 {
		s.rewrite(victims)
	}
	if s.segments.dying() {
		b := s.db.NewBatch()
		s.must(b.LogData(nil, nil))
		s.commit(b, pebble.Sync)
	}
	s.segments.giveBack(spare)
}

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

// rewrite writes what groups have in segments to others.
func (s *Store) rewrite(victims map[uint32]bool) {
	s.mu.Lock()
	var groups []*Group
	for _, sl := range s.groups {
		if sl.loaded {
			groups = append(groups, sl.group)
		}
	}
	s.mu.Unlock()
	for _, g := range groups {
		select {
		case <-s.closing:
			return
		default:
			g.rewrite(victims)
		}
	}
}

// move is a payload section that was written a second time.
type move struct {
	index    uint64
	from, to span
}

// rewrite writes the group's payload sections that are in segments to others. They are durable there
// before a record says so: a power failure must not find a record that has lost what it had.
func (g *Group) rewrite(victims map[uint32]bool) {
	g.mu.Lock()
	todo := slices.DeleteFunc(g.everySection(^uint64(0)), func(p pin) bool { return !victims[p.segment] })
	g.mu.Unlock()
	var moves []move
	written := int64(0)
	for _, p := range todo {
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
		moves = append(moves, move{p.index, p.span(), to})
		if written += to.bytes(); written >= rewriteStep {
			g.moved(moves)
			moves, written = moves[:0], 0
		}
	}
	g.moved(moves)
}

// moved has the records say where sections were written. Of those that were released meanwhile, or
// replaced, what was written is garbage.
func (g *Group) moved(moves []move) {
	if len(moves) == 0 {
		return
	}
	g.s.segments.sync()
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.s.db.NewBatch()
	for _, m := range moves {
		at := g.extentOf(m.index)
		if at == nil || *at != m.from.extent {
			g.loosen(m.to)
			continue
		}
		g.s.setSealed(b, indexKey(kindExtent, g.id, m.index), putExtent(m.to, 0))
		g.loosen(m.from)
		*at = m.to.extent
	}
	g.commitLoose(b, pebble.NoSync)
}

// extentOf returns where it is noted where the payload section of an entry lies, nil if there is none. The
// caller holds mu.
func (g *Group) extentOf(index uint64) *extent {
	if i := g.entries.at(index); i != nil {
		return &i.extent
	}
	if at := g.pins.find(index); at >= 0 {
		return &g.pins.items[at].extent
	}
	return nil
}
