package stats

import (
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
)

// Local reports what a node knows about itself, without asking others.
type Local struct {
	c     LocalConfig
	began time.Time
}

// LocalConfig is what Local reads.
type LocalConfig struct {
	Name, Cluster, DataDir string
	Listeners              []api.Listener
	Certificates           func() []api.Certificate // nil: there are none
	Defaults               catalog.Defaults
	Clock                  *clock.Clock
	Mesh                   *peer.Mesh
	Host                   *group.Host
	Catalog                *group.Catalog
	Resources              *alarm.Cluster
	Watchdog               *watchdog.Watchdog
	// Clients counts the connections at the AMQP listeners, and how many these take; Logins the
	// outcomes of logins.
	Clients func() (open, limit int)
	Logins  func() login.Tally
	// Held is the memory that is held for clients.
	Held func() api.HeldMemory
	// Closed lists the replicas that could not be opened.
	Closed func() []api.Closed
	// Draining reports whether the node is about to stop, Serving whether it has joined its cluster
	// and accepts clients.
	Draining, Serving func() bool
	// Lacks says what keeps the node from accepting clients, other than the cluster, such as
	// definitions that cannot be loaded; empty: nothing.
	Lacks func() string
}

// NewLocal returns the Local of a process that has just started.
func NewLocal(c LocalConfig) *Local { return &Local{c, time.Now()} }

// Uptime is the time since the process began.
func (l *Local) Uptime() time.Duration { return time.Since(l.began) }

// ClusterName is the name under which the cluster is shown: the one it was given last, or that of the
// settings, by which nodes know each other.
func (l *Local) ClusterName() string {
	if name, ok := l.c.Catalog.View().ShownName(); ok {
		return name
	}
	return l.c.Cluster
}

// Version is the product's version.
func (l *Local) Version() string { return api.ProductVersion }

// Defaults are the node's settings for queues that do not say otherwise.
func (l *Local) Defaults() catalog.Defaults { return l.c.Defaults }

// Now is the node's current time, as used to stamp entries.
func (l *Local) Now() fsm.Time { return l.c.Clock.Status().Now }

// Status describes the node, and the others as seen by it.
func (l *Local) Status() api.Status {
	replicas, led := l.Led()
	s := api.Status{
		Node: l.c.Name, Cluster: l.ClusterName(), ProductVersion: l.Version(), FSMVersion: l.c.Catalog.View().FSMVersion(), NotReady: l.NotReady(),
		CatalogLeader: l.c.Catalog.Leader(), RoutesFresh: l.c.Catalog.Fresh(), Queues: l.c.Catalog.View().QueueCount(), Replicas: replicas, Leaders: led.Queues,
		Alarms: l.Alarms(), Peers: []api.Peer{}, Quarantined: l.Quarantined(), Unproven: l.Unproven(), Closed: l.Closed(),
	}
	s.Ready = s.NotReady == ""
	s.UptimeMS, s.DataDir, s.Listeners = time.Since(l.began).Milliseconds(), l.c.DataDir, l.c.Listeners
	l.describeProgress(&s)
	s.Connections, s.MaxConnections = l.c.Clients()
	s.Held = l.c.Held()
	logins := l.c.Logins()
	for p, c := range logins {
		s.Logins = append(s.Logins, api.LoginAttempts{Protocol: login.Protocol(p).String(), Attempts: c.All(), Failed: c.Failed(), Succeeded: c.Accepted})
	}
	s.LoginsAccepted, s.LoginsRefused = logins.Sum().Accepted, logins.Sum().Failed()
	for _, p := range l.c.Mesh.Peers() {
		s.Peers = append(s.Peers, api.Peer{
			Node: p.Node, Address: p.Address, Alive: p.Alive, Linked: p.Linked,
			BacklogBytes: p.Backlog, RoundTripMicro: p.RoundTrip.Microseconds(),
		})
	}
	return s
}

// Dead says why the process should be restarted; empty: it makes progress, whether or not it can
// serve clients. It does not return if a part of the node never lets go of its lock.
func (l *Local) Dead() string {
	if why := l.c.Watchdog.Dead(); why != "" {
		return why
	}
	l.Status()
	return ""
}

// describeProgress adds the findings and actions of the watchdog.
func (l *Local) describeProgress(s *api.Status) {
	s.DiskWaitMS = l.c.Watchdog.Stats().Waiting.Milliseconds()
	s.StalledQueues, s.Resignations = l.StalledQueues(), []api.Resignation{}
	count, last := l.c.Host.Resignations()
	for _, c := range count {
		s.ResignationsTotal += c
	}
	for _, r := range last {
		s.Resignations = append(s.Resignations, api.Resignation{Standstill: standstill(&r.Stall), AtMS: int64(r.At)})
	}
}

// Alarms lists the alarms in effect at this node.
func (l *Local) Alarms() []string {
	list := []string{}
	if l.c.Clock.Status().Skewed {
		list = append(list, "clock_skew")
	}
	if l.c.Watchdog.Stats().Hung {
		list = append(list, "disk_hang")
	}
	if len(l.Closed()) > 0 {
		list = append(list, "replicas_closed")
	}
	r := l.c.Resources.Resources()
	if r.DiskUnknown {
		list = append(list, "disk_unknown")
	}
	return append(list, r.Alarms()...)
}

// Clock describes the node's clock.
func (l *Local) Clock() api.Clock {
	s := l.c.Clock.Status()
	c := api.Clock{
		Node: l.c.Name, NowMS: int64(s.Now), OffsetMS: s.Offset.Milliseconds(), MaxSkewMS: int64(s.MaxSkew),
		Skewed: s.Skewed, Sampled: s.Sampled, Agreed: s.Agreed, JumpsRefused: s.JumpsRefused, Peers: []api.PeerClock{},
	}
	for _, p := range s.Peers {
		c.Peers = append(c.Peers, api.PeerClock{
			Node: p.Node, Known: p.Known, OffsetMS: p.Offset.Milliseconds(),
			RoundTripMicro: p.RoundTrip.Microseconds(), AgeMS: p.Age.Milliseconds(),
		})
	}
	return c
}

// Certificates lists when the certificates expire that the node presents, and those that it checks
// others by.
func (l *Local) Certificates() []api.Certificate {
	if l.c.Certificates == nil {
		return nil
	}
	return l.c.Certificates()
}
