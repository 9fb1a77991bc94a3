package cluster

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/session"
	"github.com/quorate/quorate/fsm"
)

// exit notes why clients are disconnected.
type exit struct {
	Clients
	reason atomic.Value
}

func (x *exit) Expel(reason string) { x.reason.Store(reason) }

func (x *exit) Renew() {}

func (x *exit) SetAlarm(string) {}

// refuse makes connections between two nodes be refused, both ways, or takes
// that back.
func (n *network) refuse(a, b string, refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[[2]string{a, b}], n.refused[[2]string{b, a}] = refused, refused
	for c := range n.conns {
		if c.from == a && c.to == b || c.from == b && c.to == a {
			c.Conn.Close()
		}
	}
}

// declared reports whether a node counts as dead, as another one sees it.
func (c *nodes) declared(at, node string) bool {
	n, ok := c.all[at].View().NodeByName(node)
	return ok && n.Dead
}

// A node whose host refuses its links is declared dead, though its process
// lives. Back among the others it registers once more, by itself: all its
// clients, also those that only wait, are told, and new ones are served.
func TestDeclaredDeadNodeRegistersAgain(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	const apart, here = "n3", "n1"
	x := &exit{}
	var clients Clients = x
	c.all[apart].clients.Store(&clients)
	cl := c.mustClient(here)
	cl.mustDeclare("q")
	cl.mustDeclare("idle")
	idle, holder := c.mustClient(apart), c.mustClient(apart)
	idle.mustConsume("idle", 1, 10)
	if _, err := holder.session.DeclareQueue(deadline(t), fsm.QueueSpec{Name: "mine", Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	until(t, "the exclusive queue is known", func() bool { _, ok := c.all[here].View().Queue("/", "mine"); return ok })
	holder.mustConsume("q", 1, 10)
	cl.publish("q", "held")
	cl.confirmed()
	holder.await("the message", func() bool { return len(holder.inbox) == 1 })
	boot := c.all[apart].self.Boot.Load()

	began := time.Now()
	for _, other := range []string{"n1", "n2"} {
		c.net.refuse(apart, other, true)
	}
	cl.mustConsume("q", 1, 10)
	cl.await("what the node held", func() bool { return len(cl.inbox) == 1 })
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("declared dead after %v", took)
	}
	if _, ok := c.all[here].View().Queue("/", "mine"); ok || !c.declared(here, apart) {
		t.Error("it is not declared dead, or its exclusive queue lives on")
	}
	if c.all[apart].self.Boot.Load() != boot || idle.lost != nil {
		t.Error("it knows already")
	}

	for _, other := range []string{"n1", "n2"} {
		c.net.refuse(apart, other, false)
	}
	idle.await("the idle client is told", func() bool { return idle.lost != nil })
	holder.await("the other client is told", func() bool { return holder.lost != nil })
	if !isRefusal(idle.lost, fsm.Forced) {
		t.Errorf("told %v", idle.lost)
	}
	until(t, "clients are disconnected", func() bool { return x.reason.Load() != nil })
	if x.reason.Load() != session.LostText || c.all[apart].self.Boot.Load() == boot || c.declared(apart, apart) {
		t.Errorf("told %v; boot %d, then %d", x.reason.Load(), boot, c.all[apart].self.Boot.Load())
	}
	for _, q := range []string{"q", "idle"} {
		again := c.mustClient(apart)
		again.ack = true
		again.mustConsume(q, 1, 10)
		again.publish(q, "again")
		again.confirmed()
		again.close()
	}
	cl.close()
	c.mustAgree()
}

// Refusals to one node prove nothing while another one hears the process.
func TestHeardNodeIsNotDead(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	boots := map[string]uint64{}
	for _, name := range names {
		boots[name] = c.all[name].self.Boot.Load()
	}
	c.net.refuse("n1", "n3", true)
	until(t, "refused for longer than it takes", func() bool { return c.all["n1"].mesh.RefusedFor("n3") > 4*time.Second })
	for _, name := range names {
		// One that was declared dead has registered again by now.
		if n, _ := c.all["n2"].View().NodeByName(name); n.Boot != boots[name] || n.Dead {
			t.Errorf("%s counts as dead, or has, and is heard", name)
		}
	}
}

// A process that ended while nobody was up to see it is declared dead by those
// that come after it.
func TestAbsentNodeIsDeclaredDead(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	holder := c.mustClient("n3")
	holder.mustConsume("q", 1, 10)
	cl.publish("q", "held")
	cl.confirmed()
	holder.await("the message", func() bool { return len(holder.inbox) == 1 })
	for _, name := range names {
		c.net.crash(name)
		c.net.setMuted(name, true)
	}
	for _, name := range names {
		c.stop(name)
		c.net.setMuted(name, false)
	}
	c.mustOpen("n1", "n2")
	next := c.mustClient("n2")
	next.ack = true
	next.mustConsume("q", 1, 10)
	next.await("what the absent node held", func() bool { return len(next.inbox) == 1 })
}
