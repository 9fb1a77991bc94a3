package cluster

import (
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/limit"
	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Metrics returns the node's metrics page for Prometheus.
func (n *Node) Metrics() *metrics.Metrics { return n.metrics }

// clientConnections counts the connections at the AMQP listeners, and how many these take.
func (n *Node) clientConnections() (open, limit int) {
	for _, l := range n.metrics.Listeners() {
		if l.Name == "amqp" || l.Name == "amqp/ssl" {
			open, limit = open+l.Open, limit+l.Max
		}
	}
	return open, limit
}

// late records how late a tick was.
func (n *Node) late(what queue.Due, late fsm.Millis) {
	n.metrics.Late(what.String(), time.Duration(late)*time.Millisecond)
}

// metricStats collects the numbers for the metrics page.
func (n *Node) metricStats() metrics.Stats {
	at := n.queues.Counts()
	s := metrics.Stats{
		Node: n.config.Name, Cluster: n.local.ClusterName(), Version: Version,
		Clock: n.clock.Status(), Resources: n.alarm.Resources(), Watchdog: n.watchdog.Stats(), Log: n.stores.queues.Metrics(),
		Links:        metrics.Links{Peers: n.mesh.Peers(), Snapshots: n.mesh.SnapshotCounts()},
		Panics:       metrics.Panics{Groups: n.host.Panics(), Peers: n.mesh.Panics(), Loops: n.guard.Panics(), Broker: n.self.Panics()},
		Logins:       n.sessions.Logins(),
		Certificates: n.certificateEnds(),
		DeadLetters:  metrics.DeadLetters{Deaths: n.host.Deaths(), LostOnce: at.LostOnce},
		Queues:       metrics.Queues{Declared: n.catalog.View().QueueCount(), UnexpectedAnswers: at.OddAnswers, RefusedCommands: n.sessions.RefusedCommands()},
	}
	s.Counts, s.Raft = n.traffic.Totals(), n.local.Raft()
	s.Raft.CommitLatency, s.Meters, s.Resent = n.host.CommitLatency(), n.host.Meters(), at.Resent
	s.Process.Uptime = n.local.Uptime()
	s.Process.Files = limit.OpenFiles()
	s.Process.MaxFiles, _ = limit.Files() // 0 if it is not known
	s.Replicas.Count, s.Queues.Led = n.local.Led()
	s.Replicas.Quarantined, s.Replicas.Unproven = len(n.host.Quarantined()), len(n.local.Unproven())
	s.Replicas.Closed, s.Replicas.Failures = len(n.local.Closed()), n.placement.Local.Failures()
	s.Replicas.Stalled = len(n.local.StalledQueues())
	s.Replicas.Resignations, _ = n.host.Resignations()
	s.Lease.Left, s.Lease.Lost = n.catalog.LeaseLeft()
	s.Queues.TimedOut, s.Queues.LateAcks = at.TimedOut, at.LateAcks
	s.Queues.DeclaresTolerated, s.Queues.DeclaresAdopted = n.sessions.Drifts.Counts()
	s.Queues.ExchangesExpired, s.Queues.QueuesEnded = n.expiry.Expired(), at.Ended
	return s
}

// certificateEnds lists when the certificates expire, each protocol once.
func (n *Node) certificateEnds() (all []metrics.Certificate) {
	for _, c := range n.local.Certificates() {
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

// addAges adds how old the messages of a queue are.
func addAges(q *metrics.Queue, s *group.Stats, now fsm.Time) {
	if s.Ages == nil {
		return
	}
	o := s.Ages.Oldest
	q.OldestReady, q.OldestUnacked, q.OldestScheduled = s.Age(o.Ready, now), s.Age(o.Unacked, now), s.Age(o.Scheduled, now)
	for _, t := range s.Ages.Tallies {
		q.Values = append(q.Values, metrics.HeaderValue{Value: t.Value, Ready: t.Ready, OldestReady: s.Age(t.OldestReady, now)})
	}
}

// objectMetrics collects the numbers for the metrics of each object: from this node's own knowledge
// only, whoever leads the queues.
func (n *Node) objectMetrics() metrics.Objects {
	var all metrics.Objects
	view, byQueue := n.catalog.View(), map[fsm.QueueID]*traffic.Counts{}
	byChannel := map[string]*traffic.Counts{}
	n.traffic.Each(func(q fsm.QueueID, x *traffic.Exchange, channel string, c *traffic.Counts) {
		switch {
		case q != 0:
			byQueue[q] = c
		case x != nil:
			all.Exchanges = append(all.Exchanges, metrics.Exchange{VHost: x.VHost, Name: x.Name, Counts: c})
		default:
			byChannel[channel] = c
		}
	})
	for _, g := range n.host.Those(nil) {
		of := g.Spec()
		q := metrics.Queue{VHost: of.VHost, Name: of.Name, Counts: byQueue[of.Queue]}
		delete(byQueue, of.Queue)
		if record, ok := view.QueueByID(of.Queue); ok {
			q.Type = record.Type()
		}
		if !g.IsLocal() {
			p := g.Progress()
			p.Voters = nil // they are not shown
			q.Raft, q.Snapshot = &p, g.SnapshotIndex()
		}
		if g.Leading() != 0 {
			s := g.Stats()
			q.Led = &metrics.Lengths{Ready: s.Ready, Unacknowledged: s.Unacknowledged, Consumers: s.Consumers}
			addAges(&q, &s, n.clock.Steady())
			q.Capacity = s.Capacity(n.clock.Steady())
		}
		all.Queues = append(all.Queues, q)
	}
	for id, c := range byQueue { // without a replica here
		if q, ok := view.QueueByID(id); ok {
			all.Queues = append(all.Queues, metrics.Queue{VHost: q.VHost, Name: q.Name, Type: q.Type(), Counts: c})
		}
	}
	for _, c := range n.myChannels() {
		all.Channels = append(all.Channels, metrics.Channel{
			VHost: c.VHost, Name: c.Name, Consumers: c.Consumers, Prefetch: int(c.Prefetch), Unacked: c.Unacknowledged,
			Unconfirmed: c.Unconfirmed, Uncommitted: c.Uncommitted, Unsettled: c.Unsettled, Counts: byChannel[c.Name],
		})
	}
	for _, c := range n.myConnections() {
		all.Connections = append(all.Connections, metrics.Connection{VHost: c.VHost, Name: c.Name, Received: c.ReceivedBytes, Sent: c.SentBytes, Channels: c.Channels})
	}
	return all
}
