package host

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/cluster/election"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm"
)

// A node dies again while its first death is still being dealt with, which ends, and leaves alone what belongs to the second.
func TestTakeoverLeavesTheNext(t *testing.T) {
	t.Parallel()
	c, all := mustAwaken(t)
	dead := c.nodeOf(all[0])
	for _, g := range all[1:] {
		mustRest(t, g)
		r, v := g.Record(), c.host(g).sleepers.voter
		believe(g, r.At().Raft, "")
		if v.candidate(1, r, dead) != c.nodeOf(g) {
			continue
		}
		term, later := r.At().Raft+1, &takeover{dead}
		v.polls[1] = &poll{term: term, takeover: later}
		v.takeOver([]*group.Group{g}, dead, func() bool { return false })
		if p := v.polls[1]; p == nil || p.takeover != later {
			t.Errorf("the poll is %+v", p)
		}
		mine := &takeover{dead}
		v.stand([]election.Item{{Kind: election.ItemVote, Group: 1, Term: term, Position: r.At().Position}}, mine)
		if p := v.polls[1]; p != nil && p.takeover != mine {
			t.Errorf("the poll that goes on is %+v", p)
		}
		return
	}
	t.Fatal("nobody would stand")
}

// A group that is woken while it is dropped is not there afterwards.
func TestDropWhileWaking(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustSleep(1)[0]
	h := c.host(g)
	if h.groups.remove(1) != g { // as Drop begins
		t.Fatal("another group")
	}
	g.Wake()
	g.Close()
	if h.Group(1) != nil || len(h.groups.all()) != 0 || len(h.groups.replicas(func(*awake) bool { return true })) != 0 {
		t.Error("it is there")
	}
	if i := g.Wake(); i != nil && !i.IsClosed() {
		t.Error("it wakes")
	}
}

// Whatever the reasons are for which groups are woken that nobody waits for, so many wake in a second in all.
func TestWakesShareARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reasons, each = 5, wakesPerSecond
		s := &sleepers{host: &Host{tasks: worker.NewTasks(nil)}}
		began := time.Now()
		var all sync.WaitGroup
		for range reasons {
			all.Go(func() {
				for range each {
					if !s.turn(func() bool { return true }) {
						t.Error("there is a reason")
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took < reasons*time.Second {
			t.Errorf("%d groups are woken in %v", reasons*each, took)
		}
		if s.turn(func() bool { return false }) {
			t.Error("there is no reason any more")
		}
	})
}

// The node that led groups that sleep leads them again after its restart, without waking them, when nobody has taken them
// over within a moment. The others go by its word.
func TestRestartedLeaderLeadsAsleep(t *testing.T) {
	t.Parallel()
	for tries := 1; ; tries++ {
		found := restarted(t)
		if found == "" {
			return
		}
		if tries == 5 {
			t.Fatalf("none leads asleep, one term later:\n%s", found)
		}
	}
}

// restarted returns what it has found if no leader leads asleep, one term later: groups whose votes take longer than a second
// are woken, since the machine is slow.
func restarted(t *testing.T) (found string) {
	t.Helper()
	c := mustTrio(t, sleepy)
	ids := c.mustSleepWith(8, -1)
	terms := map[fsm.GroupID]uint64{}
	for _, id := range ids {
		terms[id] = c.mustSleep(id)[0].Term()
	}
	c.restart([]int{0, 1, 2}, ids, sleepy)
	exact := 0
	for _, id := range ids {
		var all []*group.Group
		await(t, "it leads again", func() bool {
			all = c.left(id)
			return all[0].Leading() != 0 && all[1].Leader() == c.nodeOf(all[0]) && all[2].Leader() == c.nodeOf(all[0])
		})
		if all[0].Asleep() && c.nodeOf(all[0]) == trioNames[0] && all[0].Term() == terms[id]+1 {
			exact++
		}
		found += fmt.Sprintf("group %d, term %d before: led by %s in term %d, asleep: %v\n", id, terms[id], c.nodeOf(all[0]), all[0].Term(), all[0].Asleep())
	}
	for _, id := range ids[:2] {
		c.mustTake(id, enqueues(2, -1, "b"), 2)
	}
	if exact > 0 {
		return ""
	}
	return found + c.log.String()
}

// A member that has lost its data while its group slept wakes the leader, which takes it for one that has everything, and gets
// the data back without anybody using the queue.
func TestMemberWithoutDataWakesTheLeader(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	i := slices.Index(trioNames[:], c.nodeOf(c.mustSleep(1)[1]))
	c.hosts[i].shut(t)
	if err := os.RemoveAll(filepath.Join(c.hosts[i].dir, "queues")); err != nil {
		t.Fatal(err)
	}
	c.restart([]int{i}, []fsm.GroupID{1}, sleepy)
	g := c.hosts[i].Group(1)
	await(t, "it has the message", func() bool { return ready(g) == 1 })
	c.mustAgree(c.mustSleep(1), g.AppliedIndex())
}

// What a group does while it falls asleep and wakes all the time, and its leader changes, is what its log says.
func TestTermsWithSleep(t *testing.T) {
	for _, d := range append(disturbances[:len(disturbances):len(disturbances)], disturbance{"sleeps", (*terms).sleeps}) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			c := mustTerms(t, sleepy)
			c.traffic(20)
			c.sleeps()
			d.do(c)
			c.traffic(20)
			c.sleeps()
			d.do(c)
			c.verify()
		})
	}
}

// sleeps: all replicas sleep, and whichever is asked first wakes them.
func (c *terms) sleeps() {
	c.rest()
	c.mustSleep(1)
	c.publish(10, -1)
	c.rest()
	c.gather()
}

// A leader that sleeps says so at once to who asks for one, and wakes afterwards: on a busy machine, or with many groups that
// are asked about, that takes longer than a candidate waits for answers. It does not to who knows of a later term.
func TestSleeperSaysThatItLeads(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustSleep(1)[0]
	other, r := c.other(g), g.Record()
	ask := election.Item{Kind: election.ItemAsk, Group: 1, Term: r.At().Raft, Position: r.At().Position}
	if answer, wakes := c.host(g).sleepers.Heard(other.config.Node, ask); !wakes || !bytes.Equal(answer, election.AppendItem(nil, election.Led(1, r.At().Raft, r.At().Position))) {
		t.Errorf("it answers %v, and wakes: %v", answer, wakes)
	}
	ask.Term++
	if answer, wakes := c.host(g).sleepers.Heard(other.config.Node, ask); !wakes || answer != nil {
		t.Errorf("who knows of a later term is answered %v, and it wakes: %v", answer, wakes)
	}
	if answer, wakes := other.sleepers.Heard(c.nodeOf(g), ask); !wakes || answer != nil {
		t.Errorf("a follower answers %v, and wakes: %v", answer, wakes)
	}
}

// While a leader is being woken its raft leads nobody yet, and knows of no leader. Who asks for one meanwhile is answered
// by the record: else a member would stand for election that has the same log.
func TestLeaderThatWakesSaysThatItLeads(t *testing.T) {
	t.Parallel()
	c := mustTrio(t, sleepy)
	c.mustOpen(1)
	c.mustTake(1, enqueues(1, -1, "a"), 1)
	g := c.mustSleep(1)[0]
	h, other, r := c.host(g), c.other(g), g.Record()
	ask := election.Item{Kind: election.ItemAsk, Group: 1, Term: r.At().Raft, Position: r.At().Position}
	attend := h.node.Attend
	asked := make(chan bool, 1)
	h.node.Attend = func(i *group.Instance) group.Attendant {
		return resuming{attend(i), func() {
			answer, _ := h.sleepers.Heard(other.config.Node, ask)
			asked <- h.electable(1) == nil && answer != nil
		}}
	}
	g.Wake()
	if !<-asked {
		t.Error("it is asked as one that is awake")
	}
	if h.electable(1) == nil {
		t.Error("it is not when it is awake")
	}
}

// resuming does something when an instance runs again, before it leads.
type resuming struct {
	group.Attendant
	resumed func()
}

func (r resuming) Resumed() {
	r.Attendant.Resumed()
	r.resumed()
}
