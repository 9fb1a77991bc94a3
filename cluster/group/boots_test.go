package group

import (
	"slices"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// TestKnowing: a queue that this node leads is found by the boots whose sessions it has, and by those that it suspects;
// no longer once they are over, or it has ended.
func TestKnowing(t *testing.T) {
	bothKinds(t, func(t *testing.T, n *lone, g *Group) {
		other := n.OpenLocal(localSpec(9, &QueueConfig{DeliveryLimit: -1}))
		await(t, "a leader", func() bool { return g.Leading() != 0 })
		at, later := queue.Boot{Node: 2, Boot: 5}, queue.Boot{Node: 2, Boot: 6}
		submit := func(to *Group, c *logpb.Command, of queue.Boot) {
			t.Helper()
			c.Seq, c.Session = 1, fsm.SessionID{Node: of.Node, Boot: of.Boot, Num: 1}.Proto()
			mustSubmit(t, to, BatchOf(c))
		}
		node := func(c *logpb.Command) { mustSubmit(t, g, BatchOf(c)) }
		knows := func(what string, sessions, suspected []*Group) {
			t.Helper()
			await(t, what, func() bool {
				return slices.Equal(n.Knowing(at, false), sessions) && slices.Equal(n.Knowing(at, true), suspected)
			})
		}
		knows("nothing", nil, nil)
		submit(other, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}, later)
		submit(g, &logpb.Command{Kind: logpb.Command_CONSUME, Consume: &logpb.Consume{Consumer: 1, Prefetch: 1}}, at)
		knows("a session", []*Group{g}, nil)
		await(t, "both boots", func() bool { return len(n.Boots()) == 2 })
		node(&logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 2, Boot: 5}})
		knows("a suspicion", nil, []*Group{g})
		node(&logpb.Command{Kind: logpb.Command_NODE_SUSPECTED, NodeSuspected: &logpb.NodeSuspected{Node: 2, Boot: 5, Back: true}})
		knows("its end", []*Group{g}, nil)
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
		await(t, "its end", func() bool { return slices.Equal(n.Knowing(later, false), []*Group{other}) })
		if b := &n.applying.boots; len(b.byGroup) != 1 || len(b.byBoot) != 1 {
			t.Errorf("kept: %v, %v", b.byGroup, b.byBoot)
		}
	})
}
