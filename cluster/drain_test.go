package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// A leadership goes round while messages flow: each is delivered once and in
// order, and whoever is asked to take over leads.
func TestTransferUnderLoad(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	out, in := c.mustClient("n2"), c.mustClient("n3")
	in.ack = true
	in.mustConsume("q", 1, 50)
	var want []string
	for round, to := range []string{"n2", "n3", "n1", "n3", "n2", "n1"} {
		bodies := numbered(round*300, round*300+300)
		for i, body := range bodies {
			out.publish("q", body)
			if i == len(bodies)/2 {
				c.mustTransfer("q", to)
			}
		}
		want = append(want, bodies...)
	}
	out.confirmed()
	in.await("everything is delivered", func() bool { return len(in.inbox) >= len(want) })
	mustBodies(t, in.bodies(), want)
}

// mustTransfer makes a node the leader of a queue, as soon as it can be.
func (c *nodes) mustTransfer(queue, to string) {
	c.t.Helper()
	until(c.t, to+" leads", func() bool {
		leader := c.mustLeader(queue)
		if leader == to {
			return true
		}
		n := c.all[leader]
		q, ok := n.View().Queue("/", queue)
		return ok && n.placement.TransferLeadership(deadline(c.t), q, to) == nil && c.leader(queue) == to
	})
}

// A drained node leads nothing, says so, and is not chosen for what is declared
// meanwhile; a rebalance after its revival gives it its share.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	queues := []string{"a", "b", "c", "d", "e", "f"}
	for _, q := range queues {
		cl.mustDeclare(q)
		c.mustTransfer(q, "n1")
	}
	n1 := c.all["n1"]
	d, err := n1.placement.Drain(deadline(t))
	if err != nil || d.Left != 0 || d.Moved < len(queues) {
		t.Fatalf("drained: %+v, %v", d, err)
	}
	until(t, "everybody knows", func() bool {
		return c.all["n2"].isDraining("n1") && c.all["n3"].isDraining("n1") && !n1.Ready()
	})
	for _, q := range queues {
		if leader := c.mustLeader(q); leader == "n1" {
			t.Errorf("%s is led by the drained node", q)
		}
	}
	q, _ := n1.View().Queue("/", "a")
	if err := n1.placement.TransferLeadership(deadline(t), q, "n1"); err == nil {
		t.Error("a drained node is made a leader")
	}
	var r api.Rebalanced
	err = retried(t, func(ctx context.Context) (err error) {
		r, err = c.all["n2"].placement.Rebalance(ctx, nil, nil)
		return err
	})
	if err != nil || slices.ContainsFunc(r.Nodes, func(n api.NodeLeaders) bool { return n.Node == "n1" && n.Leaders > 0 }) {
		t.Errorf("rebalanced: %+v, %v", r, err)
	}
	if err := retried(t, n1.placement.Revive); err != nil {
		t.Fatal(err)
	}
	until(t, "each node leads two", func() bool {
		if c.all["n2"].isDraining("n1") {
			return false
		}
		r, err = c.all["n2"].placement.Rebalance(deadline(t), nil, nil)
		return err == nil && len(r.Nodes) == 3 && !slices.ContainsFunc(r.Nodes, func(n api.NodeLeaders) bool { return n.Leaders != 2 })
	})
	until(t, "the node is back", func() bool { return !n1.placement.Draining() && n1.Ready() })
}

// A node that is drained and revived before it serves clients has its listeners opened again: nobody else does.
func TestRevivedBeforeItIsReady(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n1, d := c.all["n1"], new(shutListeners)
	n1.SetClients(d)
	n1.ready.Store(false)
	for _, act := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := n1.placement.Drain(ctx); return err },
		n1.placement.Revive,
	} {
		if err := retried(t, act); err != nil {
			t.Fatal(err)
		}
	}
	if d.reason == "" || d.opened != 1 {
		t.Errorf("shut for %q, and opened %d times", d.reason, d.opened)
	}
}

// A drain does not wait for a member to take over where all others are about to stop, too.
func TestDrainOfTheLast(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	for _, name := range []string{"n2", "n3", "n1"} {
		ctx, cancel := context.WithTimeout(deadline(t), 30*time.Second)
		d, err := c.all[name].placement.Drain(ctx)
		ended := ctx.Err()
		cancel()
		if err != nil || ended != nil || (d.Left > 0) != (name == "n1") {
			t.Errorf("%s is drained: %+v, %v, %v", name, d, err, ended)
		}
	}
}

// A drain waits for the only member that can take over while that one must not lead yet.
func TestDrainWaits(t *testing.T) {
	t.Parallel()
	c, poisons := poisonable(t)
	cl := c.mustClient("n1")
	cl.mustDelay("source", "work")
	c.mustTransfer("source", "n3")
	poisons["n3"].active.Store(true)
	cl.publishMarked("source", "x")
	until(t, "the queue is quarantined", func() bool { return slices.Equal(c.quarantined("source"), []string{"n3"}) })
	poisons["n3"].active.Store(false)
	c.mustTransfer("source", "n1")
	if _, err := c.all["n2"].placement.Drain(deadline(t)); err != nil {
		t.Fatal(err)
	}
	drained := make(chan int, 1)
	go func() {
		d, _ := c.all["n1"].placement.Drain(deadline(t))
		drained <- d.Left
	}()
	until(t, "the node drains", func() bool { return c.all["n1"].placement.Draining() })
	select {
	case left := <-drained:
		t.Fatalf("it leaves %d leaderships, and does not wait", left)
	case <-time.After(500 * time.Millisecond):
	}
	q, _ := c.all["n3"].View().Queue("/", "source")
	if err := c.all["n3"].host.Group(q.Group).LiftQuarantine(); err != nil {
		t.Fatal(err)
	}
	if left := <-drained; left != 0 || c.mustLeader("source") != "n3" {
		t.Errorf("%d leaderships are left, and %q leads", left, c.leader("source"))
	}
}
