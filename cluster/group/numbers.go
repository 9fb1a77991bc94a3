package group

import (
	"context"
	"sync"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// numbers gives this process's proposals their numbers, so that one that is proposed again is not
// performed again.
//
//	from ≤ number of a proposal under way ≤ last < from + catalog.MaxProposals
type numbers struct {
	mu      sync.Mutex
	changed sync.Cond // from has
	last    uint64    // given
	from    uint64    // least number under way, or last + 1
	over    map[uint64]bool
}

func (n *numbers) init() {
	n.changed.L = &n.mu
	n.from, n.over = 1, map[uint64]bool{}
}

// begin gives a number to p. It waits while a proposal is under way that is so old that the machine
// would not know both.
func (n *numbers) begin(ctx context.Context, p *logpb.Proposal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := awaitCond(ctx, &n.changed, "an old proposal", func() bool { return n.last+1-n.from < catalog.MaxProposals })
	if err != nil {
		return err
	}
	n.last++
	p.Number, p.From = n.last, n.from
	return nil
}

// end notes that nobody waits for the answer to a proposal any more.
func (n *numbers) end(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.over[number] = true
	for n.over[n.from] {
		delete(n.over, n.from)
		n.from++
	}
	n.changed.Broadcast()
}
