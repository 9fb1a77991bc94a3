// Package cluster is a node: it opens the stores, the links to the other
// nodes, the catalog, the queue groups and the broker in this order, and
// closes them in reverse.
package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/stats"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// Config says what a node is and what it stands on. The seams to the outside
// (clock, listener, dialer, exit) are given by whoever opens it.
type Config struct {
	Name        string
	ClusterName string
	DataDir     string
	// Nodes is the static list: name → address of the peer listener, this
	// node included. New nodes found a cluster together with all others on it.
	Nodes map[string]string
	// Contacts are addresses of nodes of a cluster that this node joins if it
	// is new. It founds none then.
	Contacts []string
	// Token lets this node into their cluster; zero: it is on their list, or known.
	Token certs.Token
	// PlainTokens has it go over plain links to other hosts, too.
	PlainTokens bool
	// Enrolment gets this node a certificate when it joins; nil: it has one, or its
	// links are plain.
	Enrolment membership.Enrolment
	// Signer makes certificates for nodes that join; nil: they bring their own.
	Signer membership.Signer
	// Certificates lists when what the node shows ends; nil: it shows none.
	Certificates func() []api.Certificate
	Listener     net.Listener // for peers
	// Security is how the links to other nodes are secured; nil: not at all.
	Security   *peer.Security
	Dial       func(ctx context.Context, address string) (net.Conn, error)
	Clock      func() time.Time // this node's wall clock, right or wrong
	Exit       func(code int)
	Logger     *slog.Logger
	Audit      *audit.Log // nil: nothing is audited
	Properties broker.Properties
	Defaults   catalog.Defaults

	DefaultVHost    string
	DefaultUser     string
	DefaultPassword string
	LoopbackUsers   []string
	Logins          login.Config

	// RetainedBytes is how much of the queue logs is kept for members that lag;
	// 0: group.DefaultRetained.
	RetainedBytes int64
	// MemTableBytes is how much the queue store writes before it makes a
	// table file. Its log takes a few times as much on disk.
	MemTableBytes int64
	// OpenFiles is how many files of the queue store are open at a time; 0: the
	// store's own default.
	OpenFiles int
	// MaxConnections is how many clients may be connected to this node; 0: any.
	MaxConnections int

	Heartbeat       time.Duration // of queue groups
	LeaderlessGrace time.Duration
	GroupSize       int
	LeaderLocator   catalog.Locator // empty: client-local
	Versions        fsm.Versions    // of the machines; zero: fsm.Supported

	Watchdog Bounds
	// DiskGate is called ahead of each write to the stores and may block, as a
	// disk does that hangs; nil: nothing is.
	DiskGate func()

	Listeners []api.Listener // shown to operators

	MemoryLimit, DiskLimit alarm.Limit // see alarm.Config
	Probe                  alarm.Probe // nil: this process and its machine
}

// Node is one member of the cluster.
type Node struct {
	config Config
	slog   *slog.Logger
	clock  *clock.Clock
	// stopClock ends what openClock started; nil: nothing.
	stopClock  func()
	settings   clusterSettings
	metrics    *metrics.Metrics
	store      *raftlog.Store
	stable     *raftlog.Catalog
	mesh       *peer.Mesh
	host       *group.Host
	catalog    *group.Catalog
	broker     *broker.Broker
	replica    *reconciler
	replicas   *stats.Replicas
	queues     *stats.Queues
	members    *placer
	alarm      *alarm.Cluster
	watchdog   *watchdog
	membership *membership.Membership
	ready      atomic.Bool
	self       fsm.NodeID

	rights  *worker.Worker // checks clients when what users may do has changed
	expired atomic.Uint64  // exchanges deleted for being idle
	guard   *worker.Guard  // of the node's loops

	incarnation [16]byte // of this process
	began       time.Time

	door        Door // nil: there are no clients
	leaving     atomic.Bool
	draining    sync.Mutex // one drain, revival or handover at a time
	rebalancing sync.Mutex
	life        context.Context // ends when Close begins
	end         context.CancelFunc
	work        sync.WaitGroup // goroutines that end with life
}

// Open starts a node. It returns once the node runs; Join makes it a member
// that serves.
func Open(c Config) (*Node, error) {
	if c.Versions == (fsm.Versions{}) {
		c.Versions = fsm.Supported
	}
	n := &Node{config: c, slog: c.Logger, began: time.Now(), rights: worker.New(worker.Options{}), guard: worker.NewGuard(c.Logger)}
	n.life, n.end = context.WithCancel(context.Background())
	n.metrics = metrics.New(n.figures)
	if err := n.open(); err != nil {
		n.end()
		n.closeStores()
		return nil, err
	}
	return n, nil
}

func (n *Node) open() error {
	c := n.config
	n.watchdog = newWatchdog(n)
	var err error
	if n.membership, err = membership.Open(n.membershipConfig()); err != nil {
		return err
	}
	n.store, err = raftlog.Open(filepath.Join(c.DataDir, membership.QueuesFolder), raftlog.Options{
		Logger: c.Logger, Exit: c.Exit, MemTableBytes: c.MemTableBytes, TrailingLogs: group.TrailingLogs, OpenFiles: c.OpenFiles, FS: n.watchdog.disk.FS(vfs.Default),
	})
	if err != nil {
		return fmt.Errorf("open queue store: %w", err)
	}
	n.stable, err = raftlog.OpenCatalog(filepath.Join(c.DataDir, membership.CatalogFolder), raftlog.CatalogOptions{
		Logger: c.Logger, Exit: c.Exit, FS: n.watchdog.disk.FS(vfs.Default),
	})
	if err != nil {
		return fmt.Errorf("open catalog store: %w", err)
	}
	n.openClock()
	if err := n.openMesh(); err != nil {
		return err
	}
	n.broker = broker.New(broker.Config{
		Node: c.Name, ClusterName: c.ClusterName, Mesh: n.mesh, Catalog: n, Properties: c.Properties,
		Clock: n.clock.Steady, Stamp: n.clock.Now, Logger: c.Logger, Audit: c.Audit, Defaults: c.Defaults, LoopbackUsers: c.LoopbackUsers, Logins: c.Logins, MaxConnections: c.MaxConnections,
		LeaderlessGrace: c.LeaderlessGrace, GroupSize: c.GroupSize,
		LeaderLocator: cmp.Or(c.LeaderLocator, catalog.ClientLocal),
	})
	n.host = group.NewHost(group.Config{
		Node: c.Name, Store: n.store, Mesh: n.mesh, Clock: n.clock, Exit: c.Exit, Logger: c.Logger,
		Version: func() uint32 { return n.View().FSMVersion() }, Newest: c.Versions.Newest, LockCredit: n.lockCredit, Settings: n.queueSettings, Drains: n.drains, Late: n.late, Outside: outside{n.broker, n}, Heartbeat: c.Heartbeat, Progress: n.watchdog.bounds.Progress, Awake: n.watchdog.pulse.Awake, Reclaimable: c.MemTableBytes / 2, Retained: c.RetainedBytes, KindElection: broker.KindElection, KindLearner: broker.KindLearner,
	})
	n.broker.Listen(n.host)
	n.openAlarm()
	n.listen()
	n.replica = newReconciler(n)
	n.members = newPlacer(n)
	n.host.Start()
	n.mesh.Watch(func(ev peer.Event) {
		n.slog.Info("peer changed", "node", ev.Node, "up", ev.Up, "reason", ev.Reason)
		n.host.PeerChanged(ev)
		n.broker.PeerChanged(ev)
		n.alarm.PeerChanged(ev)
		n.catalog.PeerChanged(ev)
	})
	n.catalog = group.NewCatalog(group.CatalogConfig{
		Node: c.Name, Store: n.stable, Mesh: n.mesh, Kind: broker.KindCatalog, KindApplied: broker.KindApplied, Incarnation: n.incarnation, Newest: c.Versions.Newest,
		Clock: n.clock.Now, Exit: c.Exit, Logger: c.Logger, Changed: n.catalogChanged, Host: n.host,
	})
	n.openStats()
	n.membership.Connect(membership.Parts{
		Mesh: n.mesh, Incarnation: n.incarnation, Catalog: n.catalog, Guard: n.guard, Now: n.clock.Now, SetNodes: n.clock.SetNodes,
		Last: n.catalogLast, Isolated: func() bool { return n.Isolated() != "" }, Renewed: n.renewed,
	})
	if err := n.membership.Resume(); err != nil {
		return err
	}
	n.mesh.Start()
	n.membership.Start()
	n.watchdog.start()
	for doing, loop := range map[string]func(){
		"keep leaderships away": n.keepAway, "expire exchanges": n.expireExchanges,
		"renew clients": n.renewClients, "check memory and disk": func() { n.alarm.Run(n.life.Done()) },
	} {
		n.work.Go(func() { n.guard.Loop(n.life.Done(), doing, loop) })
	}
	return nil
}

func (n *Node) openMesh() error {
	c := n.config
	pc := peer.Config{
		Node: c.Name, Cluster: c.ClusterName, Listener: c.Listener, Dial: c.Dial, Security: c.Security, Logger: c.Logger,
		Identity: n.membership.Identity(), Admit: n.membership.Admit, Introduce: n.membership.Introduce,
		WallClock: func() int64 { return c.Clock().UnixMilli() }, HeardClock: n.heardClock,
	}
	if _, err := rand.Read(pc.Incarnation[:]); err != nil {
		return fmt.Errorf("incarnation: %w", err)
	}
	mesh, err := peer.New(pc)
	if err != nil {
		return fmt.Errorf("links to other nodes: %w", err)
	}
	n.mesh = mesh
	n.incarnation = pc.Incarnation
	return nil
}

// Join registers the node in the catalog, starts its replicas and waits until
// all nodes of the static list have been seen once.
func (n *Node) Join(ctx context.Context) error {
	registered, err := n.membership.Join(ctx)
	if err != nil {
		return err
	}
	n.self = registered.Node
	n.broker.Serve(n.self, registered.Boot)
	n.membership.KeepRegistered()
	if err := n.initialize(ctx); err != nil {
		return err
	}
	if err := n.replica.start(n.self); err != nil {
		return err
	}
	if err := n.membership.AwaitFounders(ctx); err != nil {
		return err
	}
	n.members.start()
	n.ready.Store(true)
	return nil
}

// renewed takes the boot number that this process has got because it had been
// declared dead. The clients of its former boot have to connect again: what they
// held is no longer theirs.
func (n *Node) renewed(boot uint64) {
	n.broker.Renew(boot)
	if n.door != nil {
		n.door.Expel(broker.LostText)
	}
}

// catalogLast asks where a node's replica of the catalog ends.
func (n *Node) catalogLast(ctx context.Context, node string) (last uint64, ok bool) {
	r, err := n.replicas.Of(ctx, node, stats.CatalogGroup)
	return r.GetLast(), err == nil && r != nil
}

// membershipConfig says how this node becomes a member.
func (n *Node) membershipConfig() membership.Config {
	c := n.config
	return membership.Config{
		Node: c.Name, Cluster: c.ClusterName, DataDir: c.DataDir, Nodes: c.Nodes, Contacts: c.Contacts,
		Token: c.Token, PlainTokens: c.PlainTokens, Enrolment: c.Enrolment, Signer: c.Signer, Security: c.Security, Dial: c.Dial,
		Versions: c.Versions, Exit: c.Exit, Logger: c.Logger, Audit: c.Audit, KindNodes: broker.KindNodes, KindAdmit: broker.KindAdmit,
	}
}

// initialize creates the default vhost and user in an empty catalog.
func (n *Node) initialize(ctx context.Context) error {
	if n.View().Initialized() {
		return nil
	}
	c := n.config
	_, err := n.catalog.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_Initialize{Initialize: &logpb.Initialize{
		Vhost: &logpb.PutVhost{Name: c.DefaultVHost, Description: "Default virtual host"},
		User: &logpb.PutUser{
			Name: c.DefaultUser, PasswordHash: login.HashPassword(c.DefaultPassword), HashAlgorithm: login.HashAlgorithm, Tags: []string{"administrator"},
		},
		Permission: &logpb.PutPermission{User: c.DefaultUser, Vhost: c.DefaultVHost, Configure: ".*", Write: ".*", Read: ".*"},
	}}})
	return err
}

// View is the newest view of the catalog that this node has applied.
func (n *Node) View() *catalog.View { return n.catalog.View() }

// Refresh brings the view up to date, see broker.Catalog.
func (n *Node) Refresh(ctx context.Context) error { return n.catalog.Refresh(ctx) }

// Fresh reports whether this node may route by its view, see broker.Catalog.
func (n *Node) Fresh() bool { return n.catalog.Fresh() }

// Converge waits for the other nodes, see broker.Catalog.
func (n *Node) Converge(ctx context.Context) error { return n.catalog.Converge(ctx) }

// Note commits what nobody is told of, see broker.Catalog.
func (n *Node) Note(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return n.catalog.Note(ctx, commands...)
}

// Propose commits catalog commands, see broker.Catalog.
func (n *Node) Propose(ctx context.Context, commands ...*logpb.CatalogCommand) ([]*logpb.CatalogResult, error) {
	return n.catalog.Propose(ctx, commands...)
}

// Broker serves the clients of this node.
func (n *Node) Broker() *broker.Broker { return n.broker }

// Close ends the node in order. Listeners for clients have been closed before.
func (n *Node) Close() error {
	ctx, cancel := context.WithTimeout(n.life, closeWait)
	defer cancel()
	n.Leave(ctx)
	n.end()
	n.work.Wait()
	n.membership.Stop()
	n.members.stop()
	n.replica.stop()
	n.broker.Close()
	n.host.Close()
	return errors.Join(n.catalog.Close(), n.closeStores())
}

// closeWait bounds how long a node that is closed gives leaderships away.
const closeWait = 5 * time.Second

func (n *Node) closeStores() error {
	var errs []error
	if n.mesh != nil {
		errs = append(errs, n.mesh.Close())
	}
	if n.stopClock != nil {
		n.stopClock()
	}
	if n.stable != nil {
		errs = append(errs, n.stable.Close())
	}
	if n.store != nil {
		errs = append(errs, n.store.Close())
	}
	if n.membership != nil {
		n.membership.Stop()
		errs = append(errs, n.membership.Close())
	}
	if n.watchdog != nil {
		n.watchdog.stop()
	}
	return errors.Join(errs...)
}
