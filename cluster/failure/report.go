package failure

import (
	"slices"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// newBoots reports whether a boot of a node has ended since it was last called: it was declared dead,
// or the node has registered again.
func (d *Detector) newBoots() (changed bool) {
	for _, n := range d.node.View().Nodes() {
		over := n.Boot
		if !n.Dead && over > 0 {
			over--
		}
		changed = changed || d.ended[n.Number] != over
		d.ended[n.Number] = over
	}
	return changed
}

// reportAll runs Report for the queues that this node leads and that know something else of a node than it does.
func (d *Detector) reportAll() {
	d.pending.Store(false)
	for _, g := range d.concerned() {
		if !d.node.Try("report nodes to a queue", func() { d.Report(g) }) {
			d.pending.Store(true)
		}
	}
	d.removeLost()
}

// concerned lists those queues. It costs no more than the boots of nodes that all queues know, and those queues:
// of the boots that are heard and that none suspects there is nothing to say.
func (d *Detector) concerned() (list []*group.Group) {
	host := d.node.Groups
	for _, at := range host.Boots() {
		state := d.state(at)
		if state == nodeOver || state == nodeSuspected {
			list = append(list, host.Knowing(at, false)...)
		}
		if state == nodeOver || state == nodeHeard {
			list = append(list, host.Knowing(at, true)...)
		}
	}
	return list
}

// state is stateOf a boot that a queue knows.
func (d *Detector) state(at queue.Boot) nodeState {
	view := d.node.View()
	if n, ok := view.Node(at.Node); ok {
		return d.stateOf(n, at.Boot)
	}
	if view.IsNew(at.Node) {
		return nodeUnknown
	}
	return nodeOver // it is no longer a member
}

// Report compares what a queue knows about the nodes of its sessions with what the detector knows,
// and proposes the difference: the end of sessions whose boot is over, and the suspicion of those
// that are not heard. What a queue knows is in its log.
//
// It is called whenever one of the two sides may have changed, also when the queue has just begun
// to suspect a node: that may have been proposed long ago. As long as there was a difference the
// next round compares again.
func (d *Detector) Report(g *group.Group) {
	var boots, consuming, suspected []queue.Boot
	g.View(func(m *queue.Machine) {
		boots, consuming, suspected = m.SessionNodes(), m.ConsumerNodes(), m.SuspectedNodes()
	})
	for _, at := range suspected { // also without a session: the next one would be suspected
		if !slices.Contains(boots, at) {
			boots = append(boots, at)
		}
	}
	if commands := d.commands(boots, consuming, suspected); len(commands) > 0 {
		d.pending.Store(true)
		_ = g.Submit(group.BatchOf(commands...)) // a new leader compares again
	}
}

// commands returns the commands that tell a queue what it does not know about boots.
func (d *Detector) commands(boots, consuming, suspected []queue.Boot) []*logpb.Command {
	var commands []*logpb.Command
	for _, at := range boots {
		if at.Node == 0 {
			continue // belongs to a queue, not a node
		}
		switch state := d.state(at); {
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
