package group

import (
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
	c := mustTrio(t, func(c *HostConfig) { c.Heartbeat = 4 * time.Second }) // after which raft gives a handover up
	g := c.mustOpen(1)[0]
	lost := c.other(g)
	lost.shut(t)
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "an entry that the lost one does not have", func() bool { return ready(g) == 1 })
	term := g.Term()
	// Raft hands over to a member that has everything, and refuses everything
	// until it finds that this one does not get there.
	transfer := g.in().Raft().LeadershipTransferToServer(raft.ServerID(lost.config.Node), raft.ServerAddress(lost.config.Node))
	g.in().leadership.changing.Lock()
	g.in().leave()
	g.in().leadership.changing.Unlock()
	if err := g.Barrier(0); err == nil {
		t.Fatal("raft gives a barrier while it hands over")
	}
	g.in().Review()
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

// A leadership begins in the term that its replica has caught up in, or not at all: an entry of that term is committed, and
// the machine has been given all commands before it.
func TestLeadershipOfOneTerm(t *testing.T) {
	g := mustTrio(t).mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "a message", func() bool { return ready(g) == 1 })
	for _, term := range []uint64{g.Term() - 1, g.Term() + 1} {
		if (replicated{g.in()}).caughtUp(term) {
			t.Errorf("in term %d it has caught up in term %d", g.Term(), term)
		}
		if _, ok := g.in().begin(term); ok {
			t.Errorf("in term %d a leadership begins in term %d", g.Term(), term)
		}
	}
	last := g.in().LastIndex()
	see := func(m *queue.Machine) (had *queue.Machine) {
		g.in().applier.mu.Lock()
		defer g.in().applier.mu.Unlock()
		had, g.in().applier.machine = g.in().applier.machine, m
		return had
	}
	whole := see(g.in().applier.newMachine()) // it is about to get the last command
	caughtUp := make(chan uint64)
	go func() { caughtUp <- replicated{g.in()}.catchUp() }()
	select {
	case <-caughtUp:
		t.Fatal("it serves before all is applied")
	case <-time.After(20 * time.Millisecond):
	}
	see(whole)
	if term := <-caughtUp; term != g.Term() || g.in().LastIndex() != last {
		t.Errorf("it takes over in term %d of %d, the log has grown by %d", term, g.Term(), g.in().LastIndex()-last)
	}
	g.in().applier.mu.Lock() // the machine is at work
	if (replicated{g.in()}).caughtUp(g.Term()) {
		t.Error("it has caught up while something is applied")
	}
	g.in().applier.mu.Unlock()
}

// Who leads no more, must not lead, or has ended takes nothing over.
func TestNobodyTakesOverInVain(t *testing.T) {
	all := mustTrio(t).mustOpen(1)
	if term := (replicated{all[1].in()}).catchUp(); term != 0 {
		t.Errorf("a follower takes over in term %d", term)
	}
	g := all[0]
	g.node.withdrawn.Store(true)
	if term := (replicated{g.in()}).catchUp(); term != 0 {
		t.Errorf("the leader of a node that has withdrawn takes over in term %d", term)
	}
	g.node.withdrawn.Store(false)
}

// A transfer that takes too long makes the leader of then resign, and not the
// one that has come meanwhile.
func TestResignsOfItsOwnTerm(t *testing.T) {
	c := mustTrio(t)
	g := c.mustOpen(1)[0]
	transferee := c.other(g)
	term := g.Term()
	await(t, "the other one has what the leader has", func() bool { return transferee.Group(1).in().Raft().LastIndex() >= g.in().Raft().LastIndex() })
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

// A replica takes over when it has applied everything that earlier leaders have committed, and adds nothing to the log for
// that.
func TestTakeOverAppliesEverything(t *testing.T) {
	g := mustTrio(t).mustOpen(1)[0]
	mustSubmit(t, g, enqueues(1, -1, "m"))
	await(t, "a message", func() bool { return ready(g) == 1 })
	before := g.in().LastIndex()
	if term := (replicated{g.in()}).catchUp(); term == 0 || term != g.Term() {
		t.Fatalf("it takes over in term %d of %d", term, g.Term())
	}
	if last := g.in().LastIndex(); last != before || g.AppliedIndex() < last {
		t.Errorf("the log ended at entry %d and ends at %d; %d are applied", before, last, g.AppliedIndex())
	}
}

// A leader that has lost and won again before it was looked at begins anew: its
// office is that of its present term.
func TestLeadershipFollowsTheTerm(t *testing.T) {
	g := mustTrio(t).mustOpen(1)[0]
	g.in().leadership.term.Store(g.Term() - 1)
	if g.in().Review(); g.Leading() != g.Term() {
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
	if _, ok := g.in().begin(g.Term()); !ok || g.in().proposer.now() < ahead {
		t.Fatalf("it begins with %d, the machine is at %d", g.in().proposer.now(), ahead)
	}
	for _, last := range []fsm.Time{ahead + 1000, 0} {
		before := g.in().proposer.now()
		if g.in().proposer.begin(n.config.Clock, last); g.in().proposer.now() < before {
			t.Errorf("after %d comes %d", before, g.in().proposer.now())
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
	ticks := g.in().timer.count()
	g.in().leadership.term.Store(g.Term() - 1)
	g.in().Review()
	await(t, "a tick, long before one is due", func() bool { return g.in().timer.count() > ticks })
}

// Nor does the tick wait for long for somebody who is known to wait for the leader.
func TestTickOfTermIsProposed(t *testing.T) {
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	mustSubmit(t, g, enqueues(1, 3_600_000, "m"))
	await(t, "a message", func() bool { return ready(g) == 1 })
	ticks := g.in().timer.count()
	g.in().Want(time.Now())
	g.in().leadership.term.Store(g.Term() - 1)
	g.in().Review()
	await(t, "a tick without company", func() bool { return g.in().timer.count() > ticks })
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
	if _, ok := g.in().begin(g.Term()); !ok {
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
	g.in().applier.resync(of, 0, func() bool { return false })
	g.in().applier.resync(of, 7, func() bool { return true }) // is answered later
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
		await(t, "all messages", func() bool { return ready(g) == 3 && g.in().store.LiveBytes() > 0 })
	}
	mustSubmit(t, all[0], BatchOf(&logpb.Command{Kind: logpb.Command_PURGE, Session: session.Proto(), Seq: 4}))
	for _, g := range all {
		await(t, "no message, and no payload", func() bool { return ready(g) == 0 && g.in().store.LiveBytes() == 0 })
	}
}

// clockAhead is the clock of a node of three whose wall clock is an hour ahead.
func clockAhead() *clock.Clock {
	began := time.Now()
	return clock.New(clock.Config{
		Node: "n1", Nodes: []string{"n1", "n2", "n3"}, Logger: slog.New(slog.DiscardHandler),
		Wall:      func() time.Time { return time.Now().Add(time.Hour) },
		Monotonic: func() time.Duration { return time.Since(began) + 1 },
		MaxSkew:   func() fsm.Millis { return 1000 },
	})
}

// A leader whose process has just started does not serve on the word of clocks that disagree: a
// majority of them has to agree first.
func TestLeaderAwaitsAgreement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clockAhead()
		read := func(node string) { c.Read(node, fsm.Time(time.Now().UnixMilli()), c.Monotonic(), time.Millisecond) }
		if read("n2"); c.AgreementLeft() != clock.AgreementWait {
			t.Errorf("a leader waits for %v", c.AgreementLeft())
		}
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

// Clocks that do not agree keep the leaders of a node waiting once, and not each of them for as long as they disagree.
func TestDisagreementIsAwaitedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clockAhead()
		takeOver := func() time.Duration {
			at := time.Now()
			awaitClocks(c, nil)
			return time.Since(at)
		}
		if took := takeOver(); took != clock.AgreementWait {
			t.Errorf("with clocks that nobody has read a leader waits for %v", took)
		}
		c.Read("n2", fsm.Time(time.Now().UnixMilli()), c.Monotonic(), time.Millisecond)
		time.Sleep(clock.AgreementWait / 2)
		for i, want := range []time.Duration{clock.AgreementWait / 2, 0, 0} {
			if took := takeOver(); took != want {
				t.Errorf("leader %d waits for %v, want %v", i+1, took, want)
			}
		}
	})
}

// What a new leader has to propose when it has told of itself is one entry, however long that takes; a tick alone waits until
// it is told to go on.
func TestFirstEntryIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFree(t)
		settle := func(seq uint64) {
			if err := x.submit(BatchOf(&logpb.Command{Kind: logpb.Command_SETTLE, Seq: seq})); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		x.gather(true, func() {
			settle(1)
			settle(2)
		})
		if synctest.Wait(); len(x.entries) != 1 || len(x.entries[0].Commands) != 3 {
			t.Fatalf("two commands and a tick are %d entries", len(x.entries))
		}
		x.gather(true, func() {})
		if synctest.Wait(); len(x.entries) != 1 {
			t.Error("a tick does not wait for company")
		}
		x.goOn()
		if synctest.Wait(); len(x.entries) != 2 {
			t.Errorf("a tick without company is %d entries", len(x.entries)-1)
		}
		for _, f := range x.futures {
			f.err <- nil
		}
	})
}

// A tick that is due while a leader gathers what its first entry is made of is proposed, though nothing else is.
func TestTickWhileGathering(t *testing.T) {
	t.Parallel()
	n := mustHost(t, t.TempDir())
	g := n.mustGroup(t, 1, &QueueConfig{DeliveryLimit: 20})
	i := g.in()
	await(t, "it leads", func() bool { return g.Leading() != 0 && !i.proposer.busy() })
	ticks := i.timer.count()
	i.proposer.gather(false, func() {
		if !i.proposer.proposeTick() {
			t.Error("there will be none")
		}
	})
	await(t, "the tick is applied", func() bool { return i.timer.count() > ticks })
}
