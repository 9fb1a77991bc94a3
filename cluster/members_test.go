package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/placement"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// membersOf returns the names of a queue's members.
func (c *nodes) membersOf(queue string) []string {
	for _, n := range c.all {
		q, ok := n.View().Queue("/", queue)
		if !ok {
			return nil
		}
		var names []string
		for _, m := range n.View().Members(q) {
			if state, ok := n.View().Node(m); ok {
				names = append(names, state.Name)
			}
		}
		slices.Sort(names)
		return names
	}
	return nil
}

// mustMembers waits until a queue has these members, all of them voters, and
// no other node holds a replica.
func (c *nodes) mustMembers(queue string, want ...string) {
	c.t.Helper()
	var last string
	defer func() {
		if c.t.Failed() {
			c.t.Log(last)
		}
	}()
	until(c.t, fmt.Sprintf("%s has members %v", queue, want), func() bool {
		var holds []string
		for name, n := range c.all {
			for _, r := range n.Replicas() {
				if r.Name == queue {
					holds = append(holds, name)
				}
			}
		}
		slices.Sort(holds)
		var voters []string
		for _, n := range c.all {
			q, ok := n.View().Queue("/", queue)
			if !ok {
				return false
			}
			for _, s := range n.replicas.Members(context.Background(), q) {
				if s.Membership == "voter" {
					voters = append(voters, s.Node)
				}
			}
			break
		}
		slices.Sort(voters)
		last = fmt.Sprintf("recorded %v, open on %v, voters %v", c.membersOf(queue), holds, voters)
		return slices.Equal(c.membersOf(queue), want) && slices.Equal(holds, want) && slices.Equal(voters, want)
	})
}

// Members are added and removed while messages flow; doing it twice changes
// nothing; the last one stays.
func TestMembersChange(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q", integer("x-quorum-initial-group-size", 1))
	body := strings.Repeat("x", 1000)
	for range 500 {
		cl.publish("q", body)
	}
	cl.confirmed()
	n := c.all["n2"]
	ctx := deadline(t)
	change := func(what string, f func(context.Context) error) {
		t.Helper()
		if err := retried(t, f); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	c.mustMembers("q", "n1")
	for _, node := range []string{"n2", "n3", "n2"} {
		change("add "+node, func(ctx context.Context) error { return n.placement.AddMember(ctx, "/", "q", node) })
		cl.publish("q", body)
	}
	c.mustMembers("q", "n1", "n2", "n3")
	cl.confirmed()
	c.mustAgree()

	// The leader goes: another one takes over first.
	leader := c.mustLeader("q")
	for range 2 {
		cl.publish("q", body)
		change("delete "+leader, func(ctx context.Context) error { return n.placement.DeleteMember(ctx, "/", "q", leader) })
	}
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == leader })
	c.mustMembers("q", rest...)
	for _, g := range c.all[leader].Replicas() {
		t.Errorf("%s still holds %v", leader, g)
	}
	change("add "+leader, func(ctx context.Context) error { return n.placement.AddMember(ctx, "/", "q", leader) })
	c.mustMembers("q", names...)
	cl.confirmed()
	c.mustAgree()

	for _, node := range names[:2] {
		change("shrink "+node, func(ctx context.Context) error {
			changes, err := n.placement.Shrink(ctx, node, api.Selection{})
			if len(changes) > 0 && changes[0].Result != "ok" {
				err = errors.New(changes[0].Result)
			}
			return err
		})
	}
	c.mustMembers("q", "n3")
	changes, err := n.placement.Shrink(ctx, "n3", api.Selection{})
	if err != nil || len(changes) != 1 || !strings.Contains(changes[0].Result, "last_node") {
		t.Errorf("shrink of the last member: %v, %v", changes, err)
	}
	change("grow to 3", func(ctx context.Context) error {
		changes, err := n.placement.GrowTo(ctx, 3, api.Selection{QueuePattern: "^q$"})
		if len(changes) > 0 && changes[0].Result != "ok" {
			err = errors.New(changes[0].Result)
		}
		return err
	})
	c.mustMembers("q", names...)
	cl.publish("q", body)
	cl.confirmed()
	c.mustAgree()
	if info, err := cl.count("q"); err != nil || info.Ready != 506 {
		t.Errorf("%d messages, %v", info.Ready, err)
	}
	if err := n.placement.AddMember(ctx, "/", "nosuch", "n1"); !isRefusal(err, fsm.NotFoundKind) {
		t.Errorf("a queue that is not there: %v", err)
	}
	if err := n.placement.AddMember(ctx, "/", "q", "n9"); !isRefusal(err, fsm.NotFoundKind) {
		t.Errorf("a node that is not there: %v", err)
	}
}

// A queue gets the members that a new target asks for, and a member that is
// merely down is not replaced.
func TestGroupSizeIsReached(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("grows", integer("x-quorum-initial-group-size", 1), integer("x-quorum-target-group-size", 3))
	cl.mustDeclare("stays", integer("x-quorum-initial-group-size", 1))
	cl.publish("grows", "a")
	cl.publish("stays", "b")
	cl.confirmed()
	c.mustMembers("grows", names...)
	c.mustMembers("stays", "n1")
}

// mustPlanAlone declares q, and returns its leader's node and its group there when no node changes members by itself.
func (c *nodes) mustPlanAlone() (*Node, *group.Group) {
	c.t.Helper()
	c.mustClient("n1").mustDeclare("q")
	n := c.all[c.mustLeader("q")]
	for _, x := range c.all {
		x.placement.Reconciler.Stop()
	}
	q, _ := n.View().Queue("/", "q")
	g := n.host.Group(q.Group)
	until(c.t, "the leader serves", func() bool { return g.Leading() != 0 })
	return n, g
}

// mustPlan makes a plan for the members of a queue's group.
func mustPlan(t *testing.T, n *Node, g *group.Group) *placement.Plan {
	t.Helper()
	p, ok := n.placement.Reconciler.Plan(g)
	if !ok {
		t.Fatal("there is no plan")
	}
	return p
}

// mustRelease has a member of q leave, as far as the catalog's record says.
func (c *nodes) mustRelease(n *Node, member string) {
	c.t.Helper()
	q, _ := n.View().Queue("/", "q")
	gone, _ := n.View().NodeByName(member)
	var next []uint32
	for _, m := range n.View().Members(q) {
		if m != fsm.NodeID(gone.Number) {
			next = append(next, uint32(m))
		}
	}
	if _, err := n.Propose(deadline(c.t), &logpb.CatalogCommand{Body: &logpb.CatalogCommand_SetMembers{SetMembers: &logpb.SetMembers{
		Queue: uint64(q.ID), Members: next, Size: 2,
	}}}); err != nil {
		c.t.Fatal(err)
	}
}

// mustLeave expects that as many members are leaving q.
func (c *nodes) mustLeave(n *Node, g *group.Group, want int) {
	c.t.Helper()
	q, _ := n.View().Queue("/", "q")
	if left := n.View().Leaving(q); len(left) != want {
		c.t.Errorf("leaving is %v while the group's members are %v", left, g.Configuration())
	}
}

// A step that was planned before a member had to go does not say that it has
// gone: raft's configuration may still count its vote.
func TestPlanIsOfOneView(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n, g := c.mustPlanAlone()
	before := mustPlan(t, n, g)
	c.mustRelease(n, c.other(n.config.Name))
	if before.Step(deadline(t)) != placement.Done {
		t.Error("a plan with nothing to do has done something")
	}
	c.mustLeave(n, g, 1)
}

// A leader that has lost its leadership does not say that a member has gone: the next one may undo that.
func TestOnlyALeaderSaysWhoHasLeft(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n, g := c.mustPlanAlone()
	gone := c.other(n.config.Name)
	c.mustRelease(n, gone)
	if err := g.Remove(gone); err != nil {
		t.Fatal(err)
	}
	before := mustPlan(t, n, g)
	c.mustTransfer("q", c.other(n.config.Name, gone))
	if before.Step(deadline(t)) == placement.Done {
		t.Error("the change is taken for done")
	}
	c.mustLeave(n, g, 1)
}

// A member is not removed from a group that could not go on without it.
func TestMajorityStays(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	n, g := c.mustPlanAlone()
	gone := c.other(n.config.Name)
	down := c.other(n.config.Name, gone)
	c.mustRelease(n, gone)
	c.crash(down)
	until(t, down+" is down", func() bool { return !n.mesh.Alive(down) })
	if mustPlan(t, n, g).Step(deadline(t)) != placement.Done {
		t.Error("a member is removed although another one is down")
	}
	if all := g.Configuration(); len(all) != len(names) {
		t.Errorf("members: %v", all)
	}
}
