package cluster

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/fsm/queue"
)

// withClocks lets a test set the nodes' wall clocks wrong.
func withClocks(c *nodes) {
	c.ahead = map[string]*atomic.Int64{}
	for _, name := range names {
		c.ahead[name] = &atomic.Int64{}
	}
}

// ready is how many messages wait as the leader sees it.
func (c *nodes) ready(name string) (ready uint64, led bool) {
	n := c.all[c.leader(name)]
	if n == nil {
		return 0, false
	}
	for _, g := range n.host.Groups() {
		if g.Spec().Name == name {
			g.View(func(m *queue.Machine) { ready = m.Stats().Ready.Messages })
		}
	}
	return ready, true
}

// A message lives for its TTL whatever the clock of the node that leads shows,
// and however it is set meanwhile.
func TestWrongClockOfLeader(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, withClocks)
	s := c.mustClient("n1")
	s.mustDeclare("q")
	leader := c.mustLeader("q")
	const ttl = 700 * time.Millisecond
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 5 * time.Second} {
		began := time.Now()
		s.publishTTL("q", "x", fsm.Millis(ttl.Milliseconds()))
		s.confirmed()
		c.ahead[leader].Store(int64(ahead))
		until(t, "the message dies", func() bool { n, led := c.ready("q"); return led && n == 0 })
		if lived := time.Since(began); lived < ttl-2*time.Millisecond || lived > ttl+time.Minute {
			t.Errorf("clock %v ahead: a message lived for %v", ahead, lived)
		}
		until(t, "the alarm is right", func() bool { return c.all[leader].clock.Status().Skewed == (ahead != 0) })
	}
	if status := c.all[leader].local.Status(); len(status.Alarms) != 1 || status.Alarms[0] != "clock_skew" {
		t.Errorf("alarms %v", status.Alarms)
	}
	for name, n := range c.all {
		if refused := n.clock.Status().JumpsRefused; refused != 0 {
			t.Errorf("%s has refused %d jumps", name, refused)
		}
	}
	s.close()
	c.mustAgree()
}

// The process stands still while it takes note of an answer, as on a machine that has too much to do: what the
// other clock shows is less certain then, not wrong.
func TestReadingAcrossPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pause atomic.Int64
		began := time.Now()
		logger := slog.New(slog.DiscardHandler)
		k := newClock(&Config{Name: "n1", Logger: logger, Clock: time.Now, Monotonic: func() time.Duration {
			stands := time.Duration(pause.Swap(0))
			time.Sleep(stands)
			defer time.Sleep(stands)
			return time.Since(began)
		}}, worker.NewGuard(logger))
		defer k.loops.Stop()
		k.SetNodes([]string{"n1", "n2", "n3"})
		asked := time.Now()
		time.Sleep(2 * time.Millisecond)
		pause.Store(int64(200 * time.Millisecond))
		k.heard("n2", time.Now().UnixMilli(), asked)
		if n2 := k.Status().Peers[0]; n2.Offset.Abs() > n2.RoundTrip/2 {
			t.Errorf("the clock is said to be %v ahead, by an answer that took %v", n2.Offset, n2.RoundTrip)
		}
	})
}

// The time during which the whole cluster was down counts: what should have
// died meanwhile is not handed out.
func TestDowntimeCounts(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, withClocks)
	s := c.mustClient("n1")
	s.mustDeclare("q")
	s.publishTTL("q", "short", 30_000)
	s.publishTTL("q", "long", 3_600_000)
	s.confirmed()
	s.close()
	for _, name := range names {
		c.stop(name)
	}
	for _, name := range names {
		c.ahead[name].Store(int64(time.Minute))
	}
	c.mustOpen(names...)
	in := c.mustClient("n2")
	in.ack = true
	in.mustConsume("q", 1, 10)
	in.await("a delivery", func() bool { return len(in.inbox) > 0 })
	mustBodies(t, in.bodies(), []string{"long"})
	until(t, "the queue is empty", func() bool { n, led := c.ready("q"); return led && n == 0 })
	in.close()
	c.mustAgree()
}

// What was to die while the whole cluster had no power is late, and arrives once:
// as soon as its queue is led, although nobody else uses that.
func TestLettersDueWithoutPower(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, withClocks)
	s := c.mustClient("n1")
	s.mustDeclare("hold", text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", "work"))
	c.mustClient("n2").mustDeclare("work")
	due, later := numbered(0, 100), numbered(100, 150)
	for _, body := range due {
		s.publishTTL("hold", body, 30_000)
	}
	for _, body := range later {
		s.publishTTL("hold", body, 3_600_000)
	}
	s.confirmed()
	for _, name := range names {
		c.crash(name)
		c.ahead[name].Store(int64(time.Minute))
	}
	c.mustOpen(names...)
	in := c.mustClient("n3")
	in.ack = true
	in.mustConsume("work", 1, 10)
	in.await("all letters", func() bool { return len(in.inbox) >= len(due) })
	until(t, "both queues are at rest", func() bool {
		n, led := c.ready("hold")
		work, alsoLed := c.ready("work")
		return led && alsoLed && n == uint64(len(later)) && work == 0
	})
	c.mustAgree()
	mustBodies(t, in.bodies(), due)
}

// A setting of the cluster reaches the groups, and is shown by every node.
func TestClusterSettings(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustClient("n1").mustDeclare("q")
	c.mustLeader("q")
	credit := func(want uint64) {
		t.Helper()
		until(t, "the queue's credit", func() bool {
			for _, n := range c.all {
				_ = n.local.Barrier(deadline(t))
				for _, g := range n.host.Groups() {
					var have uint64
					if g.View(func(m *queue.Machine) { have = m.Config().LockCredit }); have != want {
						return false
					}
				}
			}
			return true
		})
	}
	credit(30_000)
	url := mustServe(t, c.all["n2"]) + "/api/quorate/settings"
	for _, step := range []struct {
		method, path, body string
		status             int
	}{
		{"PUT", "/" + catalog.LockCredit, `{"value": 1500}`, 204},
		{"PUT", "/" + catalog.LockCredit, `{"value": -1}`, 400},
		{"PUT", "/" + catalog.LockCredit, `{"value": "1"}`, 400},
		{"PUT", "/" + catalog.LockCredit, `{}`, 400},
		{"PUT", "/nonsense", `{"value": 1}`, 404},
		{"PUT", "/" + catalog.MaxClockSkew, `{"value": 50}`, 204},
	} {
		if a := send(t, step.method, url+step.path, step.body, "guest", "guest"); a.status != step.status {
			t.Errorf("%s %s %s: %d %s", step.method, step.path, step.body, a.status, a.raw)
		}
	}
	credit(1500)
	until(t, "the clocks know their skew", func() bool {
		for _, n := range c.all {
			if n.clock.Status().MaxSkew != 50 {
				return false
			}
		}
		return true
	})
	status, body, _ := request(t, "GET", url, "guest", "guest")
	shown := map[any]any{}
	for _, row := range body.([]any) {
		shown[row.(map[string]any)["name"]] = row.(map[string]any)["value"]
	}
	if status != 200 || shown[catalog.LockCredit] != 1500.0 {
		t.Errorf("%d, %v", status, body)
	}
	if status, _, _ := request(t, "DELETE", url+"/"+catalog.LockCredit, "guest", "guest"); status != 204 {
		t.Errorf("delete: %d", status)
	}
	credit(30_000)
}

// What a node tells about itself agrees with what the test knows.
func TestStatusAndClock(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, withClocks)
	c.mustClient("n1").mustDeclare("q")
	c.mustLeader("q")
	c.ahead["n3"].Store(int64(-2 * time.Minute))
	until(t, "n3's clock is known to be wrong", func() bool { return c.all["n3"].local.Clock().Skewed })
	url := mustServe(t, c.all["n1"])
	clockOf := func() map[string]any {
		_, body, _ := request(t, "GET", url+"/api/quorate/clock", "guest", "guest")
		return body.(map[string]any)
	}
	until(t, "n1 knows n3's clock", func() bool {
		off := clockOf()["peers"].([]any)[1].(map[string]any)["offset_ms"].(float64)
		return off < -119_000 && off > -121_000
	})
	soon(t, "all is told", func() string {
		if k := clockOf(); k["node"] != "n1" || k["skewed"] != false || k["agreed"] != true || k["max_skew_ms"] != 1000.0 {
			return fmt.Sprintf("clock %v", k)
		}
		_, body, _ := request(t, "GET", url+"/api/quorate/status", "guest", "guest")
		s := body.(map[string]any)
		if s["node"] != "n1" || s["ready"] != true || s["queues"] != 1.0 || s["replicas"] != 1.0 || len(s["peers"].([]any)) != 2 || len(s["alarms"].([]any)) != 0 {
			return fmt.Sprintf("status %v", s)
		}
		led := 0
		for _, n := range c.all {
			f := n.metricStats()
			led += f.Queues.Led.Queues
			if f.Replicas.Count != 1 || f.Queues.Declared != 1 || len(f.Links.Peers) != 2 {
				return fmt.Sprintf("stats %+v", f)
			}
		}
		if led != 1 {
			return fmt.Sprintf("%d leaders of a queue", led)
		}
		return ""
	})
}
