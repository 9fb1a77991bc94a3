package peer

const (
	// inboundBudget is about how much of requests all groups of a node hold
	// together, in bytes: enough for every disk to be busy, little beside what
	// a node has. Where a disk hangs, leaders send until it is used up.
	inboundBudget = 256 << 20
	// smallRequest is what costs nothing to hold: votes, questions, and entries
	// of queues in which little happens.
	smallRequest = 4 << 10
)

// affordable reports whether a request may be held. A group may hold as much as
// is free for everybody: one alone uses half of the budget, and however many
// hold something, there is room for the next. A group that holds nothing may
// always go on, unless the budget is used up twice. t.mu is held.
//
// What is refused is sent again (see insist).
func (t *transport) affordable(r request) bool {
	if r.size <= smallRequest {
		return true
	}
	free := t.m.inboundLimit - t.m.inbound.Load()
	if t.held == 0 {
		return free+t.m.inboundLimit >= int64(r.size)
	}
	return int64(t.held+r.size) <= free
}

// holds notes that the group holds so many bytes more, or less. t.mu is held.
func (t *transport) holds(bytes int) {
	t.held += bytes
	t.m.inbound.Add(int64(bytes))
}
