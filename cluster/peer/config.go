package peer

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Config says who this node is and how it reaches the others.
type Config struct {
	// Node is the name of this node, Cluster that of the cluster; peers with
	// another cluster name are refused.
	Node    string
	Cluster string
	// Incarnation differs from that of every earlier run of this node.
	Incarnation [16]byte
	// Identity is that of the node's data folder; nil: none.
	Identity []byte
	// Admit says whether a node with this identity may have a link; nil: all
	// nodes that are peers may. It must not block.
	Admit func(node string, identity []byte) error
	// Introduce answers nodes that have no link, see Introduce. nil: they are
	// refused.
	Introduce func(ctx context.Context, who Caller, ask []byte) ([]byte, error)
	// Listener accepts the other nodes' connections. The Mesh closes it.
	Listener net.Listener
	// Failed is called if the listener is gone: no other node will reach this one
	// again. nil: that is only logged.
	Failed func(error)
	// Dial connects to an address out of Peers. An error that wraps
	// syscall.ECONNREFUSED counts as evidence that no process listens there.
	// nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Peers maps the names of the other nodes to their addresses.
	Peers map[string]string
	// Security has nodes prove their names, and hides what they say. nil: links
	// are plain, and whoever reaches the listener is believed.
	Security *Security
	Logger   *slog.Logger // nil: discarded

	Timing

	// WallClock is this node's wall clock in milliseconds since the epoch,
	// which answers to pings carry. nil: they carry none.
	WallClock func() int64
	// HeardClock is called with what the wall clock of a node showed between a ping,
	// sent at asked, and its answer, which has come. It must not block. nil: nothing is called.
	HeardClock func(node string, wall int64, asked time.Time)
}

// Timing says how long a Mesh waits for what.
type Timing struct {
	// PingInterval is the time between pings on a link that is young or does not
	// answer, at most half of SuspectAfter. 0: 150 ms.
	PingInterval time.Duration
	// RestInterval is the time between pings on any other link, at most two fifths
	// of SuspectAfter. 0: 500 ms, or PingInterval if that is given.
	RestInterval time.Duration
	// SuspectAfter is after how long without a sign of life a node is down; later by
	// the round trip of its link, and up to twice as late where this process itself
	// gets a processor late. 0: 1.3 s.
	SuspectAfter time.Duration
	// RefusedAfter is after how long without a link, while the node's host refuses
	// connections, it is down. 0: 150 ms.
	RefusedAfter time.Duration
	// LazyDelay is how long heartbeats and the like wait for company, at most.
	// 0: pings are their company, so they wait for the next one.
	LazyDelay time.Duration
	// HoldUnknown is how long raft requests wait for their group to appear,
	// because the members of a new group start at slightly different times.
	// 0: 1 s. Negative: they are refused at once.
	HoldUnknown time.Duration
	// RequestTimeout fails a raft request that is not answered. 0: 10 s.
	RequestTimeout time.Duration
	// ReconnectWait is how long AppendEntries and InstallSnapshot wait for a
	// broken link before they fail. 0: 30 s. See DESIGN.md: each failure makes
	// raft itself wait longer, up to 10 s.
	ReconnectWait time.Duration
	// SnapshotStall is how long the sender of a snapshot may send nothing. 0: 30 s.
	SnapshotStall time.Duration
}

func (c *Config) setDefaults() {
	if c.RestInterval == 0 && c.PingInterval == 0 {
		c.RestInterval = 500 * time.Millisecond
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&c.PingInterval, 150 * time.Millisecond},
		{&c.SuspectAfter, 1300 * time.Millisecond},
		{&c.RefusedAfter, 150 * time.Millisecond},
		{&c.HoldUnknown, time.Second},
		{&c.RequestTimeout, 10 * time.Second},
		{&c.ReconnectWait, 30 * time.Second},
		{&c.SnapshotStall, 30 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	c.PingInterval = min(c.PingInterval, c.SuspectAfter/2)
	c.RestInterval = max(min(c.RestInterval, c.SuspectAfter*2/5), c.PingInterval)
	if c.LazyDelay == 0 {
		c.LazyDelay = 2 * c.RestInterval
	}
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	if c.Failed == nil {
		c.Failed = func(error) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}
