package sim

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/fsm/catalog"
)

// Steps of scripts in which queues sleep.
const (
	pause  action = "pause"  // nothing new is published, so that what has been published is settled, and queues sleep
	resume action = "resume" // it is again
	wake   action = "wake"   // every replica of Queue writes a snapshot, for which it has to be awake
	drain  action = "drain"  // Node hands over its leaderships, and lets no clients in
	revive action = "revive" // it leads again, and lets clients in
	leave  action = "leave"  // Node has no replica of Queue any more
	join   action = "join"   // it has one again
)

// idleTimes are after how many milliseconds without work queues of drawn scripts sleep.
var idleTimes = []int{20, 40, 80, 200, 500}

// drawAsleep draws a script of whose queues all sleep that do nothing.
func drawAsleep(seed uint64, nodes int, length time.Duration) *script {
	s := draw(seed, nodes, length)
	rng := rand.New(rand.NewPCG(seed, 4))
	s.Idle = millis(idleTimes[rng.IntN(len(idleTimes))])
	d, faults := &drawing{rng: rng, script: s}, restless
	if !slices.ContainsFunc(s.Steps, func(s step) bool { return s.Do == flip }) { // the damage of one is borne by three
		faults = slices.Concat(faults, []func(*drawing){(*drawing).members})
	}
	for d.at = 0; d.at < millis(length.Milliseconds()); d.at += millis(200 + rng.IntN(6000)) {
		faults[rng.IntN(len(faults))](d)
	}
	slices.SortStableFunc(s.Steps, func(a, b step) int { return int(a.At - b.At) })
	return s
}

// restless are what has queues sleep and wake between the faults of other scripts.
var restless = []func(*drawing){(*drawing).pause, (*drawing).pause, (*drawing).pause, (*drawing).wake, (*drawing).move, (*drawing).kill, (*drawing).drain}

func (d *drawing) pause() {
	d.add(0, step{Do: pause})
	d.add(d.while(), step{Do: resume})
}

// queue names a queue that drawn scripts have.
func (d *drawing) queue() string { return []string{"orders", "waiting", "dead"}[d.rng.IntN(3)] }

func (d *drawing) wake() { d.add(0, step{Do: wake, Queue: d.queue()}) }

func (d *drawing) drain() {
	node := nodeName(d.rng.IntN(d.script.Nodes))
	d.add(0, step{Do: drain, Node: node})
	d.add(d.while(), step{Do: revive, Node: node})
}

func (d *drawing) members() {
	queue, node := d.queue(), nodeName(d.rng.IntN(d.script.Nodes))
	d.add(0, step{Do: leave, Queue: queue, Node: node})
	d.add(d.while(), step{Do: join, Queue: queue, Node: node})
}

// restless does a step of a script in which queues sleep, or begins it where it may take long, or fail.
func (w *world) restless(s step) (done bool) {
	switch s.Do {
	case pause, resume:
		w.paused.Store(s.Do == pause)
	case wake:
		w.manage(w.find("leader:" + s.Queue)[0], s.Queue, func(ctx context.Context, m *mgmt.Backend, q *catalog.Queue) { _ = m.Placement.Snapshot(ctx, q) })
	case leave:
		w.manage(w.find("leader:" + s.Queue)[0], s.Queue, func(ctx context.Context, m *mgmt.Backend, q *catalog.Queue) {
			_ = m.Placement.DeleteMember(ctx, "/", q.Name, s.Node)
		})
	case join:
		w.manage(w.find("leader:" + s.Queue)[0], s.Queue, func(ctx context.Context, m *mgmt.Backend, q *catalog.Queue) {
			_ = m.Placement.AddMember(ctx, "/", q.Name, s.Node)
		})
	case drain:
		w.nodes[s.Node].drained = true
		w.manage(s.Node, "", func(ctx context.Context, m *mgmt.Backend, _ *catalog.Queue) {
			defer w.nodes[s.Node].maintained()()
			_, _ = m.Placement.Drain(ctx)
		})
	case revive:
		w.manage(s.Node, "", func(ctx context.Context, m *mgmt.Backend, _ *catalog.Queue) {
			defer w.nodes[s.Node].maintained()()
			for m.Placement.Revive(ctx) != nil && sleep(ctx, 100*time.Millisecond) == nil {
			}
		})
	default:
		return false
	}
	return true
}

// manage does something at a node, with a queue unless that is empty, while the script goes on.
func (w *world) manage(node, queue string, f func(ctx context.Context, m *mgmt.Backend, q *catalog.Queue)) {
	p := w.nodes[node].running()
	if p == nil {
		return
	}
	m := p.node.Management()
	q, known := m.Catalog.View().Queue("/", queue)
	if !known && queue != "" {
		return
	}
	w.ended.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		f(ctx, &m, q)
	})
}

// maintained waits until nobody else drains or revives the node, until the returned function is called.
func (m *machine) maintained() (done func()) {
	m.maintenance <- struct{}{}
	return func() { <-m.maintenance }
}
