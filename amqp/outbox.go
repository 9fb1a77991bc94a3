package amqp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// outbox is what waits to be written to a client, in order. Any goroutine may
// push, and pushing never blocks. The writer takes everything at once and gives
// its own memory in exchange, so pushing does not allocate in the long run.
//
// Lock order: channel.mu, outbox.mu, confirms.mu.
type outbox struct {
	mu       sync.Mutex
	batch    batch
	sleeping bool // the writer waits for wake
	ending   bool // connection.close or its ok is in: only methods of channel 0 follow
	ended    bool // nothing follows

	wake      chan struct{} // capacity 1
	requested *flow         // by the client's own requests
	tooMuch   func()        // called, outbox.mu held, when the client must be dropped

	backlog  atomic.Int64 // weight of everything not yet written
	progress atomic.Int64 // when the writer last wrote, or the backlog began; Unix ns
}

// batch is what the writer takes at once: items first, then confirms.
type batch struct {
	items    []outItem
	raw      []byte      // frames of raw items
	confirms []*confirms // of channels that have some to be written
	frames   []byte      // those confirms
}

type outKind uint8

const (
	outRaw     outKind = iota // frames, encoded already
	outDeliver                // basic.deliver
	outGet                    // basic.get-ok
	outReturn                 // basic.return
)

// outItem is one item to write. Its payload is not copied until then.
type outItem struct {
	kind     outKind
	channel  uint16    // number
	consumer *consumer // outDeliver
	tag      uint64    // delivery tag
	from, to int       // outRaw: place in batch.raw
	message  fsm.Message
	refusal  *fsm.Refusal // outReturn; nil: there was no route
}

// itemWeight is the assumed cost of an item in addition to its payload.
const itemWeight = 128

// weight is what the item adds to the backlog, in bytes.
func (it *outItem) weight() int64 {
	return int64(len(it.message.Payload) + it.to - it.from + itemWeight)
}

// isRequested reports whether the client has requested the item itself.
func (it *outItem) isRequested() bool { return it.kind != outDeliver }

func newOutbox(tooMuch func()) *outbox {
	return &outbox{wake: make(chan struct{}, 1), requested: newFlow(1<<62, maxRequested), tooMuch: tooMuch}
}

// push appends a method of a channel.
func (o *outbox) push(channel uint16, m wire.Method) {
	o.lock()
	o.pushLocked(channel, m)
	o.unlock()
}

// lock begins several pushes in a row, unlock ends them.
func (o *outbox) lock() { o.mu.Lock() }

func (o *outbox) unlock() {
	wake := o.sleeping && (len(o.batch.items) > 0 || len(o.batch.confirms) > 0 || o.ended)
	if wake {
		o.sleeping = false
	}
	o.mu.Unlock()
	if wake {
		select {
		case o.wake <- struct{}{}:
		default: // it is signalled already
		}
	}
}

func (o *outbox) pushLocked(channel uint16, m wire.Method) {
	if o.ended || (o.ending && channel != 0) {
		return
	}
	from := len(o.batch.raw)
	o.batch.raw = wire.AppendMethod(o.batch.raw, channel, m)
	o.add(outItem{kind: outRaw, from: from, to: len(o.batch.raw)})
}

// pushMessage appends a message. The outbox is locked.
func (o *outbox) pushMessage(it outItem) {
	if !o.ended && !o.ending {
		o.add(it)
	}
}

func (o *outbox) add(it outItem) {
	w := it.weight()
	if o.backlog.Load() == 0 {
		o.progress.Store(time.Now().UnixNano())
	}
	backlog := o.backlog.Add(w)
	if it.isRequested() {
		o.requested.add(0, w)
	}
	o.batch.items = append(o.batch.items, it)
	if backlog > maxBacklog && (o.requested.bytes.Load() > maxBacklog || o.stalled()) {
		o.tooMuch()
	}
}

// stalled reports whether the client has not read for a while.
func (o *outbox) stalled() bool {
	return time.Now().UnixNano()-o.progress.Load() > int64(stallTime)
}

// wrote reports that items of this weight have been written to the socket.
func (o *outbox) wrote(weight, requested int64) {
	o.progress.Store(time.Now().UnixNano())
	o.backlog.Add(-weight)
	o.requested.release(0, requested)
}

// queueConfirms makes the writer ask c for the confirms that can be written.
func (o *outbox) queueConfirms(c *confirms) {
	o.lock()
	if !o.ended && !o.ending {
		o.batch.confirms = append(o.batch.confirms, c)
	}
	o.unlock()
}

// pushLast appends the confirms of a channel and its last method. Later
// confirms are lost. It returns the publishes that had no outcome.
func (o *outbox) pushLast(c *confirms, m wire.Method) (count, bytes int64) {
	o.lock()
	defer o.unlock()
	if !o.ended && !o.ending {
		from := len(o.batch.raw)
		o.batch.raw = c.append(o.batch.raw)
		if to := len(o.batch.raw); to > from {
			o.add(outItem{kind: outRaw, from: from, to: to})
		}
	}
	count, bytes = c.close()
	o.pushLocked(c.channel, m)
	return count, bytes
}

// pushEnd appends connection.close or its ok. After it only methods of channel
// 0 are accepted.
func (o *outbox) pushEnd(m wire.Method) {
	o.lock()
	o.pushLocked(0, m)
	o.ending = true
	o.unlock()
}

// end lets the writer finish once it has written everything that is queued.
func (o *outbox) end() {
	o.lock()
	o.ended = true
	o.unlock()
}

// take moves the queued items into b, which must be empty. If there are none it
// returns false, and wake is signalled once there are; ended reports whether
// nothing more will come.
func (o *outbox) take(b *batch) (some, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.batch.items) == 0 && len(o.batch.confirms) == 0 {
		o.sleeping = !o.ended
		return false, o.ended
	}
	*b, o.batch = o.batch, *b
	// Under the lock, so that a basic.return pushed before its publish was
	// acknowledged is never in a later batch than the ack.
	for _, c := range b.confirms {
		b.frames = c.append(b.frames)
	}
	return true, false
}

// closing reports whether deliveries no longer need to be written.
func (o *outbox) closing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ending
}

// Memory a batch may keep for the next one.
const (
	keepItems = 4096
	keepBytes = 256 << 10
)

// reset empties b and releases everything that its items refer to.
func (b *batch) reset() {
	if cap(b.items) > keepItems || cap(b.raw) > keepBytes {
		*b = batch{}
		return
	}
	clear(b.items)
	clear(b.confirms)
	*b = batch{items: b.items[:0], raw: b.raw[:0], confirms: b.confirms[:0], frames: b.frames[:0]}
}
