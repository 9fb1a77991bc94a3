package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// Metrics is the node's page for Prometheus.
func (n *Node) Metrics() *metrics.Metrics { return n.metrics }

// late takes how late a tick was.
func (n *Node) late(what queue.Due, late fsm.Millis) {
	n.metrics.Late(what.String(), time.Duration(late)*time.Millisecond)
}

// figures are what the metrics page shows.
func (n *Node) figures() metrics.Figures {
	f := metrics.Figures{
		Node: n.config.Name, Cluster: n.config.ClusterName, Version: Version,
		Clock: n.clock.Status(), Peers: n.mesh.Peers(), Log: n.stores.queues.Metrics(), Snapshots: n.mesh.SnapshotCounts(), Queues: n.View().QueueCount(),
	}
	f.Replicas, f.Led = n.led()
	f.Lease, f.LeasesLost = n.catalog.LeaseLeft()
	f.Resources = n.alarm.Resources()
	f.TimedOut, f.LateAcks = n.broker.Lateness()
	f.ExchangesExpired = n.expired.Load()
	f.Quarantined, f.GroupPanics, f.Unproven = len(n.host.Quarantined()), n.host.Panics(), len(n.Unproven())
	f.Resignations, _ = n.host.Resignations()
	f.Still = len(n.StandingStill())
	w := n.watchdog.Stats()
	f.DiskHung, f.DiskHangs, f.DiskWaiting = w.Hung, w.Hangs, w.Waiting
	f.Stalled, f.LongestStall = w.Stalled, w.LongestStall
	f.PeerPanics, f.LoopPanics, f.BrokerPanics = n.mesh.Panics(), n.guard.Panics(), n.broker.Panics()
	f.Logins = n.broker.Logins()
	f.OddAnswers = n.broker.OddAnswers()
	f.Certificates = n.certificateEnds()
	f.Deaths, f.LostOnce = n.host.Deaths(), n.broker.LostOnce()
	return f
}

// Certificates lists when what the node shows, and checks others by, ends.
func (n *Node) Certificates() []api.Certificate {
	if n.config.Certificates == nil {
		return nil
	}
	return n.config.Certificates()
}

// certificateEnds is the same for metrics: each protocol comes once.
func (n *Node) certificateEnds() (all []metrics.Certificate) {
	for _, c := range n.Certificates() {
		if c.Ends.IsZero() || slices.ContainsFunc(all, func(m metrics.Certificate) bool { return m.Protocol == c.Protocol }) {
			continue
		}
		all = append(all, metrics.Certificate{Protocol: c.Protocol, Ends: c.Ends})
		if !c.AuthoritiesEnd.IsZero() {
			all = append(all, metrics.Certificate{Protocol: c.Protocol, Authority: true, Ends: c.AuthoritiesEnd})
		}
	}
	return all
}

// led counts the replicas on this node, and sums up those that lead.
func (n *Node) led() (replicas int, l metrics.Led) {
	groups, now, view := n.host.Groups(), n.clock.Steady(), n.View()
	for _, g := range groups {
		if g.Leading() == 0 {
			continue
		}
		var s queue.Stats
		var next fsm.Time
		g.View(func(m *queue.Machine) {
			s, next = m.Stats(), m.NextScheduled()
			late, oldest := m.Lateness()
			l.ConsumersTimedOut += late
			if oldest != 0 {
				l.OldestUnacked = max(l.OldestUnacked, time.Duration(max(now, s.Clock)-oldest)*time.Millisecond)
			}
		})
		l.Queues++
		if q, ok := view.QueueByID(g.Spec().Queue); ok && q.StoreOf != "" {
			l.Delayed = append(l.Delayed, metrics.Delayed{VHost: q.VHost, Exchange: q.StoreOf, Messages: s.Scheduled.Messages, NextDue: next})
		} else {
			l.Scheduled += s.Scheduled.Messages
		}
		l.Consumers += s.Consumers
		l.Ready, l.ReadyBytes = l.Ready+s.Ready.Messages, l.ReadyBytes+s.Ready.Bytes
		l.Unacked, l.UnackedBytes = l.Unacked+s.Unacknowledged.Messages, l.UnackedBytes+s.Unacknowledged.Bytes
		l.Waiting += s.Waiting.Messages
		l.Outbox, l.OutboxBytes = l.Outbox+s.Outbox.Messages, l.OutboxBytes+s.Outbox.Bytes
	}
	return len(groups), l
}

// Status describes the node and the others as it sees them.
func (n *Node) Status() api.Status {
	replicas, led := n.led()
	s := api.Status{
		Node: n.config.Name, Cluster: n.config.ClusterName, ProductVersion: Version, FSMVersion: n.View().FSMVersion(), NotReady: n.NotReady(),
		CatalogLeader: n.catalog.Leader(), RoutesFresh: n.Fresh(), Queues: n.View().QueueCount(), Replicas: replicas, Leaders: led.Queues,
		Alarms: n.alarms(), Peers: []api.Peer{}, Quarantined: n.Quarantined(), Unproven: n.Unproven(),
	}
	s.Ready = s.NotReady == ""
	s.UptimeMS, s.DataDir, s.Listeners = time.Since(n.began).Milliseconds(), n.config.DataDir, n.config.Listeners
	n.describeProgress(&s)
	for _, p := range n.mesh.Peers() {
		s.Peers = append(s.Peers, api.Peer{
			Node: p.Node, Address: p.Address, Alive: p.Alive, Linked: p.Linked,
			BacklogBytes: p.Backlog, RoundTripMicro: p.RoundTrip.Microseconds(),
		})
	}
	return s
}

// alarms lists those in effect at this node.
func (n *Node) alarms() []string {
	list := []string{}
	if n.clock.Status().Skewed {
		list = append(list, "clock_skew")
	}
	if n.watchdog.Stats().Hung {
		list = append(list, "disk_hang")
	}
	return append(list, n.alarm.Resources().Alarms()...)
}

// Clock describes the node's clock.
func (n *Node) Clock() api.Clock {
	s := n.clock.Status()
	c := api.Clock{
		Node: n.config.Name, NowMS: int64(s.Now), OffsetMS: s.Offset.Milliseconds(), MaxSkewMS: int64(s.MaxSkew),
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

// Settings lists the settings of the whole cluster.
func (n *Node) Settings() []api.Setting {
	var list []api.Setting
	for _, s := range catalog.Settings() {
		list = append(list, api.Setting{
			Name: s.Name, Value: n.View().Setting(s.Name), Default: s.Default, Low: s.Low, High: s.High, About: s.About,
		})
	}
	return list
}

// PutSetting gives a setting of the whole cluster a value; nil: the program's.
func (n *Node) PutSetting(ctx context.Context, name string, value *int64) error {
	m := &logpb.PutSetting{Name: name, Unset: value == nil}
	if value != nil {
		m.Value = *value
	}
	ctx, cancel := context.WithTimeout(ctx, settleWait)
	defer cancel()
	r, err := n.Propose(ctx, &logpb.CatalogCommand{Body: &logpb.CatalogCommand_PutSetting{PutSetting: m}})
	if err != nil {
		return err
	}
	return catalog.Refused(r[0])
}
