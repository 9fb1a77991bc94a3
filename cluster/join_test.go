package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/fsm"
)

// alone makes the cluster start with its first node only; the others join.
func alone(c *nodes) { c.first, c.through = names[:1], "n1" }

// A second and a third node join a node that is in use: nothing stops, and
// every queue has three members in the end, with equal states.
func TestGrowFromOne(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, alone)
	cl := c.mustClient("n1")
	const queues = 5
	publish := func() {
		for i := range queues {
			cl.publish(fmt.Sprint("q", i), "x")
		}
	}
	for i := range queues {
		cl.mustDeclare(fmt.Sprint("q", i))
	}
	publish()
	cl.confirmed()
	c.mustOpen("n2")
	publish()
	cl.confirmed()
	for i := range queues { // an even number of members is none to stop at
		c.mustMembers(fmt.Sprint("q", i), "n1")
	}
	if got := c.all["n1"].catalog.Voters(); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("the catalog's voters are %v", got)
	}
	c.mustOpen("n3")
	publish()
	for i := range queues {
		c.mustMembers(fmt.Sprint("q", i), names...)
	}
	until(t, "all nodes vote on the catalog", func() bool { return len(c.all["n1"].catalog.Voters()) == 3 })
	publish()
	cl.confirmed()
	c.mustAgree()
	c.crash("n1")
	late := c.mustClient("n3")
	if info, err := late.count("q0"); err != nil || info.Ready != 4 {
		t.Errorf("%d messages, %v", info.Ready, err)
	}
}

// A node whose disk is lost comes back as a new member; with its former
// identity it can do nothing any more.
func TestLostDisk(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	for i := range 300 {
		cl.publish("q", fmt.Sprint("message ", i))
	}
	cl.confirmed()
	c.mustAgree()
	old, _ := c.all["n1"].View().NodeByName("n3")
	c.crash("n3")
	cl.publish("q", "while it is away")
	cl.confirmed()
	if got := c.membersOf("q"); !slices.Equal(got, names) {
		t.Fatalf("a node that is down is replaced: %v", got)
	}
	if err := os.Rename(filepath.Join(c.dir, "n3"), filepath.Join(c.dir, "lost")); err != nil {
		t.Fatal(err)
	}
	c.mustOpen("n3")
	c.mustMembers("q", names...)
	now, _ := c.all["n1"].View().NodeByName("n3")
	if now.Number == old.Number {
		t.Error("it has its former number")
	}
	cl.publish("q", "afterwards")
	cl.confirmed()
	c.mustAgree()
	until(t, "all nodes vote on the catalog", func() bool { return len(c.all["n1"].catalog.Voters()) == 3 })

	// The lost disk turns up: nobody talks to it.
	c.crash("n3")
	if err := os.RemoveAll(filepath.Join(c.dir, "n3")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(c.dir, "lost"), filepath.Join(c.dir, "n3")); err != nil {
		t.Fatal(err)
	}
	until(t, "the others know that n3 is down", func() bool { return !c.all["n1"].Online("n3") && !c.all["n2"].Online("n3") })
	c.exits = map[string]chan int{"n3": make(chan int, 8)}
	ghost, err := Open(c.config("n3"))
	if err != nil {
		t.Fatal(err)
	}
	c.all["n3"] = ghost
	until(t, "the ghost is refused", func() bool { return c.all["n1"].membership.Refused() > 0 })
	for _, p := range ghost.mesh.Peers() {
		if p.Linked || c.all["n1"].mesh.Alive("n3") {
			t.Errorf("the ghost has a link with %s", p.Node)
		}
	}
	until(t, "the ghost ends", func() bool { return len(c.exits["n3"]) > 0 })
	if code := <-c.exits["n3"]; code != membership.CodeRemoved {
		t.Errorf("the ghost ends with code %d", code)
	}
	c.crash("n3")
}

// A node that is gone for good is forgotten: its replicas are made anew where
// there is room, and what it has alone is not given up silently.
func TestForget(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.leaderlessGrace = 8 * time.Second }) // for what is deleted
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	alone := c.mustClient("n3")
	alone.mustDeclare("single", integer("x-quorum-initial-group-size", 1))
	cl.publish("q", "a")
	cl.confirmed()
	n := c.all["n1"]
	ctx := deadline(t)
	if err := n.membership.ForgetNode(ctx, "n3"); !isRefusal(err, fsm.Precondition) {
		t.Errorf("a running node: %v", err)
	}
	c.crash("n3")
	until(t, "n3 is known to be dead", func() bool { return !n.mesh.Alive("n3") })
	if err := retried(t, func(ctx context.Context) error { return n.membership.ForgetNode(ctx, "n3") }); !isRefusal(err, fsm.Precondition) {
		t.Errorf("a node with the only replica of a queue: %v", err)
	}
	cl.mustDelete("single")
	for range 2 {
		mustForget(t, n, "n3")
	}
	c.mustMembers("q", "n1", "n2")
	until(t, "the catalog does without n3", func() bool { return len(n.catalog.Configuration()) == 2 })
	if err := os.RemoveAll(filepath.Join(c.dir, "n3")); err != nil {
		t.Fatal(err)
	}
	c.mustOpen("n3")
	c.mustMembers("q", names...)
	cl.publish("q", "b")
	cl.confirmed()
	c.mustAgree()
}
