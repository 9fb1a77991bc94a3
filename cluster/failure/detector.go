// Package failure finds out which nodes have failed, and what follows from that: it has the catalog
// declare dead what is proven to be, tells queues which of their clients' nodes are suspected, dead or
// back, and removes the queues that were lost with a node.
//
// It promises that no node is declared dead without a majority or a proof, and that a queue hears of
// what it does not know, also after a change of leader. It knows neither sessions nor streams.
package failure

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
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

// How often suspects are checked, and whether queues have outdated knowledge of nodes; and how many times more
// rarely that is looked for if none is known to.
const (
	checkEvery  = time.Second
	reportEvery = 5
)

// Detector finds out which nodes have failed, and tells the queues that this node leads. The state
// of the links makes a process suspected, which ends when it is heard again. Only the catalog
// decides that a boot is over; the detector proposes so once that is proven. It also removes the
// local queues of nodes that were suspected for too long.
type Detector struct {
	node *self.Node
	// retention is how long clients of a suspected node keep what they hold.
	retention fsm.Millis
	served    int64 // when this node began to serve, ms
	suspects  suspects
	removing  atomic.Bool       // local queues are being removed
	emptied   map[uint32]uint64 // by node: the index of the view in which a lost one had no local queues; used while removing only
	pending   atomic.Bool       // some queue may have outdated knowledge of a node
	ended     map[uint32]uint64 // the last boots that have ended, by node; used by newBoots only
	changes   *worker.Worker    // of the catalog
	rounds    int
}

// New returns a detector; Serve makes it work. retention is how long clients of a suspected node keep
// what they hold.
func New(n *self.Node, retention fsm.Millis) *Detector {
	return &Detector{
		node: n, retention: retention, suspects: suspects{byName: map[string]suspect{}}, ended: map[uint32]uint64{}, emptied: map[uint32]uint64{},
		changes: worker.New(worker.Options{}),
	}
}

// Listen registers the handler. It is called before the mesh starts.
func (d *Detector) Listen() { peer.HandleAsk(d.node.Mesh, self.KindHears, d.hears) }

// Serve starts the detector.
func (d *Detector) Serve() {
	d.served = d.node.Now()
	d.node.Loop("watch nodes", func(ctx context.Context) { worker.Every(ctx.Done(), checkEvery, d.round) })
	d.node.Loop("follow the catalog", d.followCatalog)
}

// followCatalog tells queues of boots that ended with the latest catalog entries: a node may have
// restarted, or was declared dead.
func (d *Detector) followCatalog(ctx context.Context) {
	d.changes.Run(ctx.Done(), func(time.Time) time.Duration {
		d.node.Try("report ended boots to queues", func() {
			if d.newBoots() {
				d.reportAll()
			}
		})
		return 0
	})
}

// CatalogChanged is called after each entry of the catalog.
func (d *Detector) CatalogChanged() { d.changes.Wake() }

// PeerChanged handles a link that has come or gone.
func (d *Detector) PeerChanged(ev peer.Event) {
	if ev.Up {
		d.suspects.up(ev.Node, ev.Incarnation)
		d.pending.Store(true)
	} else {
		d.suspects.down(ev.Node, suspect{incarnation: ev.Incarnation, since: d.node.Now(), restarted: ev.Reason == peer.Restarted})
	}
	d.node.Spawn("report nodes to queues", func() { d.reportAll() })
}

// round repeats what no event causes, or what may have been lost. A panic in one step does not
// affect the other.
func (d *Detector) round() {
	now := d.node.Now()
	d.rounds++
	d.node.Try("check suspects", func() { d.check(now) })
	if d.pending.Load() || d.rounds%reportEvery == 0 { // again, in case a proposal was lost
		d.node.Try("report nodes to queues", func() { d.reportAll() })
	}
}

// check declares dead the nodes whose process is proven to have ended.
func (d *Detector) check(now int64) {
	d.noteAbsent(now)
	for _, node := range d.suspects.names() {
		s, ok := d.suspects.get(node)
		if !ok {
			continue
		}
		n, known := d.node.View().NodeByName(node)
		switch {
		case !known || !bytes.Equal(n.Incarnation, s.incarnation[:]):
			d.suspects.forget(node, s) // it has registered again
		case n.Dead || !s.restarted && d.node.Mesh.RefusedFor(node) < deadAfter:
		case d.suspects.try(node, now):
			d.node.Spawn("declare a node dead", func() { d.declareDead(n, s.restarted) })
		}
	}
}

// noteAbsent suspects nodes that have given no sign since this one started: their process may have
// ended before.
func (d *Detector) noteAbsent(now int64) {
	if now-d.served < absentAfter {
		return
	}
	for _, n := range d.node.View().Nodes() {
		if n.Name == d.node.Name() || n.Boot == 0 || len(n.Incarnation) != len(suspect{}.incarnation) {
			continue
		}
		d.suspects.absent(n.Name, suspect{incarnation: [16]byte(n.Incarnation), since: now},
			func() bool { return d.node.Mesh.Alive(n.Name) })
	}
}

// declareDead proposes to the catalog that the current boot of a node is over, if that is proven or
// if nobody hears the node. The leaders of all queues tell these when they see it in the catalog;
// the node itself sees it there as well, if it is alive after all.
func (d *Detector) declareDead(n *logpb.NodeState, proven bool) {
	if !proven && !d.unheard(d.node.Life(), n) {
		return
	}
	ctx, cancel := context.WithTimeout(d.node.Life(), declareWait)
	defer cancel()
	d.node.Logger.Warn("node declared dead", "node", n.Name, "boot", n.Boot, "restarted", proven)
	if _, err := d.node.Catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareDead{
		DeclareDead: &logpb.DeclareDead{Name: n.Name, Boot: n.Boot},
	}}); err != nil {
		d.node.Logger.Warn("node not declared dead", "node", n.Name, "error", err) // the next check tries again
	}
}

// unheard reports whether a majority of all nodes says that it does not hear a process, and no node
// says that it does. A node that does not answer counts for neither.
func (d *Detector) unheard(ctx context.Context, n *logpb.NodeState) bool {
	if d.node.Mesh.Hears(n.Name, n.Incarnation) {
		return false
	}
	answers := stats.Ask(ctx, d.node.Peers, d.node.Others(n.Name), stats.Question[*peerpb.HearsReply]{
		Doing: "ask who hears a node", Wait: hearWait,
		Ask: func(ctx context.Context, other string) (*peerpb.HearsReply, error) {
			return peer.Ask[peerpb.HearsReply](ctx, d.node.Mesh, other, self.KindHears, &peerpb.HearsRequest{Node: n.Name, Incarnation: n.Incarnation})
		},
	})
	unheard := 1 // by this node
	for _, r := range answers.Of {
		if r.Hears {
			return false
		}
		unheard++
	}
	return unheard > len(d.node.View().Nodes())/2
}

// hears answers another node's question whether this one hears a process.
func (d *Detector) hears(m *peerpb.HearsRequest) *peerpb.HearsReply {
	return &peerpb.HearsReply{Hears: m.Node == d.node.Name() || d.node.Mesh.Hears(m.Node, m.Incarnation)}
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
func (d *Detector) stateOf(n *logpb.NodeState, boot uint64) nodeState {
	if boot < n.Boot || n.Dead && boot == n.Boot {
		return nodeOver
	}
	if n.Name == d.node.Name() {
		return nodeHeard
	}
	s, suspected := d.suspects.get(n.Name)
	switch {
	case suspected && bytes.Equal(s.incarnation[:], n.Incarnation):
		return nodeSuspected // evidence about another process proves nothing
	case d.node.Mesh.Alive(n.Name):
		return nodeHeard
	}
	return nodeUnknown
}

// suspect is the last process of a node that is not heard any more.
type suspect struct {
	incarnation [16]byte
	since       int64 // ms
	// restarted: the node is back under another incarnation, which proves without asking anybody
	// that this one has ended.
	restarted bool
	tried     int64 // last attempt to have it declared dead, ms; 0: never
}

// suspects are the nodes that this one does not hear.
type suspects struct {
	mu     sync.Mutex
	byName map[string]suspect
}

func (x *suspects) get(node string) (suspect, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	return s, ok
}

func (x *suspects) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byName)
}

func (x *suspects) names() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := make([]string, 0, len(x.byName))
	for name := range x.byName {
		names = append(names, name)
	}
	return names
}

// down records that a process is not heard any more.
func (x *suspects) down(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byName[node] = s
}

// up records that a process is heard. If it is not the suspected one, that one has ended.
func (x *suspects) up(node string, incarnation [16]byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	switch {
	case !ok:
	case s.incarnation == incarnation:
		delete(x.byName, node)
	default:
		s.restarted = true
		x.byName[node] = s
	}
}

// absent records a node that has never been heard, unless alive says that it is heard by now.
func (x *suspects) absent(node string, s suspect, alive func() bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.byName[node]; !ok && !alive() {
		x.byName[node] = s
	}
}

// forget drops the suspect if it is still this process, which the catalog no longer knows.
func (x *suspects) forget(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName[node].incarnation == s.incarnation {
		delete(x.byName, node)
	}
}

// try reports whether it is time for an attempt to have a suspect declared dead.
func (x *suspects) try(node string, now int64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.byName[node]
	if !ok || s.tried != 0 && now-s.tried < declareEvery {
		return false
	}
	s.tried = now
	x.byName[node] = s
	return true
}
