package amqp

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// directBody is the length from which a body is written directly from the
	// payload. Shorter ones are copied in between the frames.
	directBody = 4 << 10
	// flushSize is how much is collected for one write.
	flushSize = 128 << 10
)

// writer writes the contents of the outbox. It belongs to one goroutine.
type writer struct {
	conn     *conn
	out      *outbox
	frameMax uint32
	timeout  time.Duration // for one write
	idle     time.Duration // write a heartbeat after; 0: never

	batch batch
	buf   []byte // encoded frames; buf[cut:] is in no segment yet
	cut   int
	// segments are written in order: pieces of buf and of payloads. bufs is the
	// same during a write, which consumes it.
	segments, bufs net.Buffers
	size           int // bytes in segments and in buf[cut:]

	weight, requested int64 // of the items gathered
	unacked           []unackedWrite
	reports           []*writeReport // of channels with deliveries that are not reported yet
	ids               []uint64
	properties        []byte
	ofMessage         *fsm.Message // that properties are of
	active            bool         // something was written since the last tick
}

// unackedWrite is a delivery to a consumer that does not acknowledge.
type unackedWrite struct {
	consumer *consumer
	id       uint64
}

// writeReport is what has been written of a channel's deliveries since the last
// report to the session. It belongs to the writer.
type writeReport struct {
	session      Session
	count, bytes int
}

func newWriter(c *conn) *writer {
	return &writer{
		conn: c, out: c.out, frameMax: c.frameMax,
		timeout: max(2*c.heartbeat, minWriteTimeout), idle: c.heartbeat / 2,
	}
}

// run writes until the outbox ends or a write fails.
func (w *writer) run() error {
	var tick <-chan time.Time
	if w.idle > 0 {
		ticker := time.NewTicker(w.idle)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		some, ended := w.out.take(&w.batch)
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
func (w *writer) beat() error {
	if !w.active && !w.out.closing() {
		w.buf = wire.AppendHeartbeat(w.buf)
		w.size = len(w.buf)
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.active = false
	return nil
}

// writeBatch writes all of the batch and empties it.
func (w *writer) writeBatch() error {
	closing := w.out.closing()
	for i := range w.batch.items {
		it := &w.batch.items[i]
		if closing && it.kind != outRaw {
			w.count(it)
			continue // its channel is over before it could be acknowledged
		}
		if err := w.item(it); err != nil {
			return err
		}
	}
	w.raw(w.batch.frames)
	w.batch.reset()
	return w.flush()
}

func (w *writer) count(it *outItem) {
	weight := it.weight()
	w.weight += weight
	if it.isRequested() {
		w.requested += weight
	}
}

// item adds one item, and writes once enough is collected.
func (w *writer) item(it *outItem) error {
	p := it.message.Payload
	w.ofMessage = nil
	switch it.kind {
	case outRaw:
		w.raw(w.batch.raw[it.from:it.to])
	case outDeliver:
		if !fitsFrame(len(w.rendered(&it.message)), w.frameMax) {
			w.unfit(it)
			break
		}
		w.grow(wire.AppendDeliver(w.buf, it.channel, it.consumer.tag, it.tag, it.message.Acquired > 0, p.Exchange(), p.RoutingKey()))
		if err := w.content(it); err != nil {
			return err
		}
		w.report(&it.consumer.channel.written, len(p))
		if it.consumer.noAck {
			w.unacked = append(w.unacked, unackedWrite{it.consumer, it.message.ID})
		}
	case outGet:
		ready := uint32(min(it.message.Ready, 1<<32-1))
		w.grow(wire.AppendGetOK(w.buf, it.channel, it.tag, it.message.Acquired > 0, p.Exchange(), p.RoutingKey(), ready))
		if err := w.content(it); err != nil {
			return err
		}
	case outReturn:
		code, text := returnReason(it.refusal)
		w.grow(wire.AppendMethod(w.buf, it.channel, &wire.BasicReturn{
			ReplyCode: code, ReplyText: text,
			Exchange: string(p.Exchange()), RoutingKey: string(p.RoutingKey()),
		}))
		if err := w.content(it); err != nil {
			return err
		}
	}
	w.count(it)
	if w.size >= flushSize {
		return w.flush()
	}
	return nil
}

// grow stores the longer buf that an append has returned.
func (w *writer) grow(buf []byte) {
	w.size += len(buf) - len(w.buf)
	w.buf = buf
}

func (w *writer) raw(frames []byte) { w.grow(append(w.buf, frames...)) }

// unfit gives back a delivery that does not fit into the client's frames, and ends its channel. It has failed, so
// that it does not come again for ever: its queue's delivery limit counts it.
func (w *writer) unfit(it *outItem) {
	ch := it.consumer.channel
	w.report(&ch.written, len(it.message.Payload))
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.end.sessionClosing {
		return
	}
	ch.consumers.Take(it.tag)
	ch.settler.later(it.consumer.number, []uint64{it.message.ID}, fsm.RequeueFailed)
	if !ch.busy {
		ch.settler.flush()
	}
	ch.raise(errUnfit(wire.IDBasicDeliver, len(w.rendered(&it.message)), w.frameMax), 0)
	ch.proceed()
}

// rendered returns the properties with which a message goes out, until the next one is rendered.
func (w *writer) rendered(m *fsm.Message) []byte {
	raw := m.Payload.Properties()
	if !changesProperties(m) {
		return raw
	}
	if w.ofMessage != m {
		w.properties, w.ofMessage = renderProperties(w.properties[:0], raw, m), m
	}
	return w.properties
}

// content adds header and body of a message.
func (w *writer) content(it *outItem) error {
	p := it.message.Payload
	properties, body := w.rendered(&it.message), p.Body()
	w.grow(wire.AppendHeader(w.buf, it.channel, wire.ClassBasic, uint64(len(body)), properties))
	if len(body) < directBody {
		w.grow(wire.AppendBody(w.buf, it.channel, body, w.frameMax))
		return nil
	}
	limit := wire.MaxPayload(w.frameMax)
	for len(body) > 0 {
		piece := body[:min(len(body), limit)]
		body = body[len(piece):]
		w.grow(wire.AppendFrameStart(w.buf, wire.FrameBody, it.channel, uint32(len(piece))))
		w.segment()
		w.segments = append(w.segments, piece)
		w.size += len(piece)
		w.grow(append(w.buf, wire.FrameEnd))
		if w.size >= flushSize {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// segment makes a segment of the part of buf after the last one. buf may safely
// move when it grows: a segment keeps the memory it was cut from.
func (w *writer) segment() {
	if w.cut < len(w.buf) {
		w.segments = append(w.segments, w.buf[w.cut:])
		w.cut = len(w.buf)
	}
}

// report makes the next flush report a delivery of this size to its session.
func (w *writer) report(r *writeReport, bytes int) {
	if r.count == 0 {
		w.reports = append(w.reports, r)
	}
	r.count++
	r.bytes += bytes
}

// flush writes what is collected, reports its deliveries, and settles those
// that need no acknowledgement.
func (w *writer) flush() error {
	if w.size > 0 {
		if err := w.write(); err != nil {
			return err
		}
		w.active = true
	}
	w.out.wrote(w.weight, w.requested)
	w.weight, w.requested = 0, 0
	w.settleWritten()
	for _, r := range w.reports {
		r.session.Written(r.count, r.bytes)
		r.count, r.bytes = 0, 0
	}
	clear(w.reports)
	w.reports = w.reports[:0]
	return nil
}

func (w *writer) write() error {
	if err := w.conn.socket.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	w.conn.stats.sent.Add(uint64(w.size))
	w.conn.stats.writes.Add(1)
	var err error
	if len(w.segments) == 0 {
		_, err = w.conn.socket.Write(w.buf)
	} else {
		w.segment()
		w.bufs = w.segments
		_, err = w.bufs.WriteTo(w.conn.socket)
		clear(w.segments)
		w.segments = w.segments[:0]
	}
	if cap(w.buf) > 2*flushSize {
		w.buf = nil
	}
	w.buf, w.cut, w.size = w.buf[:0], 0, 0
	return err
}

// settleWritten acknowledges deliveries on behalf of a client that does not.
func (w *writer) settleWritten() {
	for i := 0; i < len(w.unacked); {
		consumer := w.unacked[i].consumer
		w.ids = w.ids[:0]
		for i < len(w.unacked) && w.unacked[i].consumer == consumer {
			w.ids = append(w.ids, w.unacked[i].id)
			i++
		}
		consumer.channel.settleWritten(consumer.number, w.ids)
	}
	clear(w.unacked)
	w.unacked = w.unacked[:0]
}

// outbox is what waits to be written to a client, in order. Any goroutine may
// push, and pushing never blocks. The writer takes everything at once and gives
// its own memory in exchange, so pushing does not allocate in the long run.
//
// Lock order: consumers.mu, outbox.mu, confirms.mu.
type outbox struct {
	mu       sync.Mutex
	batch    batch
	sleeping bool // the writer waits for wake
	ending   bool // connection.close or its ok is in: only methods of channel 0 follow
	ended    bool // nothing follows

	wake      chan struct{} // capacity 1
	requested *flow         // by the client's own requests
	tooMuch   func()        // called, outbox.mu held, when the client must be dropped

	memory   *account     // weight of everything not yet written
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

func newOutbox(connection *account, tooMuch func()) *outbox {
	o := &outbox{wake: make(chan struct{}, 1), requested: newFlow(1<<62, maxRequested, &account{}), tooMuch: tooMuch}
	o.memory = connection.newPart(connectionStep, o.relieve)
	return o
}

// relieve drops a client that does not read.
func (o *outbox) relieve(*account) bool {
	stalled := o.memory.bytes.Load() > maxRequested && o.stalled()
	if stalled {
		o.tooMuch()
	}
	return stalled
}

// drop drops what will never be written.
func (o *outbox) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.batch = batch{}
	o.memory.add(-o.memory.bytes.Load())
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
	if o.memory.bytes.Load() == 0 {
		o.progress.Store(time.Now().UnixNano())
	}
	o.memory.add(w)
	if it.isRequested() {
		o.requested.add(0, w)
	}
	o.batch.items = append(o.batch.items, it)
	if o.memory.bytes.Load() > maxBacklog && (o.requested.memory.bytes.Load() > maxBacklog || o.stalled()) {
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
	o.memory.add(-weight)
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

// changesProperties reports whether m goes out with other properties than it
// came in with.
func changesProperties(m *fsm.Message) bool {
	return tellsCounts(m) || len(m.Deaths) > 0 || m.ScheduledFor != 0 || m.LockToken != ""
}

// headOfHeader is what a header frame has besides the properties.
const headOfHeader = 12 + wire.FrameOverhead

// fitsFrame reports whether properties of some size fit into a header frame.
func fitsFrame(size int, frameMax uint32) bool { return size+headOfHeader <= int(frameMax) }

// tellsCounts reports whether m goes out with the headers that count how often
// it was handed out. Some clients fail at them, so they are added only where the
// peer adds them, too: not by classic queues, whatever limits them, unless the
// receiver has asked to know more.
func tellsCounts(m *fsm.Message) bool { return m.Acquired > 0 && (!m.Classic || m.LockToken != "") }

// renderProperties appends the property list of a message for which
// changesProperties is true: raw, and what the broker knows of its past and of
// the delivery.
func renderProperties(dst, raw []byte, m *fsm.Message) []byte {
	var e wire.Edit
	if len(m.Deaths) > 0 {
		e.Remove = wire.FlagExpiration
		e.SetHeaders = deathHeaders(m.Deaths)
	}
	if tellsCounts(m) {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-acquired-count", Value: wire.Int64(int64(m.Acquired))})
	}
	if tellsCounts(m) && m.Failed > 0 {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-delivery-count", Value: wire.Int64(int64(m.Failed))})
	}
	if m.ScheduledFor != 0 {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-scheduled-for", Value: wire.Int64(int64(m.ScheduledFor))})
	}
	if m.LockToken != "" {
		e.RemoveHeaders = infoHeaders
		e.SetHeaders = append(e.SetHeaders, deliveryInfo(m)...)
	}
	out, err := wire.EditProperties(dst, raw, &e)
	if err != nil {
		return append(dst, raw...) // they were checked when they came in
	}
	return out
}

// renderedSize is the size of the property list with which a message goes out.
func renderedSize(m *fsm.Message) int {
	raw := m.Payload.Properties()
	if changesProperties(m) {
		raw = renderProperties(nil, raw, m)
	}
	return len(raw)
}

// infoHeaders are what a receiver may ask to know of a delivery. What a client has
// published under these names, perhaps with another delivery's values, goes.
var infoHeaders = []string{"x-lock-token", "x-locked-until", "x-lock-remaining", "x-expires-at", "x-enqueued-at"}

// deliveryInfo renders the infoHeaders that apply to a delivery.
func deliveryInfo(m *fsm.Message) wire.Table {
	t := wire.Table{{Name: infoHeaders[0], Value: wire.String(m.LockToken)}}
	if m.LockedUntil != 0 {
		t = append(t, wire.Field{Name: infoHeaders[1], Value: wire.Int64(int64(m.LockedUntil))},
			wire.Field{Name: infoHeaders[2], Value: wire.Int64(int64(m.LockRemaining))})
	}
	for i, at := range [...]fsm.Time{m.ExpireAt, m.EnqueuedAt} {
		if at != 0 {
			t = append(t, wire.Field{Name: infoHeaders[3+i], Value: wire.Int64(int64(at))})
		}
	}
	return t
}

// deathHeaders renders a death history, newest first.
func deathHeaders(deaths []*logpb.Death) wire.Table {
	tables := make([]wire.Value, len(deaths))
	first, last := deaths[0], deaths[0]
	for i, d := range deaths {
		tables[i] = wire.Nested(deathTable(d))
		if d.First {
			first = d // its pair may have died again, and moved to the front
		}
	}
	return wire.Table{
		{Name: "x-death", Value: wire.Array(tables...)},
		{Name: "x-first-death-reason", Value: wire.String(reasonName(first.Reason))},
		{Name: "x-first-death-queue", Value: wire.String(first.Queue)},
		{Name: "x-first-death-exchange", Value: wire.String(first.Exchange)},
		{Name: "x-last-death-reason", Value: wire.String(reasonName(last.Reason))},
		{Name: "x-last-death-queue", Value: wire.String(last.Queue)},
		{Name: "x-last-death-exchange", Value: wire.String(last.LastExchange)},
	}
}

func deathTable(d *logpb.Death) wire.Table {
	keys := make([]wire.Value, len(d.RoutingKeys))
	for i, k := range d.RoutingKeys {
		keys[i] = wire.String(k)
	}
	t := make(wire.Table, 0, 7)
	if d.OriginalExpiration != "" {
		t = append(t, wire.Field{Name: "original-expiration", Value: wire.String(d.OriginalExpiration)})
	}
	return append(t,
		wire.Field{Name: "count", Value: wire.Int64(int64(d.Count))},
		wire.Field{Name: "reason", Value: wire.String(reasonName(d.Reason))},
		wire.Field{Name: "queue", Value: wire.String(d.Queue)},
		wire.Field{Name: "time", Value: wire.Timestamp(uint64(d.Time / 1000))},
		wire.Field{Name: "exchange", Value: wire.String(d.Exchange)},
		wire.Field{Name: "routing-keys", Value: wire.Array(keys...)},
	)
}

func reasonName(r logpb.Death_Reason) string {
	switch r {
	case logpb.Death_EXPIRED:
		return "expired"
	case logpb.Death_REJECTED:
		return "rejected"
	case logpb.Death_MAXLEN:
		return "maxlen"
	case logpb.Death_DELIVERY_LIMIT:
		return "delivery_limit"
	case logpb.Death_UNROUTABLE:
		return "unroutable"
	case logpb.Death_GROUP_EXPIRED:
		return "group_expired"
	case logpb.Death_MAXHOPS:
		return "maxhops"
	}
	return "unknown"
}
