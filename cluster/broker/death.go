package broker

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// What it takes to declare a node dead.
const (
	deadAfter    = 2 * time.Second // of refusals by its own host, without a break
	absentAfter  = 2000            // ms without a first sign of a node
	hearWait     = time.Second     // for the other nodes to say whether they hear it
	declareWait  = 2 * time.Second // for the catalog
	declareEvery = 1000            // ms between two attempts
)

// suspect is the last process of a node from which nothing is heard.
type suspect struct {
	incarnation [16]byte
	since       int64 // ms
	// restarted: the node is back under another incarnation, so this one has
	// ended. That proves it without asking anybody.
	restarted bool
	tried     int64 // when its death was last looked into, ms; 0: never
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

// down is told that a process is not heard any more.
func (x *suspects) down(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byName[node] = s
}

// up is told that a process is heard. If it is another one than the suspect,
// that one has ended.
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

// absent is told of a node that has never been heard; unless alive says that it
// is by now.
func (x *suspects) absent(node string, s suspect, alive func() bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.byName[node]; !ok && !alive() {
		x.byName[node] = s
	}
}

// forget drops what is known of a process that the catalog knows no more.
func (x *suspects) forget(node string, s suspect) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName[node].incarnation == s.incarnation {
		delete(x.byName, node)
	}
}

// try reports whether it is time to look into a suspect's death.
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

// watchSuspects declares those nodes dead whose process has been proven to have
// ended.
func (b *Broker) watchSuspects(now int64) {
	b.noteAbsent(now)
	for _, node := range b.suspects.names() {
		s, ok := b.suspects.get(node)
		if !ok {
			continue
		}
		n, known := b.view().NodeByName(node)
		switch {
		case !known || !bytes.Equal(n.Incarnation, s.incarnation[:]):
			b.suspects.forget(node, s) // it has registered anew
		case n.Dead || !s.restarted && b.mesh.RefusedFor(node) < deadAfter:
		case b.suspects.try(node, now):
			b.spawn("declare a node dead", func() { b.declareDead(n, s.restarted) })
		}
	}
}

// noteAbsent suspects nodes that have given no sign since this one started:
// their process may have ended before.
func (b *Broker) noteAbsent(now int64) {
	if now-b.served < absentAfter {
		return
	}
	for _, n := range b.view().Nodes() {
		if n.Name == b.config.Node || n.Boot == 0 || len(n.Incarnation) != len(suspect{}.incarnation) {
			continue
		}
		b.suspects.absent(n.Name, suspect{incarnation: [16]byte(n.Incarnation), since: now},
			func() bool { return b.mesh.Alive(n.Name) })
	}
}

// declareDead has the catalog end the present boot of a node, if that is proven
// or if nobody hears it. All queues are told by their leaders when these see it
// in the catalog; so does the node itself, if it lives after all.
func (b *Broker) declareDead(n *logpb.NodeState, proven bool) {
	ctx, cancel := b.whileOpen()
	defer cancel()
	if !proven && !b.unheard(ctx, n) {
		return
	}
	ctx, stop := context.WithTimeout(ctx, declareWait)
	defer stop()
	b.slog.Warn("node is declared dead", "node", n.Name, "boot", n.Boot, "restarted", proven)
	if _, err := b.config.Catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareDead{
		DeclareDead: &logpb.DeclareDead{Name: n.Name, Boot: n.Boot},
	}}); err != nil {
		b.slog.Warn("node is not declared dead", "node", n.Name, "error", err) // the next look tries again
	}
}

// unheard reports whether a majority of all nodes says that it does not hear a
// process, and nobody says that it does. Who cannot be asked says nothing.
func (b *Broker) unheard(ctx context.Context, n *logpb.NodeState) bool {
	if b.mesh.Hears(n.Name, n.Incarnation) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, hearWait)
	defer cancel()
	var deaf, hears atomic.Int32
	deaf.Store(1)
	nodes := b.view().Nodes()
	var asked sync.WaitGroup
	for _, other := range nodes {
		if other.Name == b.config.Node || other.Name == n.Name {
			continue
		}
		b.inParallel(&asked, "ask who hears a node", func() {
			r, err := peer.Ask[peerpb.HearsReply](ctx, b.mesh, other.Name, kindHears, &peerpb.HearsRequest{Node: n.Name, Incarnation: n.Incarnation})
			switch {
			case err != nil:
			case r.Hears:
				hears.Add(1)
			default:
				deaf.Add(1)
			}
		})
	}
	asked.Wait()
	return hears.Load() == 0 && int(deaf.Load()) > len(nodes)/2
}

// hears answers another node whether this one hears a process.
func (b *Broker) hears(m *peerpb.HearsRequest) *peerpb.HearsReply {
	return &peerpb.HearsReply{Hears: m.Node == b.config.Node || b.mesh.Hears(m.Node, m.Incarnation)}
}

// Renew gives the broker the boot number under which the node has registered
// once more, because the one before was declared dead. All sessions of that end:
// the queues know them no more, or are about to be told. Connections are not
// closed here.
func (b *Broker) Renew(boot uint64) {
	b.mu.Lock()
	if b.boot.Swap(boot) == boot {
		b.mu.Unlock()
		return
	}
	var former []*Session
	for _, s := range b.sessions {
		if s.id.Boot != boot {
			former = append(former, s)
		}
	}
	b.mu.Unlock()
	b.letters.Restart()
	for _, s := range former {
		s.end()
	}
}

// Boot is the boot number of this node; 0: it has none yet.
func (b *Broker) Boot() uint64 { return b.boot.Load() }
