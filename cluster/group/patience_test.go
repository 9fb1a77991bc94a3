package group

import (
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/replica"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// A follower knows from its machine and its log whether a leader is missed.
func TestPatience(t *testing.T) {
	c := mustTrio(t, func(c *HostConfig) { c.Heartbeat = 0 }) // followers learn late what is committed
	g := c.mustOpen(1)[0]
	follower := c.other(g).Group(1)
	known := func(what string, least, most time.Duration) {
		t.Helper()
		await(t, what+" is known to the follower", func() bool {
			d := follower.in().Patience()
			return d >= least && d <= most
		})
	}
	apply := func() {
		t.Helper()
		if err := g.Barrier(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	known("an empty queue, whose settings are not known to be committed", replica.Never, replica.Never)
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "the message", func() bool { return ready(g) == 1 })
	await(t, "the follower waits for nobody to tell it of the commit", func() bool {
		d := follower.in().Patience()
		return d == 0 || ready(follower) == 1 // it got the message so late that this was known
	})
	apply()
	known("a message that stays", replica.Never, replica.Never)
	mustSubmit(t, g, enqueues(2, fsm.Millis(time.Hour.Milliseconds()), "m"))
	await(t, "the message", func() bool { return ready(g) == 2 })
	apply()
	known("a message that expires", 50*time.Minute, time.Hour)
	follower.in().applier.mu.Lock()
	if d := follower.in().Patience(); d != 0 {
		t.Errorf("a machine that is at work has %v", d)
	}
	follower.in().applier.mu.Unlock()
	get := &logpb.Command{Kind: logpb.Command_GET, Session: session.Proto(), Seq: 3, Get: &logpb.Get{}}
	mustSubmit(t, g, Batch{Commands: AppendCommand(nil, get), Count: 1})
	await(t, "a delivery", func() bool { return ready(g) == 1 })
	apply()
	known("a consumer that holds a message", 0, 0)
}
