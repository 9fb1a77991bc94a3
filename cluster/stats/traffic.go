package stats

import (
	"context"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/host"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/peerpb"
)

// Traffic reports what clients do, as counted by the nodes that they are connected to.
type Traffic struct {
	nodes *Nodes
	c     TrafficConfig
	flows traffic.Flows
	level traffic.LevelRates
}

// TrafficConfig is what Traffic needs of this node.
type TrafficConfig struct {
	Kind    peer.Kind // of requests to other nodes
	Host    *host.Host
	Catalog interface{ View() *catalog.View }
	Table   *traffic.Table
	// Collect adds to the table what the sessions of this node have counted.
	Collect func()
	// Flows lists what the open connections of this node have received and sent.
	Flows func() []traffic.Flow
	// Levels reads the numbers of this process.
	Levels func() traffic.Levels
}

// NewTraffic returns the traffic of a cluster, and answers other nodes for this one.
func NewTraffic(n *Nodes, c TrafficConfig) *Traffic {
	t := &Traffic{nodes: n, c: c}
	peer.HandleAsk(n.Mesh, c.Kind, func(r *peerpb.TrafficRequest) *peerpb.TrafficReply { return t.answer(traffic.QueryOf(r)) })
	return t
}

// ForgetSamples drops the samples of a node; empty: of all that are up. It returns false if the node
// did not answer.
func (t *Traffic) ForgetSamples(ctx context.Context, node string) bool {
	q := &traffic.Query{Forget: true}
	others := []string{node}
	ask := Question[*peerpb.TrafficReply]{
		Doing: "drop samples", Wait: answerWait,
		Ask: func(ctx context.Context, node string) (*peerpb.TrafficReply, error) {
			return peer.Ask[peerpb.TrafficReply](ctx, t.nodes.Mesh, node, t.c.Kind, q.Request())
		},
	}
	if node == "" || node == t.nodes.Self {
		ask.Here = func() *peerpb.TrafficReply { return t.answer(q) }
		others = nil
	}
	if node == "" {
		others = t.nodes.Up()
	}
	return len(Ask(ctx, t.nodes, others, ask).Failed) == 0
}

func (t *Traffic) answer(q *traffic.Query) *peerpb.TrafficReply {
	t.collect()
	if q.Forget {
		t.c.Table.ForgetSamples(time.Now())
		t.flows.Forget()
		t.level.Forget()
		return &peerpb.TrafficReply{}
	}
	return t.c.Table.Answer(q)
}

// Traffic asks all nodes that are up. q.Slot is set.
func (t *Traffic) Traffic(ctx context.Context, q traffic.Query) *traffic.Report {
	q.Slot = traffic.SlotAt(time.Now())
	clean := traffic.QueryOf(q.Request())
	report := traffic.NewReport(clean)
	answer := func(*peerpb.TrafficRequest) *peerpb.TrafficReply { return t.answer(clean) }
	for node, reply := range Everywhere(ctx, t.nodes, "read what clients do", answerWait, t.c.Kind, clean.Request(), answer).Of {
		report.Add(node, reply)
	}
	return report
}

// collect adds to the table what was counted since the last time.
func (t *Traffic) collect() {
	t.c.Collect()
	t.addDeaths(t.c.Host.TakeDeaths())
}

// addDeaths adds to the table what died in queues. Those of a queue that does not exist any more count
// for the node only.
func (t *Traffic) addDeaths(of map[fsm.QueueID]group.Died) {
	v := t.c.Catalog.View()
	for id, d := range of {
		vhost := ""
		if q, ok := v.QueueByID(id); ok {
			vhost = q.VHost
		}
		t.c.Table.Died(vhost, id, d.Expired, d.DeadLettered)
	}
}

// Totals are the sums of this node, up to now.
func (t *Traffic) Totals() traffic.Totals {
	t.collect()
	return t.c.Table.Totals()
}

// Each calls f for the counts of each queue, exchange and channel of this node, up to now; one of
// the first three is set.
func (t *Traffic) Each(f func(q fsm.QueueID, x *traffic.Exchange, channel string, c *traffic.Counts)) {
	t.collect()
	t.c.Table.Each(f)
}

// Flow is the rate of a connection of this node.
func (t *Traffic) Flow(of traffic.FlowOf) traffic.FlowRate { return t.flows.Rate(of) }

// LevelRates are the changes in a second of the numbers of this process.
func (t *Traffic) LevelRates() [traffic.LevelCount]float64 { return t.level.Rates() }

// Run takes samples until ctx ends.
func (t *Traffic) Run(ctx context.Context) {
	for {
		t.sample(time.Now())
		next := time.NewTimer(time.Until(time.UnixMilli(traffic.TimeOf(traffic.SlotAt(time.Now()) + 1))))
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
	}
}

// sample takes the samples of a time's slot.
func (t *Traffic) sample(now time.Time) {
	t.flows.Sample(now, t.c.Flows())
	t.level.Sample(now, t.c.Levels())
	t.collect()
	t.c.Table.Sample(now, t.lengths(), exists(t.c.Catalog.View()))
}

// exists says what the cluster has.
func exists(v *catalog.View) traffic.Exists {
	return traffic.Exists{
		Of:    v,
		VHost: func(name string) bool { _, ok := v.VHost(name); return ok },
		Exchange: func(x traffic.Exchange) bool {
			_, ok := v.VHost(x.VHost)
			if x.Name != "" && x.Name != catalog.CommandExchange {
				_, ok = v.Exchange(x.VHost, x.Name)
			}
			return ok
		},
		Queue: func(id fsm.QueueID) bool { _, ok := v.QueueByID(id); return ok },
	}
}

// lengths reads the lengths that have changed, of the queues that this node leads or has led. Of those that have
// not it asks nobody.
func (t *Traffic) lengths() (list []traffic.Length) {
	changed, v := t.c.Host.TakeLengths(), t.c.Catalog.View() // which holds each queue among them, or is without it again
	for id, of := range changed {
		l := traffic.Length{Queue: id}
		if q, ok := v.QueueByID(id); ok {
			l.VHost, l.Ready, l.Unacknowledged = q.VHost, of.Ready, of.Unacknowledged
		}
		list = append(list, l)
	}
	return list
}
