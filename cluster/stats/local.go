package stats

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/cluster/alarm"
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/login"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
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
	Host                   *host.Host
	Catalog                *replicated.Catalog
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
	s.UptimeMS, s.DataDir, s.Listeners = time.Since(l.began).Milliseconds(), l.c.DataDir, l.listeners()
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

// listeners are the node's, with what clients may speak there: AMQP 1.0 once all nodes can read its messages.
func (l *Local) listeners() []api.Listener {
	all := slices.Clone(l.c.Listeners)
	for i := range all {
		if x := &all[i]; x.Protocol == "amqp" || x.Protocol == "amqp/ssl" {
			x.Speaks = []string{"AMQP 0-9-1"}
			if l.c.Catalog.View().FSMVersion() >= fsm.BareSince {
				x.Speaks = append(x.Speaks, api.AMQP10)
			}
		}
	}
	return all
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

// isolatedAfter is how long a node has to be without a lease before it reports that it is cut off.
// An election of the catalog's leader is over sooner.
const isolatedAfter = 2 * time.Second

// Isolated says why this node can neither route nor have anything defined, and has not been able to
// for a while; empty: it can.
func (l *Local) Isolated() string {
	if left, _ := l.c.Catalog.LeaseLeft(); left > -isolatedAfter {
		return ""
	}
	if !l.c.Catalog.Started() {
		return "the node is not part of a cluster yet"
	}
	voters := l.c.Catalog.Voters()
	var away []string
	for _, v := range voters {
		if !l.c.Mesh.Alive(v) {
			away = append(away, v)
		}
	}
	switch leader := l.c.Catalog.Leader(); {
	case len(voters) == 0:
		return "the node is not a member of a cluster yet"
	case 2*len(away) >= len(voters):
		return fmt.Sprintf("the cluster has no majority here: of %d nodes that vote on the catalog, %s cannot be reached", len(voters), strings.Join(away, ", "))
	case leader == "":
		return "the catalog has no leader"
	default:
		return fmt.Sprintf("the catalog's leader %s does not confirm that the node is up to date", leader)
	}
}

// NotReady says why the node does not serve clients; empty: it does.
func (l *Local) NotReady() string {
	isolated := cmp.Or(l.Isolated(), l.c.Lacks())
	switch {
	case l.c.Draining():
		return "the node is in maintenance mode"
	case l.c.Watchdog.Unfit() != "":
		return l.c.Watchdog.Unfit()
	case !l.c.Serving() && isolated != "":
		return "the node does not serve clients yet: " + isolated
	case !l.c.Serving():
		return "the node does not serve clients yet"
	}
	return isolated
}

// Ready reports whether the node serves clients.
func (l *Local) Ready() bool { return l.NotReady() == "" }

// barrierWait bounds how long one group may take to commit an empty entry.
const barrierWait = 5 * time.Second

// Quarantined lists the queues that do not lead on this node because work for
// them has panicked here.
func (l *Local) Quarantined() []api.Quarantine {
	list := []api.Quarantine{}
	for _, g := range l.c.Host.Quarantined() {
		if q := g.Quarantined(); q != nil {
			list = append(list, api.Quarantine{
				VHost: g.Spec().VHost, Name: g.Spec().Name, Group: uint32(g.Spec().Group), SinceMS: int64(q.Since),
				Doing: q.Doing, Panic: q.Panic, Term: q.Term, Index: q.Index, Stopped: q.Stopped,
			})
		}
	}
	return list
}

// Unproven lists the replicas on this node that do not vote because they cannot prove what they
// acknowledged. The catalog's has no name.
func (l *Local) Unproven() []api.Unproven {
	list := []api.Unproven{}
	add := func(x api.Unproven, d *replica.Doubt) {
		if d != nil {
			x.SinceMS, x.Reason, x.Stuck = int64(d.Since), d.Why, d.Stuck
			list = append(list, x)
		}
	}
	add(api.Unproven{}, l.c.Catalog.Doubt())
	for _, g := range l.c.Host.Learners() {
		s := g.Spec()
		add(api.Unproven{VHost: s.VHost, Name: s.Name, Group: uint32(s.Group)}, g.Doubt())
	}
	return list
}

// Closed lists the replicas on this node that could not be opened.
func (l *Local) Closed() []api.Closed { return l.c.Closed() }

// LiftQuarantine allows this node to lead a queue again. An error that is a *fsm.Refusal is the
// caller's fault.
func (l *Local) LiftQuarantine(q *catalog.Queue) error {
	g := l.c.Host.Group(q.Group)
	if g == nil {
		return fsm.Refuse(fsm.Precondition, fmt.Sprintf("%s has no replica on node '%s'", q, l.c.Name))
	}
	err := g.LiftQuarantine()
	if errors.Is(err, group.ErrNotQuarantined) || errors.Is(err, group.ErrStopped) {
		return fsm.Refuse(fsm.Precondition, err.Error())
	}
	return err
}

// StandingStill lists the queues that this node leads and whose work makes no progress, preceded by
// the catalog.
func (l *Local) StalledQueues() []api.Standstill {
	list := []api.Standstill{}
	if s := l.c.Catalog.Stall(); s != nil {
		list = append(list, standstill(&host.Stall{Stalled: *s}))
	}
	for _, s := range l.c.Host.Stalls() {
		list = append(list, standstill(&s))
	}
	return list
}

func standstill(s *host.Stall) api.Standstill {
	var of group.Spec
	if s.Group != nil { // otherwise it is the catalog
		of = s.Group.Spec()
	}
	return api.Standstill{
		VHost: of.VHost, Name: of.Name, Group: uint32(of.Group), Reason: s.Reason, ForMS: s.For.Milliseconds(), Keeps: s.Keeps,
		Term: s.Term, Last: s.Last, Commit: s.Commit, Applied: s.Applied,
	}
}

// Parked lists the queues that this node leads and that have parked messages.
func (l *Local) Parked() (ids []fsm.QueueID) {
	for _, g := range l.c.Host.Led() {
		if s := g.Stats(); s.Rest != nil && s.Rest.Parked.Messages > 0 {
			ids = append(ids, g.Spec().Queue)
		}
	}
	slices.Sort(ids)
	return ids
}

// ReplicasOf describes this node's replicas of the queues with a name; "": of all. It makes no
// request to the queues: what is due in them stays due. hashed: with the hashes of their states,
// which cost a pass over all messages.
func (l *Local) ReplicasOf(name string, hashed bool) []api.Replica {
	var list []api.Replica
	for _, g := range l.c.Host.Groups() {
		spec := g.Spec()
		if name != "" && spec.Name != name {
			continue
		}
		r := api.Replica{
			VHost: spec.VHost, Name: spec.Name, QueueID: uint64(spec.Queue), Group: uint32(spec.Group),
			Node: l.c.Name, Leader: g.Leading() != 0, LeaderNode: g.Leader(), Term: g.Term(), Quarantined: g.Quarantined() != nil,
		}
		describe := func(s group.Stats) {
			r.AppliedIndex, r.Ready, r.Unacknowledged, r.Consumers = s.Applied, s.Ready.Messages, s.Unacknowledged.Messages, s.Consumers
			if s.Rest != nil {
				r.Outbox = s.Rest.Outbox.Messages
			}
		}
		if hashed {
			g.View(func(m *queue.Machine) { // numbers and hash are of the same moment
				h := m.Hash()
				r.StateHash = hex.EncodeToString(h[:])
				describe(group.StatsOf(m))
			})
		} else {
			describe(g.Stats())
		}
		list = append(list, r)
	}
	return list
}

// Barrier makes the followers of all queues that this node leads learn what is committed.
func (l *Local) Barrier(context.Context) error {
	var errs []error
	for _, g := range l.c.Host.Groups() {
		if g.Leading() != 0 {
			errs = append(errs, g.Barrier(barrierWait))
		}
	}
	return errors.Join(errs...)
}

// Raft sums up the replicas of queues on this node, those without a log left out.
func (l *Local) Raft() (sum metrics.Raft) {
	for _, g := range l.c.Host.Those(nil) {
		if g.IsLocal() {
			continue
		}
		p := g.Progress()
		sum.Term, sum.Commit, sum.Last, sum.Applied = sum.Term+p.Term, sum.Commit+p.Commit, sum.Last+p.Last, sum.Applied+p.Applied
		sum.Snapshot += max(g.SnapshotIndex(), 0)
		addMember(&sum.Members, &p)
	}
	return sum
}

// Led counts the replicas on this node, and sums up those that lead.
func (l *Local) Led() (replicas int, sum metrics.Led) {
	now, clock, view := l.c.Clock.Steady(), l.c.Clock.Now(), l.c.Catalog.View()
	for _, g := range l.c.Host.Those(nil) {
		if replicas++; g.Leading() == 0 {
			continue
		}
		s := g.Stats()
		addTimes(&sum.Times, &s, clock)
		if u := s.Use; u != nil {
			sum.ConsumersTimedOut += u.TimedOut
			sum.ByCredit += u.ByCredit
		}
		oldest := s.Oldest()
		sum.OldestReady = max(sum.OldestReady, s.Age(oldest.Ready, now))
		sum.OldestUnacked = max(sum.OldestUnacked, s.Age(oldest.Unacked, now))
		if s.Pause != nil {
			sum.Paused++
		}
		if queue.GoesOn(s.Redrive) {
			sum.Redriving++
		}
		all := s.All()
		if q, ok := view.QueueByID(g.Spec().Queue); ok && q.StoreOf != "" {
			sum.Delayed = append(sum.Delayed, metrics.Delayed{VHost: q.VHost, Exchange: q.StoreOf, Messages: all.Scheduled.Messages, NextDue: s.NextScheduled})
			all.Scheduled = queue.Count{}
		} else {
			sum.OldestScheduled = max(sum.OldestScheduled, s.Age(oldest.Scheduled, now))
		}
		sum.Queues++
		sum.Add(&all)
	}
	return replicas, sum
}

// addTimes compares a queue with the node's clock.
func addTimes(t *metrics.Times, s *group.Stats, clock fsm.Time) {
	if at := s.NextExpiry; at != 0 && (t.NextExpiry == 0 || at < t.NextExpiry) {
		t.NextExpiry = at
	}
	if due := s.NextDeadline; due != 0 {
		t.TickLag = max(t.TickLag, fsm.Millis(clock-due))
	}
	t.Ahead = max(t.Ahead, fsm.Millis(s.Clock-clock))
}

// addMember counts a replica by what it is.
func addMember(m *metrics.Members, p *replica.Progress) {
	switch {
	case p.Role == "leader":
		m.Leaders++
	case p.Role == "follower" && p.Voter:
		m.Followers++
	case p.Role == "follower":
		m.Learners++
	case p.Role == "candidate":
		m.Candidates++
	default:
		m.Stopped++
	}
}
