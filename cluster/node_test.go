package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

func numbered(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf("m%05d", i))
	}
	return all
}

func mustBodies(t testing.TB, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("%d messages, want %d; the first difference is at %d: %.5q, want %.5q",
					len(got), len(want), i, got[min(i, len(got)):], want[min(i, len(want)):])
			}
		}
	}
}

// What is published at one node arrives at a consumer of another one, once and
// in order, and all replicas end up empty and equal.
func TestPublishConsumeAcrossNodes(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	out, in := c.mustClient("n2"), c.mustClient("n3")
	in.ack = true
	in.mustConsume("q", 1, 50)
	want := numbered(0, 2000)
	for _, body := range want {
		out.publish("q", body)
	}
	out.confirmed()
	in.await("everything is delivered", func() bool { return len(in.inbox) >= len(want) })
	mustBodies(t, in.bodies(), want)
	until(t, "the queue is empty", func() bool {
		info, err := out.count("q")
		return err == nil && info.Ready == 0 && info.Consumers == 1
	})
	in.close()
	out.close()
	c.mustAgree()
	if r := c.all["n1"].Replicas()[0]; r.Unacknowledged != 0 || r.Consumers != 0 {
		t.Errorf("after the clients have gone the queue has %+v", r)
	}
}

// Gets see each message once, whichever node they come from.
func TestGetAcrossNodes(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	for _, body := range numbered(0, 6) {
		cl.publish("q", body)
	}
	cl.confirmed()
	var got []string
	for i, node := range []string{"n1", "n2", "n3", "n1", "n2", "n3"} {
		other := c.mustClient(node)
		m, ok, err := other.session.Get(deadline(t), "q", i%2 == 0)
		if err != nil || !ok {
			t.Fatalf("get at %s: %v, %v", node, ok, err)
		}
		if want := uint64(5 - i); m.Ready != want {
			t.Errorf("get at %s leaves %d, want %d", node, m.Ready, want)
		}
		got = append(got, string(m.Payload.Body()))
		if i%2 != 0 {
			other.session.Settle(m.Consumer, []uint64{m.ID}, fsm.Ack)
		}
		other.close()
	}
	mustBodies(t, got, numbered(0, 6))
	if _, ok, err := cl.session.Get(deadline(t), "q", true); ok || err != nil {
		t.Errorf("get from the empty queue: %v, %v", ok, err)
	}
	c.mustAgree()
}

// A node that stops and starts again catches up with what it has missed, and
// what it led serves all the while.
func TestNodeReopens(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	for i, node := range names {
		c.mustClient(node).mustDeclare(fmt.Sprintf("q%d", i))
	}
	publish := func(node string, from, to int) {
		cl := c.mustClient(node)
		for i := range names {
			for _, body := range numbered(from, to) {
				cl.publish(fmt.Sprintf("q%d", i), body)
			}
		}
		cl.confirmed()
		cl.close()
	}
	publish("n1", 0, 100)
	for _, node := range names {
		c.stop(node)
		publish(c.other(node), 100, 150)
		c.mustOpen(node)
		publish(node, 150, 200)
	}
	c.mustAgree()
	for i := range names {
		info, err := c.mustClient("n2").count(fmt.Sprintf("q%d", i))
		if err != nil || info.Ready != 400 {
			t.Errorf("q%d holds %d messages, want 400; %v", i, info.Ready, err)
		}
	}
}

// Publishes that are under way when the leader dies are applied once, in
// order, and each is confirmed once.
func TestLeaderLossWhilePublishing(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	node := c.other(leader)
	out, in := c.mustClient(node), c.mustClient(c.other(leader, node))
	in.ack = true
	in.mustConsume("q", 1, 100)
	c.mustDeliverAcross(leader, out, in, numbered(0, 4000))
	c.mustOpen(leader)
	c.mustAgree()
}

// mustDeliverAcross publishes messages while the leader of their queue dies, and all are confirmed and delivered.
func (c *nodes) mustDeliverAcross(leader string, out, in *client, want []string) {
	c.t.Helper()
	for i, body := range want {
		out.publish("q", body)
		if i == len(want)/2 {
			in.await("the first messages are delivered", func() bool { return len(in.inbox) > 10 })
			go c.net.crash(leader)
		}
	}
	c.crash(leader)
	out.confirmed()
	in.await("everything is delivered", func() bool { return len(in.inbox) >= len(want) })
	mustBodies(c.t, in.bodies(), want)
}

// A leader that is cut off and comes back loses nothing of what it was given.
func TestUnreachableLeader(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	outs := []*client{c.mustClient(leader), c.mustClient(c.other(leader))}
	c.net.setMuted(leader, true)
	for _, out := range outs {
		for _, body := range numbered(0, 50) {
			out.publish("q", body)
		}
	}
	outs[1].confirmed() // by another leader
	if at := c.mustLeader("q"); at == leader && c.all[leader].host.Groups()[0].Leading() == 0 {
		t.Errorf("%s still leads", at)
	}
	c.net.setMuted(leader, false)
	outs[0].confirmed()
	info, err := outs[0].count("q")
	if err != nil || info.Ready != 100 {
		t.Errorf("the queue holds %d messages, want 100; %v", info.Ready, err)
	}
	c.mustAgree()
}

// TestLinkToLeaderDown takes away the link between a queue's leader and another member: publishers
// and consumers there go on, by a leader that both reach.
func TestLinkToLeaderDown(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	far := c.other(leader)
	out, in, near := c.mustClient(far), c.mustClient(far), c.mustClient(leader)
	in.mustConsume("q", 1, 0)
	c.net.setApart(leader, far, true)
	want := numbered(0, 50)
	for _, body := range want {
		out.publish("q", body)
		near.publish("q", body+" near")
	}
	out.confirmed()
	near.confirmed()
	in.await("everything is delivered", func() bool { return len(in.inbox) >= 2*len(want) })
	if at := c.mustLeader("q"); at != c.other(leader, far) {
		t.Errorf("%s leads", at)
	}
	c.net.setApart(leader, far, false)
	c.mustAgree()
}

// Dead letters arrive once although the leader of their queue dies while they
// are on their way.
func TestDeadLettersExactlyOnce(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("hold", integer("x-message-ttl", 1), text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", "work"))
	c.mustClient("n2").mustDeclare("work")
	leader := c.mustLeader("hold")
	node := c.other(leader)
	out, in := c.mustClient(node), c.mustClient(c.other(leader, node))
	in.mustConsume("work", 1, 0)
	want := numbered(0, 2000)
	for i, body := range want {
		out.publish("hold", body)
		if i == len(want)/2 {
			in.await("the first letters have arrived", func() bool { return len(in.inbox) > 0 })
			go c.net.crash(leader)
		}
	}
	c.crash(leader)
	out.confirmed()
	in.await("every letter has arrived", func() bool { return len(in.inbox) >= len(want) })
	until(t, "the outbox is empty", func() bool {
		for _, r := range c.all[node].Replicas() {
			if r.Name == "hold" && r.Leader {
				return r.Outbox == 0 && r.Ready == 0
			}
		}
		for _, r := range c.all[in.node].Replicas() {
			if r.Name == "hold" && r.Leader {
				return r.Outbox == 0 && r.Ready == 0
			}
		}
		return false
	})
	got := in.bodies()
	slices.Sort(got)
	mustBodies(t, got, want)
	for _, m := range in.inbox {
		if len(m.Deaths) != 1 || m.Deaths[0].Queue != "hold" || m.Deaths[0].Count != 1 {
			t.Fatalf("a letter has the deaths %v", m.Deaths)
		}
	}
	c.mustOpen(leader)
	c.mustAgree()
}

// Letters for a queue that is deleted meanwhile do not stay.
func TestDeadLettersToDeletedQueue(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("hold", integer("x-message-ttl", 30), text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", "work"))
	for round := range 5 {
		cl.mustDeclare("work")
		for _, body := range numbered(0, 50) {
			cl.publish("hold", fmt.Sprint(body, round))
		}
		cl.confirmed()
		until(t, "letters arrive", func() bool { i, err := cl.count("work"); return err == nil && i.Ready > 0 })
		cl.mustDelete("work")
	}
	until(t, "the outbox is empty", func() bool {
		for _, n := range c.all {
			for _, r := range n.Replicas() {
				if r.Leader && (r.Outbox != 0 || r.Ready != 0) {
					return false
				}
			}
		}
		return true
	})
	c.mustAgree()
}

// What a node held returns when its process has ended.
func TestCrashedConsumer(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	gone := c.other(leader)
	holder := c.mustClient(gone)
	holder.mustConsume("q", 1, 10)
	cl := c.mustClient(leader)
	for _, body := range numbered(0, 10) {
		cl.publish("q", body)
	}
	cl.confirmed()
	holder.await("everything is held", func() bool { return len(holder.inbox) == 10 })
	cl.mustConsume("q", 1, 0)
	c.crash(gone)
	cl.await("everything comes back", func() bool { return len(cl.inbox) == 10 })
	mustBodies(t, cl.bodies(), numbered(0, 10))
	c.mustOpen(gone)
	again := c.mustClient(gone)
	again.mustConsume("q", 1, 10) // under a new boot, not as one of the dead
	again.close()
	c.mustAgree()
}

// What the clients of a silent node hold goes back after a while, and their
// sessions are served again when it is back.
func TestUnreachableConsumer(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.disconnectedGrace = 200 * time.Millisecond })
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	muted := c.other(leader)
	holder := c.mustClient(muted)
	holder.mustConsume("q", 1, 10)
	cl := c.mustClient(leader)
	for _, body := range numbered(0, 10) {
		cl.publish("q", body)
	}
	holder.await("everything is held", func() bool { return len(holder.inbox) == 10 })
	c.net.setMuted(muted, true)
	cl.mustConsume("q", 1, 0)
	cl.await("everything comes back", func() bool { return len(cl.inbox) == 10 })
	c.net.setMuted(muted, false)
	for _, m := range cl.inbox {
		if m.Acquired != 1 || m.Failed != 0 {
			t.Errorf("%q was handed out %d times, %d failed", m.Payload.Body(), m.Acquired, m.Failed)
		}
	}
	holder.session.Settle(1, []uint64{holder.inbox[0].ID}, fsm.Ack) // too late
	if err := cl.session.Cancel(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	holder.publish("q", "again")
	holder.confirmed()
	holder.await("its consumer is served again", func() bool { return len(holder.inbox) == 11 })
	if holder.lost != nil {
		t.Errorf("the session is lost: %v", holder.lost)
	}
	c.mustAgree()
}

// A node that is back in time has lost nothing.
func TestUnreachableForAWhile(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	muted := c.other(leader)
	holder, cl := c.mustClient(muted), c.mustClient(leader)
	holder.mustConsume("q", 1, 10)
	for _, body := range numbered(0, 10) {
		cl.publish("q", body)
	}
	holder.await("everything is held", func() bool { return len(holder.inbox) == 10 })
	c.net.setMuted(muted, true)
	cl.mustConsume("q", 1, 0)
	cl.publish("q", "meanwhile")
	cl.await("the other consumer has it", func() bool { return len(cl.inbox) == 1 })
	c.net.setMuted(muted, false)
	for _, m := range holder.inbox {
		holder.session.Settle(1, []uint64{m.ID}, fsm.Ack)
	}
	if err := cl.session.Cancel(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	cl.publish("q", "new")
	holder.await("its credit is back", func() bool { return len(holder.inbox) == 11 })
	mustBodies(t, holder.bodies(), append(numbered(0, 10), "new"))
	mustBodies(t, cl.bodies(), []string{"meanwhile"})
	c.mustAgree()
}

// Queues are declared and deleted at all nodes at a time; at the end every
// node has the replicas that the catalog wants, and no other.
func TestDeclareDeleteRaces(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	const rounds = 25
	var wait sync.WaitGroup
	for i, node := range names {
		cl := c.mustClient(node)
		wait.Go(func() {
			for r := range rounds {
				name := fmt.Sprintf("q%d", (r+i)%3)
				if _, err := cl.declare(fsm.QueueSpec{Name: name, Durable: true}); err != nil && !isRefusal(err, fsm.NotFoundKind) {
					t.Errorf("declare %s at %s: %v", name, node, err)
				}
				err := retried(t, func(ctx context.Context) error {
					_, err := cl.session.DeleteQueue(ctx, name, false, false)
					return err
				})
				if err != nil {
					t.Errorf("delete %s at %s: %v", name, node, err)
				}
			}
			cl.close()
		})
	}
	wait.Wait()
	cl := c.mustClient("n3")
	for i := range 3 {
		cl.mustDeclare(fmt.Sprintf("q%d", i))
		cl.publish(fmt.Sprintf("q%d", i), "m")
	}
	cl.confirmed()
	c.mustAgree()
	for name, n := range c.all {
		if got := len(n.Replicas()); got != 3 {
			t.Errorf("%s has %d replicas, want 3", name, got)
		}
		onDisk, err := n.stores.queues.GroupIDs()
		if err != nil || len(onDisk) != 3 {
			t.Errorf("%s has the groups %v on disk, want 3; %v", name, onDisk, err)
		}
	}
}

// A cluster that was stopped as a whole has everything when it starts again.
func TestRestartOfAllNodes(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n2")
	cl.mustDeclare("q")
	cl.mustDeclareExchange(fsm.ExchangeSpec{Name: "x", Type: "direct", Durable: true})
	cl.mustBind("x", "q", "k")
	for _, body := range numbered(0, 300) {
		cl.publish("q", body)
	}
	cl.confirmed()
	for range 100 {
		m, ok, err := cl.session.Get(deadline(t), "q", false)
		if err != nil || !ok {
			t.Fatal(m, ok, err)
		}
		cl.session.Settle(m.Consumer, []uint64{m.ID}, fsm.Ack)
	}
	cl.close() // when all is settled
	for _, name := range names {
		c.stop(name)
	}
	c.mustOpen(names...)
	in := c.mustClient("n3")
	in.ack = true
	in.mustConsume("q", 1, 0)
	in.await("everything is there", func() bool { return len(in.inbox) >= 200 })
	mustBodies(t, in.bodies(), numbered(100, 300))
	if got := len(c.all["n1"].View().BindingsFrom("/", "x")); got != 1 {
		t.Errorf("the exchange has %d bindings, want 1", got)
	}
	in.close()
	c.mustAgree()
}

// Consumers of a deleted queue are told, publishes to it are answered, and a
// new queue of the name is another one.
func TestDeleteWhileInUse(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	in, out := c.mustClient("n2"), c.mustClient("n3")
	in.mustConsume("q", 7, 1)
	for _, body := range numbered(0, 20) {
		out.publish("q", body)
	}
	if n, err := cl.session.DeleteQueue(deadline(t), "q", false, false); err != nil || n > 20 {
		t.Fatalf("delete removes %d messages, %v", n, err)
	}
	in.await("the consumer is cancelled", func() bool { return len(in.cancelled) == 1 && in.cancelled[0] == 7 })
	out.confirmed()
	if _, err := in.count("q"); !isRefusal(err, fsm.NotFoundKind) {
		t.Errorf("the deleted queue answers %v", err)
	}
	out.mustDeclare("q")
	until(t, "the view is there", func() bool { _, err := in.count("q"); return err == nil })
	in.mustConsume("q", 8, 0)
	out.publish("q", "new")
	in.await("the new queue delivers", func() bool {
		return len(in.inbox) > 0 && string(in.inbox[len(in.inbox)-1].Payload.Body()) == "new"
	})
	c.mustAgree()
}
