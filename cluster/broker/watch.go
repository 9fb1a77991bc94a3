package broker

import (
	"bytes"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/deadletter"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/stream"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Pace of the watch over queues whose leaders are silent.
const (
	watchEvery   = 250 * time.Millisecond
	lookEvery    = 4  // looks of the watch between two at suspects, and at queues that disagree
	reapEvery    = 20 // looks of the watch between two at all queues, while there are suspects
	statsTimeout = 5 * time.Second
)

func (b *Broker) now() int64 { return int64(b.config.Clock()) }

// Led is told that this node leads a group, or has ceased to. All nodes learn
// it; sessions that wait for the queue begin to send.
func (b *Broker) Led(g *group.Group, term uint64) {
	spec := g.Spec()
	if term == 0 {
		b.letters.Drop(spec.Queue)
		b.routes.Lose(spec.Queue, b.config.Node)
		return
	}
	b.routes.Lead(spec.Queue, b.config.Node, term)
	if g.IsLocal() {
		return // everybody knows, and it has no past
	}
	for _, p := range b.mesh.Peers() {
		b.announce(g, p.Node, term)
	}
	b.noteNodes(g)
	// Dead letters that wait are an effect of the machine's Resume.
}

// announce tells a node that this one leads g.
func (b *Broker) announce(g *group.Group, node string, term uint64) {
	if b.mesh.Alive(node) {
		b.sendOrRepeat(node, g.Spec().Queue, kindNotice, &peerpb.Notice{
			Kind: peerpb.Notice_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group), Term: term,
		})
	}
}

// PeerChanged is told when a node came or went.
func (b *Broker) PeerChanged(ev peer.Event) {
	if ev.Up {
		b.suspects.up(ev.Node, ev.Incarnation)
		b.unsettled.Store(true)
		b.greet(ev.Node)
		b.spawn("tell queues of nodes", func() { b.reap(false) })
		return
	}
	b.suspects.down(ev.Node, suspect{incarnation: ev.Incarnation, since: b.now(), restarted: ev.Reason == peer.Restarted})
	b.routes.NodeDown(ev.Node)
	b.spawn("tell queues of nodes", func() { b.reap(false) })
}

// greet tells a node that is back what this one leads, and starts over with
// what it leads: messages in between may have been lost.
func (b *Broker) greet(node string) {
	for _, g := range b.host.Groups() {
		if term := g.Leading(); term != 0 {
			b.announce(g, node, term)
		}
	}
	b.routes.NodeUp(node)
}

// watch asks for leaders that nobody has announced, sends again what is not
// answered, and tells queues again of nodes that are dead, silent or back.
func (b *Broker) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := watcher{broker: b, boots: map[uint32]uint64{}}
	for {
		select {
		case <-b.stop:
			return
		case <-b.look:
			b.guard("look for boots that are over", w.lookAtBoots)
		case <-tick.C:
			w.look()
		}
	}
}

// watcher is what the watch keeps from one look to the next.
type watcher struct {
	broker  *Broker
	boots   map[uint32]uint64 // the last ones that are over
	watched []*stream.Route
	sources *catalog.View // with which the ends of sources were looked for
	looks   int
}

func (w *watcher) lookAtBoots() {
	if w.broker.newBoots(w.boots) {
		w.broker.reap(true)
	}
}

// look does all that the watch does once. A panic in one thing leaves the others
// alone.
func (w *watcher) look() {
	b, now := w.broker, w.broker.now()
	w.watched = b.routes.Watch(w.watched)
	if w.looks++; w.looks%lookEvery == 0 {
		b.guard("watch suspects", func() { b.watchSuspects(now) })
		if b.unsettled.Load() || w.looks%reapEvery == 0 { // again, in case a proposal was lost
			b.guard("tell queues of nodes", func() { b.reap(false) })
		}
	}
	if w.looks%reapEvery == 0 {
		b.guard("end sources", func() { w.sources = b.endSources(w.sources) })
	}
	b.guard("send again", b.sendAgain)
	b.guard("wake dead letters", func() { b.letters.Wake() })
}

// newBoots reports whether a boot of a node has ended since boots was filled:
// it was declared dead, or the node has registered anew.
func (b *Broker) newBoots(boots map[uint32]uint64) (changed bool) {
	for _, n := range b.view().Nodes() {
		over := n.Boot
		if !n.Dead && over > 0 {
			over--
		}
		changed = changed || boots[n.Number] != over
		boots[n.Number] = over
	}
	return changed
}

// reap tells all queues that this node leads of nodes that are dead, silent or
// back. rebooted: a boot of some node has ended.
func (b *Broker) reap(rebooted bool) {
	unsettled := b.unsettled.Swap(false)
	if !rebooted && !unsettled && b.suspects.count() == 0 {
		return
	}
	for _, g := range b.host.Groups() {
		if g.Leading() != 0 && !b.guard("tell a queue of nodes", func() { b.noteNodes(g) }) {
			b.unsettled.Store(true)
		}
	}
	b.removeLost()
}

// endSources ends the sessions of queues that are gone at all queues that this
// node leads, if the catalog has changed since seen. It returns the view of the
// last time at which all were seen to have none.
func (b *Broker) endSources(seen *catalog.View) *catalog.View {
	v := b.view()
	if v == seen {
		return seen
	}
	more := false
	for _, g := range b.host.Groups() {
		if g.Leading() != 0 && deadletter.EndSources(g, v) {
			more = true
		}
	}
	if more {
		return seen
	}
	return v
}

// CatalogChanged is told after each entry of the catalog: a node may have
// started anew, and sessions of its earlier lives are over; dead letters may
// have found a way.
func (b *Broker) CatalogChanged() {
	select {
	case b.look <- struct{}{}:
	default:
	}
}

// noteNodes compares what a queue believes of the nodes that its sessions live
// on with what is known of them, and proposes the difference: the end of
// sessions whose boot is over, and the silence of those that are not heard of.
//
// It is called whenever one of the two sides may have changed, also when the
// queue has just begun to take a node for silent: that may have been proposed
// long ago. As long as there was a difference the watch comes back.
func (b *Broker) noteNodes(g *group.Group) {
	var boots, consuming, silent []queue.Boot
	g.View(func(m *queue.Machine) {
		boots, consuming, silent = m.SessionNodes(), m.ConsumerNodes(), m.SuspectedNodes()
	})
	for _, at := range silent { // also without a session: the next one would be silent
		if !slices.Contains(boots, at) {
			boots = append(boots, at)
		}
	}
	if commands := b.news(boots, consuming, silent); len(commands) > 0 {
		b.unsettled.Store(true)
		_ = g.Submit(group.BatchOf(commands...)) // a new leader looks again
	}
}

// news are the commands by which a queue learns what it does not know of boots.
func (b *Broker) news(boots, consuming, silent []queue.Boot) []*logpb.Command {
	var commands []*logpb.Command
	for _, at := range boots {
		if at.Node == 0 {
			continue // a queue's, not a node's
		}
		state := nodeOver // if it is no longer a member
		if n, ok := b.view().Node(at.Node); ok {
			state = b.stateOf(n, at.Boot)
		} else if b.view().IsNew(at.Node) {
			continue
		}
		switch {
		case state == nodeOver:
			commands = append(commands, &logpb.Command{
				Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: uint32(at.Node), Boot: at.Boot},
			})
		case state == nodeSilent && slices.Contains(consuming, at) && !slices.Contains(silent, at):
			commands = append(commands, silence(at, false))
		case state == nodeHeard && slices.Contains(silent, at):
			commands = append(commands, silence(at, true))
		}
	}
	return commands
}

func silence(of queue.Boot, back bool) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_NODE_SILENT, NodeSilent: &logpb.NodeSilent{
		Node: uint32(of.Node), Boot: of.Boot, Back: back,
	}}
}

// nodeState is what is known of one life of a node.
type nodeState uint8

const (
	nodeUnknown nodeState = iota
	nodeHeard
	nodeSilent
	nodeOver // it has ended for good
)

// stateOf says what this node knows of one boot of another. That one is over is
// a fact of the catalog, never of this node's links: it holds for all queues, and
// whenever the proposal commits that tells one of them.
func (b *Broker) stateOf(n *logpb.NodeState, boot uint64) nodeState {
	if boot < n.Boot || n.Dead && boot == n.Boot {
		return nodeOver
	}
	if n.Name == b.config.Node {
		return nodeHeard
	}
	s, suspected := b.suspects.get(n.Name)
	switch {
	case suspected && bytes.Equal(s.incarnation[:], n.Incarnation):
		return nodeSilent // what is known of another process proves nothing
	case b.mesh.Alive(n.Name):
		return nodeHeard
	}
	return nodeUnknown
}
