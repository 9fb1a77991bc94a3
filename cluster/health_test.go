package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// A node that has lost the majority says so: it is not ready, and what it cannot
// do it refuses soon, with the reason. When the majority is back, so is the node.
func TestNodeWithoutMajorityIsNotReady(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.leaderlessGrace = 2 * time.Second })
	n := c.all["n3"]
	url := mustServe(t, n)
	ready := func() (int, string) {
		status, body, _ := request(t, "GET", url+"/api/health/checks/ready-to-serve-clients", "", "")
		reason, _ := body.(map[string]any)["reason"].(string)
		return status, reason
	}
	until(t, "n3 is ready", func() bool { status, _ := ready(); return status == 200 })
	cl := c.mustClient("n3")
	c.crash("n1")
	c.crash("n2")
	until(t, "n3 is not ready", func() bool { return !n.Ready() })
	until(t, "it knows who is away", func() bool { return strings.Contains(n.local.NotReady(), "n1, n2 cannot be reached") })
	if status, reason := ready(); status != 503 || reason != n.local.NotReady() {
		t.Errorf("%d %s", status, reason)
	}
	if s := n.local.Status(); s.Ready || s.NotReady != n.local.NotReady() {
		t.Errorf("status says %v, %q", s.Ready, s.NotReady)
	}
	began := time.Now()
	_, err := cl.session.DeclareQueue(deadline(t), fsm.QueueSpec{Name: "q", Durable: true})
	if !isRefusal(err, fsm.Internal) || !strings.Contains(err.Error(), "no majority") {
		t.Errorf("a declare: %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a declare is refused after %v", took)
	}
	// A node that starts without a majority knows no users, and says so.
	c.stop("n3")
	again, err := Open(c.config("n3"))
	if err != nil {
		t.Fatal(err)
	}
	c.all["n3"] = again
	url = mustServe(t, again)
	status, body, _ := request(t, "GET", url+"/api/overview", "guest", "guest")
	if reason := body.(map[string]any)["reason"].(string); status != 503 || !strings.HasPrefix(reason, "the node cannot check logins yet") {
		t.Errorf("a right password: %d %s", status, reason)
	}
	c.stop("n3")
	c.mustOpen(names...)
	until(t, "n3 is ready again", c.all["n3"].Ready)
}
