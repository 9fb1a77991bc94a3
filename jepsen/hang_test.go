package jepsen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/checker"
	"github.com/quorate/quorate/jepsen/client"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/internal/stall"
	"github.com/quorate/quorate/jepsen/nemesis"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// hungFor is how long a disk hangs that comes back, and hungEnd when a node
	// whose disk does not comes to its end.
	hungFor = 5 * time.Second
	hungEnd = 7 * time.Second
	// hungGap bounds the longest time without a confirm, stalls apart: what the
	// node itself may take to notice, and an election.
	hungGap = 3 * time.Second
)

// A leader whose disk hangs, without an error, gives way: who publishes through
// other nodes waits for seconds at most. When the disk is back the node follows;
// when it does not come back the node ends itself.
func TestHungDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disks := mustHaveDisks(t, dir)
	exit := fmt.Sprintf("watchdog.disk_exit_timeout=%d", hungEnd.Milliseconds())
	r := mustStartWith(t, 3*time.Minute, cluster.Options{Dir: dir, Args: []string{"--set", exit}})
	t.Cleanup(func() { // before it stops
		for _, d := range disks {
			if err := d.Go(); err != nil {
				t.Error(err)
			}
		}
	})
	r.must(workload.Declare(r.ctx, r.Nodes[0].URI(), workload.Queue{Name: "orders"}))

	first, err := nemesis.AwaitLeader(r.ctx, r.Cluster, "orders", nil)
	r.must(err)
	r.mustPublishOn("orders", first, func(ctx context.Context) error {
		err := errors.Join(disks[first.Number].Hang(), pauseFor(ctx, hungFor))
		unfit := r.unfit(first)
		return errors.Join(err, disks[first.Number].Go(), unfit)
	})
	r.must(first.AwaitReady(r.ctx))
	r.mustConverge()

	second, err := nemesis.AwaitLeader(r.ctx, r.Cluster, "orders", first)
	r.must(err)
	r.mustPublishOn("orders", second, func(ctx context.Context) error {
		if err := disks[second.Number].Hang(); err != nil {
			return err
		}
		return await.Until(ctx, 50*time.Millisecond, "the node to end itself", func() (bool, error) {
			conn, err := net.Dial("tcp", second.AMQP)
			if err == nil {
				conn.Close()
			}
			return err != nil, nil
		})
	})
	r.must(disks[second.Number].Go())
	r.must(await.Until(r.ctx, 50*time.Millisecond, "the process to be gone", func() (bool, error) { return !second.Alive(), nil }))
	if r.Logged("the disk hangs", "gives up its leaderships") < 2 {
		t.Error("no node's log says what has happened")
	}
	r.must(second.Restart())
	r.must(second.AwaitReady(r.ctx))
	r.must(workload.Drain(r.ctx, first.URI(), "orders", "last", r.History))
	h := r.History
	r.check(checker.Lost(h), checker.Ghosts(h), checker.Doubled(h))
	r.mustConverge()
}

// mustHaveDisks gives each of three nodes a disk for its data, below the folder of a
// cluster, until the test ends. It skips the test if this machine has none.
func mustHaveDisks(t *testing.T, dir string) map[int]*cluster.Disk {
	t.Helper()
	disks := map[int]*cluster.Disk{}
	for k := 1; k <= 3; k++ {
		d, err := cluster.NewDisk(filepath.Join(dir, "data", fmt.Sprint("n", k)))
		if errors.Is(err, cluster.ErrNoDisks) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		disks[k] = d
		t.Cleanup(func() { // after the cluster has stopped
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return disks
}

// unfit returns an error if the node's health check says that it serves.
func (r *run) unfit(n *cluster.Node) error {
	ctx, cancel := context.WithTimeout(r.ctx, time.Second)
	defer cancel()
	if n.AwaitReady(ctx) == nil {
		return errors.New("a node whose disk hangs says that it serves clients")
	}
	return nil
}

func pauseFor(ctx context.Context, d time.Duration) error {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
		return nil
	}
}

// mustPublishOn publishes through the nodes other than one while something is
// done to that one, and holds the longest time without a confirm against its
// bound.
func (r *run) mustPublishOn(queue string, not *cluster.Node, during func(context.Context) error) {
	r.Helper()
	var uris []string
	for _, n := range r.Nodes {
		if n != not {
			uris = append(uris, n.URI())
		}
	}
	stop, ended := make(chan struct{}), make(chan error, 1)
	p := client.Publisher{Name: fmt.Sprint("publisher ", not.Number), URIs: uris, Rate: 1000}
	began, at := time.Now(), r.Now()
	go func() { ended <- p.Run(r.ctx, r.History, workload.Until(stop, plain(queue, 200))) }()
	done := during(r.ctx)
	until := r.Now()
	close(stop)
	r.must(done)
	r.must(<-ended)
	gap := r.longestGap(at, until)
	bound := hungGap + stall.Tolerance(machine.Longest(began)) - time.Second
	if r.Logf("node %d: longest time without a confirm %v, bound %v", not.Number, gap.Round(time.Millisecond), bound.Round(time.Millisecond)); gap > bound {
		r.Errorf("nothing is confirmed for %v", gap)
	}
}

// longestGap is the longest time between two confirms, or without one at the
// ends. Nobody publishes meanwhile.
func (r *run) longestGap(from, to time.Duration) (gap time.Duration) {
	var confirms []time.Duration
	for _, a := range r.Attempts {
		if a.Result == history.OK && a.Return > from && a.Return < to {
			confirms = append(confirms, a.Return)
		}
	}
	slices.Sort(confirms)
	last := from
	for _, at := range append(confirms, to) {
		gap, last = max(gap, at-last), at
	}
	return gap
}
