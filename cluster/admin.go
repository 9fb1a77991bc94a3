package cluster

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/netip"
	"regexp"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// Version of the product.
const Version = api.ProductVersion

// settleWait bounds how long one group may take to commit an empty entry.
const settleWait = 5 * time.Second

var _ mgmt.Node = (*Node)(nil)

// openStats makes what answers operators and other nodes how things are.
func (n *Node) openStats() {
	nodes := &stats.Nodes{Self: n.config.Name, Mesh: n.mesh, Try: n.guard.Try, Logger: n.slog}
	n.queues = stats.NewQueues(nodes, stats.QueuesConfig{
		Kind: broker.KindQueueStats, ConsumersKind: broker.KindConsumers, Host: n.host, Catalog: n.catalog,
		Clock: n.clock.Steady, Sessions: n.broker.ConsumingSessions,
	})
	n.replicas = stats.NewReplicas(nodes, stats.ReplicasConfig{
		Kind: broker.KindReplicas, Catalog: n.catalog, Host: n.host, Alarms: n.alarms, Resources: n.alarm.Resources, Draining: n.isDraining,
	})
}

// listen registers for what other nodes ask.
func (n *Node) listen() {
	n.mesh.Handle(broker.KindResourceAlarms, n.alarm.Receive)
	n.handleClients()
}

// openAlarm makes what watches memory and disk.
func (n *Node) openAlarm() {
	c := n.config
	if c.Probe == nil {
		c.Probe = alarm.System{DataDir: c.DataDir}
	}
	watch := alarm.New(alarm.Config{Memory: c.MemoryLimit, Disk: c.DiskLimit, Probe: c.Probe, Logger: c.Logger, Now: time.Now})
	n.alarm = alarm.NewCluster(watch, n.mesh, broker.KindResourceAlarms, c.Logger)
}

// SetLimit changes a limit of memory or disk, see alarm.Cluster.
func (n *Node) SetLimit(name string, to api.Limit) error { return n.alarm.SetLimit(name, to) }

// Version is the product's version.
func (n *Node) Version() string { return Version }

// Login checks a password.
func (n *Node) Login(ctx context.Context, user, password string, remote netip.Addr) error {
	return n.broker.Login(ctx, user, password, remote)
}

// HashPassword makes the hash of a new password.
func (n *Node) HashPassword(ctx context.Context, password string) ([]byte, error) {
	return n.broker.HashPassword(ctx, password)
}

// Nodes lists the nodes of the cluster, see stats.Replicas.
func (n *Node) Nodes(ctx context.Context) []api.Node { return n.replicas.Nodes(ctx) }

// Alarms lists the alarms in effect in the cluster, see stats.Replicas.
func (n *Node) Alarms(ctx context.Context) []api.Alarm { return n.replicas.Alarms(ctx) }

// QuorumCritical lists the queues that cannot do without this node, see
// stats.Replicas.
func (n *Node) QuorumCritical(ctx context.Context) []*catalog.Queue {
	return n.replicas.QuorumCritical(ctx)
}

// Leaderless lists the replicated queues that no node leads.
func (n *Node) Leaderless(ctx context.Context, queues []*catalog.Queue) []*catalog.Queue {
	return n.replicas.Leaderless(ctx, queues)
}

// Members says how each replica of a queue is doing, see stats.Replicas.
func (n *Node) Members(ctx context.Context, q *catalog.Queue) []api.Member {
	return n.replicas.Members(ctx, q)
}

// Online reports whether a node is up as far as this one knows.
func (n *Node) Online(node string) bool { return node == n.config.Name || n.mesh.Alive(node) }

// Defaults are the node's settings for queues that do not say otherwise.
func (n *Node) Defaults() catalog.Defaults { return n.config.Defaults }

// Consumers lists the consumers of queues, see stats.Queues.
func (n *Node) Consumers(ctx context.Context, ids ...fsm.QueueID) []stats.Consumer {
	return n.queues.Consumers(ctx, ids...)
}

// QueueStats asks the leaders of queues how these are doing, see stats.Queues.
func (n *Node) QueueStats(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]stats.Queue {
	return n.queues.Stats(ctx, ids...)
}

// Scheduled asks a queue's leader for its scheduled messages, see
// broker.Scheduled.
func (n *Node) Scheduled(ctx context.Context, q *catalog.Queue, r *peerpb.ScheduledRequest) ([]*peerpb.ScheduledMessage, error) {
	return n.broker.Scheduled(ctx, q, r)
}

// Command performs commands at a queue, see broker.Command.
func (n *Node) Command(ctx context.Context, q *catalog.Queue, commands ...*logpb.Command) ([]fsm.Result, error) {
	return n.broker.Command(ctx, q, commands...)
}

// Draining reports whether this node is about to stop.
func (n *Node) Draining() bool { return n.placement.Draining() }

// Drain prepares the node for its stop, see placement.Maintenance.
func (n *Node) Drain(ctx context.Context) (api.Drained, error) { return n.placement.Drain(ctx) }

// Revive ends what Drain has begun.
func (n *Node) Revive(ctx context.Context) error { return n.placement.Revive(ctx) }

// Rebalance spreads leaderships, see placement.Leaderships.
func (n *Node) Rebalance(ctx context.Context, vhosts, queues *regexp.Regexp) (api.Rebalanced, error) {
	return n.placement.Rebalance(ctx, vhosts, queues)
}

// TransferLeadership makes a node the leader of a queue, see placement.Leaderships.
func (n *Node) TransferLeadership(ctx context.Context, q *catalog.Queue, to string) error {
	return n.placement.TransferLeadership(ctx, q, to)
}

// AddMember gives a queue a replica on a node, see placement.Members.
func (n *Node) AddMember(ctx context.Context, vhost, name, node string) error {
	return n.placement.AddMember(ctx, vhost, name, node)
}

// DeleteMember removes a queue's replica from a node, see placement.Members.
func (n *Node) DeleteMember(ctx context.Context, vhost, name, node string) error {
	return n.placement.DeleteMember(ctx, vhost, name, node)
}

// Grow gives queues replicas on a node, see placement.Members.
func (n *Node) Grow(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error) {
	return n.placement.Grow(ctx, node, s)
}

// Shrink removes replicas from a node, see placement.Members.
func (n *Node) Shrink(ctx context.Context, node string, s api.Selection) ([]api.MemberChange, error) {
	return n.placement.Shrink(ctx, node, s)
}

// GrowTo gives queues more members, see placement.Members.
func (n *Node) GrowTo(ctx context.Context, count int, s api.Selection) ([]api.MemberChange, error) {
	return n.placement.GrowTo(ctx, count, s)
}

// ForgetNode removes a node that has stopped for good, see membership.Membership.
func (n *Node) ForgetNode(ctx context.Context, name string) error {
	return n.membership.ForgetNode(ctx, name)
}

// CreateToken makes a token that lets one node in, see membership.Membership.
func (n *Node) CreateToken(ctx context.Context, ttl fsm.Millis, node string) (api.JoinToken, error) {
	return n.membership.CreateToken(ctx, ttl, node)
}

// Tokens lists those that are good, see membership.Membership.
func (n *Node) Tokens() []api.JoinToken { return n.membership.Tokens() }

// RevokeToken takes a token back, see membership.Membership.
func (n *Node) RevokeToken(ctx context.Context, id string) (bool, error) {
	return n.membership.RevokeToken(ctx, id)
}

// CertificateTaken notes a new certificate, see membership.Membership.
func (n *Node) CertificateTaken(c *x509.Certificate) { n.membership.CertificateTaken(c) }

// Now is the node's time as entries are stamped with.
func (n *Node) Now() fsm.Time { return n.clock.Status().Now }

// Replicas describes every queue replica on this node.
func (n *Node) Replicas() []api.Replica { return n.ReplicasOf("") }

// ReplicasOf describes this node's replicas of the queues with a name; "": of
// all. Nothing is asked of the queues: what is due in them stays due.
func (n *Node) ReplicasOf(name string) []api.Replica {
	var list []api.Replica
	for _, g := range n.host.Groups() {
		spec := g.Spec()
		if name != "" && spec.Name != name {
			continue
		}
		r := api.Replica{
			VHost: spec.VHost, Name: spec.Name, QueueID: uint64(spec.Queue), Group: uint32(spec.Group),
			Node: n.config.Name, Leader: g.Leading() != 0, LeaderNode: g.Leader(), Term: g.Term(), Quarantined: g.Quarantined() != nil,
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
			errs = append(errs, g.Barrier(settleWait))
		}
	}
	return errors.Join(errs...)
}
