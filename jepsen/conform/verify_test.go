package conform

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/long"
)

func TestVerified(t *testing.T) {
	long.Test(t)
	var err error // building takes longer than a row may on a busy machine
	if wrongServer, err = cluster.BuildChanged(t.Context(), t.TempDir(), miscounts); err != nil {
		t.Fatal(err)
	}
	verifyRows.run(t)
}

// wrongServer is a server with a fault.
var wrongServer string

// Exit codes of verify_replicas.
const (
	allEqual      = 0
	someDiffer    = 1
	someUncertain = 75
)

// verifyRows compare the replicas of a queue.
var verifyRows = suite{test: "TestVerified", title: "Do the replicas agree", rough: true, rows: []row{
	{id: "V-1", what: "verify_replicas on a queue that is published to and consumed from all the time: equal, exit code 0, and the queue goes on", run: func(t *T) {
		q := t.queue("q")
		stop, ended := make(chan struct{}), make(chan error, 1)
		go func() { ended <- t.publishUntil(t.ch(), q, stop) }()
		_, from := t.consume(q, 50)
		var settled atomic.Int64
		go func() {
			for d := range from {
				if d.Ack(false) == nil {
					settled.Add(1)
				}
			}
		}()
		for node := range t.Nodes {
			before := settled.Load()
			t.verifies(node, q, allEqual, "equal")
			t.eventually("the queue goes on", func() error {
				if settled.Load() <= before {
					return fmt.Errorf("%d settled before and after", before)
				}
				return nil
			})
		}
		close(stop)
		t.must(<-ended)
		t.settled(q)
		t.verifies(0, q, allEqual, "equal")
	}},
	{id: "V-2", what: "a replica is paused and lags, or its node is stopped: unknown, exit code 75, and an error that says so; equal when it is back", run: func(t *T) {
		q := t.queue("q")
		n, others := t.followers(q)
		at := others[0]
		t.publishN(q, 3)
		lags := t.Nodes[n]
		t.lostConnections()
		t.must(lags.Signal(syscall.SIGSTOP))
		ch := t.openAt(at)
		t.must(ch.Confirm(false))
		t.confirmed(ch, q, 1)()
		t.onlyUncertain(at, q, lags)
		t.must(lags.Signal(syscall.SIGCONT))
		t.verifiesSoon(at, q)
		t.must(lags.Shutdown(t.ctx))
		t.onlyUncertain(at, q, lags)
		t.must(lags.Restart())
		t.must(lags.AwaitReady(t.ctx))
		t.verifiesSoon(at, q)
	}},
	{id: "V-3", what: "a replica whose program counts wrongly: different, exit code 1, until its data are replaced", run: func(t *T) {
		q, other := t.queue("q"), t.queue("other")
		t.everywhere(0, q)
		t.everywhere(0, other)
		n, others := t.followers(q)
		at, wrong := others[0], t.Nodes[n]
		right := wrong.Command
		wrong.Command = strings.Replace(right, server, wrongServer, 1)
		if wrong.Command == right {
			t.Fatalf("%s is not in %s", server, right)
		}
		t.must(wrong.Kill(t.ctx))
		t.lostConnections()
		t.must(wrong.Restart())
		t.must(wrong.AwaitReady(t.ctx))
		t.must(t.AwaitQuorumPlusOne(t.ctx))
		ch := t.openAt(at)
		t.must(ch.Confirm(false))
		t.confirmed(ch, q, 1)()
		t.verifies(at, q, someDiffer, "different")
		t.verifies(at, other, allEqual, "equal") // nothing was counted there
		if out, code := t.ctl(at, "verify_replicas"); code != someDiffer || !strings.Contains(out, "replicas differ: ") || !strings.Contains(out, q) {
			t.Errorf("all queues: exit code %d\n%s", code, out)
		}
		t.must(wrong.Kill(t.ctx))
		t.must(wrong.LoseData())
		wrong.Command = right
		t.must(wrong.Restart())
		t.must(wrong.AwaitReady(t.ctx))
		t.everywhere(at, q)
		t.verifiesSoon(at, q)
		t.must(t.AwaitQuorumPlusOne(t.ctx))
	}},
}}

// miscounts is the fault: each message that comes counts twice.
var miscounts = cluster.Change{
	File: "fsm/queue/enqueue.go", Old: "m.counters.Enqueued++\n\treturn", New: "m.counters.Enqueued += 2\n\treturn",
}

// verified is the answer of a comparison.
type verified struct {
	Verdict  string
	Replicas []struct {
		Node, Error string
		Hash        string `json:"state_hash"`
	}
}

// verifies compares the replicas of a queue by the tool and over HTTP.
func (t *T) verifies(node int, queue string, code int, verdict string) (v verified) {
	t.Helper()
	out, have := t.ctl(node, "verify_replicas", "--queue", queue)
	if have != code || !strings.Contains(out, verdict) {
		t.Fatalf("exit code %d, not %d with %s\n%s", have, code, verdict, out)
	}
	t.must(t.Nodes[node].Call(t.ctx, http.MethodGet, "/api/quorate/queues/%2F/"+queue+"/verify?timeout=2000", nil, &v))
	t.equal("verdict", v.Verdict, verdict)
	t.equal("replicas", len(v.Replicas), len(t.Nodes))
	return v
}

// onlyUncertain compares the replicas of a queue while one cannot answer.
func (t *T) onlyUncertain(node int, queue string, lags *cluster.Node) {
	t.Helper()
	away := fmt.Sprint("n", lags.Number)
	for _, r := range t.verifies(node, queue, someUncertain, "unknown").Replicas {
		if r.Node == away && (r.Hash != "" || r.Error == "") {
			t.Errorf("%s is away: %+v", away, r)
		}
	}
}

// verifiesSoon waits until the replicas of a queue are equal. It is never wrong
// about them meanwhile.
func (t *T) verifiesSoon(node int, queue string) {
	t.Helper()
	t.eventually("equal replicas", func() error {
		out, code := t.ctl(node, "verify_replicas", "--queue", queue)
		if code == someDiffer {
			t.Fatal(out)
		}
		if code != allEqual {
			return fmt.Errorf("exit code %d\n%s", code, out)
		}
		return nil
	})
	t.verifies(node, queue, allEqual, "equal")
}

// everywhere waits until all nodes have a replica that votes: one that has just come
// back gets it later.
func (t *T) everywhere(node int, queue string) {
	t.Helper()
	t.eventually("a replica on each node", func() error {
		voters, err := t.Nodes[node].Voters(t.ctx, queue)
		if err == nil && voters != len(t.Nodes) {
			err = fmt.Errorf("%d voters", voters)
		}
		return err
	})
}

// TestMiscountFits finds what the fault changes, so that a change of the machine
// does not leave it behind.
func TestMiscountFits(t *testing.T) {
	if _, _, err := miscounts.Apply(); err != nil {
		t.Fatal(err)
	}
}
