package cluster

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cluster/membership"
	"github.com/quorate/quorate/cluster/raftlog"
	"github.com/quorate/quorate/fsm"
)

// recoverAt runs a recovery of a node that has stopped.
func (c *nodes) recoverAt(act bool, node string, also ...string) (*membership.Recovery, error) {
	o := membership.RecoverOptions{DataDir: filepath.Join(c.dir, node), Act: act, Logger: slog.New(slog.DiscardHandler), Exit: func(int) { panic("exit") }}
	for _, n := range also {
		o.Also = append(o.Also, filepath.Join(c.dir, n))
	}
	return membership.Recover(o)
}

func (c *nodes) mustRecover(act bool, node string, also ...string) *membership.Recovery {
	c.t.Helper()
	rec, err := c.recoverAt(act, node, also...)
	if err != nil {
		c.t.Fatal(err)
	}
	return rec
}

// lose takes nodes away for good, with their data.
func (c *nodes) lose(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if c.all[name] != nil {
			c.crash(name)
		}
		if err := os.RemoveAll(filepath.Join(c.dir, name)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func recovered(r *membership.Recovery, name string) membership.RecoveredGroup {
	for _, q := range r.Queues {
		if q.Name == name {
			return q
		}
	}
	return membership.RecoveredGroup{}
}

// A program that is too old for the data of a node does not read it.
func TestRecoverByOlderProgram(t *testing.T) {
	t.Parallel()
	later := fsm.Versions{Oldest: 1, Newest: fsm.NewestVersion + 1}
	c := mustCluster(t, func(c *nodes) { c.versions = map[string]fsm.Versions{"n1": later, "n2": later, "n3": later} })
	c.mustClient("n1").mustDeclare("q")
	c.mustBeAt(later.Newest, "q")
	c.lose("n2", "n3")
	c.stop("n1")
	want := fmt.Sprintf("the cluster's fsm_version is %d, but this program supports %s", later.Newest, fsm.Supported)
	for _, act := range []bool{false, true} {
		if rec, err := c.recoverAt(act, "n1"); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%+v, %v", rec, err)
		}
	}
}

// One of three nodes is left for good. It says what may be lost and changes
// nothing, then it becomes a cluster that serves what it has, and two new ones
// join it.
func TestRecoverOneOfThree(t *testing.T) {
	c := mustCluster(t)
	cl, other := c.mustClient("n3"), c.mustClient("n1")
	cl.mustDeclare("q")
	other.mustDeclare("elsewhere", integer("x-quorum-initial-group-size", 1))
	cl.mustDeclare("here", integer("x-quorum-initial-group-size", 1))
	for i := range 300 { // more than one batch of entries
		cl.publish("q", fmt.Sprint("message ", i))
		if i%10 == 0 {
			cl.confirmed()
		}
	}
	cl.publish("elsewhere", "x")
	cl.publish("here", "x")
	cl.confirmed()
	c.mustAgreeOn("q")
	if _, err := c.recoverAt(false, "n3"); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("the folder of a running node: %v", err)
	}
	c.lose("n1", "n2")
	c.stop("n3")

	before := c.mustRecover(false, "n3")
	if before.Done || !slices.Equal(before.GivenUp, []string{"n1", "n2"}) || before.Catalog.Complete {
		t.Errorf("%+v", before)
	}
	if q := recovered(before, "q"); q.Ready != 300 || q.Complete || !strings.Contains(q.Loss, "n1, n2") || q.From != "n3" {
		t.Errorf("%+v", q)
	}
	if q := recovered(before, "here"); q.Ready != 1 || !q.Complete || q.Loss != "" {
		t.Errorf("%+v", q)
	}
	if q := recovered(before, "elsewhere"); q.From != "" || q.Complete {
		t.Errorf("%+v", q)
	}
	again := c.mustRecover(true, "n3")
	if !again.Done || recovered(again, "q").Last != recovered(before, "q").Last {
		t.Errorf("%+v after %+v", recovered(again, "q"), recovered(before, "q"))
	}
	if _, err := c.recoverAt(true, "n3"); err == nil || !strings.Contains(err.Error(), "nothing to recover") {
		t.Errorf("once more: %v", err)
	}

	c.mustOpen("n3")
	cl = c.mustClient("n3")
	for queue, want := range map[string]uint32{"q": 300, "here": 1, "elsewhere": 0} {
		until(t, queue+" has a leader", func() bool { return c.leader(queue) == "n3" })
		if info, err := cl.count(queue); err != nil || uint32(info.Ready) != want {
			t.Errorf("%s: %v messages, %v", queue, info.Ready, err)
		}
	}
	cl.publish("q", "after")
	cl.publish("elsewhere", "after")
	cl.confirmed()
	c.through = "n3"
	c.mustOpen("n1", "n2")
	c.mustMembers("q", names...)
	c.mustAgreeOn("q")
	reader := c.mustClient("n1")
	reader.ack = true
	reader.mustConsume("q", 1, 500)
	reader.await("all messages", func() bool { return len(reader.inbox) == 301 })
	if got := reader.bodies(); got[0] != "message 0" || got[299] != "message 299" || got[300] != "after" {
		t.Errorf("%s … %s, %s", got[0], got[299], got[300])
	}
	c.crash("n3") // what has grown back does without it
	until(t, "q has another leader", func() bool { l := c.leader("q"); return l != "" && l != "n3" })
}

// Two of three nodes are left, but one of them is behind: with its folder and
// the other's beside each other nothing that was confirmed is lost, whichever
// of the two is to go on.
func TestRecoverWithAnotherFolder(t *testing.T) {
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	cl.publish("q", "a")
	cl.confirmed()
	c.mustAgreeOn("q")
	c.crash("n3")
	body := strings.Repeat("b", 10_000)
	for range 200 {
		cl.publish("q", body)
	}
	cl.confirmed()
	leader := c.all[c.mustLeader("q")]
	q, _ := leader.View().Queue("/", "q")
	if err := leader.host.Group(q.Group).Barrier(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	c.stop("n2")
	c.lose("n1")
	// The catalog of n2 goes further: n3 was not there when its end was noted.
	if _, err := c.recoverAt(false, "n3", "n2"); err == nil || !strings.Contains(err.Error(), "is ahead") {
		t.Fatalf("a catalog that is behind: %v", err)
	}
	alone := c.mustRecover(false, "n3")
	both := c.mustRecover(false, "n2", "n3")
	if q := recovered(alone, "q"); q.Ready != 1 || q.Complete {
		t.Errorf("n3 alone: %+v", q)
	}
	if q := recovered(both, "q"); q.Ready != 201 || !q.Complete || !both.Catalog.Complete || q.From != "n2" {
		t.Errorf("both: %+v", q)
	}
}

// A replica that is better in the other folder is copied from there, with its
// payloads.
func TestRecoverCopiesReplica(t *testing.T) {
	c := mustCluster(t)
	cl := c.mustClient("n1")
	cl.mustDeclare("q")
	c.mustAgreeOn("q")
	cl.mustDeclare("single", integer("x-quorum-initial-group-size", 1))
	for i := range 100 {
		cl.publish("single", fmt.Sprint(i)+strings.Repeat("x", 1000))
	}
	cl.confirmed()
	// The catalog of n2 must not be behind that of n1.
	until(t, "the catalogs are equal", func() bool {
		return c.all["n1"].View().Index() == c.all["n2"].View().Index()
	})
	c.crash("n1")
	c.stop("n2")
	c.lose("n3")
	rec := c.mustRecover(true, "n2", "n1")
	if q := recovered(rec, "single"); q.From != "n1" || !q.Complete || q.Ready != 100 {
		t.Errorf("%+v", q)
	}
	c.lose("n1")
	c.mustOpen("n2")
	reader := c.mustClient("n2")
	reader.mustConsume("single", 1, 500)
	reader.await("all messages", func() bool { return len(reader.inbox) == 100 })
	if got := reader.bodies(); !strings.HasPrefix(got[99], "99x") || len(got[99]) != 1002 {
		t.Errorf("the last one is %q", got[99])
	}
}

// Of queues in which nothing has happened the nodes that are left have nothing on disk: what may be lost is told as of any
// other. A node that has lost its store shows nothing.
func TestRecoverUnborn(t *testing.T) {
	t.Parallel()
	c := mustCluster(t)
	c.mustBeCurrent()
	cl := c.mustClient("n3")
	cl.mustDeclare("q")
	cl.mustDeclare("here", integer("x-quorum-initial-group-size", 1))
	c.mustClient("n1").mustDeclare("elsewhere", integer("x-quorum-initial-group-size", 1))
	c.mustBeUnborn("q")
	cl.mustDeclare("used")
	cl.publish("used", "m")
	cl.confirmed()
	c.mustAgreeOn("used")
	until(t, "the catalogs are equal", func() bool {
		return c.all["n1"].View().Index() == c.all["n3"].View().Index() && c.all["n2"].View().Index() == c.all["n3"].View().Index()
	})
	c.crash("n1")
	c.crash("n2")
	c.stop("n3")
	check := func(rec *membership.Recovery, queue string, complete bool, loss string) {
		t.Helper()
		if q := recovered(rec, queue); q.Complete != complete || !strings.HasPrefix(q.Loss, loss) || (loss == "") != (q.Loss == "") {
			t.Errorf("%+v", q)
		}
	}
	alone, both := c.mustRecover(false, "n3"), c.mustRecover(false, "n3", "n2")
	check(alone, "q", false, "messages that were confirmed and are only on n1, n2")
	check(both, "q", true, "")
	for _, rec := range []*membership.Recovery{alone, both} {
		check(rec, "here", true, "")
		check(rec, "elsewhere", false, "all messages")
	}
	if err := os.RemoveAll(filepath.Join(c.dir, "n2", membership.QueuesFolder)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first one makes an empty store
		check(c.mustRecover(false, "n3", "n2"), "q", false, "messages that were confirmed and are only on n1, n2")
	}
	c.lose("n1", "n2")
	c.mustRecover(true, "n3")
	c.mustOpen("n3")
	for _, queue := range []string{"q", "here", "elsewhere"} {
		until(t, queue+" has a leader", func() bool { return c.leader(queue) == "n3" })
	}
}

// mustAgreeOn waits until all nodes have a replica of a queue, all in the same
// state.
func (c *nodes) mustAgreeOn(queue string) {
	c.t.Helper()
	until(c.t, "the replicas of "+queue+" agree", func() bool {
		states := map[string]bool{}
		found := 0
		for _, n := range c.all {
			_ = n.local.Barrier(deadline(c.t)) // a change of leader meanwhile: the next look
			for _, r := range n.local.ReplicasOf(queue, true) {
				states[fmt.Sprint(r.StateHash, r.AppliedIndex)] = true
				found++
			}
		}
		return found == len(c.all) && len(states) == 1
	})
}

// A node that is left and cannot prove what it had says so, and goes on with
// what it has, by the operator's word.
func TestRecoverInDoubt(t *testing.T) {
	c := mustCluster(t)
	cl := c.mustClient("n3")
	cl.mustDeclare("q")
	cl.publish("q", "a")
	cl.confirmed()
	c.mustAgreeOn("q")
	c.lose("n1", "n2")
	c.stop("n3")
	for _, folder := range []string{membership.QueuesFolder, membership.CatalogFolder} {
		if err := os.Remove(raftlog.LedgerPath(filepath.Join(c.dir, "n3", folder))); err != nil {
			t.Fatal(err)
		}
	}
	rec := c.mustRecover(false, "n3")
	if q := recovered(rec, "q"); q.Complete || q.Doubt == "" || !strings.Contains(q.Loss, q.Doubt) || q.Ready != 1 {
		t.Errorf("%+v", q)
	}
	if k := rec.Catalog; k.Complete || k.Doubt == "" {
		t.Errorf("%+v", k)
	}
	c.mustRecover(true, "n3")
	c.mustOpen("n3")
	until(t, "q has a leader", func() bool { return c.leader("q") == "n3" })
	if info, err := c.mustClient("n3").count("q"); err != nil || info.Ready != 1 {
		t.Errorf("%d messages, %v", info.Ready, err)
	}
}
