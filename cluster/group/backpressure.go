package group

import (
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm/queue"
)

const (
	// minSurplus and maxSurplus bound how many messages may be ready, or on their way to that,
	// before any is held back. In between it is what consumers hold.
	minSurplus = 128
	maxSurplus = 4096
	// nodeFloor is how many publishes a second a node lets in whatever consumers do, over all its
	// queues that hold some back; one of more than floorBytes counts for several. A queue lets in at
	// least minFloor. What of it has not been used is kept for floorBurst.
	nodeFloor  = 5000
	minFloor   = 200
	floorBytes = 1 << 10
	floorBurst = 50 * time.Millisecond
	// maxHeldBack bounds how long a publish is held back.
	maxHeldBack = time.Second
	// heldBackCheck is how often what is held back is examined while no entry is committed.
	heldBackCheck = 10 * time.Millisecond
	// maxBacklog is how long consumers may need for what is ready. If they need longer they are slow:
	// what is published to them waits in any case.
	maxBacklog = time.Second
	// rateWindow is the shortest time over which the rate of consumers is measured, firstRate the
	// shortest time after which it is known.
	rateWindow = 250 * time.Millisecond
	firstRate  = 50 * time.Millisecond
)

// demand is what a queue's consumers want, as of the last entry that its leader has applied.
type demand struct {
	ready, held atomic.Uint64 // messages
	acked       atomic.Uint64 // messages so far
	sated       atomic.Bool   // there are consumers, and none may hold more than it does

	// The applier's lock guards these.
	listed uint64 // see lengths
	boots  uint64 // BootsChanged of the machine
}

// note takes over the state of the machine, and reports whether ready or held has changed.
func (d *demand) note(m *queue.Machine) (changed bool) {
	x := queue.DemandOf(m)
	changed = d.ready.Swap(x.Ready) != x.Ready
	changed = d.held.Swap(x.Held) != x.Held || changed
	d.acked.Store(x.Acked)
	d.sated.Store(x.Sated)
	d.boots = x.BootsChanged
	return changed
}

// floor is shared by the queues of a node that hold publishes back.
type floor struct{ queues atomic.Int64 }

// rate is how many publishes a second each of them lets in.
func (f *floor) rate() float64 { return max(nodeFloor/float64(max(f.queues.Load(), 1)), minFloor) }

// backpressure holds patient batches back while consumers can take nothing more and find enough when
// they can. See DESIGN.md. The proposer's lock guards it.
//
//	batches are in the order of arrival
//	len(batches) > 0 ⇔ the queue is counted in floor.queues; then the timer runs, or check is running
//	entering = Σ commands that were let in and are not applied yet, light ones left out
type backpressure struct {
	demand  *demand
	floor   *floor
	crowded func() bool // too much waits on this node
	check   func()      // called by the timer without the lock
	timer   *time.Timer

	batches  []heldBatch
	taken    uint64 // batches that have been held back so far, these included
	entering int

	spare   float64   // what the floor lets in
	counted time.Time // up to when that is counted

	// The rate of consumers is measured from the first mark on, which the second one replaces.
	first, second ackMark
}

// heldBatch is a batch that has been waiting since a time.
type heldBatch struct {
	Batch
	since time.Time
}

// ackMark is how many messages had been acked at a time.
type ackMark struct {
	at    time.Time
	acked uint64
}

// takes reports whether it has taken a batch, which then waits. Otherwise the batch is let in.
func (x *backpressure) takes(b *Batch) bool {
	if b.Patient {
		now := time.Now()
		x.measure(now)
		if len(x.batches) > 0 || !x.admits(b, now, now) {
			if len(x.batches) == 0 {
				x.floor.queues.Add(1)
				x.arm()
			}
			x.batches = append(x.batches, heldBatch{*b, now})
			x.taken++
			return true
		}
	}
	x.entering += b.Count
	return false
}

// arm starts the timer.
func (x *backpressure) arm() {
	if x.timer == nil {
		x.timer = time.AfterFunc(heldBackCheck, x.check)
		return
	}
	x.timer.Reset(heldBackCheck)
}

// release appends to list the batches that need not wait any more.
func (x *backpressure) release(list []Batch) []Batch {
	if len(x.batches) == 0 {
		return list
	}
	now := time.Now()
	x.measure(now)
	for len(x.batches) > 0 && x.admits(&x.batches[0].Batch, x.batches[0].since, now) {
		list = x.letIn(list)
	}
	return list
}

// releaseAll appends all batches to list.
func (x *backpressure) releaseAll(list []Batch) []Batch {
	for len(x.batches) > 0 {
		list = x.letIn(list)
	}
	return list
}

// letIn moves the first batch to list.
func (x *backpressure) letIn(list []Batch) []Batch {
	b := x.batches[0].Batch
	x.batches[0] = heldBatch{}
	if x.batches = x.batches[1:]; len(x.batches) == 0 {
		x.batches = nil
		x.floor.queues.Add(-1)
		x.timer.Stop()
	}
	x.entering += b.Count
	return append(list, b)
}

// admits reports whether a batch that has been waiting since a time may be let in.
func (x *backpressure) admits(b *Batch, since, now time.Time) bool {
	if !x.demand.sated.Load() || !x.exceeds() || now.Sub(since) >= maxHeldBack || x.slow(now) || x.crowded() {
		return true
	}
	if x.spare <= 0 {
		return false
	}
	x.spare -= float64(max(b.Count, b.Bytes/floorBytes))
	return true
}

// exceeds reports whether consumers that settle all they hold will find more than as much again.
func (x *backpressure) exceeds() bool {
	surplus := min(max(int(x.demand.held.Load()), minSurplus), maxSurplus)
	return int(x.demand.ready.Load())+x.entering > surplus
}

// slow reports whether consumers need long for what is ready, or how long they need is not known.
func (x *backpressure) slow(now time.Time) bool {
	over := now.Sub(x.first.at)
	acked := float64(x.demand.acked.Load() - x.first.acked)
	return over < firstRate || float64(x.demand.ready.Load())*over.Seconds() > acked*maxBacklog.Seconds()
}

// measure counts what the floor lets in, and moves the marks.
func (x *backpressure) measure(now time.Time) {
	rate := x.floor.rate()
	x.spare = min(x.spare+now.Sub(x.counted).Seconds()*rate, floorBurst.Seconds()*rate)
	x.counted = now
	mark := ackMark{now, x.demand.acked.Load()}
	switch age := now.Sub(x.second.at); {
	case age > 2*rateWindow:
		x.first, x.second = mark, mark
	case age > rateWindow:
		x.first, x.second = x.second, mark
	}
}
