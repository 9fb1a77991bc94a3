package group

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// The message that wakes a group is all that waking adds to the log: one entry in the term before, which each member syncs
// once.
func TestWakeIsOneEntry(t *testing.T) {
	t.Parallel()
	c, _, all := mustOpenValved(t, func(c *HostConfig) { c.IdleAfter *= 10 })
	at, term, syncs := all[0].AppliedIndex(), all[0].Term(), c.syncs()
	mustSubmit(t, all[0], enqueues(2, -1, "b"))
	await(t, "the message is taken", func() bool { return ready(all[0]) == 2 })
	for _, g := range all {
		await(t, "it has the entry", func() bool { return g.Progress().Last > at })
		if p := g.Progress(); p.Last != at+1 || p.Term != term {
			t.Errorf("%s: entry %d has become %d, term %d %d", g.node.config.Node, at, p.Last, term, p.Term)
		}
	}
	if n := c.syncs() - syncs; n > uint64(len(all)) {
		t.Errorf("%d syncs", n)
	}
}

// A leader that wakes for something else than an entry leads all the same, and takes what comes.
func TestWakeWithoutEntry(t *testing.T) {
	t.Parallel()
	_, _, all := mustOpenValved(t)
	term := all[0].Term()
	all[0].Wake()
	mustSubmit(t, all[0], enqueues(2, -1, "b"))
	await(t, "the message is taken", func() bool { return ready(all[0]) == 2 })
	if now := all[0].Term(); now != term {
		t.Errorf("term %d has become %d", term, now)
	}
}

// A leader that others have deposed while it slept cannot keep what it wakes with: whoever has submitted that hears that it
// may be lost, and the entry gives way to another one.
func TestWakeOfDeposedLeader(t *testing.T) {
	t.Parallel()
	c, v, all := mustOpenValved(t)
	old, o := all[0], c.host(all[0]).outside
	v.Set(old.node.config.Node, true)
	at := old.AppliedIndex()
	mustSubmit(t, old, enqueues(2, -1, "lost"))
	await(t, "the entry is in one log", func() bool { return old.Progress().Last > at })
	next := all[1]
	next.mustStand(t)
	await(t, "the next message is taken", func() bool {
		_ = next.Submit(enqueues(2, -1, "kept")) // a copy costs nothing, and it may have been told twice to stand
		return ready(next) == 2
	})
	v.Set(old.node.config.Node, false)
	o.await(t, "the first one may be lost", func() bool { return o.undecided > 0 })
	for _, g := range all {
		await(t, "everybody has the other one", func() bool { return ready(g) == 2 && g.Term() == next.Term() })
	}
	c.mustAgree(all, 0)
}

// A group's lines say which queue it is.
func TestGroupLogger(t *testing.T) {
	var b strings.Builder
	l := groupLogger(slog.New(slog.NewTextHandler(&b, nil)), &Spec{Name: "q", VHost: "v", Group: 7})
	l.With("a", 1).Info("one", "b", 2)
	l.Info("two")
	l.WithGroup("g").Info("three", "c", 3)
	for _, want := range []string{"msg=one queue=q vhost=v group=7 a=1 b=2", "msg=two queue=q vhost=v group=7", "msg=three queue=q vhost=v group=7 g.c=3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %s", want, b.String())
		}
	}
}

// Leaders of a node that are called wake a few at a time. Followers do not wait for them: their leaders are awake, and wait.
func TestWakesAtOnce(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustOpen(2)
	led := c.mustSleep(1)[0]
	n := led.node
	follows := c.mustSleep(2)
	if follows[0].node == n {
		if err := follows[0].Transfer(follows[1].node.config.Node); err != nil {
			t.Fatal(err)
		}
		follows = c.mustSleep(2)
	}
	led = c.mustSleep(1)[0]
	for range wakesAtOnce {
		n.wakes.leaders <- struct{}{}
	}
	led.Call()
	for _, g := range follows {
		if g.node == n {
			g.Call()
		}
	}
	await(t, "a follower wakes", func() bool {
		return slices.ContainsFunc(follows, func(g *Group) bool { return g.node == n && !g.Asleep() })
	})
	if !led.Asleep() {
		t.Error("a leader wakes though others do")
	}
	<-n.wakes.leaders
	await(t, "the leader wakes", func() bool { return !led.Asleep() })
}
