package jepsen

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/nemesis"
)

const (
	farBody    = 40 << 10
	farWindow  = 16                    // unconfirmed messages of each publisher
	farPause   = 10 * time.Millisecond // between two publishes, at least
	farTime    = 15 * time.Second      // for which far nodes are observed
	farSettles = time.Minute           // within which nodes that have become far work again
	farRoutes  = 0.9                   // of the time, at least, each node may route
	// farShare is how much of what the way allows publishers of a queue with a far leader reach, at least: a
	// window in each round trip at the leader, and half a window at the others, to whom an answer comes after
	// two round trips.
	farShare = 0.6
)

// Nodes are far from each other: the leader of a queue, a follower of it, or both. They have their links
// again after a moment, each of them may route publishes, and the catalog has a leader. What publishers
// reach is logged; where the leader is far, they wait for the way alone, and its leadership can be handed over.
func TestFarNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: runs with make test-cluster")
	}
	for _, far := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond} {
		for _, who := range []string{"leader", "follower", "both"} {
			t.Run(fmt.Sprint(who, " ", far), func(t *testing.T) { testFarNodes(t, who, far) })
		}
	}
}

func testFarNodes(t *testing.T, who string, far time.Duration) {
	r := mustStartWith(t, 5*time.Minute, cluster.Options{Links: true})
	conn, err := client.Connect(r.ctx, r.Nodes[0].URI())
	r.must(err)
	_, err = r.mustChannel(conn).QueueDeclare("orders", true, false, false, false, amqp.Table{"x-max-length": 1000})
	r.must(err)
	r.must(conn.Close())
	leader, err := nemesis.AwaitLeader(r.ctx, r.Cluster, "orders", nil)
	r.must(err)
	follower := r.Nodes[leader.Number%len(r.Nodes)]
	distant := map[string][]*cluster.Node{"leader": {leader}, "follower": {follower}, "both": {leader, follower}}[who]
	confirmed := r.publishEverywhere("orders")
	for _, n := range distant {
		for _, other := range r.Nodes {
			if other != n {
				r.Links.Delay(n.Number, other.Number, far)
				r.Links.Delay(other.Number, n.Number, far)
			}
		}
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, farSettles)
	defer cancel()
	r.must(await.Until(ctx, 250*time.Millisecond, "links to far nodes, and leases", func() (bool, error) {
		for _, n := range r.Nodes {
			if err := farWorks(ctx, n, distant, 2*far); err != nil {
				return false, err
			}
		}
		return true, nil
	}))
	t.Logf("all nodes have links and may route after %v", time.Since(began).Round(100*time.Millisecond))
	before, windows := make([]int64, len(r.Nodes)), make([][]time.Duration, len(r.Nodes))
	for i := range r.Nodes {
		before[i] = confirmed[i].Load()
	}
	routes, samples := make([]int, len(r.Nodes)), 0
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began = time.Now(); time.Since(began) < farTime; samples++ {
		<-tick.C
		for i, n := range r.Nodes {
			for confirmed[i].Load()-before[i] >= int64(len(windows[i])+1)*farWindow {
				windows[i] = append(windows[i], time.Since(began))
			}
			if left, err := n.Metric(r.ctx, "quorate_route_lease_seconds"); err == nil && left > 0 {
				routes[i]++
			}
		}
	}
	for i, n := range r.Nodes {
		trips := 0.0
		if last := len(windows[i]) - 1; last > 0 { // confirms come a window at a time
			trips = float64(last) * (2 * far).Seconds() / (windows[i][last] - windows[i][0]).Seconds()
		}
		t.Logf("%s: may route in %d of %d samples; confirmed %.2f windows in a round trip", n.Name(), routes[i], samples, trips)
		if float64(routes[i]) < farRoutes*float64(samples) {
			t.Errorf("%s may route in %d of %d samples", n.Name(), routes[i], samples)
		}
		if limit := map[bool]float64{true: 1, false: 0.5}[n == leader]; who == "leader" && trips < farShare*limit {
			t.Errorf("%s: confirmed %.2f windows in a round trip, the way allows %.2f", n.Name(), trips, limit)
		}
	}
	conn, err = client.Connect(r.ctx, r.Nodes[2].URI())
	r.must(err)
	began = time.Now()
	_, err = r.mustChannel(conn).QueueDeclare("more", true, false, false, false, nil)
	r.must(err) // the catalog has a leader
	t.Logf("a queue is declared in %v", time.Since(began).Round(100*time.Millisecond))
	r.must(conn.Close())
	if who == "leader" {
		began = time.Now()
		d, err := leader.Drain(r.ctx)
		r.must(err)
		t.Logf("the leader is drained in %v: %+v", time.Since(began).Round(100*time.Millisecond), d)
		if d.Left > 0 {
			t.Error("leaderships are left")
		}
	}
	r.must(r.Links.Heal())
}

// farWorks reports why a node does not do its part among distant ones: it lacks a link to another node, has
// not noticed how far that is, or may not route.
func farWorks(ctx context.Context, n *cluster.Node, distant []*cluster.Node, roundTrip time.Duration) error {
	left, err := n.Metric(ctx, "quorate_route_lease_seconds")
	if err != nil {
		return err
	}
	links, err := n.Metric(ctx, "quorate_peer_linked")
	if err != nil {
		return err
	}
	for _, d := range distant {
		if d == n {
			continue
		}
		took, err := n.Metric(ctx, "quorate_peer_round_trip_seconds", `"`+d.Name()+`"`)
		if err != nil {
			return err
		}
		if took < roundTrip.Seconds() {
			return fmt.Errorf("%s has a round trip of %v s to %s", n.Name(), took, d.Name())
		}
	}
	if left <= 0 || links < 2 {
		return fmt.Errorf("%s has a lease for %v s, and %v links", n.Name(), left, links)
	}
	return nil
}

// publishEverywhere publishes to a queue at every node until the test ends, and counts what is confirmed.
func (r *run) publishEverywhere(queue string) []atomic.Int64 {
	confirmed := make([]atomic.Int64, len(r.Nodes))
	ctx, cancel := context.WithCancel(r.ctx)
	var all sync.WaitGroup
	for i, n := range r.Nodes {
		all.Go(func() {
			for ctx.Err() == nil {
				_ = publishAt(ctx, n, queue, &confirmed[i]) // and again
			}
		})
	}
	r.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return confirmed
}

// channelAt opens a channel on a connection of its own, which leave closes.
func channelAt(ctx context.Context, n *cluster.Node) (ch *amqp.Channel, leave func(), err error) {
	conn, err := client.Connect(ctx, n.URI())
	if err != nil {
		return nil, nil, err
	}
	leave = func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
	if ch, err = conn.Channel(); err != nil {
		leave()
		return nil, nil, err
	}
	return ch, leave, nil
}

// publishAt keeps a window of publishes unconfirmed.
func publishAt(ctx context.Context, n *cluster.Node, queue string, confirmed *atomic.Int64) error {
	ch, leave, err := channelAt(ctx, n)
	if err != nil {
		return err
	}
	defer leave()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	answers := ch.NotifyPublish(make(chan amqp.Confirmation, farWindow))
	pace := time.NewTicker(farPause)
	defer pace.Stop()
	for open := 0; ; open-- {
		for ; open < farWindow; open++ {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			m := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: make([]byte, farBody)}
			if err := ch.PublishWithContext(ctx, "", queue, false, false, m); err != nil {
				return err
			}
		}
		select {
		case a, ok := <-answers:
			if !ok {
				return amqp.ErrClosed
			}
			if a.Ack {
				confirmed.Add(1)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
