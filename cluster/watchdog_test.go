package cluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/mgmt/api"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/cluster/traffic"
	"github.com/quorate/quorate/cluster/watchdog"
	"github.com/quorate/quorate/fsm"
)

// gate is a disk that can hang, or be slow.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil: it takes what is written
	each time.Duration // that a write takes
}

func (g *gate) pass() {
	g.mu.Lock()
	shut, each := g.shut, g.each
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
	if each > 0 {
		<-time.After(each)
	}
}

// slow makes each write that begins from now on take so long.
func (g *gate) slow(each time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each = each
}

// hang makes writes that begin from now on wait, or lets them all go on.
func (g *gate) hang(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case yes && g.shut == nil:
		g.shut = make(chan struct{})
	case !yes && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

func (c *nodes) gate(name string) func() {
	if g := c.gates[name]; g != nil {
		return g.pass
	}
	return nil
}

// mustHangable starts three nodes whose disks can hang.
func mustHangable(t *testing.T, bounds watchdog.Bounds, exit func(string, int)) *nodes {
	t.Helper()
	c := mustCluster(t, func(c *nodes) {
		c.bounds, c.exit, c.gates = bounds, exit, map[string]*gate{}
		for _, name := range names {
			c.gates[name] = &gate{}
		}
	})
	t.Cleanup(func() { // before the nodes are closed
		for _, g := range c.gates {
			g.hang(false)
		}
	})
	return c
}

// diskBound is exceeded by no disk that is merely busy.
const diskBound = watchdog.DefaultDiskBound

// A leader whose disk hangs, without an error, gives way: another node confirms
// what is published. It says what it has, confirms nothing to its own clients,
// and follows when its disk is back.
func TestHungLeader(t *testing.T) {
	t.Parallel()
	c := mustHangable(t, watchdog.Bounds{Disk: diskBound, DiskExit: -1}, nil)
	c.mustClient("n1").mustDeclare("q")
	first := c.mustLeader("q")
	mine, other := c.mustClient(first), c.mustClient(c.other(first))
	mine.publish("q", "before")
	mine.confirmed()
	n := c.all[first]
	c.gates[first].hang(true)
	for range 20 {
		mine.publish("q", "mine")
		other.publish("q", "other")
	}
	other.confirmed()
	if leader := c.mustLeader("q"); leader == first {
		t.Error("a node whose disk hangs leads")
	}
	until(t, "the node says what it has", func() bool {
		s := n.local.Status()
		return !s.Ready && !n.Ready() && slices.Contains(s.Alarms, "disk_hang") && strings.Contains(n.watchdog.Unfit(), "disk hangs") && s.Leaders == 0
	})
	for _, name := range names {
		if name != first && c.all[name].Online(first) {
			t.Errorf("%s takes it for one that is up", name)
		}
	}
	if f := n.metricStats(); !f.Watchdog.Hung || f.Watchdog.Hangs != 1 || f.Watchdog.Waiting < diskBound {
		t.Errorf("its metrics show %v, %d, %v", f.Watchdog.Hung, f.Watchdog.Hangs, f.Watchdog.Waiting)
	}
	mine.mu.Lock()
	if mine.pending != 20 {
		t.Errorf("it has answered %d publishes", 20-mine.pending)
	}
	mine.mu.Unlock()

	c.gates[first].hang(false)
	mine.confirmed()
	until(t, "the node is well", func() bool { return n.watchdog.Unfit() == "" && n.Ready() })
	c.mustAgree()
	if info, err := other.count("q"); err != nil || info.Ready != 41 {
		t.Errorf("the queue holds %d messages, want 41; %v", info.Ready, err)
	}
	if slices.Contains(n.local.Status().Alarms, "disk_hang") {
		t.Error("the alarm is still in effect")
	}
}

// A follower whose disk hangs does not count, and keeps nobody from anything.
func TestHungFollower(t *testing.T) {
	t.Parallel()
	c := mustHangable(t, watchdog.Bounds{Disk: diskBound, DiskExit: -1}, nil)
	c.mustClient("n1").mustDeclare("q")
	leader := c.mustLeader("q")
	follower := c.other(leader)
	out := c.mustClient(leader)
	c.gates[follower].hang(true)
	for range 20 {
		out.publish("q", "m")
	}
	out.confirmed()
	until(t, "the follower is taken for down", func() bool { return !c.all[leader].Online(follower) })
	if at := c.mustLeader("q"); at != leader {
		t.Errorf("%s leads instead of %s", at, leader)
	}
	out.publish("q", "m")
	out.confirmed()
	c.gates[follower].hang(false)
	until(t, "the follower is back", func() bool { return c.all[leader].Online(follower) })
	c.mustAgree()
}

// A node that is alone on its disk has nobody to give way to. It leads again when
// its disk is back, and confirms what was published meanwhile.
func TestHungEverywhere(t *testing.T) {
	t.Parallel()
	c := mustHangable(t, watchdog.Bounds{Disk: diskBound, DiskExit: -1}, nil)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	for _, g := range c.gates {
		g.hang(true)
	}
	cl.publish("q", "m")
	until(t, "a node notices", func() bool {
		return c.all["n1"].watchdog.Unfit() != "" || c.all["n2"].watchdog.Unfit() != "" || c.all["n3"].watchdog.Unfit() != ""
	})
	for _, g := range c.gates {
		g.hang(false)
	}
	cl.confirmed()
	c.mustAgree()
}

// A member of many groups that their leader does not reach for a while, and that
// comes back on a slow disk, costs no leader its office: nobody who has work for
// it blames himself. All serve meanwhile, and it gets everything. It runs alone:
// its groups would leave other tests' nodes too little of the processors to keep
// leaders, and theirs its own. Where others run beside it, entries take seconds
// without any fault, so leaders have longer than usual.
func TestManyGroupsComeBackSlowly(t *testing.T) {
	const groups = 120
	c := mustHangable(t, watchdog.Bounds{DiskExit: -1, Progress: 5 * watchdog.DefaultProgressBound}, nil)
	cl := c.mustClient("n1")
	queues := make([]string, groups)
	var declaring sync.WaitGroup
	for part := range 10 {
		declaring.Go(func() {
			for i := part; i < groups; i += 10 {
				queues[i] = fmt.Sprint("q", i)
				if _, err := cl.declare(fsm.QueueSpec{Name: queues[i], Durable: true}); err != nil {
					t.Errorf("declare %s: %v", queues[i], err)
				}
			}
		})
	}
	declaring.Wait()
	if t.Failed() {
		return
	}
	serve := func() {
		t.Helper()
		for _, q := range queues {
			cl.publish(q, "m")
		}
		cl.confirmed()
	}
	serve()
	c.net.setApart("n1", "n3", true)
	until(t, "the first node has lost the third", func() bool { return !c.all["n1"].Online("n3") })
	serve()
	c.crash("n3")
	serve()
	c.gates["n3"].slow(2 * time.Millisecond)
	c.net.setApart("n1", "n3", false)
	c.mustOpen("n3")
	serve()
	c.mustAgree()
	for name, n := range c.all {
		if count, last := n.host.Resignations(); len(last) != 0 || n.watchdog.Stats().Hangs != 0 {
			t.Errorf("on %s leaders resign: %v, %+v; its disk has hung %d times", name, count, last, n.watchdog.Stats().Hangs)
		}
	}
}

// shutListeners note why clients are disconnected.
type shutListeners struct {
	mu     sync.Mutex
	reason string
	opened int
}

func (d *shutListeners) Shut(_ context.Context, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reason = reason
}

func (d *shutListeners) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	return nil
}

func (d *shutListeners) Expel(string)                  {}
func (d *shutListeners) Renew()                        {}
func (d *shutListeners) Connections() []api.Connection { return nil }
func (d *shutListeners) Flows() []traffic.Flow         { return nil }
func (d *shutListeners) SetAlarm(string)               {}
func (d *shutListeners) Relieve(int64)                 {}
func (d *shutListeners) Hold(string) func(int64) error { return func(int64) error { return nil } }
func (d *shutListeners) HeldMemory() api.HeldMemory    { return api.HeldMemory{} }
func (d *shutListeners) Channels() []api.Channel       { return nil }
func (d *shutListeners) Sessions(string) []api.Session { return nil }

func (d *shutListeners) CloseConnection(string, string) bool { return false }

// A node whose disk does not come back ends itself, after it has disconnected
// its clients and refuses the other nodes.
func TestHungForGood(t *testing.T) {
	t.Parallel()
	ended := make(chan int, 1)
	c := mustHangable(t, watchdog.Bounds{Disk: diskBound, DiskExit: 3 * diskBound}, func(_ string, code int) { ended <- code })
	d := &shutListeners{}
	c.all["n2"].SetClients(d)
	address := c.all["n2"].config.Listener.Addr().String()
	c.mustClient("n1").mustDeclare("q")
	c.gates["n2"].hang(true)
	out := c.mustClient("n1")
	out.publish("q", "m")
	out.confirmed()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case code := <-ended:
		if code != raftlog.ExitCode {
			t.Errorf("it ends with %d", code)
		}
	case <-limit.C:
		t.Fatal("it does not end")
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Error("other nodes are let in")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !strings.Contains(d.reason, "disk") {
		t.Errorf("clients are told %q", d.reason)
	}
}
