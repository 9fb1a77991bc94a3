package jepsen

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/internal/await"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// starvedQueues are led by three nodes that have so little of a processor together.
	starvedQueues = 2000
	starvedShare  = 0.15
	// frozenFor is how long a node is not heard of, which is longer than it takes to suspect it.
	frozenFor = 1500 * time.Millisecond
	// patience is how long a node must have been dead for queues that nobody waits for to elect.
	patience = 5 * time.Second
	// recalled is how long after a node is back all of them must have heard of each other for what its
	// silence has begun to have ended, too.
	recalled = 2 * time.Second
)

// Nodes with many queues are short of processors. One of them that is silent for a moment costs no queue a
// term. One that dies costs those that it led, and no others, an election each, or hardly more: at once where
// somebody waits, and later where nobody does.
func TestStarved(t *testing.T) {
	if err := cluster.NoStarving(); err != nil {
		t.Skip(err)
	}
	r := mustStart(t, 8*time.Minute)
	r.unwatch() // each look at all replicas costs
	r.declareMany()
	r.mustConverge() // what is not known to be committed needs a leader
	fed := r.starve()
	r.Run("frozen", func(t *testing.T) { r.sub(t).freezeStarved() })
	r.must(fed())
	r.Run("killed", func(t *testing.T) {
		r := r.sub(t)
		enough := r.killStarved(r.Nodes[2], func() func() error { return func() error { return nil } })
		little := r.killStarved(r.Nodes[1], r.starve)
		r.Logf("a processor's time for each queue of a dead node: %v, and %v where it is short", enough, little)
	})
}

// starve leaves the nodes that run a little of a processor.
func (r *run) starve() (fed func() error) {
	r.Helper()
	fed, err := cluster.Starve(starvedShare, r.Nodes...)
	r.must(err)
	r.Cleanup(func() { _ = fed() })
	return fed
}

// declareMany declares queues at all nodes, and sends a message through each.
func (r *run) declareMany() {
	r.Helper()
	names := make([][]string, len(r.Nodes))
	for i := range starvedQueues {
		at := i % len(r.Nodes)
		names[at] = append(names[at], fmt.Sprint("many-", i))
	}
	r.must(together(len(r.Nodes), func(i int) error {
		var queues []workload.Queue
		for _, name := range names[i] {
			queues = append(queues, workload.Queue{Name: name})
		}
		return workload.Declare(r.ctx, r.Nodes[i].URI(), queues...)
	})())
	r.must(confirmAll(r.ctx, r.Nodes[0], slices.Concat(names...)))
}

// freezeStarved freezes each node for a while in which nobody publishes.
func (r *run) freezeStarved() {
	r.Helper()
	before, _ := r.terms()
	for _, n := range r.Nodes {
		r.must(n.Freeze(r.ctx))
		r.must(pauseFor(r.ctx, frozenFor))
		r.must(n.Signal(syscall.SIGCONT))
		r.must(r.awaitLinks(r.Nodes))
	}
	after, _ := r.terms()
	if grown := growth(before, after); grown[0] != starvedQueues {
		r.Errorf("queues by how much their terms have grown: %v", grown)
	}
}

// awaitLinks waits until nodes have all been linked for a while.
func (r *run) awaitLinks(nodes []*cluster.Node) error {
	since := time.Now()
	return await.Until(r.ctx, 100*time.Millisecond, "links between nodes", func() (bool, error) {
		for _, n := range nodes {
			if links, err := n.Metric(r.ctx, "quorate_peer_linked"); err != nil || links < float64(len(nodes)-1) {
				since = time.Now()
				return false, err
			}
		}
		return time.Since(since) > recalled, nil
	})
}

// killStarved kills a node, makes processors short, and publishes to every second of the queues that the
// node led, later to all of them. It returns how much time of processors the others have used from the
// death until everything is confirmed, for each of these queues. In the end the node is back.
func (r *run) killStarved(n *cluster.Node, starve func() (fed func() error)) (used time.Duration) {
	r.Helper()
	r.mustConverge()
	before, leaders := r.terms()
	var orphans, wanted, others []string
	for _, q := range slices.Sorted(maps.Keys(before)) {
		switch {
		case leaders[q] != n.Number:
			others = append(others, q)
		case len(orphans)%2 == 0:
			wanted = append(wanted, q)
			fallthrough
		default:
			orphans = append(orphans, q)
		}
	}
	var left []*cluster.Node
	for _, o := range r.Nodes {
		if o != n {
			left = append(left, o)
		}
	}
	fed := starve()
	began := time.Now()
	used = -r.processor(left)
	r.must(n.Kill(r.ctx))
	r.must(confirmAll(r.ctx, left[0], wanted))
	first := time.Since(began)
	now, _ := r.terms()
	if looked := time.Since(began); looked < patience {
		for _, q := range orphans {
			want := before[q]
			if _, found := slices.BinarySearch(wanted, q); found {
				want++
			}
			if want == before[q] && now[q] != want {
				r.Errorf("%s: term %d, want %d: nobody waits for it", q, now[q], want)
			}
		}
	} else {
		r.Logf("terms are known after %v, which says nothing about queues that nobody waits for", looked.Round(time.Millisecond))
	}
	r.must(confirmAll(r.ctx, left[0], orphans))
	r.must(confirmAll(r.ctx, left[0], others))
	used += r.processor(left)
	now, _ = r.terms()
	grown := growth(before, now)
	r.Logf("%d orphans; the %d that are wanted confirm after %v, all queues after %v; queues by how much their terms have grown: %v",
		len(orphans), len(wanted), first.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), grown)
	elections := 0
	for by, queues := range grown {
		elections += int(by) * queues
	}
	// Work does not multiply: some campaigns are late, and are held again.
	if grown[0] != len(others) || 2*elections > 3*len(orphans) {
		for _, q := range others {
			if now[q] != before[q] {
				r.Logf("%s, which node %d led in term %d, is in term %d", q, leaders[q], before[q], now[q])
			}
		}
		r.Errorf("%d orphans and %d others; queues by how much their terms have grown: %v", len(orphans), len(others), grown)
	}
	r.must(fed())
	r.must(n.Restart())
	r.must(n.AwaitReady(r.ctx))
	r.must(r.awaitLinks(r.Nodes))
	return used / time.Duration(len(orphans))
}

// processor is how much time of processors nodes have used.
func (r *run) processor(nodes []*cluster.Node) (used time.Duration) {
	r.Helper()
	for _, n := range nodes {
		u, err := n.Processor()
		r.must(err)
		used += u
	}
	return used
}

// terms returns the highest term in which a living node knows each queue, and the number of the leader.
func (r *run) terms() (terms map[string]uint64, leaders map[string]int) {
	r.Helper()
	terms, leaders = map[string]uint64{}, map[string]int{}
	for _, n := range r.Nodes {
		if !n.Alive() {
			continue
		}
		var all []cluster.Replica
		r.must(await.Until(r.ctx, 100*time.Millisecond, "the terms of queues", func() (bool, error) {
			err := n.Call(r.ctx, "GET", "/api/quorate/replicas?hash=false", nil, &all)
			return err == nil, err
		}))
		for _, a := range all {
			if terms[a.Name] = max(terms[a.Name], a.Term); a.Leader {
				leaders[a.Name] = n.Number
			}
		}
	}
	if len(terms) != starvedQueues {
		r.Fatalf("%d queues", len(terms))
	}
	return terms, leaders
}

// growth counts queues by how much their terms have grown.
func growth(before, after map[string]uint64) map[uint64]int {
	grown := map[uint64]int{}
	for q, term := range after {
		grown[term-before[q]]++
	}
	return grown
}

// confirmAll publishes a message to each queue at once, and returns when all are confirmed.
func confirmAll(ctx context.Context, n *cluster.Node, queues []string) error {
	ch, leave, err := channelAt(ctx, n)
	if err != nil {
		return err
	}
	defer leave()
	if err := ch.Confirm(false); err != nil {
		return err
	}
	var all []*amqp.DeferredConfirmation
	for _, q := range queues {
		c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", q, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(q)})
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	for i, c := range all {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("publish to %s: acked: %v, %w", queues[i], ok, err)
		}
	}
	return nil
}
