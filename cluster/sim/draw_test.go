package sim

import (
	"math/rand/v2"
	"slices"
	"time"
)

// draw makes a script from a seed: faults of up to a minute, often several at a
// time.
func draw(seed uint64, nodes int, length time.Duration) *script {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := &script{Seed: seed, Nodes: nodes}
	d := &drawing{rng: rng, script: s}
	faults, others := kinds, more
	if length > scriptLength {
		faults, others = slices.Concat(kinds, further), slices.Concat(more, long)
	}
	for d.at = 0; d.at < millis(length.Milliseconds()); d.at += millis(200 + rng.IntN(6000)) {
		faults[rng.IntN(len(faults))](d)
	}
	s.Flows = append(slices.Clone(usual), others[rng.IntN(len(others))])
	for i, kinds := range protocols {
		s.Flows[i] = kinds[rng.IntN(len(kinds))]
	}
	slices.SortStableFunc(s.Steps, func(a, b step) int { return int(a.At - b.At) })
	return s
}

// more are the flows of which a drawn script has one beside the usual ones; a long one
// may have those of long, too.
var (
	more = []string{"quiet", "still", "odd", "brief", "delayed"}
	long = []string{"held"}
)

// protocols are the usual flows in one protocol, the other, or both.
var protocols = [][]string{{"orders", "orders 1.0", "orders to 0-9-1"}, {"waiting", "waiting to 1.0"}}

// drawing is a script that is being drawn.
type drawing struct {
	rng    *rand.Rand
	script *script
	at     millis
}

// kinds are the faults that may be drawn, the more frequent several times.
var kinds = []func(*drawing){
	(*drawing).kill, (*drawing).kill, (*drawing).power, (*drawing).power, (*drawing).powerAll, (*drawing).stop,
	(*drawing).oneWay, (*drawing).oneWay, (*drawing).isolate, (*drawing).bridge, (*drawing).slow, (*drawing).narrow,
	(*drawing).reset, (*drawing).clock, (*drawing).move, (*drawing).refuse, (*drawing).hang,
}

// further are those that a long script may have too.
var further = []func(*drawing){(*drawing).fail, (*drawing).fail, (*drawing).flip, (*drawing).flipAtRest, (*drawing).late}

func (d *drawing) add(after millis, s step) {
	s.At = d.at + after
	d.script.Steps = append(d.script.Steps, s)
}

// node names a node, by its name or its role.
func (d *drawing) node() string {
	names := []string{"leader:orders", "follower:orders", "leader:waiting", "leader:dead"}
	for k := range d.script.Nodes {
		names = append(names, nodeName(k))
	}
	return names[d.rng.IntN(len(names))]
}

// while is how long a fault lasts.
func (d *drawing) while() millis {
	if d.rng.IntN(4) == 0 {
		return millis(10_000 + d.rng.IntN(20_000))
	}
	return millis(100 + d.rng.IntN(6000))
}

func (d *drawing) kill() {
	d.add(0, step{Do: kill, Node: d.node()})
	d.add(d.while(), step{Do: start, Node: "*"})
}

func (d *drawing) power() {
	d.add(0, step{Do: power, Node: d.node(), Keep: []int{0, 50, 100}[d.rng.IntN(3)]})
	d.add(d.while(), step{Do: start, Node: "*"})
}

func (d *drawing) powerAll() {
	d.add(0, step{Do: power, Node: "*", Keep: []int{0, 50}[d.rng.IntN(2)]})
	d.add(d.while(), step{Do: start, Node: "*"})
}

func (d *drawing) stop() {
	d.add(0, step{Do: stop, Node: d.node()})
	d.add(d.while(), step{Do: start, Node: "*"})
}

func (d *drawing) link(from, to string, f fault) {
	d.add(0, step{Do: cut, Node: from, To: to, Fault: f})
	d.add(d.while(), step{Do: cut, Node: "*", To: "*"})
}

func (d *drawing) oneWay() {
	if d.rng.IntN(2) == 0 {
		d.link(d.node(), "*", fault{Drop: true})
		return
	}
	d.link("*", d.node(), fault{Drop: true})
}

func (d *drawing) isolate() {
	node := d.node()
	d.add(0, step{Do: cut, Node: "*", To: node, Fault: fault{Drop: true}})
	d.link(node, "*", fault{Drop: true})
}

// bridge leaves two nodes that reach each other only through a third.
func (d *drawing) bridge() {
	a := d.rng.IntN(d.script.Nodes)
	b := (a + 1) % d.script.Nodes
	d.add(0, step{Do: cut, Node: nodeName(b), To: nodeName(a), Fault: fault{Drop: true}})
	d.link(nodeName(a), nodeName(b), fault{Drop: true})
}

func (d *drawing) slow() {
	by := time.Duration(1+d.rng.IntN(300)) * time.Millisecond
	d.link(d.node(), "*", fault{Delay: by, Jitter: by / 2})
}

func (d *drawing) narrow() {
	d.link("*", d.node(), fault{Rate: int64(2000 + d.rng.IntN(50_000))})
}

func (d *drawing) reset() { d.add(0, step{Do: reset, Node: d.node(), To: "*"}) }

func (d *drawing) move() {
	queue := []string{"orders", "waiting", "dead"}[d.rng.IntN(3)]
	d.add(0, step{Do: move, Queue: queue, Node: d.node()})
}

// refuse has a host refuse connections for a while, and breaks those that it has.
func (d *drawing) refuse() {
	node := d.node()
	d.link("*", node, fault{Refuse: true})
	d.add(1, step{Do: reset, Node: node, To: "*"})
}

// hang stops a disk, for less than a node bears, or for longer.
func (d *drawing) hang() {
	d.add(0, step{Do: hang, Node: d.node()})
	d.add(d.while(), step{Do: unhang, Node: "*"})
}

// fail has a disk answer errors, which ends the process.
func (d *drawing) fail() {
	d.add(0, step{
		Do: fail, Node: d.node(), Error: []string{"EIO", "ENOSPC"}[d.rng.IntN(2)], Syncs: d.rng.IntN(2) == 0,
		Skip: d.rng.IntN(50), Keep: []int{0, 50, 100}[d.rng.IntN(3)],
	})
	d.add(d.while(), step{Do: start, Node: "*"})
}

// damaged is the node whose bits flip: one of a script, as three replicas bear the
// damage of one.
func (d *drawing) damaged() string { return nodeName(int(d.script.Seed % uint64(d.script.Nodes))) }

// flip flips bits while a process runs.
func (d *drawing) flip() {
	node := d.damaged()
	for n := range millis(1 + d.rng.IntN(5)) {
		d.add(n, step{Do: flip, Node: node})
	}
	d.add(d.while(), step{Do: start, Node: "*"})
}

// flipAtRest flips a bit between two processes.
func (d *drawing) flipAtRest() {
	node := d.damaged()
	d.add(0, step{Do: kill, Node: node})
	d.add(1, step{Do: flip, Node: node})
	d.add(d.while(), step{Do: start, Node: "*"})
}

// late kills a node, which starts again where what it says, or what it hears, takes long, and
// so do readings of its and of others' clocks.
func (d *drawing) late() {
	from, to := nodeName(d.rng.IntN(d.script.Nodes)), "*"
	d.add(0, step{Do: kill, Node: from})
	if d.rng.IntN(2) == 0 {
		from, to = to, from
	}
	by := time.Duration(100+d.rng.IntN(600)) * time.Millisecond
	d.link(from, to, fault{Delay: by, Jitter: by})
	d.add(millis(d.rng.IntN(3000)), step{Do: start, Node: "*"})
}

// clock makes a clock wrong until the end. Only that of one node, which is n1: a
// majority of clocks is right. In half of the scripts all are, and nothing may be early.
func (d *drawing) clock() {
	s := step{Do: clocks, Node: nodeName(0), Ahead: millis(d.rng.IntN(7_200_000) - 3_600_000)}
	if d.rng.IntN(2) == 0 {
		s.Drift = float64(d.rng.IntN(100)-50) / 1000
	}
	if d.script.Seed%2 == 0 {
		d.add(0, s)
	}
}
