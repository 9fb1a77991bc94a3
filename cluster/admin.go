package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm/queue"
)

// Version of the product.
const Version = "0.1.0"

// settleWait bounds how long one group may take to commit an empty entry.
const settleWait = 5 * time.Second

var _ mgmt.Node = (*Node)(nil)

// Version is the product's version.
func (n *Node) Version() string { return Version }

// Administrator checks a password and the tag that goes with it.
func (n *Node) Administrator(ctx context.Context, user, password string, remote netip.Addr) bool {
	if n.broker.Login(ctx, user, password, remote) != nil {
		return false
	}
	u, ok := n.View().User(user)
	return ok && slices.Contains(u.Tags, "administrator")
}

// Replicas describes every queue replica on this node.
func (n *Node) Replicas() []api.Replica {
	var list []api.Replica
	for _, g := range n.host.Groups() {
		spec := g.Spec()
		r := api.Replica{
			VHost: spec.VHost, Name: spec.Name, QueueID: uint64(spec.Queue), Group: uint32(spec.Group),
			Node: n.config.Name, Leader: g.Leading() != 0, LeaderNode: g.Leader(), Term: g.Term(),
		}
		g.View(func(m *queue.Machine) {
			s, h := m.Stats(), m.Hash()
			r.AppliedIndex, r.StateHash = m.Index(), hex.EncodeToString(h[:])
			r.Ready, r.Unacknowledged = s.Ready.Messages, s.Unacknowledged.Messages
			r.Outbox, r.Consumers = s.Outbox.Messages, s.Consumers
		})
		list = append(list, r)
	}
	return list
}

// Settle makes the followers of all queues that this node leads learn what is
// committed.
func (n *Node) Settle(context.Context) error {
	var errs []error
	for _, g := range n.host.Groups() {
		if g.Leading() != 0 {
			errs = append(errs, g.Settle(settleWait))
		}
	}
	return errors.Join(errs...)
}
