package broker

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Pace of the watch over queues whose leaders are silent.
const (
	watchEvery   = 250 * time.Millisecond
	stuckAfter   = 3000 // milliseconds without an answer
	askAfter     = 500  // milliseconds without a leader
	statsTimeout = 5 * time.Second
	maxEarly     = 1 << 16
)

type deadNode struct {
	since int64 // ms
	gone  bool  // its process is known to have ended
}

type earlyLeader struct {
	node string
	term uint64
}

func (b *Broker) now() int64 { return int64(b.config.Clock()) }

// Led is told that this node leads a group, or has ceased to. All nodes learn
// it; sessions that wait for the queue begin to send.
func (b *Broker) Led(g *group.Group, term uint64) {
	spec := g.Spec()
	if term == 0 {
		b.dropForwarder(spec.Queue)
		if t := b.findTarget(spec.Queue); t != nil {
			t.lose(b.config.Node)
		}
		return
	}
	b.noteLeader(spec.Queue, b.config.Node, term)
	for _, p := range b.mesh.Peers() {
		b.announce(g, p.Node, term)
	}
	b.endDeadSessions(g)
	b.forward(g)
}

// announce tells a node that this one leads g.
func (b *Broker) announce(g *group.Group, node string, term uint64) {
	if b.mesh.Alive(node) {
		b.send(node, kindNotice, &peerpb.Notice{
			Kind: peerpb.Notice_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group), Term: term,
		})
	}
}

// noteLeader records who serves a queue.
func (b *Broker) noteLeader(id fsm.QueueID, node string, term uint64) {
	if q, ok := b.view().QueueByID(id); ok {
		b.target(q).lead(node, term)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.early) < maxEarly {
		b.early[id] = earlyLeader{node, term}
	}
}

// LeaderSeen is of no use here: a leader announces itself once it serves.
func (b *Broker) LeaderSeen(*group.Group, string) {}

// PeerChanged is told when a node came or went.
func (b *Broker) PeerChanged(ev peer.Event) {
	if ev.Up {
		b.mu.Lock()
		delete(b.dead, ev.Node)
		b.mu.Unlock()
		b.greet(ev.Node)
		return
	}
	b.mu.Lock()
	b.dead[ev.Node] = deadNode{since: b.now(), gone: ev.Reason == peer.Refused || ev.Reason == peer.Restarted}
	b.mu.Unlock()
	for _, t := range b.allTargets() {
		t.lose(ev.Node)
	}
	b.spawn(func() { b.reap(false) })
}

// greet tells a node that is back what this one leads, and starts over with
// what it leads: messages in between may have been lost.
func (b *Broker) greet(node string) {
	for _, g := range b.host.Groups() {
		if term := g.Leading(); term != 0 {
			b.announce(g, node, term)
		}
	}
	for _, t := range b.allTargets() {
		if leader, _, _ := t.leaderNow(); leader == node {
			t.refresh()
		}
	}
}

// watch asks for leaders that nobody has announced, sends again what is not
// answered, and gives up on nodes that have been silent for too long.
func (b *Broker) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-b.look:
			b.reap(true)
			continue
		case <-tick.C:
		}
		now := b.now()
		for _, t := range b.allTargets() {
			if b.watchTarget(t, now) {
				b.spawn(func() { b.findLeader(t) })
			}
		}
		b.reap(false)
		b.kickForwarders()
	}
}

// watchTarget reports whether somebody must ask who leads the queue.
func (b *Broker) watchTarget(t *target, now int64) bool {
	t.mu.Lock()
	lanes, leader, since := len(t.lanes), t.leader, t.leaderless
	ask := leader == "" && lanes > 0 && now-since > askAfter && !t.asking
	t.asking = t.asking || ask
	t.mu.Unlock()
	if lanes == 0 {
		return ask
	}
	for _, l := range t.all() {
		l.owner.lock().Lock()
		l.stuck(now, stuckAfter)
		l.owner.lock().Unlock()
	}
	return ask
}

// findLeader asks the members of a queue which of them serves.
func (b *Broker) findLeader(t *target) {
	defer func() {
		t.mu.Lock()
		t.asking = false
		t.mu.Unlock()
	}()
	q, ok := b.view().QueueByID(t.id)
	if !ok {
		return
	}
	for _, m := range q.Members {
		if r := b.askStats(t, b.nodeName(m)); r.Leader {
			t.lead(b.nodeName(m), r.Index)
			return
		}
	}
}

// askStats asks one node for a queue's figures. Failure is a node that does
// not lead.
func (b *Broker) askStats(t *target, node string) *peerpb.StatsReply {
	if node == b.config.Node {
		return b.stats(t.group, t.id)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	req, err := (&peerpb.StatsRequest{Group: uint32(t.group), Queue: uint64(t.id)}).MarshalVT()
	if err != nil || !b.mesh.Alive(node) {
		return &peerpb.StatsReply{}
	}
	answer, err := b.mesh.Call(ctx, node, kindStats, req)
	r := &peerpb.StatsReply{}
	if err != nil || r.UnmarshalVT(answer) != nil {
		return &peerpb.StatsReply{}
	}
	return r
}

// reap ends the sessions of dead nodes at all queues that this node leads: at
// once if the process is known to have ended, after a grace if the node is
// merely silent. rebooted: some node may have started anew.
func (b *Broker) reap(rebooted bool) {
	if !rebooted && !b.anyDead() {
		return
	}
	for _, g := range b.host.Groups() {
		if g.Leading() != 0 {
			b.endDeadSessions(g)
		}
	}
}

func (b *Broker) anyDead() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, d := range b.dead {
		if b.isOver(d) {
			return true
		}
	}
	return false
}

func (b *Broker) isOver(d deadNode) bool {
	return d.gone || b.now()-d.since > b.config.SilentGrace.Milliseconds()
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

// endDeadSessions proposes the end of sessions whose node is dead, or has
// started anew since.
func (b *Broker) endDeadSessions(g *group.Group) {
	var boots []queue.Boot
	g.View(func(m *queue.Machine) { boots = m.SessionNodes() })
	view := b.view()
	for _, at := range boots {
		if at.Node == 0 {
			continue
		}
		n, ok := view.Node(at.Node)
		if !ok || !b.bootOver(n, at.Boot) {
			continue
		}
		_ = g.Submit(commandsOf(&logpb.Command{ // a new leader looks again
			Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: uint32(at.Node), Boot: at.Boot},
		}))
	}
}

// bootOver reports whether one life of a node has ended.
func (b *Broker) bootOver(n *logpb.NodeState, boot uint64) bool {
	if boot < n.Boot {
		return true
	}
	if n.Name == b.config.Node {
		return false
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	d, dead := b.dead[n.Name]
	return dead && b.isOver(d)
}
