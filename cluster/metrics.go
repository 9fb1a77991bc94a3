package cluster

import (
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/metrics"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// Metrics returns the node's metrics page for Prometheus.
func (n *Node) Metrics() *metrics.Metrics { return n.metrics }

// late records how late a tick was.
func (n *Node) late(what queue.Due, late fsm.Millis) {
	n.metrics.Late(what.String(), time.Duration(late)*time.Millisecond)
}

// metricStats collects the numbers for the metrics page.
func (n *Node) metricStats() metrics.Stats {
	s := metrics.Stats{
		Node: n.config.Name, Cluster: n.config.ClusterName, Version: Version,
		Clock: n.clock.Status(), Resources: n.alarm.Resources(), Watchdog: n.watchdog.Stats(), Log: n.stores.queues.Metrics(),
		Links:        metrics.Links{Peers: n.mesh.Peers(), Snapshots: n.mesh.SnapshotCounts()},
		Panics:       metrics.Panics{Groups: n.host.Panics(), Peers: n.mesh.Panics(), Loops: n.guard.Panics(), Broker: n.broker.Panics()},
		Logins:       n.broker.Logins(),
		Certificates: n.certificateEnds(),
		DeadLetters:  metrics.DeadLetters{Deaths: n.host.Deaths(), LostOnce: n.broker.LostOnce()},
		Queues:       metrics.Queues{Declared: n.catalog.View().QueueCount(), UnexpectedAnswers: n.broker.OddAnswers(), RefusedCommands: n.broker.RefusedCommands()},
	}
	s.Replicas.Count, s.Queues.Led = n.local.Led()
	s.Replicas.Quarantined, s.Replicas.Unproven = len(n.host.Quarantined()), len(n.local.Unproven())
	s.Replicas.Stalled = len(n.local.StalledQueues())
	s.Replicas.Resignations, _ = n.host.Resignations()
	s.Lease.Left, s.Lease.Lost = n.catalog.LeaseLeft()
	s.Queues.TimedOut, s.Queues.LateAcks = n.broker.Lateness()
	s.Queues.ExchangesExpired, s.Queues.QueuesEnded = n.expiry.Expired(), n.broker.QueuesEnded()
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
