package group

import (
	"testing"
)

// Raft counts an entry as applied when it has handed it to the machine's goroutine, which may end before it gets there.
// A replica that sleeps has all the same what it says, or reads it when it wakes.
func TestSleeperHasWhatItHasApplied(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy, func(c *HostConfig) { c.IdleAfter = 0 })
	all := c.mustOpen(1)
	g, r := all[0], all[1]
	seq := uint64(1)
	publish := func() {
		mustSubmit(t, g, enqueues(seq, -1, "a"))
		await(t, "the message is taken", func() bool { return ready(g) == seq })
		g.in().Remind(r.node.config.Node)
		await(t, "that is known", func() bool { return r.in().Raft().AppliedIndex() == g.AppliedIndex() })
		seq++
	}
	for range 8 {
		i := r.in()
		i.applier.mu.Lock()
		publish()
		publish()
		slept := make(chan bool)
		go func() { slept <- r.Sleep(func(*Instance) bool { return true }) }()
		await(t, "its raft ends", i.IsClosed)
		i.applier.mu.Unlock()
		if !<-slept {
			t.Fatal("it does not sleep")
		}
		r.Wake()
		c.mustAgree(all, g.AppliedIndex())
	}
}

// A replica does not fall asleep while it has something to apply.
func TestSleeperHasAppliedAll(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy, func(c *HostConfig) { c.IdleAfter = 0 })
	all := c.mustOpen(1)
	g, r := all[0], all[1]
	c.mustServe(1, 1)
	await(t, "it has everything", func() bool { return r.in().Follows(g.Leader(), g.in().recorded()) })
	r.in().applier.mu.Lock()
	mustSubmit(t, g, enqueues(2, -1, "b"))
	await(t, "the message is taken", func() bool { return ready(g) == 2 })
	g.in().Remind(r.node.config.Node)
	await(t, "that is known", func() bool { return r.in().Raft().AppliedIndex() == g.AppliedIndex() })
	if r.in().Follows(g.Leader(), g.in().recorded()) {
		t.Error("it may sleep")
	}
	r.in().applier.mu.Unlock()
	await(t, "it may sleep", func() bool { return r.in().Follows(g.Leader(), g.in().recorded()) })
}

// recorded is where a leader would sleep.
func (i *Instance) recorded() RecordedAt {
	return RecordedAt{i.PositionOf(i.LastStored()), i.Term()}
}
