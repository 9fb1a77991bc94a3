package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/replica"
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

const (
	// MaxEntry and maxCatalogCommands bound an entry of the catalog.
	MaxEntry           = 2 << 20
	maxCatalogCommands = 1 << 14
)

// decodeCatalog reads an entry of the catalog that another node has sent.
func decodeCatalog(entry []byte, newest uint32) (*logpb.CatalogEntry, error) {
	if len(entry) > MaxEntry || !replica.Few(entry, maxCatalogCommands) {
		return nil, fmt.Errorf("catalog entry of %d bytes: %w", len(entry), replica.ErrMany)
	}
	e := new(logpb.CatalogEntry)
	if err := logpb.Unmarshal(entry, e); err != nil {
		return nil, fmt.Errorf("catalog entry cannot be decoded: %w", err)
	}
	if e.Version > newest {
		return nil, fmt.Errorf("catalog: %w", &replica.LaterVersion{Version: e.Version, Newest: newest})
	}
	return e, nil
}

// admitCatalogEntry is admitEntry for the catalog. A command that raises the version is taken: anybody
// may ask for it, and the machine refuses what not all nodes support.
func admitCatalogEntry(l *raft.Log, newest uint32) error {
	if len(l.Extensions) > 0 {
		return fmt.Errorf("%d bytes of payload do not belong to any message", len(l.Extensions))
	}
	e, err := decodeCatalog(l.Data, newest)
	if err != nil {
		return err
	}
	for _, c := range e.Commands {
		if c.GetBody() == nil {
			return errors.New("unknown catalog command")
		}
	}
	return nil
}

// Inspect reads the catalog of a node, as if all entries were committed.
func Inspect(from *raftlog.Catalog) (s replica.Stored, view *catalog.View, err error) {
	c := &catalog.Catalog{}
	s, err = replica.Walk(from, func(stream io.Reader) error {
		state, err := readCatalogSnapshot(stream)
		if err != nil {
			return err
		}
		c, err = catalog.Restore(state)
		return err
	}, func(l *raft.Log) error {
		var e logpb.CatalogEntry
		if err := logpb.Unmarshal(l.Data, &e); err != nil {
			return fmt.Errorf("entry %d cannot be decoded: %w", l.Index, err)
		}
		c.Apply(l.Index, &e)
		return nil
	})
	s.Doubt = from.Doubt()
	if err == nil && s.Failed != "" {
		err = errors.New(s.Failed)
	}
	if err != nil {
		return s, nil, err
	}
	return s, c.View(), nil
}
