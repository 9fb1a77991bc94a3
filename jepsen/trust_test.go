package jepsen

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/report"
	"github.com/quorate/quorate/jepsen/workload"
)

var (
	flips    = flag.Int("jepsen.flips", 6, "how many bits TestBitFlips flips, each times the scale")
	flipSeed = flag.Uint64("jepsen.flipseed", 0, "what TestBitFlips draws its bits from; 0: from the clock")
)

// unprovenMetric counts the replicas on a node that do not vote.
const unprovenMetric = "quorate_replicas_unproven"

// A node comes back without its queue store while the only other member that is
// up lacks everything. Nobody leads, and nothing is served, until the third one
// is there, which has all of it: then everything confirmed is there, on all
// three, without a hand.
func TestLostQueueStore(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 2*time.Minute)
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))
	full, emptied, stale := r.Nodes[0], r.Nodes[1], r.Nodes[2]
	r.must(stale.Kill(r.ctx))
	const messages = 100
	p := client.Publisher{Name: "publisher", URIs: []string{full.URI(), emptied.URI()}}
	r.must(p.Run(r.ctx, r.History, workload.Count(messages, plain("orders", 512))))
	r.must(emptied.Kill(r.ctx))
	r.must(full.Kill(r.ctx))
	r.must(os.RemoveAll(filepath.Join(emptied.DataDir(), "queues")))
	for _, n := range []*cluster.Node{emptied, stale} {
		r.must(n.Restart())
	}
	for _, n := range []*cluster.Node{emptied, stale} {
		r.must(n.AwaitReady(r.ctx))
	}
	r.mustHaveUnproven(emptied, 1)
	r.mustHaveNoLeader(emptied, "orders")
	r.mustHaveNoLeader(stale, "orders")
	r.mustHaveUnproven(emptied, 1)

	r.must(full.Restart())
	r.must(full.AwaitReady(r.ctx))
	for _, n := range r.Nodes {
		r.mustHaveUnproven(n, 0)
	}
	r.mustConverge()
	r.must(await.Until(r.ctx, 100*time.Millisecond, "a leader", func() (bool, error) {
		leader, err := r.Leader(r.ctx, "orders")
		return err == nil && leader != nil, err
	}))
	r.must(full.Kill(r.ctx)) // those that had nothing have everything
	r.must(await.Until(r.ctx, 100*time.Millisecond, "another leader", func() (bool, error) {
		leader, err := r.Leader(r.ctx, "orders")
		return err == nil && leader != nil, err
	}))
	r.must(workload.Drain(r.ctx, emptied.URI(), "orders", "last", r.History))
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h), checker.Disorder(h))
	if len(h.Deliveries) != messages {
		t.Errorf("%d deliveries of %d messages", len(h.Deliveries), messages)
	}
	r.must(full.Restart())
	r.must(full.AwaitReady(r.ctx))
	r.mustConverge()
}

// mustHaveUnproven waits until so many replicas on a node are in doubt.
func (r *run) mustHaveUnproven(n *cluster.Node, want float64) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 40*time.Second)
	defer cancel()
	what := fmt.Sprintf("node %d to have %v replicas in doubt", n.Number, want)
	r.must(await.Until(ctx, 50*time.Millisecond, what, func() (bool, error) {
		got, err := n.Metric(ctx, unprovenMetric)
		return err == nil && got == want, err
	}))
}

// mustHaveNoLeader has a client ask for a queue's messages: it is told that
// nobody leads the queue, after as long as a node looks for a leader.
func (r *run) mustHaveNoLeader(n *cluster.Node, queue string) {
	r.Helper()
	conn, err := client.Connect(r.ctx, n.URI())
	r.must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	r.must(err)
	if _, ok, err := ch.Get(queue, false); err == nil {
		r.Fatalf("node %d serves the queue, message: %v", n.Number, ok)
	}
	if status, body, err := n.Do(r.ctx, http.MethodGet, "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts", nil); err != nil || status == http.StatusOK {
		r.Fatalf("node %d: a queue is led: %d %s, %v", n.Number, status, body, err)
	}
}

// One bit after the other is flipped, anywhere in what one of three nodes keeps,
// while that one is down. Each time it comes back by itself, and has the state of
// the others soon; nothing confirmed is lost.
func TestBitFlips(t *testing.T) {
	t.Parallel()
	count := *flips * *scale
	// Small tables, so that there are some.
	r := mustStart(t, 2*time.Minute+time.Duration(count / *scale)*20*time.Second, "--set=raft.wal_max_size_bytes=1048576")
	draw := rand.New(rand.NewPCG(r.draws("jepsen.flipseed", *flipSeed), 0))
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}, workload.Queue{Name: "idle"}, workload.Queue{Name: "other"}))
	seen := flipped{}
	victim := r.Nodes[draw.IntN(len(r.Nodes))] // a bit may be met rounds later: two nodes at a time would be too many
	t.Logf("node %d", victim.Number)
	for k := range count {
		r.mustPublish("idle", 10, nil, seen)
		r.mustPublish("other", 30+draw.IntN(200), nil, seen)
		r.mustPublish("orders", 30+draw.IntN(200), nil, seen)
		if k%3 == 2 { // what is settled is deleted
			r.mustDrain("other", r.Nodes[draw.IntN(3)], seen)
		}
		r.mustFlip(draw, k, victim, seen)
	}
	t.Logf("%d flips, %d in vain, the node ended by itself %d times, replicas were rebuilt %d times, the slowest node was whole after %v",
		count, count-seen["rebuilt"], seen["ended"], seen["rebuilt"], time.Duration(seen["slowest"]).Round(time.Millisecond))
	for _, q := range []string{"orders", "other", "idle"} {
		r.mustDrain(q, r.Nodes[1], seen)
	}
	h := r.History
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustBeWhole(seen)
}

// flipped counts what became of flips.
type flipped map[string]int

// mustPublish publishes messages with confirms, while one node is down; nil: none
// is. Any other is supervised: a bit that was flipped long ago may be met now.
func (r *run) mustPublish(queue string, n int, down *cluster.Node, seen flipped) {
	r.Helper()
	p := client.Publisher{Name: "to " + queue, URIs: r.URIs()}
	before := seen["ended"]
	done := make(chan error, 1)
	go func() { done <- p.Run(r.ctx, r.History, workload.Count(n, plain(queue, 1024))) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && (seen["ended"] > before || r.supervise(down, seen)) {
				r.Logf("a node ended: %v", err) // whatever is not confirmed is found at the end
				err = nil
			}
			r.must(err)
			return
		case <-tick.C:
			r.supervise(down, seen)
		}
	}
}

// supervise starts nodes again that have ended, and reports whether there are any.
func (r *run) supervise(down *cluster.Node, seen flipped) (ended bool) {
	for _, n := range r.Nodes {
		if n != down && !n.Alive() {
			seen["ended"]++
			r.must(n.Restart())
			ended = true
		}
	}
	return ended
}

// mustDrain takes what is in a queue, as often as it takes until no node ends
// meanwhile.
func (r *run) mustDrain(queue string, through *cluster.Node, seen flipped) {
	r.Helper()
	r.must(await.Until(r.ctx, 100*time.Millisecond, "queue "+queue+" to be empty", func() (bool, error) {
		r.supervise(nil, seen)
		err := workload.Drain(r.ctx, through.URI(), queue, fmt.Sprint("drain ", r.Now()), r.History)
		return err == nil, err
	}))
}

// mustBeWhole waits until every replica votes, and all are equal.
func (r *run) mustBeWhole(seen flipped) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	var replicas checker.Verdict
	before := seen["ended"]
	err := await.Until(ctx, 50*time.Millisecond, "equal replicas that vote", func() (bool, error) {
		if r.supervise(nil, seen) && seen["ended"]-before > maxEnds {
			r.Fatalf("nodes end again and again: %d times", seen["ended"]-before)
		}
		for _, n := range r.Nodes {
			if doubts, err := n.Metric(ctx, unprovenMetric); err != nil || doubts > 0 {
				return false, err
			}
		}
		return r.areEqual(ctx, &replicas)
	})
	r.check(replicas)
	r.must(err)
}

// mustFlip flips a bit of one node, which is stopped or killed for that, and
// waits until the cluster is whole.
func (r *run) mustFlip(draw *rand.Rand, k int, n *cluster.Node, seen flipped) {
	r.Helper()
	defer r.Fault(report.BitFlip, n.Number)()
	kill := draw.IntN(2) == 0
	end := n.Shutdown
	if kill {
		end = n.Kill
	}
	if err := end(r.ctx); err != nil {
		if n.Alive() {
			r.Fatal(err)
		}
		seen["ended"]++ // it was quicker
	}
	files, err := n.DataFiles()
	r.must(err)
	file := files[draw.IntN(len(files))]
	info, err := os.Stat(file)
	r.must(err)
	bit := draw.Int64N(8 * info.Size())
	r.must(cluster.FlipBit(file, bit))
	name, err := filepath.Rel(n.DataDir(), file)
	r.must(err)
	r.Logf("flip %d: node %d, killed: %t, %s of %d bytes: bit %d of byte %d", k+1, n.Number, kill, name, info.Size(), bit%8, bit/8)
	r.mustPublish("orders", 20, n, seen) // by the other two
	began := time.Now()
	r.must(n.Restart())
	r.mustBeSupervised(n, seen)
	if doubts, err := n.Metric(r.ctx, unprovenMetric); err == nil && doubts > 0 {
		seen["rebuilt"]++
	}
	r.mustBeWhole(seen)
	took := time.Since(began)
	seen["slowest"] = max(seen["slowest"], int(took))
	r.Logf("flip %d: whole after %v", k+1, took.Round(time.Millisecond))
}

// maxEnds is how often a node may end by itself after one fault. Who supervises
// it starts it again.
const maxEnds = 3

// mustBeSupervised waits until a node serves clients.
func (r *run) mustBeSupervised(n *cluster.Node, seen flipped) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, cluster.StartTimeout)
	defer cancel()
	ends := 0
	r.must(await.Until(ctx, 50*time.Millisecond, fmt.Sprintf("node %d to serve clients", n.Number), func() (bool, error) {
		if !n.Alive() {
			if ends++; ends > maxEnds {
				r.Fatalf("node %d has ended %d times", n.Number, ends)
			}
			seen["ended"]++
			return false, n.Restart()
		}
		err := n.Ready(ctx)
		return err == nil, err
	}))
}
