package host

import (
	"maps"
	"slices"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestKnowing: a queue that this node leads is found by the boots whose sessions it has, and by those that it suspects;
// no longer once they are over, or it has ended.
func TestKnowing(t *testing.T) {
	bothKinds(t, func(t *testing.T, n *lone, g *group.Group) {
		other := n.OpenLocal(localSpec(9, &group.QueueConfig{DeliveryLimit: -1}))
		await(t, "a leader", func() bool { return g.Leading() != 0 })
		at, later := queue.Boot{Node: 2, Boot: 5}, queue.Boot{Node: 2, Boot: 6}
		submit := func(to *group.Group, c *logpb.Command, of queue.Boot) {
			t.Helper()
			c.Seq, c.Session = 1, fsm.SessionID{Node: of.Node, Boot: of.Boot, Num: 1}.Proto()
			mustSubmit(t, to, group.BatchOf(c))
		}
		node := func(c *logpb.Command) { mustSubmit(t, g, group.BatchOf(c)) }
		knows := func(what string, sessions, suspected []*group.Group) {
			t.Helper()
			await(t, what, func() bool {
				return slices.Equal(n.Knowing(at, false), sessions) && slices.Equal(n.Knowing(at, true), suspected)
			})
		}
		knows("nothing", nil, nil)
		submit(other, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}, later)
		submit(g, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}, at)
		knows("a session", []*group.Group{g}, nil)
		await(t, "both boots", func() bool { return len(n.Boots()) == 2 })
		node(&logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 2, Boot: 5}})
		knows("a suspicion", nil, []*group.Group{g})
		node(&logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 2, Boot: 5, Back: true}})
		knows("its end", []*group.Group{g}, nil)
		node(&logpb.Command{Kind: logpb.Command_NODE_DOWN, NodeDown: &logpb.NodeDown{Node: 2, Boot: 5}})
		knows("the end of the boot", nil, nil)
		if got := n.Boots(); !slices.Equal(got, []queue.Boot{later}) {
			t.Errorf("left: %v", got)
		}
		submit(g, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}, later)
		await(t, "a session of the next boot", func() bool { return len(n.Knowing(later, false)) == 2 })
		if g.IsLocal() {
			n.DropLocal(g.Spec().Group)
		} else if err := n.Drop(g.Spec().Group); err != nil {
			t.Fatal(err)
		}
		await(t, "its end", func() bool { return slices.Equal(n.Knowing(later, false), []*group.Group{other}) })
		if b := &n.boots; len(b.byGroup) != 1 || len(b.byBoot) != 1 {
			t.Errorf("kept: %v, %v", b.byGroup, b.byBoot)
		}
	})
}

// TestTakeLengths: who takes lengths hears of each queue whose length or leadership has changed, and of no other.
func TestTakeLengths(t *testing.T) {
	bothKinds(t, func(t *testing.T, n *lone, g *group.Group) {
		id := g.Spec().Queue
		other := n.OpenLocal(localSpec(9, &group.QueueConfig{DeliveryLimit: -1}))
		await(t, "a leader", func() bool { return g.Leading() != 0 })
		take := func(what string, want map[fsm.QueueID]Length) {
			t.Helper()
			got := map[fsm.QueueID]Length{}
			await(t, what, func() bool {
				maps.Copy(got, n.TakeLengths())
				return maps.Equal(got, want)
			})
		}
		take("two leaderships", map[fsm.QueueID]Length{id: {}, other.Spec().Queue: {}})
		if got := n.TakeLengths(); len(got) != 0 {
			t.Fatalf("without a change: %v", got)
		}
		for seq := range uint64(3) {
			mustSubmit(t, g, enqueues(seq+1, -1, "m"))
		}
		take("three messages", map[fsm.QueueID]Length{id: {Ready: 3}})
		mustSubmit(t, g, group.BatchOf(&logpb.Command{Kind: logpb.Command_GET, Session: session.Proto(), Seq: 4, Get: &logpb.Get{}}))
		take("a message that is held", map[fsm.QueueID]Length{id: {Ready: 2, Unacknowledged: 1}})
		if g.IsLocal() {
			n.DropLocal(g.Spec().Group)
		} else if err := n.Drop(g.Spec().Group); err != nil {
			t.Fatal(err)
		}
		take("the end", map[fsm.QueueID]Length{id: {}})
	})
}
