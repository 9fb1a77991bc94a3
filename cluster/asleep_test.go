package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
)

// Queues that sleep sleep on when all nodes are restarted: no node reads one for its start, and each is used as before.
func TestQueuesSleepOn(t *testing.T) {
	t.Parallel()
	c := mustCluster(t, func(c *nodes) { c.change = func(c *Config) { c.IdleAfter = 50 * time.Millisecond } })
	queues := []string{"a", "b", "c"}
	client := c.mustClient("n1")
	for _, q := range queues {
		client.mustDeclare(q)
		client.publish(q, "first")
	}
	client.confirmed()
	client.close()
	until(t, "all sleep", func() bool {
		for _, n := range c.all {
			if slices.ContainsFunc(n.host.Groups(), func(g *group.Group) bool { return !g.Asleep() }) {
				return false
			}
		}
		return true
	})
	for _, name := range names {
		c.crash(name)
	}
	c.mustOpen(names...)
	for name, n := range c.all {
		if is := len(n.host.Groups()); is != len(queues) {
			t.Errorf("%s has %d replicas", name, is)
		}
		if is := n.stores.queues.Metrics().Groups; is > 0 {
			t.Errorf("%s has read %d", name, is)
		}
	}
	client = c.mustClient("n2")
	for _, q := range queues {
		client.publish(q, "second")
	}
	client.confirmed()
	for _, q := range queues {
		if info, err := client.count(q); err != nil || info.Ready != 2 {
			t.Errorf("%s has %d messages: %v", q, info.Ready, err)
		}
	}
	client.close()
	c.mustAgree()
}
