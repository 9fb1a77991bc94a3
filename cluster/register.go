package cluster

import (
	"bytes"
	"context"
	"time"

	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	registerWait  = 5 * time.Second        // bounds one attempt to register
	registerPause = 100 * time.Millisecond // between two
)

// register has the catalog give this process its boot number, or says which one
// it has. It may be repeated.
func (n *Node) register(ctx context.Context) (*logpb.CatalogResult, error) {
	results, err := n.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_RegisterNode{
		RegisterNode: &logpb.RegisterNode{
			Name: n.config.Name, PeerAddress: n.config.Nodes[n.config.Name], Incarnation: n.incarnation[:], Identity: n.directory.record().Identity,
			OldestVersion: n.config.Versions.Oldest, NewestVersion: n.config.Versions.Newest,
		},
	}})
	if err != nil {
		return nil, err
	}
	return results[0], catalog.Refused(results[0])
}

// isRegistered reports whether the catalog has this process under the boot
// number that it works under.
func (n *Node) isRegistered() bool {
	state, known := n.View().NodeByName(n.config.Name)
	if !known || !bytes.Equal(state.Incarnation, n.incarnation[:]) {
		return true // it is forgotten, or has a successor: nothing to be mended
	}
	return !state.Dead && state.Boot == n.broker.Boot()
}

// stayRegistered registers the node once more whenever it was declared dead
// and lives all the same. The clients of its former boot have to connect again:
// what they held is no longer theirs.
func (n *Node) stayRegistered() {
	n.registration.Run(n.life.Done(), func(time.Time) (again time.Duration) {
		if n.isRegistered() {
			return 0
		}
		n.registerAgain()
		return registerPause
	})
}

func (n *Node) registerAgain() {
	ctx, cancel := context.WithTimeout(n.life, registerWait)
	defer cancel()
	registered, err := n.register(ctx)
	if err != nil {
		n.slog.Warn("this node was declared dead and cannot register again", "error", err)
		return
	}
	n.slog.Warn("this node was declared dead: it has registered again, and its clients connect again",
		"boot", n.broker.Boot(), "new_boot", registered.Boot)
	n.broker.Renew(registered.Boot)
	if n.door != nil {
		n.door.Expel(broker.LostText)
	}
}
