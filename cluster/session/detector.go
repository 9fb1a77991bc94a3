package session

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Requirements for declaring a node dead.
const (
	deadAfter    = 2 * time.Second // of refusals by its own host, without interruption
	absentAfter  = 2000            // ms without a first sign of a node
	hearWait     = time.Second     // to ask the other nodes whether they hear it
	declareWait  = 2 * time.Second // for the catalog
	declareEvery = 1000            // ms between two attempts
)

// detector finds out which nodes have failed. The state of the links makes a process suspected,
// which ends when it is heard again. Only the catalog decides that a boot is over; the detector
// proposes so once that is proven. It also removes the local queues of nodes that were suspected
// for too long.
type detector struct {
	*node
	*tasks
	// retention is how long clients of a suspected node keep what they hold.
	retention fsm.Millis
	served    int64 // when this node began to serve, ms
	suspects  suspects
	removing  atomic.Bool // local queues are being removed
}

// peerChanged handles a link that has come or gone.
func (d *detector) peerChanged(ev peer.Event) {
	if ev.Up {
		d.suspects.up(ev.Node, ev.Incarnation)
		return
	}
	d.suspects.down(ev.Node, suspect{incarnation: ev.Incarnation, since: d.now(), restarted: ev.Reason == peer.Restarted})
}

// check declares dead the nodes whose process is proven to have ended.
func (d *detector) check(now int64) {
	d.noteAbsent(now)
	for _, node := range d.suspects.names() {
		s, ok := d.suspects.get(node)
		if !ok {
			continue
		}
		n, known := d.view().NodeByName(node)
		switch {
		case !known || !bytes.Equal(n.Incarnation, s.incarnation[:]):
			d.suspects.forget(node, s) // it has registered again
		case n.Dead || !s.restarted && d.mesh.RefusedFor(node) < deadAfter:
		case d.suspects.try(node, now):
			d.spawn("declare a node dead", func() { d.declareDead(n, s.restarted) })
		}
	}
}

// noteAbsent suspects nodes that have given no sign since this one started: their process may have
// ended before.
func (d *detector) noteAbsent(now int64) {
	if now-d.served < absentAfter {
		return
	}
	for _, n := range d.view().Nodes() {
		if n.Name == d.name || n.Boot == 0 || len(n.Incarnation) != len(suspect{}.incarnation) {
			continue
		}
		d.suspects.absent(n.Name, suspect{incarnation: [16]byte(n.Incarnation), since: now},
			func() bool { return d.mesh.Alive(n.Name) })
	}
}

// declareDead proposes to the catalog that the current boot of a node is over, if that is proven or
// if nobody hears the node. The leaders of all queues tell these when they see it in the catalog;
// the node itself sees it there as well, if it is alive after all.
func (d *detector) declareDead(n *logpb.NodeState, proven bool) {
	ctx, cancel := d.whileOpen()
	defer cancel()
	if !proven && !d.unheard(ctx, n) {
		return
	}
	ctx, stop := context.WithTimeout(ctx, declareWait)
	defer stop()
	d.slog.Warn("node declared dead", "node", n.Name, "boot", n.Boot, "restarted", proven)
	if _, err := d.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareDead{
		DeclareDead: &logpb.DeclareDead{Name: n.Name, Boot: n.Boot},
	}}); err != nil {
		d.slog.Warn("node not declared dead", "node", n.Name, "error", err) // the next check tries again
	}
}

// unheard reports whether a majority of all nodes says that it does not hear a process, and no node
// says that it does. A node that does not answer counts for neither.
func (d *detector) unheard(ctx context.Context, n *logpb.NodeState) bool {
	if d.mesh.Hears(n.Name, n.Incarnation) {
		return false
	}
	answers := stats.Ask(ctx, d.peers, d.others(n.Name), stats.Question[*peerpb.HearsReply]{
		Doing: "ask who hears a node", Wait: hearWait,
		Ask: func(ctx context.Context, other string) (*peerpb.HearsReply, error) {
			return peer.Ask[peerpb.HearsReply](ctx, d.mesh, other, kindHears, &peerpb.HearsRequest{Node: n.Name, Incarnation: n.Incarnation})
		},
	})
	unheard := 1 // by this node
	for _, r := range answers.Of {
		if r.Hears {
			return false
		}
		unheard++
	}
	return unheard > len(d.view().Nodes())/2
}

// hears answers another node's question whether this one hears a process.
func (d *detector) hears(m *peerpb.HearsRequest) *peerpb.HearsReply {
	return &peerpb.HearsReply{Hears: m.Node == d.name || d.mesh.Hears(m.Node, m.Incarnation)}
}

// nodeState is what is known about one boot of a node.
type nodeState uint8

const (
	nodeUnknown nodeState = iota
	nodeHeard
	nodeSuspected
	nodeOver // it has ended for good
)

// stateOf returns what this node knows about one boot of another. That a boot is over is a fact of
// the catalog, never of this node's links: it holds for all queues, and no matter when the proposal
// commits that tells a queue of it.
func (d *detector) stateOf(n *logpb.NodeState, boot uint64) nodeState {
	if boot < n.Boot || n.Dead && boot == n.Boot {
		return nodeOver
	}
	if n.Name == d.name {
		return nodeHeard
	}
	s, suspected := d.suspects.get(n.Name)
	switch {
	case suspected && bytes.Equal(s.incarnation[:], n.Incarnation):
		return nodeSuspected // evidence about another process proves nothing
	case d.mesh.Alive(n.Name):
		return nodeHeard
	}
	return nodeUnknown
}
