package raftlog

import (
	"fmt"
	"sync/atomic"
)

// entries is what is known in memory about the entries that raft can see, and
// the sums over them.
//
//	live = Σ payload of those that are not dead
//	reclaimable = Σ info.reclaimable of those up to counted; total has the same
//	first-1 ≤ counted ≤ last, unless there are none
//	counted is the last entry that a snapshot taken now lets raft delete: it
//	leaves trailing entries in any case, and those that hold names
type entries struct {
	tail
	lastTerm    uint64 // of the last entry; 0: not known
	live        int64
	counted     uint64
	reclaimable int64
	trailing    uint64
	hold        hold
	total       *atomic.Int64 // reclaimable of all groups
}

// hold keeps entries visible that raft has asked to delete.
type hold struct {
	from      uint64 // the first of them; 0: none
	requested uint64 // the last one that raft wants gone
}

// limit is the last entry up to index that may be deleted.
func (h hold) limit(index uint64) uint64 {
	if h.from == 0 {
		return index
	}
	return min(index, h.from-1)
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
// or hold have changed.
func (e *entries) recount() {
	if !e.empty() {
		e.count(max(e.first-1, e.hold.limit(e.last()-min(e.last(), e.trailing))))
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
