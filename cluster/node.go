// Package cluster is a node: it opens the stores, the links to other nodes, the catalog, the queue
// groups, the queues and the sessions in this order, and closes them in reverse.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/alarm"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/expiry"
	"github.com/quorate/quorate/cluster/failure"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/placement"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/self"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Node is one member of the cluster.
type Node struct {
	config Config
	slog   *slog.Logger
	guard  *worker.Guard // of the node's goroutines
	loops  *worker.Tasks // stopped first when Close begins

	// In opening order; nil: not open yet.
	watchdog   *watchdog.Watchdog
	membership *membership.Membership
	stores     stores
	clock      *nodeClock
	metrics    *metrics.Metrics
	mesh       *peer.Mesh
	host       *host.Host
	catalog    *replicated.Catalog
	self       *self.Node
	failures   *failure.Detector
	queues     *queues.Queues
	sessions   *session.Sessions
	inspection
	placement *placement.Placement
	alarm     *alarm.Cluster
	expiry    *expiry.Exchanges

	ready   readiness
	founded bool                    // this process has founded the cluster
	clients atomic.Pointer[Clients] // nil: the node takes no clients, or not yet

	rights *worker.Worker // checks clients again when rights have changed
}

// inspection reports state: of this node, of replicas at all nodes, and of queues at their leaders.
type inspection struct {
	local    *stats.Local
	replicas *stats.Replicas
	stats    *stats.Queues
	traffic  *stats.Traffic
}

// Open starts a node. It returns once the node runs; Join makes it a serving member.
func Open(c Config) (*Node, error) {
	if c.Versions == (fsm.Versions{}) {
		c.Versions = fsm.Supported
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	n := &Node{config: c, slog: c.Logger, rights: worker.New(worker.Options{}), guard: worker.NewGuard(c.Logger)}
	n.loops = worker.NewTasks(n.guard)
	n.metrics = metrics.New(n.metricStats)
	n.metrics.SetObjects(n.objectMetrics)
	if err := n.open(); err != nil {
		n.loops.Stop()
		_ = n.closeStores() // the first error is the one that matters
		return nil, err
	}
	return n, nil
}

func (n *Node) open() error {
	n.watchdog = watchdog.New(watchdog.Config{Bounds: n.config.Watchdog, Gate: n.config.DiskGate, Exit: n.config.Exit, Logger: n.config.Logger})
	var err error
	if n.membership, err = membership.Open(n.membershipConfig()); err != nil {
		return err
	}
	if err := n.stores.open(&n.config, n.watchdog.FS(n.config.FS)); err != nil {
		return err
	}
	n.clock = newClock(&n.config, n.guard)
	incarnation, err := n.openMesh()
	if err != nil {
		return err
	}
	n.openGroups(incarnation)
	n.openAlarm()
	n.listen()
	n.openStats()
	n.openExpiry()
	n.openPlacement(incarnation)
	n.host.Start()
	n.mesh.Watch(func(ev peer.Event) {
		n.slog.Info("peer changed", "node", ev.Node, "up", ev.Up, "reason", ev.Reason)
		n.host.PeerChanged(ev)
		n.failures.PeerChanged(ev)
		n.queues.PeerChanged(ev)
		n.alarm.PeerChanged(ev)
		n.catalog.PeerChanged(ev)
	})
	if err := n.membership.Resume(); err != nil {
		return err
	}
	n.mesh.Start()
	n.membership.Start()
	n.watchdog.Start(watchdog.Actions{Withdraw: n.withdraw, Return: n.comeBack, Refuse: n.mesh.Refuse, Shut: n.shut})
	n.loops.Loop("keep leaderships away", n.placement.Maintenance.Run)
	n.loops.Loop("expire exchanges", n.expiry.Run)
	n.loops.Loop("renew clients", func(context.Context) { n.renewClients() })
	n.loops.Loop("check memory and disk", func(ctx context.Context) { n.alarm.Run(ctx.Done()) })
	return nil
}

// openGroups creates the raft groups, and the parts that serve queues and clients with them.
func (n *Node) openGroups(incarnation [16]byte) {
	c := n.config
	n.catalog = replicated.New(replicated.Config{
		Node: c.Name, Store: n.stores.catalog, Mesh: n.mesh, Kind: self.KindCatalog, KindApplied: self.KindApplied,
		Incarnation: incarnation, Newest: c.Versions.Newest,
		Clock: n.clock.Now, Exit: c.Exit, Logger: c.Logger, Changed: n.catalogChanged,
	})
	n.self = self.New(self.Config{
		Node: c.Name, Mesh: n.mesh, Catalog: n.catalog, Isolated: n.Isolated, Clock: n.clock.Steady, Stamp: n.clock.Now,
		Logger: c.Logger, LeaderlessGrace: c.LeaderlessGrace,
	})
	uses := expiry.NewUses(n.self)
	n.failures = failure.New(n.self, c.Defaults.DisconnectedTimeout)
	n.queues = queues.New(queues.Config{
		Node: n.self, Uses: uses, Failures: n.failures, Properties: c.Properties, Fields: c.Fields, Filters: c.Filters, Audit: c.Audit,
		Size: c.GroupSize, Locator: cmp.Or(c.LeaderLocator, catalog.ClientLocal),
	})
	n.sessions = session.New(session.Config{
		Node: n.self, Queues: n.queues, Uses: uses, ClusterName: c.ClusterName, Properties: c.Properties, Audit: c.Audit,
		Defaults: c.Defaults, LoopbackUsers: c.LoopbackUsers, Logins: c.Logins, MaxConnections: c.MaxConnections,
	})
	n.host = host.New(host.Config{
		Config: group.Config{
			Node: c.Name, Store: n.stores.queues, Mesh: n.mesh, Clock: n.clock.Clock, Exit: c.Exit, Logger: c.Logger,
			Version: func() uint32 { return n.catalog.View().FSMVersion() }, Newest: c.Versions.Newest,
			LockCredit: n.clock.credit, Settings: n.queueSettings, Late: n.late, Outside: outside{n.queues, n},
			Heartbeat: c.Heartbeat, IdleAfter: c.IdleAfter,
		},
		Drains: n.isDraining, KeepAwake: c.KeepAwake, Progress: n.watchdog.Bounds().Progress, Awake: n.watchdog.Awake,
		Reclaimable: c.MemTableBytes / 2, Retained: c.RetainedBytes, KindElection: self.KindElection, KindLearner: self.KindLearner,
	})
	n.self.Listen(n.host)
	n.failures.Listen()
	n.queues.Listen()
	n.sessions.Listen()
	n.catalog.SetHost(n.host)
}

// openPlacement creates the parts that decide where replicas are, and connects the membership.
func (n *Node) openPlacement(incarnation [16]byte) {
	c := n.config
	n.placement = placement.New(placement.Config{
		Node: c.Name, Incarnation: incarnation, Host: n.host, Catalog: n.catalog, Mesh: n.mesh, Replicas: n.replicas, Placer: n.queues.Placer,
		Guard: n.guard, Logger: c.Logger, Defaults: c.Defaults, GroupSize: c.GroupSize, Stored: n.stores.queues.GroupIDs,
		LowDisk: func() bool { return n.alarm.Resources().DiskAlarm }, KindTransfer: self.KindTransfer, KindSnapshot: self.KindSnapshot,
	})
	n.membership.Connect(membership.Parts{
		Mesh: n.mesh, Incarnation: incarnation, Catalog: n.catalog, Guard: n.guard, Now: n.clock.Now, SetNodes: n.clock.SetNodes,
		Last: n.catalogLast, Isolated: func() bool { return n.local.Isolated() != "" }, Renewed: n.renewed,
	})
}

func (n *Node) openMesh() (incarnation [16]byte, err error) {
	c := n.config
	pc := peer.Config{
		Node: c.Name, Cluster: c.ClusterName, Listener: c.Listener, Dial: c.Dial, Security: c.Security, Logger: c.Logger,
		Identity: n.membership.Identity(), Admit: n.membership.Admit, Introduce: n.membership.Introduce,
		WallClock: func() int64 { return c.Clock().UnixMilli() }, HeardClock: n.clock.heard,
		Failed: func(error) { c.Exit(1) },
	}
	if _, err := rand.Read(pc.Incarnation[:]); err != nil {
		return incarnation, fmt.Errorf("incarnation: %w", err)
	}
	if n.mesh, err = peer.New(pc); err != nil {
		return incarnation, fmt.Errorf("links to other nodes: %w", err)
	}
	return pc.Incarnation, nil
}

// Join registers the node in the catalog, starts its replicas and waits until every node of the
// static list has been seen once. The node is ready when all that prepares it has returned, such as
// the import of definitions, which needs the catalog; an error of that keeps the node from being ready.
func (n *Node) Join(ctx context.Context, prepares ...func(context.Context) error) error {
	registered, err := n.membership.Join(ctx)
	if err != nil {
		return err
	}
	n.self.Serve(registered.Node, registered.Boot)
	n.failures.Serve()
	n.queues.Serve()
	n.membership.KeepRegistered()
	if err := n.initialize(ctx); err != nil {
		return err
	}
	if err := n.placement.Local.Start(registered.Node); err != nil {
		return err
	}
	if err := n.membership.AwaitFounders(ctx); err != nil {
		return err
	}
	n.placement.Reconciler.Start()
	if n.founded && n.config.Seeds != nil {
		n.seed(ctx)
	}
	for _, prepare := range prepares {
		if err := prepare(ctx); err != nil {
			return err
		}
	}
	n.ready.Store(true)
	return nil
}

// readiness tells whether clients may connect, and what else than the cluster keeps them from it.
type readiness struct {
	atomic.Bool
	lacks atomic.Pointer[string] // nil: nothing yet
}

// missing is what keeps clients from connecting; empty: nothing.
func (r *readiness) missing() string {
	if why := r.lacks.Load(); why != nil {
		return *why
	}
	return ""
}

// SetLacks says what keeps the node from being ready, other than the cluster; empty: nothing.
func (n *Node) SetLacks(why string) { n.ready.lacks.Store(&why) }

// withdraw makes the node stop taking part in the cluster; see package watchdog.
func (n *Node) withdraw() {
	n.mesh.Withdraw()
	n.host.Withdraw()
}

// comeBack undoes withdraw.
func (n *Node) comeBack() {
	n.mesh.Return()
	n.host.Return()
}

// shut disconnects all clients, and returns when they are gone or ctx ends.
func (n *Node) shut(ctx context.Context, reason string) {
	n.connected().Shut(ctx, reason)
}

// renewed takes over the new boot number that this process got after it had been declared dead.
// Clients of the former boot have to reconnect: they no longer own what they held.
func (n *Node) renewed(boot uint64) {
	n.sessions.Renew(boot)
	n.connected().Expel(session.LostText)
}

// catalogLast asks a node for the last index of its catalog replica.
func (n *Node) catalogLast(ctx context.Context, node string) (last uint64, ok bool) {
	r, err := n.replicas.Of(ctx, node, stats.CatalogGroup)
	return r.GetLast(), err == nil && r != nil
}

// membershipConfig returns the configuration of the membership.
func (n *Node) membershipConfig() membership.Config {
	c := n.config
	return membership.Config{
		Node: c.Name, Cluster: c.ClusterName, DataDir: c.DataDir, FS: c.FS, Nodes: c.Nodes, Contacts: c.Contacts, Resolve: c.Resolve,
		Token: c.Token, PlainTokens: c.PlainTokens, Enrolment: c.Enrolment, Signer: c.Signer, Security: c.Security, Dial: c.Dial,
		Versions: c.Versions, Exit: c.Exit, Logger: c.Logger, Audit: c.Audit, KindNodes: self.KindNodes, KindAdmit: self.KindAdmit,
	}
}

// initialize creates the default vhost and user in an empty catalog, and the secret of lock tokens
// in one that has none.
func (n *Node) initialize(ctx context.Context) error {
	if n.catalog.View().LockSecret() == nil {
		secret := make([]byte, catalog.LockSecretSize)
		_, _ = rand.Read(secret) // never fails
		if _, err := n.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutLockKey{
			PutLockKey: &logpb.PutLockKey{Secret: secret},
		}}); err != nil {
			return err
		}
	}
	if n.catalog.View().Initialized() {
		return nil
	}
	c := n.config
	first := &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
		Vhost: &logpb.PutVhost{Name: c.DefaultVHost, Description: "Default virtual host", DefaultQueueType: cmp.Or(c.DefaultQueueType, catalog.ClassicType)},
		User: &logpb.PutUser{
			Name: c.DefaultUser, PasswordHash: login.HashPassword(c.DefaultPassword), HashAlgorithm: login.HashAlgorithm, Tags: []string{"administrator"},
		},
		Permission: &logpb.PutPermission{User: c.DefaultUser, Vhost: c.DefaultVHost, Configure: ".*", Write: ".*", Read: ".*"},
	}}}
	results, err := n.catalog.Propose(ctx, first)
	n.founded = err == nil && catalog.Refused(results[0]) == nil
	return err
}

// seedPause is how often the founder of a cluster looks whether the cluster's first version has come, and maxSeedWaits
// how often at most.
const (
	seedPause    = 100 * time.Millisecond
	maxSeedWaits = 100
)

// seed gives the default vhost of a new cluster what new vhosts get, once the cluster has the version that all its
// founders support: patterns may need it.
func (n *Node) seed(ctx context.Context) {
	for range maxSeedWaits {
		if common, _ := n.catalog.View().CommonVersion(); common <= n.catalog.View().FSMVersion() {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(seedPause):
		}
	}
	if err := n.config.Seeds.Sow(ctx, n.catalog, n.config.DefaultVHost); err != nil {
		n.config.Logger.Warn("the default vhost did not get the defaults of new vhosts", "error", err)
	}
}

// Sessions serves the clients of this node.
func (n *Node) Sessions() *session.Sessions { return n.sessions }

// KeepsBare reports whether queues may keep messages in the form of AMQP 1.0: all nodes can read it.
func (n *Node) KeepsBare() bool { return n.catalog.View().FSMVersion() >= fsm.BareSince }

// Leave hands over this node's leaderships until ctx ends. Clients must have been disconnected.
// Only the first call has an effect.
func (n *Node) Leave(ctx context.Context) {
	n.ready.Store(false)
	n.placement.Leave(ctx)
}

// isDraining reports whether a node is about to stop; see placement.Placement.
func (n *Node) isDraining(node string) bool { return n.placement.IsDraining(node) }

// Close shuts the node down in order. The client listeners must have been closed.
func (n *Node) Close() error {
	ctx, cancel := context.WithTimeout(n.loops.Life(), closeWait)
	defer cancel()
	n.Leave(ctx)
	n.loops.Stop()
	n.membership.Stop()
	n.placement.Reconciler.Stop()
	n.placement.Local.Stop()
	n.self.Refuse()
	n.queues.Close()
	n.sessions.Close()
	n.self.Wait()
	n.host.Close()
	return errors.Join(n.catalog.Close(), n.closeStores())
}

// closeWait bounds how long a closing node tries to hand over its leaderships.
const closeWait = 5 * time.Second

func (n *Node) closeStores() error {
	var errs []error
	if n.mesh != nil {
		errs = append(errs, n.mesh.Close())
	}
	if n.clock != nil {
		n.clock.loops.Stop()
	}
	errs = append(errs, n.stores.close())
	if n.membership != nil {
		n.membership.Stop()
		errs = append(errs, n.membership.Close())
	}
	if n.watchdog != nil {
		n.watchdog.Stop()
	}
	return errors.Join(errs...)
}

// stores are the on-disk stores of the node's raft groups.
type stores struct {
	queues  *raftlog.Store
	catalog *raftlog.Catalog
}

// open opens both stores in the data folder.
func (s *stores) open(c *Config, fs vfs.FS) (err error) {
	s.queues, err = raftlog.Open(filepath.Join(c.DataDir, membership.QueuesFolder), raftlog.Options{
		Logger: c.Logger, Exit: c.Exit, MemTableBytes: c.MemTableBytes, TrailingLogs: group.TrailingLogs, OpenFiles: c.OpenFiles, FS: fs,
	})
	if err != nil {
		return fmt.Errorf("open queue store: %w", err)
	}
	s.catalog, err = raftlog.OpenCatalog(filepath.Join(c.DataDir, membership.CatalogFolder), raftlog.CatalogOptions{
		Logger: c.Logger, Exit: c.Exit, FS: fs,
	})
	if err != nil {
		return fmt.Errorf("open catalog store: %w", err)
	}
	return nil
}

// close closes the stores that are open.
func (s *stores) close() error {
	var errs []error
	if s.catalog != nil {
		errs = append(errs, s.catalog.Close())
	}
	if s.queues != nil {
		errs = append(errs, s.queues.Close())
	}
	return errors.Join(errs...)
}
