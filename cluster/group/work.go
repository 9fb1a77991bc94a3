package group

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/fsm"
)

// Outcome answers the commands First … First+Run-1 of one session's stream.
// Run is more than 1 only if all of them have a plain fsm.OK.
type Outcome struct {
	Session    fsm.SessionID
	First, Run uint64
	Result     fsm.Result
}

// DeliveryWeight is what a delivery is taken to cost, in bytes, on top of its
// payload wherever deliveries are bounded.
const DeliveryWeight = 128

// maxResync bounds the weight of what a resync answers with, if that is more
// than one delivery: who asks asks again from there.
const maxResync = 1 << 20

// maxHeld is as many deliveries as may be in such an answer, and one more.
const maxHeld = maxResync/DeliveryWeight + 1

// releaseAtOnce is how many entries of a queue that has ended are freed at a time.
const releaseAtOnce = 1024

// Work is what one or more entries want done outside, in log order. A get's
// delivery stands in Deliveries; its outcome in Outcomes: do deliveries first.
// Payloads of deliveries and dead letters can be read until the work is done (Group.Payload):
// then what is released is freed.
type Work struct {
	fsm.Effects
	Outcomes  []Outcome
	Resyncs   []Resynced
	addressed map[fsm.SessionID]struct{}
}

// SplitOutcomes separates the outcomes of sessions to which nothing else goes from the others. Those can be
// sent before any payload is read.
func (w *Work) SplitOutcomes() (early, late []Outcome) {
	if w.addressed == nil {
		w.addressed = map[fsm.SessionID]struct{}{}
	}
	clear(w.addressed)
	for i := range w.Deliveries {
		w.addressed[w.Deliveries[i].To.Session] = struct{}{}
	}
	for i := range w.Resyncs {
		w.addressed[w.Resyncs[i].To.Session] = struct{}{}
	}
	for i := range w.Timeouts {
		w.addressed[w.Timeouts[i].To.Session] = struct{}{}
	}
	if len(w.addressed) == 0 {
		return w.Outcomes, nil
	}
	for _, o := range w.Outcomes {
		if _, waits := w.addressed[o.Session]; waits {
			late = append(late, o)
		} else {
			early = append(early, o)
		}
	}
	return early, late
}

// Resynced is what a consumer held after some delivery when the machine was
// asked: all of it up to and including Last.
type Resynced struct {
	To fsm.ConsumerID
	// At says before which of the work's deliveries the machine was asked.
	At int
	// Last is the consumer's newest delivery at that moment, or the last of
	// Held if that is not all.
	Last uint64
	Held []fsm.Delivery
	// More is the next delivery that it holds after Last; 0: there is none.
	More uint64
}

func (w *Work) empty() bool {
	return len(w.Outcomes)+len(w.Resyncs) == 0 && w.Empty()
}

func (w *Work) reset() {
	clear(w.Resyncs)
	w.Effects.Reset()
	w.Outcomes, w.Resyncs = w.Outcomes[:0], w.Resyncs[:0]
}

// outgoing hands work from the goroutine that applies to one that performs.
// The latter lives only while there is work: it reads payloads, perhaps from
// disk, and an idle group has no use for it.
type outgoing struct {
	mu      sync.Mutex
	next    *Work
	spare   *Work
	running bool
	done    sync.WaitGroup
	steps   atomic.Uint64 // of the work: what was performed, payloads read, entries freed

	barred  func() bool // the group has no effects
	perform func(w *Work)
	release func(indexes []uint64)
	guard   *guard
}

func (o *outgoing) lock() {
	o.mu.Lock()
	if o.next == nil {
		o.next = &Work{}
	}
}

// outcome notes one answer. The caller holds the lock.
func (o *outgoing) outcome(s fsm.SessionID, seq uint64, r fsm.Result) {
	w := o.next
	if n := len(w.Outcomes); n > 0 && r == (fsm.Result{}) {
		last := &w.Outcomes[n-1]
		if last.Session == s && last.First+last.Run == seq && last.Result == r {
			last.Run++
			return
		}
	}
	w.Outcomes = append(w.Outcomes, Outcome{Session: s, First: seq, Run: 1, Result: r})
}

// answer adds answers that no entry has given.
func (o *outgoing) answer(outcomes []Outcome) {
	o.lock()
	defer o.unlockAndRun()
	o.next.Outcomes = append(o.next.Outcomes, outcomes...)
}

// unlockAndRun releases the lock and sees to it that the work gets done.
func (o *outgoing) unlockAndRun() {
	start := !o.running && !o.next.empty()
	if start {
		o.running = true
		o.done.Add(1)
	}
	o.mu.Unlock()
	if start {
		go o.run()
	}
}

func (o *outgoing) run() {
	defer o.done.Done()
	for {
		o.mu.Lock()
		w := o.next
		if w.empty() {
			o.running = false
			o.mu.Unlock()
			return
		}
		o.next, o.spare = o.spare, nil
		if o.next == nil {
			o.next = &Work{}
		}
		o.mu.Unlock()
		o.do(w)
		o.steps.Add(1)
		w.reset()
		o.mu.Lock()
		o.spare = w
		o.mu.Unlock()
	}
}

// progress reports whether work is being performed, and a number that grows as it gets on.
func (o *outgoing) progress() (performs bool, steps uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.running, o.steps.Load()
}

// do does work, and frees the entries that it releases. A group that is
// quarantined has no effects: who misses them asks again where it is led next.
func (o *outgoing) do(w *Work) {
	if !o.barred() {
		o.guard.run("perform effects", func() { o.perform(w) })
	}
	if len(w.Released) > 0 {
		o.guard.run("free payloads", func() { o.release(w.Released) })
	}
	if w.Rest != nil {
		o.guard.run("free payloads", func() { o.releaseAll(w.Rest) })
	}
}

// releaseAll is release for as many as a queue may have had.
func (o *outgoing) releaseAll(indexes iter.Seq[uint64]) {
	var some []uint64
	for index := range indexes {
		if some = append(some, index); len(some) == releaseAtOnce {
			o.release(some)
			o.steps.Add(1)
			some = some[:0]
		}
	}
	o.release(some)
}

// answerResync adds the answer to a resync, and what else is held for the consumer.
// The caller holds the lock.
func (o *outgoing) answerResync(r Resynced, held *fsm.Effects) {
	w := o.next
	w.Timeouts = append(w.Timeouts, held.Timeouts...)
	w.Cancelled = append(w.Cancelled, held.Cancelled...)
	w.Short = append(w.Short, held.Short...)
	r.At = len(w.Deliveries)
	w.Resyncs = append(w.Resyncs, r)
}

// wait returns when no work is being performed.
func (o *outgoing) wait() { o.done.Wait() }

// effectsPool holds lists for what machines are asked.
var effectsPool = sync.Pool{New: func() any { return new(fsm.Effects) }}

// resynced cuts what a consumer holds to the size of an answer.
func resynced(to fsm.ConsumerID, held []fsm.Delivery, newest uint64) Resynced {
	r := Resynced{To: to, Last: newest}
	weight, n := 0, 0
	for n < len(held) {
		weight += int(held[n].Ref.Size) + DeliveryWeight
		if n > 0 && weight > maxResync {
			r.Last, r.More = held[n-1].ID, held[n].ID
			break
		}
		n++
	}
	r.Held = slices.Clone(held[:n])
	return r
}
