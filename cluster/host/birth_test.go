package host

import (
	"github.com/quorate/quorate/cluster/election"
	"net"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
)

// drowsy lets groups be born asleep that stay awake once they have woken.
func drowsy(c *Config) {
	sleepy(c)
	c.IdleAfter = 0
}

func bornSpec(id fsm.GroupID) group.Spec {
	return group.Spec{Group: id, Queue: fsm.QueueID(id) << 16, VHost: "/", Name: "q", Members: trioNames, Config: &group.QueueConfig{DeliveryLimit: 20}}
}

// first is the process of the first member.
func (c *trio) first() (l group.Leader) {
	c.t.Helper()
	await(c.t, "the first member is known", func() bool {
		l = group.Leader{Node: trioNames[0], Process: c.hosts[1].sleepers.process(trioNames[0]).of}
		return l.Process != [16]byte{} && l.Process == c.hosts[2].sleepers.process(trioNames[0]).of
	})
	return l
}

// mustBear has groups born at hosts, led by the first one, and returns the replicas of the last.
func (c *trio) mustBear(n int, hosts ...int) (ids []fsm.GroupID) {
	c.t.Helper()
	first := c.first()
	for id := fsm.GroupID(1); int(id) <= n; id++ {
		for _, i := range hosts {
			if !c.hosts[i].Bear(bornSpec(id), first) {
				c.t.Fatal("it has to be opened")
			}
		}
		ids = append(ids, id)
	}
	return ids
}

// mustBeUnborn checks that nothing of any group is stored.
func (c *trio) mustBeUnborn(ids []fsm.GroupID) {
	c.t.Helper()
	for _, h := range c.hosts {
		if h.closed {
			continue
		}
		if stored, err := h.store.GroupIDs(); err != nil || len(stored) > 0 {
			c.t.Errorf("%s stores %v, %v", h.config.Node, stored, err)
		}
		for _, id := range ids {
			if g := h.Group(id); !g.Record().IsUnborn() {
				c.t.Errorf("group %d is born at %s", id, h.config.Node)
			}
		}
	}
}

// restartAt starts a host again, without groups.
func (c *trio) restartAt(i int, tune ...any) *lone {
	c.t.Helper()
	name := trioNames[i]
	l, err := net.Listen("tcp", c.nodes[name].Addr().String())
	if err != nil {
		c.t.Fatal(err)
	}
	c.nodes[name] = l
	c.hosts[i] = mustHostOf(c.t, c.hosts[i].dir, name, c.nodes, c.hosts[(i+1)%3].config.Logger, tune...)
	return c.hosts[i]
}

// A group is born without a write, an election or a message, and its first member leads it. Whatever is submitted first
// wakes it in its first term.
func TestGroupIsBornAsleep(t *testing.T) {
	for name, tune := range map[string]func(*Config){"sleeps again": sleepy, "stays awake": drowsy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := mustTrio(t, tune)
			ids := c.mustBear(3, 0, 1, 2)
			c.mustBeUnborn(ids)
			for _, h := range c.hosts {
				for _, g := range h.Groups() {
					var fresh group.Stats
					g.View(func(m *queue.Machine) { fresh = group.StatsOf(m) })
					have := g.Stats()
					have.Clock, have.LastActive = fresh.Clock, fresh.LastActive
					p := g.Progress()
					if !reflect.DeepEqual(have, fresh) || g.Term() != 1 || g.Leader() != trioNames[0] || (g.Leading() == 1) != (h == c.hosts[0]) || p.Last != 1 || !p.Voter || g.SnapshotIndex() != -1 || len(g.Voters()) != 3 {
						t.Fatalf("at %s: %+v, %+v, led by %q in %d", h.config.Node, have, p, g.Leader(), g.Leading())
					}
				}
			}
			g, o := c.hosts[0].Group(1), c.hosts[0].outside
			mustSubmit(t, g, enqueues(1, -1, "a"))
			o.await(t, "the message is taken", func() bool { return answered(o.outcomes) == 1 })
			for _, h := range c.hosts {
				r := h.Group(1)
				await(t, "everybody has it", func() bool { return ready(r) == 1 })
				if r.Term() != 1 || len(h.outside.terms) > 0 {
					t.Errorf("at %s it is in term %d", h.config.Node, r.Term())
				}
				settings := int64(0)
				r.View(func(m *queue.Machine) { settings = m.Config().GetDeliveryLimit() })
				if settings != 20 {
					t.Error("it lacks its settings")
				}
			}
			c.mustAgree(c.replicas(1), g.AppliedIndex())
			if name == "sleeps again" {
				c.mustSleep(1)
			}
			for _, h := range c.hosts {
				for _, id := range ids[1:] {
					if err := h.Drop(id); err != nil {
						t.Error(err)
					}
				}
				if stored, _ := h.store.GroupIDs(); len(stored) != 1 {
					t.Errorf("%s stores %v", h.config.Node, stored)
				}
			}
		})
	}
}

// A member that hears of the group from its leader before it knows of the queue takes part all the same.
func TestLateMemberIsBorn(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	c.mustBear(1, 0, 1)
	g, o := c.hosts[0].Group(1), c.hosts[0].outside
	mustSubmit(t, g, enqueues(1, -1, "a"))
	o.await(t, "the message is taken", func() bool { return answered(o.outcomes) == 1 })
	await(t, "the leader sends to the third", func() bool { return c.hosts[2].mesh.Waits(1) })
	if !c.hosts[2].Bear(bornSpec(1), c.first()) {
		t.Fatal("it has to be opened")
	}
	await(t, "it has the message", func() bool { return ready(c.hosts[2].Group(1)) == 1 })
}

// The first member dies before anything has happened: another one leads the group, in the next term, without waking it. It
// comes back as another process, which does not lead in the first term.
func TestUnbornAreTakenOver(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	ids := c.mustBear(8, 0, 1, 2)
	c.mustStop(0)
	leads := func(g *group.Group) bool { return g.Leading() != 0 }
	for _, id := range ids {
		var all []*group.Group
		await(t, "another leads it", func() bool {
			all = c.left(id)
			return leads(all[0]) && all[1].Leader() == c.nodeOf(all[0])
		})
		for _, g := range all {
			if !g.Asleep() || g.Term() < 2 || g.Record().IsUnborn() {
				t.Fatalf("group %d at %s: asleep %v, term %d", id, c.nodeOf(g), g.Asleep(), g.Term())
			}
		}
	}
	c.restartAt(0, drowsy)
	for _, id := range ids {
		if !c.hosts[0].Bear(bornSpec(id), group.Leader{}) || c.hosts[0].Group(id).Leading() != 0 {
			t.Fatal("it leads")
		}
	}
	for _, id := range ids[:3] {
		c.mustServe(id, 1)
		for _, h := range c.hosts {
			await(t, "everybody has the message", func() bool { return ready(h.Group(id)) == 1 })
		}
	}
}

// All nodes restart before anything has happened: the groups have a leader again, without waking.
func TestUnbornSurviveRestart(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	ids := c.mustBear(4, 0, 1, 2)
	for i := range c.hosts {
		c.mustStop(i)
	}
	for i := range c.hosts {
		for _, id := range ids {
			h := c.hosts[i]
			if h.closed {
				h = c.restartAt(i, drowsy)
			}
			if !h.Bear(bornSpec(id), group.Leader{}) {
				t.Fatal("it has to be opened")
			}
		}
	}
	for _, id := range ids {
		await(t, "it is led", func() bool { return c.leads(id) })
		for _, g := range c.replicas(id) {
			if !g.Asleep() {
				t.Errorf("group %d is awake at %s", id, c.nodeOf(g))
			}
		}
	}
	c.mustServe(1, 1)
}

// Nobody leads a group in its first term who has led it in a process before: what that sent may be at others, and not here.
// Another takes over with what is there.
func TestFirstTermIsLedOnce(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	c.mustBear(1, 0, 1, 2)
	mustSubmit(t, c.hosts[0].Group(1), enqueues(1, -1, "a"))
	for _, h := range c.hosts {
		await(t, "everybody has the message", func() bool { return ready(h.Group(1)) == 1 })
	}
	c.mustStop(0)
	h := c.restartAt(0, drowsy)
	if h.Bear(bornSpec(1), group.Leader{Node: trioNames[0]}) {
		t.Error("it is born again")
	}
	c.mustOpenAt(h, 1)
	await(t, "it has the message again", func() bool { return ready(h.Group(1)) == 1 })
	if g := c.mustServe(1, 2); g.Term() < 2 {
		t.Error("it is led in its first term")
	}
}

// Queues for which time runs from their declaration on are opened, and so is everything in a cluster of an older version,
// and what has a past.
func TestWhoIsOpenedAtBirth(t *testing.T) {
	t.Parallel()
	var stage atomic.Int32
	h := mustHost(t, t.TempDir(), drowsy, func(c *Config) {
		c.Settings = func(fsm.QueueID) *group.QueueConfig {
			return []*group.QueueConfig{nil, {Revision: 7, DeliveryLimit: 3}, {Revision: 8, Expires: 100}}[stage.Load()]
		}
	})
	spec := group.Spec{Group: 1, Queue: 1 << 16, VHost: "/", Name: "q", Members: []string{"n1"}, Config: &group.QueueConfig{}}
	for _, config := range []*group.QueueConfig{{Expires: 1000}, {AutoDeleteOnIdle: 1000}} {
		of := spec
		if of.Config = config; h.Bear(of, group.Leader{Node: "n1"}) {
			t.Errorf("born with %v", config)
		}
	}
	joins := spec
	if joins.Joins = true; h.Bear(joins, group.Leader{Node: "n1"}) {
		t.Error("born of a group that others have founded")
	}
	h.config.Version = func() uint32 { return 2 }
	if h.Bear(spec, group.Leader{Node: "n1"}) {
		t.Error("born in an older cluster")
	}
	h.config.Version = func() uint32 { return 3 }
	if !h.Bear(spec, group.Leader{Node: "n1"}) || h.Bear(spec, group.Leader{Node: "n1"}) {
		t.Fatal("it is not born once")
	}
	// Settings by which a queue ends wake it: its time runs from now on.
	stage.Store(1)
	h.Group(1).Reconfigure()
	if !h.Group(1).Asleep() {
		t.Error("it is woken for settings that have time")
	}
	stage.Store(2)
	h.Group(1).Reconfigure()
	await(t, "the queue ends", func() (gone bool) {
		h.Group(1).View(func(m *queue.Machine) { gone = m.Stats().Phase == queue.Gone })
		return gone
	})
}

// Before its members are others, a group has on disk what it was founded with: it is opened from there.
func TestSettledBeforeMembersChange(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	c.mustBear(1, 0, 1, 2)
	for _, h := range c.hosts {
		if err := h.Group(1).Settle(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range c.hosts {
		c.mustStop(i)
	}
	for i := range c.hosts {
		spec := bornSpec(1)
		if spec.Joins = true; c.restartAt(i, drowsy).Bear(spec, group.Leader{}) {
			t.Fatal("it is born again")
		}
		if _, err := c.hosts[i].Open(spec); err != nil {
			t.Fatal(err)
		}
	}
	c.mustServe(1, 1)
}

// A host of which one member is left has nobody to vote for unborn groups, which sleep on; when another is back, they are led.
func TestUnbornWithoutMajority(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	c.mustStop(2)
	c.mustStop(1)
	h := c.hosts[0]
	await(t, "both are down", func() bool { return !h.mesh.Alive(trioNames[1]) && !h.mesh.Alive(trioNames[2]) })
	if !h.Bear(bornSpec(1), group.Leader{}) {
		t.Fatal("it has to be opened")
	}
	h.sleepers.sweep(time.Now().Add(orphanAfter))
	if g := h.Group(1); !g.Record().IsUnborn() || g.Leading() != 0 || h.sleepers.bearing.Load() {
		t.Error("it does not sleep on")
	}
	if !c.restartAt(1, drowsy).Bear(bornSpec(1), group.Leader{}) {
		t.Fatal("it has to be opened")
	}
	await(t, "it is led", func() bool { return c.leads(1) })
}

// A group that nobody has used is not woken for want of a leader alone because it has voted, and the votes of others were
// lost. It is when nobody could be found for long.
func TestUnusedSleepsOnWhenItHasVoted(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	c.mustStop(2)
	h := c.hosts[0]
	if !h.Bear(bornSpec(1), group.Leader{}) { // and the other one does not know it
		t.Fatal("it has to be opened")
	}
	g := h.Group(1)
	at := g.Record().At()
	if len(h.sleepers.voter.vote(trioNames[0], []election.Item{{Kind: election.ItemVote, Group: 1, Term: 2, Position: at.Position}})) != 1 || g.Record().IsUnborn() {
		t.Fatal("it has not voted")
	}
	if used := h.sleepers.bear([]*group.Group{g}); len(used) > 0 {
		t.Error("it is woken")
	}
	for g.Forsake() {
	}
	if used := h.sleepers.bear([]*group.Group{g}); len(used) != 1 {
		t.Error("it is never woken")
	}
}

// Who stands for election while others know a leader stays in its term, and hears of that leader. A member in a later term
// would not believe it: the leader wakes, and is elected in one that all believe.
func TestCandidateKeepsItsTerm(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	ids := c.mustBear(10, 0, 1)
	h := c.hosts[2]
	bear := func(id fsm.GroupID) {
		if !h.Bear(bornSpec(id), group.Leader{}) {
			t.Fatal("it has to be opened")
		}
	}
	ask := func(id fsm.GroupID, term uint64) []election.Item {
		return []election.Item{{Kind: election.ItemVote, Group: id, Term: term, Position: h.Group(id).Record().At().Position}}
	}
	bear(1)
	h.sleepers.voter.stand(ask(1, 2), &takeover{})
	await(t, "it hears who leads", func() bool { return h.Group(1).Leader() == trioNames[0] })
	if term := h.Group(1).Term(); term != 1 {
		t.Errorf("it is in term %d", term)
	}
	id := fsm.GroupID(1)
	for voted := false; !voted; { // not one of whose leader it has heard by then
		if id++; int(id) > len(ids) {
			t.Fatal("it has not voted")
		}
		bear(id)
		voted = len(h.sleepers.voter.vote(trioNames[2], ask(id, 9))) == 1
	}
	c.hosts[0].sleepers.voter.requested(trioNames[2], ask(id, 10))
	await(t, "all are in a later term", func() bool {
		leader := ""
		for _, h := range c.hosts {
			g := h.Group(id)
			if leader == "" {
				leader = g.Leader()
			}
			if g.Term() < 9 || leader == "" || g.Leader() != leader {
				return false
			}
		}
		return true
	})
	if c.hosts[0].Group(id).Asleep() {
		t.Error("its leader has slept on")
	}
}

// A member that did not reach the leader when it came to know of groups asks for it, be that the leader of the first term or
// one that has taken over, and takes nothing from it. Nobody waits for a first member that was restarted.
func TestMemberAsksWhoLeadsUnborn(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, drowsy)
	ids := c.mustBear(8, 0, 1)
	h := c.hosts[2]
	for _, id := range ids {
		if !h.Bear(bornSpec(id), group.Leader{}) {
			t.Fatal("it has to be opened")
		}
	}
	for _, id := range ids {
		await(t, "it knows who leads", func() bool { return h.Group(id).Leader() == trioNames[0] })
	}
	c.mustBeUnborn(ids)
	c.mustStop(2)
	c.mustStop(0)
	c.restartAt(0, drowsy)
	for _, id := range ids {
		if !c.hosts[0].Bear(bornSpec(id), group.Leader{}) {
			t.Fatal("it has to be opened")
		}
	}
	began := time.Now()
	for _, id := range ids {
		await(t, "it is led in a later term", func() bool { return c.hosts[0].Group(id).Leading()+c.hosts[1].Group(id).Leading() > 1 })
	}
	if took := time.Since(began); took > restartPatience {
		t.Errorf("they are led after %v", took)
	}
	h = c.restartAt(2, drowsy)
	asleep := 0
	for _, id := range ids {
		if !h.Bear(bornSpec(id), group.Leader{}) {
			t.Fatal("it has to be opened")
		}
	}
	for _, id := range ids {
		await(t, "it knows who leads then", func() bool { l := h.Group(id).Leader(); return l != "" && l != trioNames[2] })
		if !slices.ContainsFunc(c.hosts, func(h *lone) bool { return !h.Group(id).Asleep() }) { // others wake since the machine is slow
			asleep++
		}
	}
	if asleep == 0 {
		t.Error("all have woken")
	}
}
