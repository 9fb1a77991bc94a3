package broker

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// definitions change the catalog for clients.
type definitions struct {
	*node
	*tasks
	*placer
	uses     *uses
	audit    *audit.Log    // nil: nothing is audited
	grace    time.Duration // for a catalog without a leader
	defaults catalog.Defaults
}

// propose commits one catalog command and turns its refusal into an error.
func (d *definitions) propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if d.catalog.Isolated() != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.grace)
		defer cancel()
	}
	results, err := d.catalog.Propose(ctx, c)
	if err != nil {
		d.slog.Warn("catalog does not answer", "operation", what, "error", err)
		text := fmt.Sprintf("Could not %s on node '%s' because the metadata store operation timed out", what, d.name)
		if why := d.catalog.Isolated(); why != "" {
			text += ": " + why
		}
		return nil, fsm.Refuse(fsm.Internal, text)
	}
	r := results[0]
	if r.Refusal != 0 {
		return r, fsm.Refuse(fsm.Kind(r.Refusal), r.Text)
	}
	return r, nil
}

// removeRecord removes a queue from the catalog.
func (d *definitions) removeRecord(ctx context.Context, q *catalog.Queue) error {
	_, err := d.propose(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", q.Name, q.VHost),
		removal(q, 0))
	return err
}

// removeGone removes the record of a queue that has ended by itself, and
// tries again until that is done or somebody else leads the queue.
func (d *definitions) removeGone(g *group.Group) {
	spec := g.Spec()
	d.spawn("remove the record of a queue", func() {
		ctx, cancel := d.whileOpen()
		defer cancel()
		q, ok := d.view().QueueByID(spec.Queue)
		for ok && g.Leading() != 0 && ctx.Err() == nil {
			if d.removeRecord(ctx, q) == nil {
				return
			}
			q, ok = d.view().QueueByID(spec.Queue)
		}
	})
}
