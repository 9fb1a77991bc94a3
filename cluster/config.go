package cluster

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/audit"
	"github.com/quorate/quorate/cluster/broker"
	"github.com/quorate/quorate/cluster/certs"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
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

	Watchdog watchdog.Bounds
	// DiskGate is called ahead of each write to the stores and may block, as a
	// disk does that hangs; nil: nothing is.
	DiskGate func()

	Listeners []api.Listener // shown to operators

	MemoryLimit, DiskLimit alarm.Limit // see alarm.Config
	Probe                  alarm.Probe // nil: this process and its machine
}
