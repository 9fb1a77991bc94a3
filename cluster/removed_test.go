package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/peer"
	"github.com/quorate/quorate/proto/peerpb"
)

// mustEnd starts a node that has no place in the cluster any more, and waits
// until it ends.
func (c *nodes) mustEnd(name string) {
	c.t.Helper()
	c.exits = map[string]chan int{name: make(chan int, 8)}
	n, err := Open(c.config(name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.all[name] = n
	ctx, cancel := context.WithCancel(context.Background())
	var joining sync.WaitGroup
	joining.Go(func() { _ = n.Join(ctx) }) // it cannot
	until(c.t, name+" ends", func() bool { return len(c.exits[name]) > 0 })
	if code := <-c.exits[name]; code != membership.CodeRemoved {
		c.t.Errorf("%s ends with code %d", name, code)
	}
	cancel()
	joining.Wait()
	c.crash(name)
	delete(c.exits, name)
}

func mustForget(t *testing.T, n *Node, name string) {
	t.Helper()
	if err := retried(t, func(ctx context.Context) error { return n.membership.ForgetNode(ctx, name) }); err != nil {
		t.Fatal(err)
	}
}

// A node that was forgotten while it was away learns of that, and ends.
func TestForgottenNodeEnds(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n := c.all["n1"]
	c.crash("n3")
	until(t, "n3 is known to be dead", func() bool { return !n.mesh.Alive("n3") })
	mustForget(t, n, "n3")
	c.mustEnd("n3")
}

// A node that was forgotten while it was cut off ends once it is heard again;
// a living one beside it does not.
func TestForgottenNodeEndsWhileItRuns(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.exits = map[string]chan int{"n3": make(chan int, 8)} })
	n := c.all["n1"]
	c.net.setMuted("n3", true)
	until(t, "n3 is known to be dead", func() bool { return !n.mesh.Alive("n3") })
	mustForget(t, n, "n3")
	until(t, "n3 finds itself cut off", func() bool { return c.all["n3"].local.Isolated() != "" })
	if len(c.exits["n3"]) > 0 {
		t.Fatal("it ends without having heard of anybody")
	}
	c.net.setMuted("n3", false)
	until(t, "n3 ends", func() bool { return len(c.exits["n3"]) > 0 })
	if code := <-c.exits["n3"]; code != membership.CodeRemoved {
		t.Errorf("n3 ends with code %d", code)
	}
	c.mustClient("n2").mustDeclare("q")
}

// A node that is cut off from the others does not say of anybody that he is no
// member.
func TestStaleNodeForgetsNobody(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n2 := c.all["n2"]
	ask := func() *peerpb.IntroduceReply {
		t.Helper()
		question := &peerpb.IntroduceRequest{Cluster: "test", Node: "n9", Identity: make([]byte, 16), Version: peer.Version, Verify: true}
		reply, err := introduce(deadline(t), c.net.dialer("n9"), nil, nil, "n2", question)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	if reply := ask(); !reply.Current || !reply.Removed {
		t.Errorf("a node in touch with the others: %v", reply)
	}
	c.net.separate("n2", "n1", "n3")
	until(t, "n2 has no lease", func() bool { return !n2.Fresh() })
	if reply := ask(); reply.Current || reply.Removed {
		t.Errorf("a node that is cut off: %v", reply)
	}
}

// Nodes that have other addresses after a restart get back in: one of three,
// two at a time, and all at once with what their own lists say.
func TestNodesMove(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	cl.publish("q", "a")
	cl.confirmed()
	move := func(names ...string) {
		t.Helper()
		for _, name := range names {
			c.crash(name)
		}
		for _, name := range names {
			c.moved[name] += name + "'"
		}
		c.mustOpen(names...)
		for _, name := range names {
			until(t, name+" is known at its new address", func() bool {
				for _, n := range c.all {
					state, _ := n.View().NodeByName(name)
					if state.PeerAddress != c.moved[name] || !n.mesh.Alive(name) {
						return false
					}
				}
				return true
			})
		}
		c.mustAgree()
	}
	c.moved = map[string]string{}
	move("n3")
	move("n2", "n3")
	cl.publish("q", "b")
	cl.confirmed()
	c.listed = true
	move("n1", "n2", "n3")
	if info, err := c.mustClient("n2").count("q"); err != nil || info.Ready != 2 {
		t.Errorf("%d messages, %v", info.Ready, err)
	}
	record, err := os.ReadFile(filepath.Join(c.dir, "n1", "node.json"))
	if err != nil || !strings.Contains(string(record), c.moved["n3"]) {
		t.Errorf("n1 does not keep where n3 is: %s, %v", record, err)
	}
}
