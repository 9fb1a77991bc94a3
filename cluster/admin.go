package cluster

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
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
	n.replicas = stats.NewReplicas(nodes, stats.ReplicasConfig{
		Kind: broker.KindReplicas, Catalog: n.catalog, Host: n.host, Alarms: n.alarms, Resources: n.alarm.Resources, Draining: n.drains,
	})
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

// Consumers lists the consumers of queues, see broker.Consumers.
func (n *Node) Consumers(ctx context.Context, ids ...fsm.QueueID) []mgmt.Consumer {
	var all []mgmt.Consumer
	for _, c := range n.broker.Consumers(ctx, ids...) {
		q := mgmt.Consumer{Of: fsm.QueueID(c.Queue), OwnTimeout: c.OwnTimeout, Consumer: api.Consumer{
			Tag: c.Tag, Active: c.Active, AckRequired: !c.NoAck, Exclusive: c.Exclusive, PrefetchCount: c.Prefetch, Priority: c.Priority,
			Status: c.Status, ActivityStatus: activity(c.QueueConsumer), Unacknowledged: c.Held, TimedOut: c.TimedOut, LateAcksTotal: c.LateAcks,
			OldestUnackedAgeMS: c.OldestAge, Timeout: int64(c.TimeoutPlusOne) - 1, NextDeadline: c.NextDeadline, Channel: []any{},
		}}
		if node, ok := n.View().Node(fsm.NodeID(c.Node)); ok {
			q.Node = node.Name
		}
		if at := c.Channel; at != nil {
			q.Channel = api.ChannelDetails{
				Name: fmt.Sprintf("%s (%d)", at.Connection, at.Channel), Number: at.Channel, ConnectionName: at.Connection,
				Node: q.Node, PeerHost: at.PeerHost, PeerPort: at.PeerPort, User: at.User,
			}
		}
		all = append(all, q)
	}
	return all
}

// activity is a consumer's status in the words of other brokers' tools.
func activity(c *peerpb.QueueConsumer) string {
	switch {
	case c.Status == queue.Suspected.String():
		return "suspected_down"
	case c.Status == queue.TimedOut.String():
		return "timeout"
	case !c.Active:
		return "waiting"
	case c.SingleActive:
		return "single_active"
	}
	return "up"
}

// Figures asks the leaders of queues how these stand, see broker.Figures.
func (n *Node) Figures(ctx context.Context, ids ...fsm.QueueID) map[fsm.QueueID]mgmt.Figures {
	all := map[fsm.QueueID]mgmt.Figures{}
	for id, f := range n.broker.Figures(ctx, ids...) {
		if f.Gone {
			continue
		}
		all[id] = mgmt.Figures{Leader: f.Leader, Revision: f.Revision, QueueStats: queueFigures(f.QueueStats)}
	}
	return all
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

// queueFigures shows what a queue's leader has answered.
func queueFigures(f *peerpb.QueueStats) api.QueueStats {
	r := api.QueueStats{
		Messages: f.MessagesReady + f.MessagesUnacknowledged + f.MessagesScheduled + f.MessagesDelayedRetry + f.MessagesDlx, Ready: f.MessagesReady, Unacknowledged: f.MessagesUnacknowledged, DeadLetters: f.MessagesDlx,
		Bytes: f.MessageBytesReady + f.MessageBytesUnacknowledged + f.MessageBytesScheduled + f.MessageBytesDelayedRetry + f.MessageBytesDlx, ReadyBytes: f.MessageBytesReady,
		UnacknowledgedBytes: f.MessageBytesUnacknowledged, DeadLetterBytes: f.MessageBytesDlx, Scheduled: f.MessagesScheduled, ScheduledBytes: f.MessageBytesScheduled, Consumers: f.Consumers,
		Delayed: f.MessagesScheduled + f.MessagesDelayedRetry, DelayedBytes: f.MessageBytesScheduled + f.MessageBytesDelayedRetry, DelayedRetry: f.MessagesDelayedRetry,
		NextDelayedAt: f.NextDelayedAt, LastDelayedAt: f.LastDelayedAt,
		FiredTotal: f.ScheduledTotal - f.UnscheduledTotal - f.MessagesScheduled, CancelledTotal: f.UnscheduledTotal, UnroutableTotal: f.UnroutableTotal,
		ExpiredTotal: f.MessagesExpiredTotal, TimedOutTotal: f.MessagesTimedOutTotal, LateAcksTotal: f.ConsumerTimeoutLateAcksTotal, ConsumersTimedOut: f.ConsumersTimedOut, DeadLetteredTotal: f.MessagesDeadLetteredTotal, DeadLettersDroppedTotal: f.DeadLettersDroppedTotal,
		DeadLettersWaiting: f.MessagesDlxWaiting, DeadLettersRefusedTotal: f.DeadLettersRefusedTotal, DeadConfirmedTotal: f.MessagesDeadLetteredConfirmedTotal,
		Deaths: map[string]map[string]uint64{},
	}
	totals := [...]*uint64{&r.DiedExpiredTotal, &r.DiedRejectedTotal, &r.DiedMaxlenTotal, &r.DiedDeliveryLimitTotal}
	fates := int(queue.AtLeastOnce) + 1
	for i, n := range f.DiedTotal[:min(len(f.DiedTotal), len(totals)*fates)] {
		reason := strings.ToLower(logpb.Death_Reason(i/fates + 1).String())
		*totals[i/fates] += n
		if n == 0 {
			continue
		}
		if r.Deaths[reason] == nil {
			r.Deaths[reason] = map[string]uint64{}
		}
		r.Deaths[reason][queue.Disposition(i%fates).String()] = n
	}
	return r
}

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
