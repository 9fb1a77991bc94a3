package session

import (
	"slices"
	"sync/atomic"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// reporter tells the queues led by this node which boots of nodes have ended, are suspected, or are
// heard again. A queue's knowledge is in its log, so it is compared with that of the detector, and
// only the difference is proposed.
type reporter struct {
	*node
	*tasks
	detector *detector
	pending  atomic.Bool       // some queue may have outdated knowledge of a node
	ended    map[uint32]uint64 // the last boots that have ended, by node; used by catalogChanged only
}

// catalogChanged tells queues of boots that ended with the latest catalog entries: a node may have
// restarted, or was declared dead.
func (r *reporter) catalogChanged() {
	if r.newBoots(r.ended) {
		r.reportAll(true)
	}
}

// newBoots reports whether a boot of a node has ended since ended was filled: it was declared dead,
// or the node has registered again.
func (r *reporter) newBoots(ended map[uint32]uint64) (changed bool) {
	for _, n := range r.view().Nodes() {
		over := n.Boot
		if !n.Dead && over > 0 {
			over--
		}
		changed = changed || ended[n.Number] != over
		ended[n.Number] = over
	}
	return changed
}

// reportAll runs report for all queues that this node leads, if there may be a difference. ended: a
// boot of some node has ended.
func (r *reporter) reportAll(ended bool) {
	pending := r.pending.Swap(false)
	if !ended && !pending && r.detector.suspects.count() == 0 {
		return
	}
	for _, g := range r.groups.Led() {
		if !r.guard("report nodes to a queue", func() { r.report(g) }) {
			r.pending.Store(true)
		}
	}
	r.detector.removeLost()
}

// report compares what a queue knows about the nodes of its sessions with what the detector knows,
// and proposes the difference: the end of sessions whose boot is over, and the suspicion of those
// that are not heard.
//
// It is called whenever one of the two sides may have changed, also when the queue has just begun
// to suspect a node: that may have been proposed long ago. As long as there was a difference the
// watch compares again.
func (r *reporter) report(g *group.Group) {
	var boots, consuming, suspected []queue.Boot
	g.View(func(m *queue.Machine) {
		boots, consuming, suspected = m.SessionNodes(), m.ConsumerNodes(), m.SuspectedNodes()
	})
	for _, at := range suspected { // also without a session: the next one would be suspected
		if !slices.Contains(boots, at) {
			boots = append(boots, at)
		}
	}
	if commands := r.commands(boots, consuming, suspected); len(commands) > 0 {
		r.pending.Store(true)
		_ = g.Submit(group.BatchOf(commands...)) // a new leader compares again
	}
}

// commands returns the commands that tell a queue what it does not know about boots.
func (r *reporter) commands(boots, consuming, suspected []queue.Boot) []*logpb.Command {
	var commands []*logpb.Command
	for _, at := range boots {
		if at.Node == 0 {
			continue // belongs to a queue, not a node
		}
		state := nodeOver // if the node is no longer a member
		if n, ok := r.view().Node(at.Node); ok {
			state = r.detector.stateOf(n, at.Boot)
		} else if r.view().IsNew(at.Node) {
			continue
		}
		switch {
		case state == nodeOver:
			commands = append(commands, &logpb.Command{
				Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: uint32(at.Node), Boot: at.Boot},
			})
		case state == nodeSuspected && slices.Contains(consuming, at) && !slices.Contains(suspected, at):
			commands = append(commands, suspicion(at, false))
		case state == nodeHeard && slices.Contains(suspected, at):
			commands = append(commands, suspicion(at, true))
		}
	}
	return commands
}

// suspicion tells a queue that a boot is suspected, or heard again.
func suspicion(of queue.Boot, back bool) *logpb.Command {
	return &logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{
		Node: uint32(of.Node), Boot: of.Boot, Back: back,
	}}
}
