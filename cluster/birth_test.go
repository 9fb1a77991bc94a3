package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// mustBeUnborn checks that all nodes that are up have a replica of a queue, which sleeps and has nothing on disk.
func (c *nodes) mustBeUnborn(queue string) {
	c.t.Helper()
	for name, n := range c.all {
		q, ok := n.View().Queue("/", queue)
		if !ok {
			c.t.Fatalf("%s has no queue %s", name, queue)
		}
		if g := n.host.Group(q.Group); g == nil || !g.Asleep() {
			c.t.Errorf("%s is not asleep at %s", queue, name)
		}
		if (&raftlog.Records{Store: n.stores.queues}).Has(q.Group) {
			c.t.Errorf("%s has something of %s on disk", name, queue)
		}
	}
}

// group is a node's replica of a queue.
func (n *Node) group(queue string) *group.Group {
	q, _ := n.View().Queue("/", queue)
	return n.host.Group(q.Group)
}

// mustBeCurrent waits until the cluster has the newest version: until then queues are opened when they are declared.
func (c *nodes) mustBeCurrent() {
	c.t.Helper()
	until(c.t, "all nodes have the newest version", func() bool {
		for _, n := range c.all {
			if n.View().FSMVersion() < fsm.NewestVersion {
				return false
			}
		}
		return true
	})
}

// A declare is the catalog's entry alone: the queue has a leader at once, at all nodes, and is counted, listed, redeclared
// and deleted without anything on disk. Whoever uses it first, from anywhere, wakes it.
func TestDeclareIsAnEntryOfTheCatalog(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl := c.mustClient("n1")
	for _, q := range []string{"a", "b", "c"} {
		cl.mustDeclare(q)
		c.mustBeUnborn(q)
	}
	url := mustServe(t, c.all["n2"])
	row := mustSend(t, "GET", url+"/api/queues/%2F/a", "", 200)
	if row["leader"] != "n1" || row["state"] != "running" || row["settings_in_force"] != true || row["messages"] != 0.0 {
		t.Errorf("the queue is described as %v", row)
	}
	mustSend(t, "PUT", url+"/api/policies/%2F/p", `{"pattern":"^a","apply-to":"queues","definition":{"max-length":4}}`, 201)
	awaitQueue(t, url, "a", "policy", "p")
	if info, err := cl.count("a"); err != nil || info.Ready != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	if len(c.all["n3"].Replicas()) != 3 {
		t.Error("n3 does not list its replicas")
	}
	for _, q := range []string{"a", "c"} {
		c.mustBeUnborn(q)
	}
	for i, node := range []string{"n2", "n1", "n3"} {
		at := c.mustClient(node)
		for _, body := range numbered(0, 6) {
			at.publish([]string{"a", "b", "c"}[i], body)
		}
		at.confirmed()
		at.close()
	}
	for q, want := range map[string]uint64{"a": 4, "b": 6} {
		until(t, "all is there", func() bool { info, err := cl.count(q); return err == nil && info.Ready == want })
	}
	c.mustAgree()
	for _, q := range []string{"a", "b", "c"} {
		if g := c.all["n1"].group(q); g.Term() != 1 || g.Leading() != 1 {
			t.Errorf("%s is in term %d", q, g.Term())
		}
	}
	cl.mustDeclare("d")
	cl.mustDelete("d")
	cl.mustDeclare("d")
	c.mustBeUnborn("d")
	cl.mustConsume("d", 1, 10)
	cl.publish("d", "m")
	cl.await("it is delivered", func() bool { return len(cl.inbox) == 1 })
}

// The process that leads a queue in its first term is the one that was there when it was declared. After a restart another
// term begins, and whoever publishes meets its leader.
func TestRestartBeforeBirth(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	cl.mustDeclare("r")
	c.mustBeUnborn("q")
	cl.close()
	c.crash("n1")
	c.mustOpen("n1")
	if g := c.all["n1"].group("q"); g.Term() == 1 && g.Leading() != 0 {
		t.Fatal("it leads the first term again")
	}
	cl = c.mustClient("n1")
	cl.publish("q", "m")
	cl.confirmed()
	cl.close()
	for _, name := range names {
		c.crash(name)
	}
	c.mustOpen(names...)
	cl = c.mustClient("n2")
	cl.publish("q", "m")
	cl.publish("r", "m")
	cl.confirmed()
	if info, err := cl.count("q"); err != nil || info.Ready != 2 {
		t.Errorf("%+v, %v", info, err)
	}
	c.mustAgree()
}

// The first member dies before anything has happened, for good: the others take the first message.
func TestFirstMemberDiesBeforeBirth(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	cl.mustDeclare("r")
	cl.close()
	c.crash("n1")
	cl = c.mustClient("n2")
	cl.publish("q", "m")
	cl.confirmed()
	c.mustLeader("r") // nobody waits for it
	if info, err := cl.count("r"); err != nil || info.Ready != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	cl.mustDeclare("s") // its first member is up
	cl.publish("s", "m")
	cl.confirmed()
}

// Members that change before anything has happened found nothing: those that stay have the group, and those that come get it.
func TestMembersChangeBeforeBirth(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	c.mustBeUnborn("q")
	change := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		if err := retried(t, f); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	n := c.all["n2"]
	change("delete n3", func(ctx context.Context) error { return n.placement.DeleteMember(ctx, "/", "q", "n3") })
	cl.close()
	for _, name := range names {
		c.crash(name)
	}
	c.mustOpen(names...)
	n = c.all["n2"]
	change("add n3", func(ctx context.Context) error { return n.placement.AddMember(ctx, "/", "q", "n3") })
	c.mustMembers("q", names...)
	cl = c.mustClient("n3")
	cl.publish("q", "m")
	cl.confirmed()
	c.mustAgree()
}

// A queue that nobody uses ends when its lease does, whether it had one when it was declared or got it later.
func TestUnusedQueuesEndInTime(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl, url := c.mustClient("n1"), mustServe(t, c.all["n2"])
	gone := func(name string) func() bool {
		return func() bool { _, there := c.all["n3"].View().Queue("/", name); return !there }
	}
	began := time.Now()
	cl.mustDeclare("short", integer("x-expires", 1000))
	until(t, "it has ended", gone("short"))
	if took := time.Since(began); took < time.Second {
		t.Errorf("it has ended after %v", took)
	}
	cl.mustDeclare("later")
	c.mustBeUnborn("later")
	began = time.Now()
	mustSend(t, "PUT", url+"/api/policies/%2F/p", `{"pattern":"^later","apply-to":"queues","definition":{"expires":1000}}`, 201)
	until(t, "it has ended", gone("later"))
	if took := time.Since(began); took < time.Second {
		t.Errorf("it has ended after %v", took)
	}
}
