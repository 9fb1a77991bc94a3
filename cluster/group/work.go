package group

import (
	"sync"

	"github.com/quorate/quorate/fsm"
)

// Outcome answers the commands First … First+Run-1 of one session's stream.
// Run is more than 1 only if all of them have a plain fsm.OK.
type Outcome struct {
	Session    fsm.SessionID
	First, Run uint64
	Result     fsm.Result
}

// Work is what one or more entries want done outside, in log order. A get's
// delivery stands in Deliveries; its outcome in Outcomes: do deliveries first.
type Work struct {
	Outcomes   []Outcome
	Deliveries []fsm.Delivery
	Payloads   [][]byte // of the deliveries; nil: the message is gone
	Timeouts   []fsm.Timeout
	Cancelled  []fsm.ConsumerID
	Resyncs    []Resynced
	released   []uint64 // entries to free once the payloads are read
	Outbox     bool     // dead letters wait
	Gone       bool     // the queue has ended
}

// Resynced is all that a consumer held after some delivery when the machine
// was asked.
type Resynced struct {
	To fsm.ConsumerID
	// At says before which of the work's deliveries the machine was asked.
	At int
	// UpTo is the consumer's newest delivery at that moment.
	UpTo     uint64
	Held     []fsm.Delivery
	Payloads [][]byte
}

func (w *Work) empty() bool {
	return len(w.Outcomes) == 0 && len(w.Deliveries) == 0 && len(w.Timeouts) == 0 &&
		len(w.Cancelled) == 0 && len(w.Resyncs) == 0 && len(w.released) == 0 && !w.Outbox && !w.Gone
}

func (w *Work) reset() {
	clear(w.Deliveries)
	clear(w.Payloads)
	clear(w.Timeouts)
	clear(w.Resyncs)
	*w = Work{
		Outcomes: w.Outcomes[:0], Deliveries: w.Deliveries[:0], Payloads: w.Payloads[:0],
		Timeouts: w.Timeouts[:0], Cancelled: w.Cancelled[:0], Resyncs: w.Resyncs[:0],
		released: w.released[:0],
	}
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

// add takes over effects. The caller holds the lock.
func (o *outgoing) add(e *fsm.Effects) {
	w := o.next
	w.Deliveries = append(w.Deliveries, e.Deliveries...)
	w.Timeouts = append(w.Timeouts, e.Timeouts...)
	w.Cancelled = append(w.Cancelled, e.Cancelled...)
	w.released = append(w.released, e.Released...)
	w.Outbox = w.Outbox || e.Outbox
	w.Gone = w.Gone || e.Gone
}

// unlockAndRun releases the lock and sees to it that the work gets done.
func (o *outgoing) unlockAndRun(g *Group) {
	start := !o.running && !o.next.empty()
	if start {
		o.running = true
		o.done.Add(1)
	}
	o.mu.Unlock()
	if start {
		go o.run(g)
	}
}

func (o *outgoing) run(g *Group) {
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
		g.readPayloads(w)
		g.host.outside.Perform(g, w)
		w.reset()
		o.mu.Lock()
		o.spare = w
		o.mu.Unlock()
	}
}

// wait returns when no work is being performed.
func (o *outgoing) wait() { o.done.Wait() }

func (g *Group) readPayloads(w *Work) {
	w.Payloads = g.payloads(w.Payloads, w.Deliveries)
	for i := range w.Resyncs {
		w.Resyncs[i].Payloads = g.payloads(nil, w.Resyncs[i].Held)
	}
	if len(w.released) > 0 {
		g.log.Release(w.released)
	}
}

// payloads appends the payloads of ds, nil for those that are gone: the
// message has been settled meanwhile, or its delivery is asked for again.
func (g *Group) payloads(dst [][]byte, ds []fsm.Delivery) [][]byte {
	for i := range ds {
		p, err := g.log.Payload(ds[i].Ref)
		if err != nil {
			g.slog.Debug("payload is gone", "ref", ds[i].Ref, "error", err)
			p = nil
		}
		dst = append(dst, p)
	}
	return dst
}

// Resync reads what a consumer holds after a delivery, and passes it on in
// its place among the deliveries. Only the leader answers.
func (g *Group) Resync(to fsm.ConsumerID, after uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leading.Load() == 0 {
		return
	}
	var held fsm.Effects
	g.machine.Held(to, after, &held)
	r := Resynced{To: to, UpTo: g.machine.Newest(to), Held: held.Deliveries}
	g.outgoing.lock()
	r.At = len(g.outgoing.next.Deliveries)
	g.outgoing.next.Resyncs = append(g.outgoing.next.Resyncs, r)
	g.outgoing.unlockAndRun(g)
}
