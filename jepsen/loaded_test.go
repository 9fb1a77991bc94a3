package jepsen

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// loadPublishers at the followers of a queue have so many large messages unconfirmed each.
	loadPublishers = 3
	loadWindow     = 400
	loadSize       = 100_000
	loadOpen       = loadPublishers * loadWindow
	// crowd is how many busy loops run beside a loaded queue.
	crowd = 4
	// crowdedConfirms are awaited beside them: some windows, and some seconds.
	crowdedConfirms = 6 * loadOpen
)

// The node that leads a queue is drained while publishers have a hundred megabytes without a confirm:
// confirms go on, the leadership is elsewhere soon, and no more is sent again than a new leader lacks.
func TestDrainUnderLoad(t *testing.T) {
	r := mustStart(t, 5*time.Minute)
	leader, stopped := r.loadOrders()
	r.must(r.awaitConfirms(r.ctx, 2*loadOpen))
	began := time.Now()
	d, err := leader.Drain(r.ctx)
	r.must(err)
	r.notLate("the node is drained", began, 0)
	if d.Left != 0 {
		r.Errorf("%d leaderships are left", d.Left)
	}
	r.must(r.awaitConfirms(r.ctx, 2*loadOpen))
	r.settleOrders(stopped)
	if now := r.term(leader.Number); now.Leader {
		r.Error("a drained node leads")
	}
	if again := r.sum("quorate_commands_resent_total"); again > loadOpen {
		r.Errorf("%v commands were sent again, %d were open", again, loadOpen)
	}
}

// Others use the processors while publishers have a hundred megabytes without a confirm: confirms go on,
// the leader remains, and nothing is sent twice.
func TestLoadedBesideOthers(t *testing.T) {
	r := mustStart(t, 5*time.Minute)
	leader, stopped := r.loadOrders()
	before := r.term(leader.Number)
	for range crowd {
		loop := exec.CommandContext(r.ctx, "sh", "-c", "while :; do :; done")
		r.must(loop.Start())
		defer func() { _ = loop.Wait() }()
		defer func() { _ = loop.Process.Kill() }()
	}
	r.must(r.awaitConfirms(r.ctx, crowdedConfirms))
	after := r.term(leader.Number)
	if after.Term != before.Term || !after.Leader {
		r.Errorf("the leader has changed: %+v, then %+v", before, after)
	}
	r.settleOrders(stopped)
	for _, counter := range []string{"quorate_commands_resent_total", "quorate_commands_repeated_total"} {
		if n := r.sum(counter); n != 0 {
			r.Errorf("%s: %v", counter, n)
		}
	}
}

// loadOrders declares a queue, orders, and publishes to it through the nodes that do not lead it. stopped ends
// that, once everything is confirmed.
func (r *run) loadOrders() (leader *cluster.Node, stopped func() error) {
	r.Helper()
	r.mustDeclare(0, "orders")
	leader, err := nemesis.AwaitLeader(r.ctx, r.Cluster, "orders", nil)
	r.must(err)
	var uris []string
	for i := range r.Nodes {
		if n := r.Nodes[(leader.Number+i)%len(r.Nodes)]; n != leader {
			uris = append(uris, n.URI())
		}
	}
	stop := make(chan struct{})
	ended := together(loadPublishers, func(i int) error {
		p := client.Publisher{Name: fmt.Sprint("publisher ", i+1), URIs: uris, First: i, Window: loadWindow}
		return p.Run(r.ctx, r.History, workload.Until(stop, plain("orders", loadSize)))
	})
	r.must(r.awaitConfirms(r.ctx, loadOpen))
	return leader, func() error {
		close(stop)
		return ended()
	}
}

// settleOrders ends a load, takes all messages, and checks that none is lost or came twice, and that confirms
// went on.
func (r *run) settleOrders(stopped func() error) {
	r.Helper()
	r.must(stopped())
	h := r.History
	h.Stall = machine.Longest(r.began)
	r.Logf("%d confirmed, longest time without a confirm %v, sent again %v, known to leaders already %v, longest stall %v", h.Confirmed(),
		h.LongestGap().Round(time.Millisecond), r.sum("quorate_commands_resent_total"), r.sum("quorate_commands_repeated_total"), h.Stall.Round(time.Millisecond))
	r.checkGap(h.LongestGap(), false, h.Stall)
	r.must(workload.Drain(r.ctx, r.Nodes[1].URI(), "orders", "drain", h))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
}

// term is what a node reports about its replica of orders.
func (r *run) term(node int) cluster.Replica {
	r.Helper()
	all, err := r.Nodes[node-1].ReplicasOf(r.ctx, "orders")
	r.must(err)
	if len(all) != 1 {
		r.Fatalf("node %d has %d replicas", node, len(all))
	}
	return all[0]
}

// sum adds up a metric of all nodes.
func (r *run) sum(metric string) (sum float64) {
	r.Helper()
	for _, n := range r.Nodes {
		v, err := n.Metric(r.ctx, metric)
		r.must(err)
		sum += v
	}
	return sum
}
