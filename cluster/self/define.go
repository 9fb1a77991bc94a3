package self

import (
	"context"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Confirm asks a view. An answer that is told is one that every node gives when Confirm returns: it
// waits for that as long as for a change.
func (n *Node) Confirm(ctx context.Context, what string, ask func(v *catalog.View) (told bool, err error)) error {
	v, fresh := n.TryFresh(ctx)
	told, err := ask(v)
	if told && !fresh {
		limited, cancel := n.patient(ctx)
		defer cancel()
		if err := n.Catalog.Refresh(limited); err != nil {
			return n.unanswered(what, err)
		}
		told, err = ask(n.View())
	}
	if told {
		n.Converge(ctx)
	}
	return err
}

// patient bounds how long the catalog is waited for.
func (n *Node) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if n.Catalog.Isolated() != "" {
		return context.WithTimeout(ctx, n.Grace)
	}
	return context.WithCancel(ctx)
}

// unanswered is the refusal of what the catalog has not answered.
func (n *Node) unanswered(what string, err error) error {
	n.Logger.Warn("catalog does not answer", "operation", what, "error", err)
	text := fmt.Sprintf("Could not %s on node '%s' because the metadata store operation timed out", what, n.Name())
	if why := n.Catalog.Isolated(); why != "" {
		text += ": " + why
	}
	return fsm.Refuse(fsm.Internal, text)
}

// Propose commits one catalog command and turns its refusal into an error.
func (n *Node) Propose(ctx context.Context, what string, c *logpb.CatalogCommand) (*logpb.CatalogResult, error) {
	if n.Catalog.Fresh() {
		if err := n.View().Fits(c); err != nil {
			return catalog.Refuse(err), err // as the leader would: it need not decode what is too large
		}
	}
	ctx, cancel := n.patient(ctx)
	defer cancel()
	results, err := n.Catalog.Propose(ctx, c)
	if err != nil {
		return nil, n.unanswered(what, err)
	}
	r := results[0]
	if r.Refusal != 0 {
		return r, fsm.Refuse(fsm.Kind(r.Refusal), r.Text)
	}
	return r, nil
}

// RemoveRecord removes a queue from the catalog.
func (n *Node) RemoveRecord(ctx context.Context, q *catalog.Queue) error {
	_, err := n.Propose(ctx, fmt.Sprintf("delete queue '%s' in vhost '%s'", q.Name, q.VHost), Removal(q, 0))
	return err
}

// Removal is the command that removes a queue; boot is not 0 if it was lost with that boot of its
// node.
func Removal(q *catalog.Queue, boot uint64) *logpb.CatalogCommand {
	return &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeleteQueue{DeleteQueue: &logpb.DeleteQueue{
		Vhost: q.VHost, Name: q.Name, Id: uint64(q.ID), LostBoot: boot,
	}}}
}
