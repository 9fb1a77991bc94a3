package raftlog

import (
	"slices"
	"sort"
)

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

// live returns a copy of the pins that are not released.
func (p *pins) live() []pin {
	return slices.DeleteFunc(slices.Clone(p.items), func(it pin) bool { return it.size == 0 })
}
