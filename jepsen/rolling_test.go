package jepsen

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/report"
	"github.com/quorate/quorate/jepsen/workload"
)

// Sizes of a rolling restart.
const (
	rollConsumed  = 5 // of the queues, with a consumer
	rollRate      = 200
	rollPublisher = 3
	rollLarge     = 16 // one of so many messages is large
)

var (
	rolledQueues = flag.Int("jepsen.queues", 50, "how many queues TestRollingRestart publishes to")
	rolledRate   = flag.Int("jepsen.rate", rollRate, "how many messages a second TestRollingRestart and TestBackup publish")
)

// Each node in turn is drained, stopped and started again, then each is killed
// and started again, while messages flow through many queues: nothing confirmed
// is lost, and what comes twice is marked or was published twice. What it measures is printed with -v.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	r := mustStart(t, 3*time.Minute+time.Duration(*rolledQueues)*time.Second/2)
	for _, kill := range []bool{false, true} {
		name := "drain"
		if kill {
			name = "kill"
		}
		t.Run(name, func(t *testing.T) { r.sub(t).roll(kill) })
	}
}

func (r *run) roll(kill bool) {
	r.Helper()
	r.History = r.beside(fmt.Sprint("rolled, killed: ", kill))
	r.mustKeepWhile(fmt.Sprintf("rolled-%v", kill), *rolledQueues, *rolledRate, kill, func() error { return r.cycleAll(kill) })
	r.measured(kill)
	if len(r.History.Faults) != len(r.Nodes) {
		r.Errorf("faults applied: %+v", r.History.Faults)
	}
}

// mustKeepWhile lets messages flow through so many queues, with this name and a number, while something
// is done, which kills nodes or not. Nothing confirmed is lost, what comes twice is marked or was published
// twice, and all replicas are equal in the end.
func (r *run) mustKeepWhile(name string, queues, rate int, kills bool, do func() error) {
	r.Helper()
	names := make([]string, queues)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i+1)
		r.must(workload.Declare(r.ctx, r.Nodes[i%len(r.Nodes)].URI(), workload.Queue{Name: names[i]}))
	}
	stop := make(chan struct{})
	published, consumed, leave := r.traffic(names, rate, stop)
	err := r.awaitConfirms(r.ctx, rollRate)
	if err == nil {
		err = do()
	}
	close(stop)
	r.must(published())
	leave()
	r.must(consumed())
	r.must(err)
	for _, name := range names {
		r.must(workload.Drain(r.ctx, r.Nodes[0].URI(), name, "drain "+name, r.History))
	}
	h := r.History
	h.Stall = machine.Longest(r.began)
	r.checkGap(h.LongestGap(), kills, h.Stall)
	r.Logf("%d confirmed, %d attempts, longest time without a confirm %v", h.Confirmed(), len(h.Attempts), h.LongestGap().Round(time.Millisecond))
	r.check(checker.Lost(h), checker.Unanswered(h), checker.Ghosts(h), checker.Doubled(h), checker.Returned(h, electing))
	r.mustConverge()
}

// measured prints for how long a message waited from when it was due to its confirm, at most in each queue, however
// often its publisher had to connect again.
func (r *run) measured(kill bool) {
	r.Helper()
	how := "drain and stop"
	if kill {
		how = "SIGKILL"
	}
	h := r.History
	out := report.Result{Name: fmt.Sprintf("rolling restart, %s, %d queues", how, *rolledQueues), Messages: float64(h.Confirmed())}
	every := time.Second / time.Duration(*rolledRate/rollPublisher)
	next, due, longest, epochs := map[string]time.Duration{}, map[uint64]time.Duration{}, map[string]time.Duration{}, map[string]int{}
	for _, a := range h.Attempts {
		if _, again := due[a.Message]; !again {
			if next[a.Publisher] == 0 {
				next[a.Publisher] = a.Call
			}
			due[a.Message] = min(a.Call, next[a.Publisher])
			next[a.Publisher] += every
		}
		if a.Result == history.OK {
			longest[a.Queue] = max(longest[a.Queue], a.Return-due[a.Message])
			out.Seconds = max(out.Seconds, a.Return.Seconds()-h.Attempts[0].Call.Seconds())
		}
		epochs[a.Publisher] = a.Epoch
	}
	lost := -len(epochs)
	for _, epoch := range epochs {
		lost += epoch
	}
	out.PerSecond, out.Times = out.Messages/out.Seconds, report.QuantilesOf(slices.Collect(maps.Values(longest)))
	out.Note("longest wait for a confirm per queue, 99 % of the queues", out.Times.P99/1e3, "s")
	out.Note("longest wait for a confirm of any queue", out.Times.Max/1e3, "s")
	out.Note("published again after a lost connection", float64(len(h.Attempts)-len(due)), "messages")
	out.Note("lost connections", float64(lost), "")
	r.must(report.Publish(r.Output(), []report.Result{out}, ""))
}

// checkGap checks for how long nothing was confirmed: a second at most if nodes are
// drained, five if they are killed, and what the machine adds.
func (r *run) checkGap(gap time.Duration, kill bool, longest time.Duration) {
	r.Helper()
	allowed := time.Second + stall.Tolerance(longest)
	if kill {
		allowed += 4 * time.Second
	}
	var long []string
	if gap > allowed {
		long = append(long, fmt.Sprintf("nothing was confirmed for %v, allowed are %v", gap, allowed))
	}
	r.found("pause", long...)
}

// cycleAll restarts each node when no queue needs it, and has confirms in
// between, for so long that acks in the middle of it hold.
func (r *run) cycleAll(kill bool) error {
	kind, calm := "drain", rollRate
	if kill {
		kind, calm = "kill", 4*rollRate
	}
	for _, n := range r.Nodes {
		if err := r.AwaitQuorumPlusOne(r.ctx); err != nil {
			return err
		}
		healed := r.Fault(kind, n.Number)
		if err := n.Cycle(r.ctx, kill); err != nil {
			return fmt.Errorf("node %d: %w", n.Number, err)
		}
		healed()
		if err := r.awaitConfirms(r.ctx, calm); err != nil {
			return err
		}
	}
	return r.AwaitQuorumPlusOne(r.ctx)
}

// traffic publishes to queues in turn until stop is closed, and consumes some of
// them until leave is called. What it returns besides waits for the ends.
func (r *run) traffic(names []string, rate int, stop <-chan struct{}) (published, consumed func() error, leave context.CancelFunc) {
	consuming, leave := context.WithCancel(r.ctx)
	consumed = together(rollConsumed, func(i int) error {
		c := client.Consumer{Name: "consumer of " + names[i], URIs: r.URIs(), First: i, Queue: names[i]}
		return c.Run(consuming, r.History)
	})
	published = together(rollPublisher, func(i int) error {
		turn := i
		p := client.Publisher{Name: fmt.Sprintf("publisher %d", i+1), URIs: r.URIs(), First: i, Rate: rate / rollPublisher, Steady: true}
		return p.Run(r.ctx, r.History, workload.Until(stop, func() client.Message {
			turn += rollPublisher
			return plain(names[turn%len(names)], sizeOf(turn/rollPublisher, 64, rollLarge))()
		}))
	})
	return published, consumed, leave
}

// together runs f so many times at once; what it returns waits for all.
func together(n int, f func(i int) error) (wait func() error) {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	return func() (first error) {
		for range n {
			if err := <-errs; err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}
