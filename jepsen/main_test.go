package jepsen

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/long"
	"github.com/quorate/quorate/jepsen/internal/stall"
)

var (
	scale     = flag.Int("jepsen.scale", 1, "multiplies message and fault counts")
	chaosTime = flag.Duration("jepsen.time", 12*time.Second, "how long TestChaos and TestRandomHistory break things")
	onDisks   = flag.String("jepsen.filesystem", "ext4", "of the disks that nodes have in tests that break disks: ext4 or xfs")
	chaosSeed = flag.Uint64("jepsen.seed", 0, "what tests draw faults and loads from; 0: from the clock")
)

// binary is the server under test; given is where it was built elsewhere.
var (
	binary string
	given  = flag.String("jepsen.binary", "", "the server to test; empty: it is built from this tree. Tests with wrong clocks are skipped if it was built without the tag testoptions")
)

// machine measures how long this process was kept from running.
var machine *stall.Meter

// electing is how much later something may be whose leader dies.
const electing = 2 * time.Second

// clustersAtOnce is how many tests that can run beside others do. They wait for
// elections, deadlines and restarts for more than half of their time, so that it
// may be more than there are processors.
const clustersAtOnce = "3"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", clustersAtOnce); err != nil { // -parallel is parsed after it, and wins
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flag.Parse()
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jepsen")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	machine = stall.Start()
	defer machine.Stop()
	return m.Run()
}

// build builds the server under test.
func build(dir string) (string, error) {
	if *given != "" {
		return filepath.Abs(*given)
	}
	if *unsynced {
		return cluster.BuildChanged(context.Background(), dir, withoutSync)
	}
	return cluster.Build(context.Background(), dir)
}

// run is one test's cluster and history.
type run struct {
	*testing.T
	*cluster.Cluster
	*history.History
	ctx       context.Context
	began     time.Time
	*evidence     // of the report, shared with subtests
	clients   int // that were given their nodes in turn
}

// mustStart starts a cluster of three for a long test, which takes less than a limit on a quiet machine. When the test ends it is
// stopped; no node may have died by itself, and a failure leaves its history and logs.
func mustStart(t *testing.T, limit time.Duration, args ...string) *run {
	t.Helper()
	return mustStartWith(t, limit, cluster.Options{Args: args})
}

// mustStartWith is mustStart for another cluster than three nodes.
func mustStartWith(t *testing.T, limit time.Duration, o cluster.Options) *run {
	t.Helper()
	long.Test(t)
	return mustStartBrief(t, limit, o)
}

// patient is how many times longer than on a quiet machine a test may take before it counts as stuck.
const patient = 3

// mustStartBrief is mustStartWith for a test that `make test` runs, too.
func mustStartBrief(t *testing.T, limit time.Duration, o cluster.Options) *run {
	t.Helper()
	if o.Filesystem = *onDisks; o.Binary == "" {
		o.Binary = binary
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient*limit*time.Duration(*scale))
	t.Cleanup(cancel)
	began := time.Now()
	c, err := cluster.Start(ctx, o)
	if errors.Is(err, cluster.ErrNoNamespaces) {
		t.Skip(err)
	}
	if err != nil && *given != "" && strings.Contains(err.Error(), "flag provided but not defined") {
		t.Skip("the given server was built without the tag testoptions")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // when its logs are read
		if err := c.CloseDisks(); err != nil {
			t.Error(err)
		}
	})
	r := &run{T: t, Cluster: c, History: history.New(), ctx: ctx, began: began}
	r.evidence = &evidence{more: r.Beside()}
	r.watch()
	t.Cleanup(r.end)
	t.Logf("cluster ready after %v", time.Since(began).Round(time.Millisecond))
	return r
}

func (r *run) end() {
	r.unwatch()
	r.watching.Wait()
	var ended []string
	if err := r.Cluster.Stop(); err != nil {
		ended = append(ended, fmt.Sprintf("stop: %v", err))
	}
	for _, line := range r.Cluster.Complaints() {
		ended = append(ended, "log: "+line)
	}
	r.found("exit", ended...)
	r.leaveReport()
}

// must ends the test on an error.
func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// late finds what a history shows to be late on this machine. recovery is what
// the cluster may take after a fault.
func (r *run) late(h *history.History, recovery time.Duration) checker.Verdict {
	h.Stall = machine.Longest(r.began)
	return checker.Late(h, recovery)
}

// notLate fails the run if an instant is over for longer than is allowed,
// recovery included.
func (r *run) notLate(what string, due time.Time, recovery time.Duration) {
	r.Helper()
	late, allowed := time.Since(due), recovery+stall.Tolerance(machine.Longest(r.began))
	if r.Logf("%s: %v late", what, late.Round(time.Millisecond)); late > allowed {
		r.Errorf("%s: %v late, allowed are %v", what, late, allowed)
	}
}

// mustConverge waits until all replicas of every queue are in the same state.
func (r *run) mustConverge() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patient*2*time.Minute)
	defer cancel()
	var replicas checker.Verdict
	err := await.Until(ctx, 100*time.Millisecond, "equal replicas", func() (bool, error) {
		return r.areEqual(ctx, &replicas)
	})
	r.check(replicas)
	r.must(err)
}

// areEqual reports whether all replicas of every queue are in the same state,
// and sets v to what differs.
func (r *run) areEqual(ctx context.Context, v *checker.Verdict) (bool, error) {
	all, err := r.Cluster.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	*v = checker.Disagreement(replicas(all), len(r.Nodes))
	return v.Held() && len(all) > 0, nil
}

func replicas(all []cluster.Replica) []checker.Replica {
	out := make([]checker.Replica, len(all))
	for i, a := range all {
		out[i] = checker.Replica{
			Queue: a.Vhost + " " + a.Name, ID: a.QueueID, Node: a.Node,
			Leader: a.Leader, Applied: a.AppliedIndex, Hash: a.StateHash,
		}
	}
	return out
}
