package peer

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBacklog bounds the bytes of one class that wait on one stream: at the
	// bound a frame, however short, has to wait. So a long one is not kept
	// waiting by short ones.
	maxBacklog = 64 << 20
	// batchSize is where a batch is long enough; the next frame starts another.
	batchSize = 256 << 10
	// busyRate in frames per millisecond: above it the sender lets other
	// goroutines go first, for up to linger, so that more frames share a write.
	busyRate = 4
	linger   = 200 * time.Microsecond
)

// class says which limit a frame counts against, and with which frames it
// stays in order: each class has a queue, and the queues take turns.
type class uint8

const (
	classRaft class = iota // its senders wait for the backlog to shrink
	classApp               // its senders get an error
	classOwn               // pings, heartbeats and votes: never refused
	classes
)

// outbox queues the frames of one stream; one goroutine sends them.
type outbox struct {
	wake chan struct{} // buffer 1
	lazy time.Duration

	mu      sync.Mutex
	batches [classes][]*batch // the last one of each is open for more
	turn    []*batch          // see take
	queued  [classes]int
	arrived int           // frames since the sender took some last
	freed   chan struct{} // closed when something is sent; nil: nobody waits
	timer   *time.Timer   // wakes the sender for lazy frames
	timing  bool
	closed  bool

	backlog atomic.Int64
}

func newOutbox(lazy time.Duration) *outbox {
	return &outbox{wake: make(chan struct{}, 1), lazy: lazy}
}

// urgency of a frame.
type urgency bool

const (
	urgent urgency = true
	// idle frames wait for an urgent one, at most Timing.LazyDelay.
	idle urgency = false
)

// push queues a frame. It never blocks.
func (o *outbox) push(h header, b body, c class, u urgency) error {
	n := b.size()
	o.mu.Lock()
	bt, err := o.begin(h, n, c)
	if err != nil {
		o.mu.Unlock()
		return err
	}
	b.write(bt)
	o.end(bt, n, c, u)
	return nil
}

// pushMessage queues an application message: push without boxing its parts.
func (o *outbox) pushMessage(k Kind, head []byte, payloads [][]byte) error {
	n := len(head)
	for _, p := range payloads {
		n += len(p)
	}
	o.mu.Lock()
	b, err := o.begin(header{kind: k, arg: uint32(len(head))}, n, classApp)
	if err != nil {
		o.mu.Unlock()
		return err
	}
	addCopy(b, head)
	for _, p := range payloads {
		b.add(p)
	}
	o.end(b, n, classApp, urgent)
	return nil
}

// addCopy appends p and never keeps a reference to it.
func addCopy(b *batch, p []byte) {
	for len(p) > 0 {
		n := copy(b.reserve(min(len(p), copyLimit)), p)
		p = p[n:]
	}
}

// begin checks the limits, opens a batch and writes the header. o.mu is held.
func (o *outbox) begin(h header, n int, c class) (*batch, error) {
	switch {
	case o.closed:
		return nil, ErrDown
	case n > MaxMessage-headerSize:
		return nil, ErrTooLarge
	case c != classOwn && o.queued[c] >= maxBacklog:
		return nil, ErrBacklog
	}
	var b *batch
	if k := len(o.batches[c]); k > 0 {
		b = o.batches[c][k-1]
	}
	if b == nil || b.long != nil || b.size >= batchSize || b.size+headerSize+n > MaxMessage {
		b = new(batch)
		o.batches[c] = append(o.batches[c], b)
	}
	h.put(b.reserve(headerSize), n)
	return b, nil
}

// end accounts for the frame and sees to it that the sender comes. It unlocks
// o.mu.
func (o *outbox) end(b *batch, n int, c class, u urgency) {
	n += headerSize
	b.frames++
	b.charged[c] += n
	o.queued[c] += n
	o.arrived++
	o.backlog.Add(int64(n))
	if u == idle && !o.timing {
		o.timing = true
		if o.timer == nil {
			o.timer = time.AfterFunc(o.lazy, o.expired)
		} else {
			o.timer.Reset(o.lazy)
		}
	}
	o.mu.Unlock()
	if u == urgent {
		o.signal()
	}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) expired() {
	o.mu.Lock()
	o.timing = false
	waiting := o.backlog.Load() > 0
	o.mu.Unlock()
	if waiting {
		o.signal()
	}
}

// pushWait is push for raft requests: it waits instead of failing,
// until one of the channels is closed.
func (o *outbox) pushWait(stop <-chan struct{}, h header, b body, u urgency) error {
	for {
		err := o.push(h, b, classRaft, u)
		if !errors.Is(err, ErrBacklog) {
			return err
		}
		freed := o.waitFreed(classRaft)
		if freed == nil {
			continue
		}
		select {
		case <-freed:
		case <-stop:
			return errAbandoned
		}
	}
}

// waitFreed returns a channel that is closed when something was sent, or nil if
// a frame of the class is taken now, or none will ever be.
func (o *outbox) waitFreed(c class) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.queued[c] < maxBacklog {
		return nil
	}
	if o.freed == nil {
		o.freed = make(chan struct{})
	}
	return o.freed
}

// run sends until send fails or stop is closed. It alone takes batches.
func (o *outbox) run(stop <-chan struct{}, send func(*batch) error) error {
	var r rate
	r.since = time.Now()
	for {
		select {
		case <-o.wake:
		case <-stop:
			return nil
		}
		if r.busy {
			o.gather()
		}
		for turn := o.take(&r); len(turn) > 0; turn = o.take(&r) {
			for _, b := range turn {
				charged := b.charged
				if err := send(b); err != nil {
					return err
				}
				o.sent(charged)
			}
		}
	}
}

// gather yields for as long as that brings more frames. It does not sleep: a
// process with nothing else to do would wake up a millisecond later, and those
// who wait for an answer before they ask again would wait with it.
func (o *outbox) gather() {
	start := time.Now()
	for n := o.frames(); ; {
		runtime.Gosched()
		last := n
		if n = o.frames(); n == last || time.Since(start) >= linger {
			return
		}
	}
}

func (o *outbox) frames() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.arrived
}

// rate tells from the number of frames whether waiting for more is worth it.
type rate struct {
	since  time.Time
	frames int
	busy   bool
}

func (r *rate) add(frames int, now time.Time) {
	r.frames += frames
	if d := now.Sub(r.since); d >= time.Millisecond {
		r.busy = time.Duration(r.frames)*time.Millisecond >= busyRate*d
		r.since, r.frames = now, 0
	}
}

// take removes the first batch of each class, or a piece of it if it is long;
// small ones become one. The result is valid until the next call.
func (o *outbox) take(r *rate) []*batch {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turn = o.turn[:0]
	for c, q := range o.batches {
		if len(q) == 0 {
			continue
		}
		b, last := q[0], true
		if b.size >= longMessage || b.long != nil {
			b, last = b.cut(class(c))
		}
		if last {
			o.batches[c] = slices.Delete(q, 0, 1)
		}
		if n := len(o.turn); n > 0 && o.turn[n-1].size+b.size <= batchSize {
			o.turn[n-1].join(b)
		} else {
			o.turn = append(o.turn, b)
		}
	}
	if o.timing && len(o.batches[classRaft])+len(o.batches[classOwn]) == 0 && o.timer.Stop() {
		o.timing = false // what was lazy has found company
	}
	r.add(o.arrived, now)
	o.arrived = 0
	return o.turn
}

// backlogOf is how much of a class waits to be sent.
func (o *outbox) backlogOf(c class) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.queued[c]
}

func (o *outbox) sent(charged [classes]int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c, n := range charged {
		o.queued[c] -= n
		o.backlog.Add(int64(-n))
	}
	if o.freed != nil {
		close(o.freed)
		o.freed = nil
	}
}

// close drops what is queued; later pushes fail.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	if o.timer != nil {
		o.timer.Stop()
	}
	for c, q := range o.batches {
		for _, b := range q {
			b.seal().Free()
		}
		o.batches[c] = nil
	}
	if o.freed != nil {
		close(o.freed)
		o.freed = nil
	}
}
