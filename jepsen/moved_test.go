package jepsen

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
)

// A node comes back at another address and other ports, which the lists of the others do not have,
// and is reached again without anybody's doing. Meanwhile another process has its name and its
// former address, but no certificate of the cluster: it gets no link, and joins nothing.
func TestNodeMoves(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	moves, stay := r.Nodes[2], r.Nodes[:2]
	r.must(workload.Declare(r.ctx, moves.URI(), workload.Queue{Name: "orders"})) // its leader is to move
	former := r.LinkAddress(moves.Number)
	stop := make(chan struct{})
	flow := workload.Flow{
		URIs: r.URIs()[:2], Queue: "orders", Rate: 200, Next: workload.Until(stop, plain("orders", 256)), Patience: time.Minute,
	}
	r.must(flow.Run(r.ctx, r.History, func(ctx context.Context) error {
		defer close(stop)
		return r.moveUnder(ctx, moves, stay, former)
	}))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
}

func (r *run) moveUnder(ctx context.Context, moves *cluster.Node, stay []*cluster.Node, former string) (err error) {
	if err := errors.Join(r.awaitConfirms(ctx, 100), moves.Kill(ctx)); err != nil {
		return err
	}
	pretends, err := r.Pretend(moves, "127.0.0.3")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pretends.Kill(r.ctx)) }()
	says := func(words ...string) error {
		for _, n := range stay {
			if err := await.Until(ctx, 20*time.Millisecond, "node "+fmt.Sprint(n.Number, " to say ", words), func() (bool, error) { return n.SaidLine(words...), nil }); err != nil {
				return err
			}
		}
		return nil
	}
	if err := says("cannot reach node", former, "TLS"); err != nil {
		return err
	}
	r.Move(moves, "127.0.0.2")
	if err := errors.Join(moves.Restart(), moves.AwaitReady(ctx), says("node has a new address", "127.0.0.2"), r.awaitConfirms(ctx, 100)); err != nil {
		return err
	}
	if pretends.Ready(ctx) == nil || !pretends.Alive() {
		return errors.New("the process at the former address serves clients, or has ended")
	}
	return nil
}
