package cluster

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/queues"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Config describes a node and what it depends on. The interfaces to the outside (clock, listener,
// dialer, exit) are supplied by the caller of Open.
type Config struct {
	Name        string
	ClusterName string
	DataDir     string
	// FS is the filesystem that DataDir is in; nil: that of the operating system.
	FS vfs.FS
	// Nodes is the static list, including this node: name → address of the peer listener. New nodes
	// found a cluster together with all others on the list.
	Nodes map[string]string
	// Contacts are addresses of nodes of an existing cluster, or names of them, which this node
	// joins if it is new. It then does not found one.
	Contacts []string
	// Resolve returns the addresses that a contact stands for, whenever they are used; nil: it is
	// one itself.
	Resolve func(ctx context.Context, contact string) ([]string, error)
	// Token authorizes this node to join their cluster; zero: it is on their list, or known.
	Token certs.Token
	// PlainTokens allows the token to be sent over plain links to other hosts, too.
	PlainTokens bool
	// Enrolment obtains a certificate for this node when it joins; nil: it has one, or its links
	// are plain.
	Enrolment membership.Enrolment
	// Signer signs certificates for joining nodes; nil: they bring their own.
	Signer membership.Signer
	// Certificates lists the certificates this node presents and when they expire; nil: it presents
	// none.
	Certificates func() []api.Certificate
	Listener     net.Listener // for peers
	// Security configures how links to other nodes are secured; nil: they are plain.
	Security *peer.Security
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	Clock    func() time.Time // this node's wall clock, right or wrong
	// Monotonic is how long this node's machine has been running by its own count, which may run
	// fast or slow; nil: the time since Open.
	Monotonic  func() time.Duration
	Exit       func(code int)
	Logger     *slog.Logger
	Audit      *audit.Log // nil: nothing is audited
	Properties session.Properties
	// Fields reads stored messages for selectors; nil: no consumer can have one.
	Fields queues.Fields
	// Filters are those of exchanges of type x-filter; nil: they make no copies.
	Filters  fsm.Filters
	Defaults catalog.Defaults

	DefaultVHost string
	// DefaultQueueType is that of new vhosts; empty: classic.
	DefaultQueueType string
	DefaultUser      string
	DefaultPassword  string
	LoopbackUsers    []string
	// Seeds are what new vhosts get, the default one included; nil: nothing.
	Seeds  *mgmt.Seeds
	Logins login.Config

	// RetainedBytes is how much of the queue logs is kept for lagging members; 0:
	// host.DefaultRetained.
	RetainedBytes int64
	// MemTableBytes is how much the queue store writes before it creates a table file. Its log
	// takes a few times as much on disk.
	MemTableBytes int64
	// OpenFiles is the maximum number of open files of the queue store; 0: the store's own default.
	OpenFiles int
	// MaxConnections is the maximum number of clients connected to this node; 0: unlimited.
	MaxConnections int

	Heartbeat       time.Duration // of queue groups
	IdleAfter       time.Duration // after which a queue's group sleeps; 0: never
	KeepAwake       int           // groups that do not
	LeaderlessGrace time.Duration
	GroupSize       int
	LeaderLocator   catalog.Locator // empty: client-local
	Versions        fsm.Versions    // of the machines; zero: fsm.Supported

	Watchdog watchdog.Bounds
	// DiskGate is called before each write to the stores and may block, like a disk that hangs;
	// nil: it is not called.
	DiskGate func()

	Listeners []api.Listener // shown to operators

	MemoryLimit, DiskLimit alarm.Limit // see alarm.Config
	Probe                  alarm.Probe // nil: this process and its machine
}
