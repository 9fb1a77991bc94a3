package amqp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
)

// flushSize is how much is collected for one write.
const flushSize = 128 << 10

// Encoder makes the bytes of a connection's items, for its writer. It belongs to
// the writer's goroutine.
type Encoder interface {
	// Encode encodes the items in order: what Writer.Skip does not deal with by
	// means of Buf, Grow and Direct, and Writer.Done after each.
	Encode(items []Item) error
	// Heartbeat appends what is written when nothing else is.
	Heartbeat(dst []byte) []byte
	// Flushed is called when all that was encoded is in the socket.
	Flushed()
}

// Writer writes the contents of the outbox. It belongs to one goroutine.
type Writer struct {
	// Buf is encoded frames. The encoder appends to it and passes the result to
	// Grow.
	Buf []byte
	cut int // Buf[cut:] is in no segment yet

	conn    *Conn
	out     *Outbox
	encoder Encoder
	timeout time.Duration // for one write
	idle    time.Duration // write a heartbeat after; 0: never

	batch   Batch
	closing bool // only frames of the batch are written
	// segments are written in order: pieces of Buf and of payloads. bufs is the
	// same during a write, which consumes it.
	segments, bufs net.Buffers
	size           int // bytes in segments and in Buf[cut:]

	weight, requested int64          // of the items gathered
	reports           []*WriteReport // of sessions with deliveries that are not reported yet
	active            bool           // something was written since the last tick
}

// WriteReport is what has been written of a session's deliveries since the last
// report to it. It belongs to the writer.
type WriteReport struct {
	Session      Session
	count, bytes int
}

func newWriter(c *Conn) *Writer {
	w := &Writer{conn: c, out: c.Out, timeout: max(2*c.Heartbeat, minWriteTimeout), idle: c.Beat}
	w.encoder = c.endpoint.Encoder(w)
	return w
}

// run writes until the outbox ends or a write fails.
func (w *Writer) run() error {
	var tick <-chan time.Time
	if w.idle > 0 {
		ticker := time.NewTicker(w.idle)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		some, ended := w.out.Take(&w.batch)
		switch {
		case some:
			if err := w.writeBatch(); err != nil {
				return err
			}
			continue
		case ended:
			return nil
		}
		select {
		case <-w.out.wake:
		case <-tick:
			if err := w.beat(); err != nil {
				return err
			}
		}
	}
}

// beat writes a heartbeat if nothing else was written since the last tick.
func (w *Writer) beat() error {
	if !w.active && !w.out.isClosing() {
		w.Buf = w.encoder.Heartbeat(w.Buf)
		w.size = len(w.Buf)
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.active = false
	return nil
}

// writeBatch writes all of the batch and empties it.
func (w *Writer) writeBatch() error {
	w.closing = w.out.isClosing()
	if err := w.encoder.Encode(w.batch.Items); err != nil {
		return err
	}
	w.raw(w.batch.lastFrames)
	w.batch.reset()
	return w.flush()
}

// Skip writes an item that is encoded already. It returns false for one that the
// encoder has to encode.
func (w *Writer) Skip(it *Item) bool {
	if it.Kind == Frames {
		w.raw(w.batch.Frames(it))
		return true
	}
	return w.closing // its channel is over before it could be acknowledged
}

// Done ends an item, and writes once enough is collected.
func (w *Writer) Done(it *Item) error {
	weight := it.weight()
	w.weight += weight
	if it.Requested {
		w.requested += weight
	}
	return w.FlushLarge()
}

// FlushLarge writes once enough is collected.
func (w *Writer) FlushLarge() error {
	if w.size >= flushSize {
		return w.flush()
	}
	return nil
}

// Grow stores the longer Buf that an append has returned.
func (w *Writer) Grow(buf []byte) {
	w.size += len(buf) - len(w.Buf)
	w.Buf = buf
}

func (w *Writer) raw(frames []byte) { w.Grow(append(w.Buf, frames...)) }

// Direct adds what is written from where it is, without a copy. It must never
// change.
func (w *Writer) Direct(piece []byte) {
	w.segment()
	w.segments = append(w.segments, piece)
	w.size += len(piece)
}

// segment makes a segment of the part of Buf after the last one. Buf may safely
// move when it grows: a segment keeps the memory it was cut from.
func (w *Writer) segment() {
	if w.cut < len(w.Buf) {
		w.segments = append(w.segments, w.Buf[w.cut:])
		w.cut = len(w.Buf)
	}
}

// Report makes the next flush report a delivery of this size to its session.
func (w *Writer) Report(r *WriteReport, bytes int) {
	if r.count == 0 {
		w.reports = append(w.reports, r)
	}
	r.count++
	r.bytes += bytes
}

// flush writes what is collected and reports its deliveries.
func (w *Writer) flush() error {
	if w.size > 0 {
		if err := w.write(); err != nil {
			return err
		}
		w.active = true
	}
	w.out.wrote(w.weight, w.requested)
	w.weight, w.requested = 0, 0
	w.encoder.Flushed()
	for _, r := range w.reports {
		r.Session.Written(r.count, r.bytes)
		r.count, r.bytes = 0, 0
	}
	clear(w.reports)
	w.reports = w.reports[:0]
	return nil
}

func (w *Writer) write() error {
	if err := w.conn.Socket.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	w.conn.stats.sent.Add(uint64(w.size))
	w.conn.stats.writes.Add(1)
	var err error
	if len(w.segments) == 0 {
		_, err = w.conn.Socket.Write(w.Buf)
	} else {
		w.segment()
		w.bufs = w.segments
		_, err = w.bufs.WriteTo(w.conn.Socket)
		clear(w.segments)
		w.segments = w.segments[:0]
	}
	if cap(w.Buf) > 2*flushSize {
		w.Buf = nil
	}
	w.Buf, w.cut, w.size = w.Buf[:0], 0, 0
	return err
}

// Outbox is what waits to be written to a client, in order. Any goroutine may
// push, and pushing never blocks. The writer takes everything at once and gives
// its own memory in exchange, so pushing does not allocate in the long run.
type Outbox struct {
	mu       sync.Mutex
	batch    Batch
	sleeping bool // the writer waits for wake
	ending   bool // the connection's close or its answer is in: only its own frames follow
	ended    bool // nothing follows

	wake      chan struct{} // capacity 1
	requested *Flow         // by the client's own requests
	tooMuch   func()        // called, mu held, when the client must be dropped

	memory   *Account     // weight of everything not yet written
	progress atomic.Int64 // when the writer last wrote, or the backlog began; Unix ns
}

// Batch is what the writer takes at once: items first, then what is made last.
type Batch struct {
	Items      []Item
	raw        []byte // frames of items of that kind
	last       []Last
	lastFrames []byte // of last
}

// Frames are those of an item of that kind.
func (b *Batch) Frames(it *Item) []byte { return b.raw[it.from:it.to] }

// Last makes frames as late as possible: when the writer has taken what was pushed
// before. The outbox is locked then.
type Last interface {
	AppendFrames(dst []byte) []byte
}

// Frames is the kind of items that are encoded already. Others are the protocol's.
const Frames uint8 = 0

// Item is one item to write. Its payload is not copied until then. All fields but
// Message's payload and Requested are the protocol's own.
type Item struct {
	Kind      uint8
	Requested bool   // by the client itself: an answer, not a delivery
	Channel   uint16 // number
	from, to  int    // Frames: place in Batch.raw
	Owner     any    // a pointer: whom it is for
	Tag       uint64
	Message   fsm.Message
	Refusal   *fsm.Refusal
}

// itemWeight is the assumed cost of an item in addition to its payload.
const itemWeight = 128

// weight is what the item adds to the backlog, in bytes.
func (it *Item) weight() int64 {
	return int64(len(it.Message.Payload) + it.to - it.from + itemWeight)
}

// NewOutbox returns the outbox of a connection with this account. tooMuch is
// called, with the outbox locked, when the client must be dropped.
func NewOutbox(connection *Account, tooMuch func()) *Outbox {
	o := &Outbox{wake: make(chan struct{}, 1), requested: NewFlow(1<<62, MaxRequested, &Account{}), tooMuch: tooMuch}
	o.memory = connection.newPart(connectionStep, o.relieve)
	return o
}

// relieve drops a client that does not read.
func (o *Outbox) relieve(*Account) bool {
	stalled := o.memory.bytes.Load() > MaxRequested && o.stalled()
	if stalled {
		o.tooMuch()
	}
	return stalled
}

// drop drops what will never be written.
func (o *Outbox) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.batch = Batch{}
	o.memory.Add(-o.memory.bytes.Load())
}

// Lock begins several pushes in a row, Unlock ends them. The other methods that
// push are for in between.
func (o *Outbox) Lock() { o.mu.Lock() }

// Unlock ends what Lock has begun, and wakes the writer.
func (o *Outbox) Unlock() {
	wake := o.sleeping && (len(o.batch.Items) > 0 || len(o.batch.last) > 0 || o.ended)
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

// Takes reports whether anything pushed is written. own: it is of the connection
// itself, which may say something after its close.
func (o *Outbox) Takes(own bool) bool { return !o.ended && (own || !o.ending) }

// Encoded is what PushFrames wants longer.
func (o *Outbox) Encoded() []byte { return o.batch.raw }

// PushFrames pushes the frames that were appended to Encoded, if there are any.
// It must take them (Takes).
func (o *Outbox) PushFrames(longer []byte) {
	from := len(o.batch.raw)
	o.batch.raw = longer
	if len(longer) > from {
		o.add(&Item{Kind: Frames, Requested: true, from: from, to: len(longer)})
	}
}

// PushItem pushes an item of another kind, unless nothing is taken any more.
func (o *Outbox) PushItem(it *Item) {
	if o.Takes(false) {
		o.add(it)
	}
}

// PushLast has frames made of l, after all that is pushed. It must not be pushed again
// until then.
func (o *Outbox) PushLast(l Last) {
	if o.Takes(false) {
		o.batch.last = append(o.batch.last, l)
	}
}

// Expect counts n more bytes that wait because of the client's own requests and are not pushed: Last will make frames of
// them. n below 0: so many fewer. The outbox need not be locked.
func (o *Outbox) Expect(n int64) {
	if n <= 0 {
		o.memory.Add(n)
		o.requested.Release(0, -n)
		return
	}
	if o.memory.bytes.Load() == 0 {
		o.progress.Store(time.Now().UnixNano())
	}
	o.memory.Add(n)
	o.requested.Add(0, n)
}

// Close makes the outbox take only frames of the connection itself from now on.
func (o *Outbox) Close() { o.ending = true }

func (o *Outbox) add(it *Item) {
	w := it.weight()
	if o.memory.bytes.Load() == 0 {
		o.progress.Store(time.Now().UnixNano())
	}
	o.memory.Add(w)
	if it.Requested {
		o.requested.Add(0, w)
	}
	o.batch.Items = append(o.batch.Items, *it)
	if o.memory.bytes.Load() > MaxBacklog && (o.requested.memory.bytes.Load() > MaxBacklog || o.stalled()) {
		o.tooMuch()
	}
}

// stalled reports whether the client has not read for a while.
func (o *Outbox) stalled() bool {
	return time.Now().UnixNano()-o.progress.Load() > int64(stallTime)
}

// wrote reports that items of this weight have been written to the socket.
func (o *Outbox) wrote(weight, requested int64) {
	o.progress.Store(time.Now().UnixNano())
	o.memory.Add(-weight)
	o.requested.Release(0, requested)
}

// end lets the writer finish once it has written everything that is queued.
func (o *Outbox) end() {
	o.Lock()
	o.ended = true
	o.Unlock()
}

// Take moves the queued items into b, which must be empty. If there are none it
// returns false, and wake is signalled once there are; ended reports whether
// nothing more will come.
func (o *Outbox) Take(b *Batch) (some, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.batch.Items) == 0 && len(o.batch.last) == 0 {
		o.sleeping = !o.ended
		return false, o.ended
	}
	*b, o.batch = o.batch, *b
	// Under the lock, so that an item pushed before what is made last is never
	// in a later batch.
	for _, l := range b.last {
		b.lastFrames = l.AppendFrames(b.lastFrames)
	}
	return true, false
}

// isClosing reports whether deliveries no longer need to be written.
func (o *Outbox) isClosing() bool {
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
func (b *Batch) reset() {
	if cap(b.Items) > keepItems || cap(b.raw) > keepBytes {
		*b = Batch{}
		return
	}
	clear(b.Items)
	clear(b.last)
	*b = Batch{Items: b.Items[:0], raw: b.raw[:0], last: b.last[:0], lastFrames: b.lastFrames[:0]}
}
