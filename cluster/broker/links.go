package broker

import (
	"errors"
	"sync"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/peerpb"
)

// links carry what this node says of the queues that it leads to other nodes.
// What is sent may get lost with a link: the other node asks again when the link
// is back. What did not fit into a link that holds is not asked for by itself:
// the node announces itself once more as the queue's leader, which makes the
// other one ask.
type links struct {
	*node
	transmit func(node string, k kind, head []byte, payloads ...[]byte) error // Mesh.Send

	mu     sync.Mutex
	unsent map[unsent]struct{}
}

// unsent names a node that has missed something of a queue because its link
// was too busy.
type unsent struct {
	node  string
	queue fsm.QueueID
}

// vtMessage is a generated message.
type vtMessage interface{ MarshalVT() ([]byte, error) }

// send sends a message.
func (l *links) send(node string, k kind, m vtMessage, payloads ...[]byte) error {
	head, err := m.MarshalVT()
	if err != nil {
		l.slog.Error("message cannot be encoded", "error", err)
		return err
	}
	if err = l.transmit(node, k, head, payloads...); err != nil {
		l.slog.Debug("message not sent", "node", node, "error", err)
	}
	return err
}

// sendOrRepeat is send for what belongs to a queue that this node leads.
func (l *links) sendOrRepeat(node string, queue fsm.QueueID, k kind, m vtMessage, payloads ...[]byte) {
	if errors.Is(l.send(node, k, m, payloads...), peer.ErrBacklog) {
		l.mu.Lock()
		l.unsent[unsent{node, queue}] = struct{}{}
		l.mu.Unlock()
	}
}

// repeat makes nodes ask for what could not be sent to them.
func (l *links) repeat() {
	l.mu.Lock()
	all := l.unsent
	l.unsent = map[unsent]struct{}{}
	l.mu.Unlock()
	for u := range all {
		if q, ok := l.view().QueueByID(u.queue); ok {
			if g := l.groups.Group(q.Group); g != nil && g.Leading() != 0 {
				l.announce(g, u.node, g.Leading())
			}
		}
	}
}

// announce tells a node that this one leads g.
func (l *links) announce(g *group.Group, node string, term uint64) {
	if l.mesh.Alive(node) {
		l.sendOrRepeat(node, g.Spec().Queue, kindNotice, &peerpb.Notice{
			Kind: peerpb.Notice_LEADER, Queue: uint64(g.Spec().Queue), Group: uint32(g.Spec().Group), Term: term,
		})
	}
}

// announceAll tells a node what this one leads.
func (l *links) announceAll(node string) {
	for _, g := range l.groups.Groups() {
		if term := g.Leading(); term != 0 {
			l.announce(g, node, term)
		}
	}
}
