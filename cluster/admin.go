package cluster

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// Version of the product.
const Version = api.ProductVersion

// settleWait bounds how long one group may take to commit an empty entry.
const settleWait = 5 * time.Second

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

// Version is the product's version.
func (n *Node) Version() string { return Version }

// Online reports whether a node is up as far as this one knows.
func (n *Node) Online(node string) bool { return node == n.config.Name || n.mesh.Alive(node) }

// Defaults are the node's settings for queues that do not say otherwise.
func (n *Node) Defaults() catalog.Defaults { return n.config.Defaults }

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

// Barrier makes the followers of all queues that this node leads learn what is
// committed.
func (n *Node) Barrier(context.Context) error {
	var errs []error
	for _, g := range n.host.Groups() {
		if g.Leading() != 0 {
			errs = append(errs, g.Barrier(settleWait))
		}
	}
	return errors.Join(errs...)
}
