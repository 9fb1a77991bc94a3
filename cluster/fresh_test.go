package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/fsm"
)

// try publishes a message once, and reports whether it went anywhere.
func (c *client) try(exchange, key string, fresh bool) (bool, error) {
	c.next++
	c.mu.Lock()
	c.pending++
	c.mu.Unlock()
	routed, err := c.session.Publish(&fsm.Publish{
		Number: c.next, Exchange: exchange, RoutingKey: key, TTL: -1, Priority: -1, Fresh: fresh,
		Payload: append(fsm.AppendPayloadHead(nil, exchange, key, nil), "body"...),
		Headers: func() *fsm.Table { return nil },
	})
	if !routed {
		c.event(func() { c.pending-- })
	}
	return routed, err
}

// routes publishes as the front does, and reports whether the message went
// anywhere.
func (c *client) routes(exchange, key string) bool {
	c.t.Helper()
	routed, err := c.try(exchange, key, false)
	if errors.Is(err, fsm.ErrNotFresh) {
		if err := c.session.Refresh(deadline(c.t)); err != nil {
			c.t.Fatal(err)
		}
		routed, err = c.try(exchange, key, true)
	}
	if err != nil {
		c.t.Fatalf("publish at %s: %v", c.node, err)
	}
	return routed
}

// catalogLeader waits for the leader of the catalog.
func (c *nodes) catalogLeader() string {
	c.t.Helper()
	leader := ""
	until(c.t, "the catalog has a leader", func() bool {
		for name, n := range c.all {
			if n.catalog.Leader() == name {
				leader = name
				return true
			}
		}
		return false
	})
	return leader
}

// TestAnswersAreTrueEverywhere changes routes at one node, and uses them at another
// one that learns of everything late.
func TestAnswersAreTrueEverywhere(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, slowLinks)
	leader := c.catalogLeader()
	slow := c.other(leader)
	here, there := c.mustClient(c.other(leader, slow)), c.mustClient(slow)
	c.net.setLate(slow, 250*time.Millisecond)
	check := func(what string, err error, exchange, key string, want bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if there.routes(exchange, key) != want {
			t.Errorf("%s: a publish at another node is routed: %v", what, !want)
		}
	}
	for i := range 4 {
		q := fmt.Sprint("q", i)
		local := fmt.Sprint("local", i)
		binding := fsm.BindSpec{Source: "amq.direct", Destination: q, RoutingKey: q}
		here.mustDeclare(q)
		check("declare", nil, "", q, true)
		check("bind", here.session.Bind(deadline(t), binding), "amq.direct", q, true)
		check("unbind", here.session.Unbind(deadline(t), binding), "amq.direct", q, false)
		_, err := here.session.DeleteQueue(deadline(t), q, false, false)
		check("delete", err, "", q, false)
		_, err = here.session.DeclareQueue(deadline(t), fsm.QueueSpec{Name: local})
		check("declare a local queue", err, "", local, true)
		here.mustDeclare(q)
		check("declare again", nil, "", q, true)
	}
	there.confirmed()
}

// What an operator was told at one node is so at every other one.
func TestOperatorsGetTrueAnswers(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, slowLinks)
	leader := c.catalogLeader()
	slow := c.other(leader)
	here, there := c.all[c.other(leader, slow)], c.all[slow]
	c.net.setLate(slow, 250*time.Millisecond)
	for range 3 {
		if _, err := here.placement.Drain(deadline(t)); err != nil || !there.isDraining(here.config.Name) {
			t.Errorf("drained (%v), and another node does not know", err)
		}
		if err := here.placement.Revive(deadline(t)); err != nil || there.isDraining(here.config.Name) {
			t.Errorf("revived (%v), and another node does not know", err)
		}
	}
}

// TestRepeatedIsTrueEverywhere tells a client of a queue that another one is just
// declaring.
func TestRepeatedIsTrueEverywhere(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, slowLinks)
	leader := c.catalogLeader()
	slow := c.other(leader)
	here, again, there := c.mustClient(leader), c.mustClient(leader), c.mustClient(slow)
	c.net.setLate(slow, 250*time.Millisecond)
	for i := range 4 {
		q := fmt.Sprint("q", i)
		declared := make(chan struct{})
		go func() {
			here.mustDeclare(q)
			close(declared)
		}()
		until(t, "the queue is in the leader's view", func() bool {
			_, ok := c.all[leader].View().Queue("/", q)
			return ok
		})
		again.mustDeclare(q)
		if !there.routes("", q) {
			t.Error("a publish at another node is not routed")
		}
		<-declared
	}
}

// TestNotFresh takes a node off the network: it routes no more, and nobody waits
// for it but once.
func TestNotFresh(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	leader := c.catalogLeader()
	cut := c.other(leader)
	here, there := c.mustClient(leader), c.mustClient(cut)
	here.mustDeclare("before")
	if !there.routes("", "before") {
		t.Error("not routed")
	}
	c.net.setMuted(cut, true)
	here.mustDeclare("after") // by then the other one has no lease
	if routed, err := there.try("", "before", false); routed || !errors.Is(err, fsm.ErrNotFresh) {
		t.Errorf("a node that may not be up to date routes: %v, %v", routed, err)
	}
	if left, _ := c.all[cut].catalog.LeaseLeft(); left > 0 {
		t.Errorf("lease for another %v", left)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := there.session.Refresh(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("refresh: %v", err)
	}
	bound := 0
	until(t, "a bind does not wait for the silent node", func() bool { // nor for a busy machine
		start := time.Now()
		bound++
		here.mustBind("amq.direct", "after", fmt.Sprint(bound))
		return time.Since(start) < replicated.LeaseTime/2
	})
	c.net.setMuted(cut, false)
	if !there.routes("amq.direct", fmt.Sprint(bound)) {
		t.Error("what was bound meanwhile is not known")
	}
	there.confirmed()
}

// TestLeaderFromElsewhere lets a new leader change routes before an old lease
// has ended.
func TestLeaderFromElsewhere(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, slowLinks)
	leader := c.catalogLeader()
	slow := c.other(leader)
	next := c.other(leader, slow)
	there, here := c.mustClient(slow), c.mustClient(next)
	for i := range 3 {
		c.net.setLate(slow, 0)
		until(t, "the node has a lease", c.all[slow].Fresh)
		c.net.setLate(slow, 300*time.Millisecond)
		until(t, "another node leads the catalog", func() bool {
			from, to := c.catalogLeader(), next
			if from == next {
				to = leader
			}
			return c.all[from].catalog.Transfer(to) == nil
		})
		q := fmt.Sprint("q", i)
		here.mustDeclare(q)
		if !there.routes("", q) {
			t.Error("a publish at another node is not routed")
		}
	}
}

// TestBridge takes away the link between the catalog's leader and another node:
// that one goes on, and learns what is new.
func TestBridge(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	leader := c.catalogLeader()
	far := c.other(leader)
	bridge := c.other(leader, far)
	here, there := c.mustClient(bridge), c.mustClient(far)
	here.mustDeclare("before")
	c.net.setApart(leader, far, true)
	until(t, "the leader is out of sight", func() bool { return !c.all[far].mesh.Alive(leader) })
	if !there.routes("", "before") {
		t.Error("not routed")
	}
	here.mustDeclare("after")
	if !there.routes("", "after") {
		t.Error("a publish at the far node is not routed")
	}
	there.confirmed()
}

// TestStopIsNotWaitedFor stops nodes in order: nobody waits for their leases.
func TestStopIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	leader := c.catalogLeader()
	round := 0
	until(t, "a bind does not wait for a node that has stopped", func() bool { // nor for a busy machine
		gone := c.other(leader)
		here := c.mustClient(leader)
		here.mustDeclare("q")
		c.stop(gone)
		leader = c.catalogLeader()
		start := time.Now()
		round++
		here.mustBind("amq.direct", "q", fmt.Sprint(round))
		took := time.Since(start)
		here.close()
		c.mustOpen(gone)
		return took < replicated.LeaseTime/2
	})
}
