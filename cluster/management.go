package cluster

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/backup"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/placement"
	"github.com/quorate/quorate/cluster/procs"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Management returns the node as the HTTP API needs it.
func (n *Node) Management() mgmt.Backend {
	return mgmt.Backend{
		Catalog: n.catalog, Logins: n.sessions, Queues: n.stats, Messages: messages{n.queues.Inspector, n.sessions, n.config.Properties},
		Objects: objects{n.sessions, n.queues.Placer, n.config.Properties, n.alarm}, History: n.queues,
		Node: n.local, Cluster: n.replicas, Settings: settings{n.catalog}, Connections: n,
		Resources: n.alarm, Placement: n.placement, Membership: n.membership, Traffic: n.traffic, Seeds: n.config.Seeds,
		DefaultQueueType: n.config.DefaultQueueType,
		Hold:             func(user string) func(int64) error { return n.connected().Hold(user) },
		Backups: &backup.Keeper{
			Queues: n.queues.Backups, Product: api.ProductVersion, Cluster: n.sessions.ClusterName(), Now: time.Now, Defaults: n.local.Defaults(),
			Properties: n.config.Properties,
		},
	}
}

// FreshView is the newest view of the catalog, after an attempt to bring it up to date.
func (n *Node) FreshView(ctx context.Context) *catalog.View { return n.self.FreshView(ctx) }

// Define performs all of several commands, or none, for who speaks for an application: what it asks for is not held
// against a user's permissions. New queues are placed. It returns once every node knows, and new queues have leaders.
func (n *Node) Define(ctx context.Context, what string, commands ...*logpb.CatalogCommand) error {
	v := n.FreshView(ctx)
	for _, c := range commands {
		if m := c.GetDeclareQueue(); m != nil {
			v.DecideType(m, "")
			m.Members = n.queues.Placer.Place(m)
		}
	}
	all := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Together{Together: &logpb.Together{Commands: commands}}}
	r, err := n.self.Propose(ctx, what, all)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, queues.LeaderWait)
	defer cancel()
	for _, id := range r.GetAdded() {
		q, ok := n.self.View().QueueByID(fsm.QueueID(id))
		if !ok {
			continue // it has been deleted since
		}
		if err := n.queues.Leaders.Await(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// messages shows the messages in queues with their properties.
type messages struct {
	*queues.Inspector
	*session.Sessions
	properties session.Properties
}

// Take gets messages for a user and settles them; see session.Sessions.
func (m messages) Take(ctx context.Context, user, vhost, name string, count int, outcome fsm.Outcome, admit func(int) error) ([]mgmt.Message, error) {
	taken, err := m.Sessions.Take(ctx, user, vhost, name, count, outcome, admit)
	list := make([]mgmt.Message, len(taken))
	for i := range taken {
		list[i] = m.shown(queues.Peeked{Message: taken[i]})
	}
	return list, err
}

// Peek shows messages of a queue; see queues.Inspector.
func (m messages) Peek(ctx context.Context, q *catalog.Queue, in queue.Place, after uint64, limit int) ([]mgmt.Message, bool, error) {
	peeked, more, err := m.Inspector.Peek(ctx, q, in, after, limit)
	list := make([]mgmt.Message, len(peeked))
	for i := range peeked {
		list[i] = m.shown(peeked[i])
	}
	return list, more, err
}

func (m messages) shown(p queues.Peeked) mgmt.Message {
	return mgmt.Message{Peeked: p, Properties: m.properties.Describe(&p.Message), Body: m.properties.Body(p.Payload)}
}

// objects are what users change in their vhosts.
type objects struct {
	sessions *session.Sessions
	*placement.Placer
	properties session.Properties
	alarm      *alarm.Cluster
}

// Open opens a vhost for a user; see session.Sessions.
func (o objects) Open(ctx context.Context, user, vhost string) (mgmt.Session, error) {
	s, err := o.sessions.Open(ctx, user, vhost)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Publish publishes a message for a user; see session.Sessions.
func (o objects) Publish(ctx context.Context, user, vhost string, m mgmt.Outgoing) (routed bool, err error) {
	p, err := o.properties.Publish(user, m.Exchange, m.RoutingKey, m.Properties, m.Body)
	if err != nil {
		return false, err
	}
	return o.sessions.PublishOne(ctx, user, vhost, p)
}

// Blocked says why publishers are blocked.
func (o objects) Blocked() string { return o.alarm.Blocked() }

// settingWait bounds how long the catalog may take to commit a setting.
const settingWait = 5 * time.Second

// settings are the cluster-wide settings.
type settings struct{ catalog *replicated.Catalog }

// Settings lists the cluster-wide settings.
func (s settings) Settings() []api.Setting {
	var list []api.Setting
	for _, x := range catalog.Settings() {
		list = append(list, api.Setting{
			Name: x.Name, Value: s.catalog.View().Setting(x.Name), Default: x.Default, Low: x.Low, High: x.High, About: x.About,
		})
	}
	return list
}

// PutSetting sets a cluster-wide setting; nil: the program's default.
func (s settings) PutSetting(ctx context.Context, name string, value *int64) error {
	m := &logpb.PutSetting{Name: name, Unset: value == nil}
	if value != nil {
		m.Value = *value
	}
	ctx, cancel := context.WithTimeout(ctx, settingWait)
	defer cancel()
	r, err := s.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: m}})
	if err != nil {
		return err
	}
	return catalog.Refused(r[0])
}

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
		Kind: self.KindQueueStats, ConsumersKind: self.KindConsumers, Groups: stats.GroupsOf(n.host), Catalog: n.catalog,
		TimeoutsKind: self.KindTimeouts, TimeKind: self.KindTime, Clock: n.clock.Steady, Sessions: n.sessions.ConsumingSessions, Timeouts: n.queues.Timeouts.List,
		DriftsKind: self.KindDrifts, Drifts: n.sessions.Drifts.List,
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
func (n *Node) SampleTraffic() { n.loops.Loop("sample traffic", n.traffic.Run) }

// GovernProcessors makes the process use one processor while it has little to do, until the node is closed.
func (n *Node) GovernProcessors() {
	n.loops.Loop("govern processors", func(ctx context.Context) {
		procs.Govern(ctx.Done(), n.config.Logger, n.stores.queues.SyncLatency)
	})
}

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
