package peer

import "sync/atomic"

const (
	// inboundBudget is about how much of requests all groups of a node hold
	// together, in bytes: enough for every disk to be busy, little beside what
	// a node has. Where a disk hangs, leaders send until it is used up.
	inboundBudget = 256 << 20
	// smallRequest is what costs nothing to hold: votes, questions, and entries
	// of queues in which little happens.
	smallRequest = 4 << 10
)

// budget bounds the memory that the requests of all groups take together.
//
//	0 ≤ used; small requests, and what comes at the same moment, aside: ≤ 2 × limit
type budget struct {
	limit int64
	used  atomic.Int64
}

// allows reports whether a group that holds so many bytes may hold a request of
// this size. A group may hold as much as is free for everybody: one alone uses
// half of the budget, and however many hold something, there is memory for the
// next. A group that holds nothing may always go on, unless the budget is used up
// twice.
//
// What is refused is sent again (see insist).
func (b *budget) allows(held, size int) bool {
	if size <= smallRequest {
		return true
	}
	free := b.limit - b.used.Load()
	if held == 0 {
		return free+b.limit >= int64(size)
	}
	return int64(held+size) <= free
}
