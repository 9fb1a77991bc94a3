package raftlog

import (
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
)

// entries is what is known in memory about the entries that raft can see, and
// the sums over them.
//
//	live = Σ payload of those that are not dead
//	reclaimable = Σ info.reclaimable of those up to counted; total has the same
//	first-1 ≤ counted ≤ last, unless there are none
//	counted is the last entry that a snapshot taken now lets raft delete: it
//	leaves trailing entries in any case, and those that are retained
type entries struct {
	tail
	lastTerm    uint64 // of the last entry; 0: not known
	live        int64
	counted     uint64
	reclaimable int64
	trailing    uint64
	retention   retention
	total       *atomic.Int64 // reclaimable of all groups
}

// retention keeps entries visible that raft has asked to delete.
type retention struct {
	from      uint64 // the first of them; 0: none
	requested uint64 // the last one that raft wants gone
}

// limit is the last entry up to index that may be deleted.
func (r retention) limit(index uint64) uint64 {
	if r.from == 0 {
		return index
	}
	return min(index, r.from-1)
}

// append adds entries behind the last one, from index on, the last of which is of
// lastTerm.
func (e *entries) append(index uint64, infos []info, lastTerm uint64) {
	if e.empty() {
		e.counted = index - 1
	}
	for at, i := range infos {
		e.push(index+uint64(at), i)
		e.live += int64(i.payload)
	}
	e.recount()
	e.lastTerm = lastTerm
}

// load adds an entry that was found behind the last one. What is reclaimable is not
// known before loaded is called.
func (e *entries) load(index uint64, i info, term uint64) {
	e.push(index, i)
	e.live += int64(i.payload)
	e.lastTerm = term
}

// loaded ends the loading. total is that of all groups.
func (e *entries) loaded(total *atomic.Int64) {
	e.total = total
	if !e.empty() {
		e.counted = e.first - 1
	}
	e.recount()
}

// recount corrects what is reclaimable, after entries have come or gone, or trailing
// or retention have changed.
func (e *entries) recount() {
	if !e.empty() {
		e.count(max(e.first-1, e.retention.limit(e.last()-min(e.last(), e.trailing))))
	}
}

// count moves counted to an entry. All entries between must still be there.
func (e *entries) count(to uint64) {
	delta := int64(0)
	for ; e.counted < to; e.counted++ {
		if i := e.at(e.counted + 1); i != nil {
			delta += i.reclaimable()
		}
	}
	for ; e.counted > to; e.counted-- {
		if i := e.at(e.counted); i != nil {
			delta -= i.reclaimable()
		}
	}
	e.reclaim(delta)
}

func (e *entries) reclaim(n int64) {
	e.reclaimable += n
	e.total.Add(n)
}

// reclaimable is what the entry's truncation frees.
func (i *info) reclaimable() int64 {
	if i.dead {
		return int64(i.header) + int64(i.payload)
	}
	return int64(i.header)
}

// die marks an entry of whose payload section no message is live any more.
func (e *entries) die(index uint64) {
	i := e.at(index)
	if i.dead || i.payload == 0 {
		return
	}
	i.dead = true
	e.live -= int64(i.payload)
	if index <= e.counted {
		e.reclaim(int64(i.payload))
	}
}

// truncatePrefix forgets all entries up to and including last.
func (e *entries) truncatePrefix(last uint64) {
	if e.empty() {
		return
	}
	delta := int64(0)
	for index := e.first; index <= min(last, e.last()); index++ {
		i := e.at(index)
		if index <= e.counted {
			delta -= i.reclaimable()
		}
		if !i.dead {
			e.live -= int64(i.payload)
		}
	}
	e.reclaim(delta)
	e.dropPrefix(last)
	e.counted = max(e.counted, last)
}

// truncateSuffix forgets all entries from first on. lastTerm is the term of the
// entry before it.
func (e *entries) truncateSuffix(first, lastTerm uint64) {
	e.count(min(e.counted, first-1))
	for index := max(first, e.begin()); index <= e.last() && index > 0; index++ {
		if i := e.at(index); !i.dead {
			e.live -= int64(i.payload)
		}
	}
	e.dropSuffix(first)
	e.lastTerm = lastTerm
	e.recount()
}

// sections lists the payload sections of entries up to last that are not dead, or
// of those that are, too.
func (e *entries) sections(last uint64, dead bool) []pin {
	var list []pin
	for index := e.begin(); index > 0 && index <= min(last, e.last()); index++ {
		if i := e.at(index); i.payload > 0 && (dead || !i.dead) {
			list = append(list, pin{index: index, size: i.payload, check: i.check, extent: i.extent})
		}
	}
	return list
}

// freed is how many bytes the deletion of the entries from first on would free. It
// counts no further once that is more than limit.
func (e *entries) freed(first uint64, limit int64) (bytes int64) {
	if e.empty() {
		return 0
	}
	for index := max(first, e.first); index <= e.last() && bytes <= limit; index++ {
		bytes += e.at(index).reclaimable()
	}
	return bytes
}

// inSegments reports whether one has its payload section in a segment.
func (e *entries) inSegments() bool {
	return slices.ContainsFunc(e.infos, func(i info) bool { return i.segment != 0 })
}

// forget empties them.
func (e *entries) forget() {
	e.reclaim(-e.reclaimable)
	e.tail, e.live = tail{}, 0
}

// check says which of the sums is wrong; nil: none is.
func (e *entries) check() error {
	live, reclaimable := int64(0), int64(0)
	for index := e.begin(); index > 0 && index <= e.last(); index++ {
		i := e.at(index)
		if !i.dead {
			live += int64(i.payload)
		}
		if index <= e.counted {
			reclaimable += i.reclaimable()
		}
	}
	switch {
	case live != e.live:
		return fmt.Errorf("%d bytes are live, counted are %d", live, e.live)
	case reclaimable != e.reclaimable:
		return fmt.Errorf("%d bytes are reclaimable, counted are %d", reclaimable, e.reclaimable)
	case !e.empty() && (e.counted < e.first-1 || e.counted > e.last()):
		return fmt.Errorf("counted up to %d, there are entries %d to %d", e.counted, e.first, e.last())
	}
	return nil
}

// info is what is known in memory about an entry that raft can see.
type info struct {
	payload uint32 // bytes of its payload section; 0: it has none
	header  uint32 // bytes of its header record
	check   uint32 // of its payload section, see checkOf
	dead    bool   // no message of its payload section is live any more
	extent         // of its payload section
}

func (i *info) span() span { return span{i.extent, i.payload} }

// recordSize is the size of the entry's record of a kind, 0 if it has none.
func (i *info) recordSize(k kind) uint32 {
	switch {
	case k == kindHeader:
		return i.header
	case k == kindPayload && i.payload > 0 && i.segment == 0:
		return i.payload + sealSize
	case k == kindExtent && i.segment != 0:
		return extentSize + sealSize
	}
	return 0
}

// tail describes raft's log: the entries from first to last without a gap.
type tail struct {
	first uint64 // meaningful only if there are infos
	infos []info
}

func (t *tail) empty() bool { return len(t.infos) == 0 }

// last returns the index of the last entry, 0 if there is none.
func (t *tail) last() uint64 {
	if t.empty() {
		return 0
	}
	return t.first + uint64(len(t.infos)) - 1
}

// begin returns the index of the first entry, 0 if there is none.
func (t *tail) begin() uint64 {
	if t.empty() {
		return 0
	}
	return t.first
}

// at returns what is known about an entry, nil if raft cannot see it.
func (t *tail) at(index uint64) *info {
	if t.empty() || index < t.first || index > t.last() {
		return nil
	}
	return &t.infos[index-t.first]
}

// push adds the entry after the last one. The first entry of an empty tail
// may have any index.
func (t *tail) push(index uint64, i info) {
	if t.empty() {
		t.first = index
	}
	t.infos = append(t.infos, i)
}

// dropPrefix forgets all entries up to and including last.
func (t *tail) dropPrefix(last uint64) {
	switch {
	case t.empty() || last < t.first:
	case last >= t.last():
		t.infos = nil
	default:
		n := last - t.first + 1
		t.first += n
		t.infos = t.infos[n:]
	}
}

// dropSuffix forgets all entries from from on.
func (t *tail) dropSuffix(from uint64) {
	switch {
	case t.empty() || from > t.last():
	case from <= t.first:
		t.infos = nil
	default:
		t.infos = t.infos[:from-t.first]
	}
}

// pin is a payload section that outlives raft's interest in its entry.
type pin struct {
	index uint64
	size  uint32 // 0: released
	check uint32 // see checkOf
	// number of the snapshot with which it came; 0: the group's own.
	number uint64
	extent
}

func (p *pin) span() span { return span{p.extent, p.size} }

// pins holds them by ascending index. Released ones stay in the slice until
// they are half of it, so that releasing costs a binary search.
type pins struct {
	items    []pin
	released int
	bytes    int64
}

// add appends a pin. Its index must be above all others.
func (p *pins) add(one pin) {
	p.items = append(p.items, one)
	p.bytes += int64(one.size)
}

// find returns the position of an index among items, -1 if it is not pinned.
func (p *pins) find(index uint64) int {
	at := sort.Search(len(p.items), func(i int) bool { return p.items[i].index >= index })
	if at == len(p.items) || p.items[at].index != index || p.items[at].size == 0 {
		return -1
	}
	return at
}

// release marks the pin at a position as released. Positions stay valid until
// tidy.
func (p *pins) release(at int) {
	p.bytes -= int64(p.items[at].size)
	p.items[at].size = 0
	p.released++
}

// tidy gives memory back once half of the items are released.
func (p *pins) tidy() {
	if p.released < 64 || p.released*2 < len(p.items) {
		return
	}
	kept := make([]pin, 0, len(p.items)-p.released)
	for _, it := range p.items {
		if it.size > 0 {
			kept = append(kept, it)
		}
	}
	p.items, p.released = kept, 0
}

// inSegments reports whether one that is not released is in a segment.
func (p *pins) inSegments() bool {
	return slices.ContainsFunc(p.items, func(it pin) bool { return it.size > 0 && it.segment != 0 })
}

// live returns a copy of the pins that are not released.
func (p *pins) live() []pin {
	return slices.DeleteFunc(slices.Clone(p.items), func(it pin) bool { return it.size == 0 })
}
