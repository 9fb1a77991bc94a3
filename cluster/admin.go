package cluster

import (
	"crypto/x509"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
)

// Version of the product.
const Version = api.ProductVersion

// openStats creates the parts that report the state of this node and of the cluster to operators
// and other nodes.
func (n *Node) openStats() {
	nodes := &stats.Nodes{Self: n.config.Name, Mesh: n.mesh, Try: n.guard.Try, Logger: n.slog}
	n.local = stats.NewLocal(stats.LocalConfig{
		Name: n.config.Name, Cluster: n.config.ClusterName, DataDir: n.config.DataDir, Listeners: n.config.Listeners,
		Clients: n.clientConnections, Logins: n.sessions.Logins, Held: func() api.HeldMemory { return n.connected().HeldMemory() }, Closed: func() []api.Closed { return n.placement.Local.Closed() },
		Certificates: n.config.Certificates, Defaults: n.config.Defaults, Clock: n.clock.Clock, Mesh: n.mesh, Host: n.host, Catalog: n.catalog,
		Resources: n.alarm, Watchdog: n.watchdog, Draining: func() bool { return n.placement.Draining() }, Serving: n.ready.Load, Lacks: n.ready.missing,
	})
	n.stats = stats.NewQueues(nodes, stats.QueuesConfig{
		Kind: self.KindQueueStats, ConsumersKind: self.KindConsumers, Host: n.host, Catalog: n.catalog,
		TimeoutsKind: self.KindTimeouts, TimeKind: self.KindTime, Clock: n.clock.Steady, Sessions: n.sessions.ConsumingSessions, Timeouts: n.queues.Timeouts.List,
	})
	n.traffic = stats.NewTraffic(nodes, stats.TrafficConfig{
		Kind: self.KindTraffic, Host: n.host, Catalog: n.catalog, Table: n.sessions.Traffic, Collect: n.sessions.CollectTraffic,
		Flows: func() []traffic.Flow { return n.connected().Flows() }, Levels: func() traffic.Levels { return n.replicas.Levels() },
	})
	n.replicas = stats.NewReplicas(nodes, stats.ReplicasConfig{
		Kind: self.KindReplicas, Catalog: n.catalog, Host: n.host, Alarms: n.local.Alarms, Resources: n.alarm.Resources, Draining: n.isDraining,
		SyncLatency: n.stores.queues.SyncLatency, Rates: n.traffic.LevelRates, Local: n.local,
	})
}

// SampleTraffic makes the node take samples of what its clients do, until it is closed. Without it
// there are counts and no rates.
func (n *Node) SampleTraffic() { n.loops.Go("sample traffic", n.traffic.Run) }

// openExpiry creates the worker that deletes unused exchanges.
func (n *Node) openExpiry() {
	n.expiry = expiry.New(expiry.Config{
		Self: n.config.Name, Catalog: n.catalog, Now: n.clock.Now, Activity: n.stats.Activity, Logger: n.slog,
	})
}

// Isolated says why this node is cut off; see stats.Local.
func (n *Node) Isolated() string { return n.local.Isolated() }

// Ready reports whether the node serves clients.
func (n *Node) Ready() bool { return n.local.Ready() }

// listen registers the handlers for requests of other nodes.
func (n *Node) listen() {
	n.mesh.Handle(self.KindResourceAlarms, n.alarm.Receive)
	n.handleClients()
}

// openAlarm creates the monitor of memory and disk.
func (n *Node) openAlarm() {
	c := n.config
	if c.Probe == nil {
		c.Probe = alarm.System{DataDir: c.DataDir}
	}
	watch := alarm.New(alarm.Config{Memory: c.MemoryLimit, Disk: c.DiskLimit, Probe: c.Probe, Logger: c.Logger, Now: time.Now})
	n.alarm = alarm.NewCluster(watch, n.mesh, self.KindResourceAlarms, c.Logger)
}

// Online reports whether a node is up, as far as this one knows.
func (n *Node) Online(node string) bool { return node == n.config.Name || n.mesh.Alive(node) }

// CertificateTaken records a new certificate; see membership.Membership.
func (n *Node) CertificateTaken(c *x509.Certificate) { n.membership.CertificateTaken(c) }

// Replicas describes every queue replica on this node.
func (n *Node) Replicas() []api.Replica { return n.local.ReplicasOf("", true) }
