package cluster

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// poison panics when it reads the properties of a message that is marked. It
// is what a fault in the code that forwards dead letters is like.
type poison struct {
	grouptest.NoProperties
	active atomic.Bool
	only   *atomic.Pointer[poison] // the first to read one is the only one that panics; nil: all do
}

var marked = []byte("poison")

func (p *poison) Delay(payload fsm.Payload) fsm.Millis {
	if p.active.Load() && bytes.Equal(payload.Properties(), marked) && (p.only == nil || p.only.CompareAndSwap(nil, p) || p.only.Load() == p) {
		panic("poison")
	}
	return 0
}

// poisonable is a cluster in which each node can be made to panic.
func poisonable(t *testing.T) (*nodes, map[string]*poison) {
	t.Helper()
	all := map[string]*poison{}
	c := mustCluster(t, func(c *nodes) {
		c.leaderlessGrace = 8 * time.Second
		c.properties = map[string]session.Properties{}
		for _, name := range names {
			all[name] = &poison{}
			c.properties[name] = all[name]
		}
	})
	return c, all
}

func (c *nodes) propertiesOf(name string) session.Properties {
	if p := c.properties[name]; p != nil {
		return p
	}
	return grouptest.NoProperties{}
}

// publishMarked publishes a message that panics where it is poison.
func (c *client) publishMarked(queue, body string) {
	c.t.Helper()
	c.publishWith(queue, marked, body, -1)
}

// countOnce asks a queue's leader how it stands, and no second time.
func (c *client) countOnce(queue string) error {
	_, err := c.session.DeclareQueue(deadline(c.t), fsm.QueueSpec{Name: queue, Passive: true})
	return err
}

// quarantined lists the nodes on which a queue is.
func (c *nodes) quarantined(queue string) (on []string) {
	for name, n := range c.all {
		for _, g := range n.host.Quarantined() {
			if g.Spec().Name == queue {
				on = append(on, name)
			}
		}
	}
	slices.Sort(on)
	return on
}

// mustDelay has messages that lie in source for a moment die there.
func (c *client) mustDelay(source, target string) {
	c.t.Helper()
	c.mustDeclare(target)
	c.mustDeclare(source, integer("x-message-ttl", 1), text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", target))
}

// A panic while dead letters are forwarded moves the lead to another node,
// which forwards all of them, each once. The node lives and says what happened,
// and leads the queue again when it is let.
func TestDeadLetteringPanics(t *testing.T) {
	t.Parallel()
	c, poisons := poisonable(t)
	cl := c.mustClient("n1")
	cl.mustDelay("source", "work")
	cl.mustDeclare("bystander")
	only := &atomic.Pointer[poison]{} // whichever leads
	for _, p := range poisons {
		p.only = only
		p.active.Store(true)
	}
	s := c.mustClient(c.mustLeader("source"))
	var want []string
	for i := range 50 {
		want = append(want, fmt.Sprint(i))
		if i%10 == 5 {
			s.publishMarked("source", want[i])
		} else {
			s.publish("source", want[i])
		}
		s.publish("bystander", "m")
	}
	s.confirmed()
	cl.mustConsume("work", 1, 0)
	cl.await("all letters", func() bool { return len(cl.inbox) >= len(want) })
	first := ""
	until(t, "the queue is quarantined", func() bool {
		for name, p := range poisons {
			if only.Load() == p {
				first = name
			}
		}
		return first != "" && slices.Equal(c.quarantined("source"), []string{first})
	})
	until(t, "another node leads", func() bool { leader := c.leader("source"); return leader != "" && leader != first })
	s.publish("source", "last")
	want = append(want, "last")
	s.confirmed()
	cl.await("the last letter", func() bool { return len(cl.inbox) >= len(want) })
	got := cl.bodies()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("forwarded: %q", got)
	}
	soon(t, "everything shows the quarantine", func() string { return c.showsQuarantine(first, "source") })

	poisons[first].active.Store(false)
	url := mustServe(t, c.all[first]) + "/api/quorate/queues/%2F/"
	for path, status := range map[string]int{"source/quarantine": http.StatusNoContent, "bystander/quarantine": http.StatusBadRequest} {
		if got, body, _ := request(t, http.MethodDelete, url+path, "guest", "guest"); got != status {
			t.Errorf("DELETE %s: %d, %v", path, got, body)
		}
	}
	until(t, "the node leads the queue again", func() bool {
		q, _ := c.all[first].View().Queue("/", "source")
		err := c.all[first].placement.TransferLeadership(context.Background(), q, first)
		return c.leader("source") == first || err == nil
	})
	s.publish("source", "again")
	cl.await("one letter more", func() bool { return len(cl.inbox) == len(want)+1 })
	s.close()
	cl.close()
}

// showsQuarantine looks at everything that shows a quarantine, and says what does not.
func (c *nodes) showsQuarantine(node, queue string) string {
	n := c.all[node]
	if s := n.local.Status(); len(s.Quarantined) != 1 || s.Quarantined[0].Name != queue || s.Quarantined[0].Panic != "poison" {
		return fmt.Sprintf("status of %s: %+v", node, s.Quarantined)
	}
	if f := n.metricStats(); f.Replicas.Quarantined != 1 || f.Panics.Groups == 0 {
		return fmt.Sprintf("in the metrics: %d quarantined, %d panics", f.Replicas.Quarantined, f.Panics.Groups)
	}
	for name, of := range c.all {
		q, _ := of.View().Queue("/", queue)
		for _, m := range of.replicas.Members(context.Background(), q) {
			if m.Quarantined != (m.Node == node) {
				return fmt.Sprintf("%s says of its member %s: quarantined %v", name, m.Node, m.Quarantined)
			}
		}
		if err := of.placement.TransferLeadership(context.Background(), q, node); !isRefusal(err, fsm.Precondition) {
			return fmt.Sprintf("it may be made the leader again: %v", err)
		}
		if list := of.replicas.Leaderless(context.Background(), []*catalog.Queue{q}); len(list) != 0 {
			return fmt.Sprintf("%s thinks it has no leader", name)
		}
		if name != node && len(of.local.Quarantined()) != 0 {
			return fmt.Sprintf("%s has it quarantined as well", name)
		}
	}
	for _, r := range n.Replicas() {
		if r.Quarantined != (r.Name == queue) {
			return fmt.Sprintf("replica of %s: quarantined %v", r.Name, r.Quarantined)
		}
	}
	return ""
}

// Poison that panics on every node leaves its queue without a leader. Clients
// are told so; they go on with other queues, and can delete this one.
func TestPoisonEverywhere(t *testing.T) {
	t.Parallel()
	c, poisons := poisonable(t)
	cl := c.mustClient("n1")
	cl.mustDelay("source", "work")
	c.mustLeader("source")
	for _, p := range poisons {
		p.active.Store(true)
	}
	cl.publishMarked("source", "m")
	until(t, "the queue is quarantined everywhere", func() bool { return slices.Equal(c.quarantined("source"), names) })
	if err := cl.countOnce("source"); !isRefusal(err, fsm.Unavailable) || !strings.Contains(err.Error(), "has no leader") {
		t.Errorf("asked about the queue: %v", err)
	}
	for name, n := range c.all {
		q, _ := n.View().Queue("/", "source")
		if list := n.replicas.Leaderless(context.Background(), []*catalog.Queue{q}); len(list) != 1 {
			t.Errorf("%s thinks the queue has a leader", name)
		}
		other := c.mustClient(name)
		other.mustDeclare("of " + name)
		other.publish("of "+name, "m")
		other.confirmed()
		other.close()
	}
	cl.mustDelete("source")
	until(t, "its replicas are dropped", func() bool { return len(c.quarantined("source")) == 0 })
	cl.mustDelay("source", "work")
	cl.publish("source", "new")
	cl.mustConsume("work", 1, 0)
	cl.await("a letter of the new queue", func() bool { return len(cl.inbox) == 1 })
	cl.close()
}

// A queue of one node that panics serves no longer: clients, wherever they are,
// are told that it has no leader, and can delete it.
func TestLocalQueuePanics(t *testing.T) {
	t.Parallel()
	c, poisons := poisonable(t)
	owner, cl := c.mustClient("n1"), c.mustClient("n2")
	owner.mustDeclare("work")
	if _, err := owner.session.DeclareQueue(deadline(t), fsm.QueueSpec{Name: "source", Arguments: &fsm.Table{Fields: []*logpb.Field{
		integer("x-message-ttl", 1), text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", "work"),
	}}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the other node knows the queue", func() bool { _, ok := c.all["n2"].View().Queue("/", "source"); return ok })
	poisons["n1"].active.Store(true)
	cl.publishMarked("source", "m")
	until(t, "the queue is quarantined", func() bool { return slices.Equal(c.quarantined("source"), []string{"n1"}) })
	if err := cl.countOnce("source"); !isRefusal(err, fsm.Unavailable) {
		t.Errorf("asked about the queue: %v", err)
	}
	owner.mustDelete("source")
	until(t, "it is gone", func() bool { return len(c.quarantined("source")) == 0 })
	owner.close()
	cl.close()
}
