package cluster

import "testing"

// A node whose check of memory panics lives on, and checks again.
func TestNodeSurvivesPanicInLoop(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.first = names[:1]; c.through = "n1" })
	n := c.all["n1"]
	c.machine("n1").fault.Store(true)
	until(t, "a panic is counted", func() bool { return n.metricStats().Panics.Loops > 0 })
	c.machine("n1").fault.Store(false)
	c.machine("n1").used.Store(600)
	until(t, "the node notices that it is short", func() bool { return len(n.local.Alarms()) > 0 })
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
}
