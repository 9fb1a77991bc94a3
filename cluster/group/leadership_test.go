package group

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/cluster/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// A leader that raft does not give a barrier, because it is handing over and
// will not succeed, begins to lead when raft goes on.
func TestLeadershipBeginsAfterRefusedBarrier(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, func(c *Config) { c.Heartbeat = 4 * time.Second }) // after which raft gives a handover up
	g := c.mustOpen(1)[0]
	lost := c.other(g)
	lost.shut(t)
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "an entry that the lost one does not have", func() bool { return ready(g) == 1 })
	term := g.Term()
	// Raft hands over to a member that has everything, and refuses everything
	// until it finds that this one does not get there.
	transfer := g.raft.Load().LeadershipTransferToServer(raft.ServerID(lost.config.Node), raft.ServerAddress(lost.config.Node))
	g.leadership.changing.Lock()
	g.leave()
	g.leadership.changing.Unlock()
	if err := g.barrier(0); err == nil {
		t.Fatal("raft gives a barrier while it hands over")
	}
	g.review()
	if transfer.Error() == nil {
		t.Fatal("a node that is gone leads")
	}
	await(t, "the leader serves", func() bool { return g.Leading() == term })
}

// other returns a host that does not have this replica.
func (c *trio) other(g *Group) *lone {
	for _, h := range c.hosts {
		if h.Group(g.Spec().Group) != g {
			return h
		}
	}
	c.t.Fatal("no other host")
	return nil
}

// A leadership begins in the term that its barrier was asked for in, or not at all.
func TestLeadershipOfOneTerm(t *testing.T) {
	refused := errors.New("refused")
	for _, tc := range []struct {
		name   string
		terms  []uint64 // as they are read; the last one stays
		errs   []error  // of the barriers
		leads  bool
		want   uint64
		rounds int
	}{
		{"at once", []uint64{3}, []error{nil}, true, 3, 1},
		{"refused twice", []uint64{3}, []error{refused, refused, nil}, true, 3, 3},
		{"another term meanwhile", []uint64{3, 5}, []error{nil, nil}, true, 5, 2},
		{"lost", []uint64{3}, []error{nil}, false, 0, 1},
		{"lost and refused", []uint64{3}, []error{refused}, false, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			reads, rounds := 0, 0
			term := func() uint64 {
				reads++
				return tc.terms[min(reads, len(tc.terms))-1]
			}
			barrier := func() error {
				rounds++
				return tc.errs[rounds-1]
			}
			got := awaitBarrier(term, func() bool { return tc.leads }, barrier, nil)
			if got != tc.want || rounds != tc.rounds {
				t.Errorf("%s: term %d after %d barriers, want %d after %d", tc.name, got, rounds, tc.want, tc.rounds)
			}
		})
	}
	ending := make(chan struct{})
	close(ending)
	if awaitBarrier(func() uint64 { return 1 }, func() bool { return true }, func() error { return refused }, ending) != 0 {
		t.Error("a group that ends begins to lead")
	}
	g := mustTrio(t).mustOpen(1)[0]
	for _, term := range []uint64{g.Term() - 1, g.Term() + 1} {
		if _, ok := g.begin(term); ok {
			t.Errorf("in term %d a leadership begins in term %d", g.Term(), term)
		}
	}
}

// Raft may tell of a leader whose node has died since: the group is looked
// after as one without a leader.
func TestLeaderThatDiedBeforeItWasSeen(t *testing.T) {
	c := mustTrio(t)
	all := c.mustOpen(1)
	dead, g := c.host(all[0]), all[1]
	h := c.host(g)
	name := dead.config.Node
	dead.shut(t)
	await(t, "the node is dead", func() bool { return !h.mesh.Alive(name) })
	for _, other := range c.hosts { // nobody campaigns
		other.elections.end(1)
	}
	h.leaderSeen(g, name)
	h.elections.mu.Lock()
	noted := h.elections.running[fsm.GroupID(1)] != nil
	h.elections.mu.Unlock()
	if !noted && h.Group(1).Leader() == name {
		t.Error("nobody looks for a leader")
	}
}

// A transfer that takes too long makes the leader of then resign, and not the
// one that has come meanwhile.
func TestResignsOfItsOwnTerm(t *testing.T) {
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	transferee := c.other(g)
	term := g.Term()
	await(t, "the other one has what the leader has", func() bool { return transferee.Group(1).raft.Load().LastIndex() >= g.raft.Load().LastIndex() })
	transferee.mesh.Campaign(1)
	latest := term
	await(t, "the other one leads", func() bool {
		for _, r := range c.replicas(1) {
			switch now := r.Leading(); {
			case r == transferee.Group(1) && now > term:
				return true
			case now > latest: // elected instead
				latest = now
				transferee.mesh.Campaign(1)
			}
		}
		return false
	})
	c.host(g).mesh.Resign(1, term+1, transferee.config.Node)
	if err := transferee.Group(1).Barrier(time.Second); err != nil || transferee.Group(1).Leading() == 0 {
		t.Errorf("the leader of a later term is disturbed: %v", err)
	}
}

// A replica takes over with an entry of its own term, behind which it has applied
// everything that earlier leaders have committed.
func TestTakeOverAppliesEverything(t *testing.T) {
	g := mustTrio(t).mustOpen(1)[0]
	before := g.lastIndex()
	if term := g.catchUp(); term == 0 || term != g.Term() {
		t.Fatalf("it takes over in term %d of %d", term, g.Term())
	}
	if last := g.lastIndex(); last == before || g.AppliedIndex() < last {
		t.Errorf("the log ended at entry %d and ends at %d; %d are applied", before, last, g.AppliedIndex())
	}
}

// A leader that has lost and won again before it was looked at begins anew: its
// office is that of its present term.
func TestLeadershipFollowsTheTerm(t *testing.T) {
	g := mustTrio(t).mustOpen(1)[0]
	g.leadership.term.Store(g.Term() - 1)
	if g.review(); g.Leading() != g.Term() {
		t.Errorf("it serves in term %d, and leads in %d", g.Leading(), g.Term())
	}
}

// The first stamp of a term is not behind the machine's clock, and stamps do not run
// back when a leadership begins again.
func TestStampsBeginWithTheMachine(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	ahead := n.config.Clock.Now().Add(3_600_000)
	g.View(func(m *queue.Machine) {
		m.Apply(fsm.Meta{Index: m.Index(), Term: g.Term(), Now: ahead}, &tickCommand, &fsm.Effects{})
	})
	if _, ok := g.begin(g.Term()); !ok || g.proposer.now() < ahead {
		t.Fatalf("it begins with %d, the machine is at %d", g.proposer.now(), ahead)
	}
	for _, last := range []fsm.Time{ahead + 1000, 0} {
		before := g.proposer.now()
		if g.proposer.begin(n.config.Clock, last); g.proposer.now() < before {
			t.Errorf("after %d comes %d", before, g.proposer.now())
		}
	}
}

// The first entry of a term is a tick if the machine waits for anything: what was due
// without a leader is done before something is handed out.
func TestTermBeginsWithTick(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, 3_600_000, "m"))
	await(t, "a message", func() bool { return ready(g) == 1 })
	ticks := g.timer.count()
	g.leadership.term.Store(g.Term() - 1)
	g.review()
	await(t, "a tick, long before one is due", func() bool { return g.timer.count() > ticks })
}

// A new leader is told that letters wait in the outbox, which it has not seen die.
func TestLettersOfEarlierTerms(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20, DeadLetter: true})
	letters := func() (told int) {
		n.outside.await(t, "a letter", func() bool { told = n.outside.outbox; return told > 0 })
		return told
	}
	mustSubmit(t, g, enqueues(1, 1, "m"))
	told := letters()
	if _, ok := g.begin(g.Term()); !ok {
		t.Fatal("it does not lead")
	}
	n.outside.await(t, "the letter again", func() bool { return n.outside.outbox > told })
}

// Whoever leads no more does not say what a consumer holds: the new leader may have
// taken it back.
func TestResyncOfFormerLeader(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	of := fsm.ConsumerID{Session: session, Number: 1}
	g.applier.resync(of, 0, func() bool { return false })
	g.applier.resync(of, 7, func() bool { return true }) // is answered later
	n.outside.await(t, "an answer", func() bool { return len(n.outside.resyncs) > 0 })
	if got := n.outside.resyncs; len(got) != 1 {
		t.Errorf("%d answers, of which a former leader gives one", len(got))
	}
}

// Followers free the payloads of messages that are gone, as the leader does.
func TestFollowersFreePayloads(t *testing.T) {
	t.Parallel()
	all := mustTrio(t).mustOpen(1)
	mustSubmit(t, all[0], enqueues(1, -1, "a", "b", "c"))
	for _, g := range all {
		await(t, "all messages", func() bool { return ready(g) == 3 && g.store.LiveBytes() > 0 })
	}
	mustSubmit(t, all[0], BatchOf(&logpb.Command{Kind: logpb.Command_PURGE, Session: session.Proto(), Seq: 4}))
	for _, g := range all {
		await(t, "no message, and no payload", func() bool { return ready(g) == 0 && g.store.LiveBytes() == 0 })
	}
}

// A leader whose process has just started does not serve on the word of clocks that disagree: a
// majority of them has to agree first.
func TestLeaderAwaitsAgreement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := clock.New(clock.Config{
			Node: "n1", Nodes: []string{"n1", "n2", "n3"}, Logger: slog.New(slog.DiscardHandler),
			Wall:      func() time.Time { return time.Now().Add(time.Hour) },
			Monotonic: func() time.Duration { return time.Since(began) + 1 },
			MaxSkew:   func() fsm.Millis { return 1000 },
		})
		read := func(node string) { c.Read(node, fsm.Time(time.Now().UnixMilli()), time.Millisecond) }
		read("n2")
		done := make(chan struct{})
		go func() {
			awaitClocks(c, nil)
			close(done)
		}()
		time.Sleep(clock.AgreementWait / 2)
		select {
		case <-done:
			t.Fatal("it serves although the clocks disagree")
		default:
		}
		read("n3")
		synctest.Wait()
		select {
		case <-done:
		default:
			t.Error("it waits although a majority agrees")
		}
	})
}
