package v091

import (
	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// directBody is the length from which a body is written directly from the
// payload. Shorter ones are copied in between the frames.
const directBody = 4 << 10

// writer encodes the items of the outbox. It belongs to the goroutine that writes.
type writer struct {
	*amqp.Writer
	frameMax uint32

	unacked  []unackedWrite
	ids      []uint64
	rendered rendering
}

// unackedWrite is a delivery to a consumer that does not acknowledge.
type unackedWrite struct {
	consumer *consumer
	id       uint64
}

// Encode encodes the items of a batch.
func (w *writer) Encode(items []amqp.Item) error {
	for i := range items {
		it := &items[i]
		if !w.Skip(it) {
			if err := w.item(it); err != nil {
				return err
			}
		}
		if err := w.Done(it); err != nil {
			return err
		}
	}
	return nil
}

// Heartbeat appends a heartbeat.
func (w *writer) Heartbeat(dst []byte) []byte { return wire.AppendHeartbeat(dst) }

// item adds one item.
func (w *writer) item(it *amqp.Item) error {
	p := it.Message.Payload
	w.rendered.of = nil
	switch it.Kind {
	case outDeliver:
		to := it.Owner.(*consumer)
		if !fitsFrame(len(w.rendered.properties(&it.Message, w.frameMax)), w.frameMax) {
			w.unfit(it, to)
			break
		}
		w.Grow(wire.AppendDeliver(w.Buf, it.Channel, to.tag, it.Tag, it.Message.Acquired > 0, p.Exchange(), p.RoutingKey()))
		if err := w.content(it); err != nil {
			return err
		}
		w.Report(&to.channel.written, len(p))
		if to.noAck {
			w.unacked = append(w.unacked, unackedWrite{to, it.Message.ID})
		}
	case outGet:
		ready := uint32(min(it.Message.Ready, 1<<32-1))
		w.Grow(wire.AppendGetOK(w.Buf, it.Channel, it.Tag, it.Message.Acquired > 0, p.Exchange(), p.RoutingKey(), ready))
		return w.content(it)
	case outReturn:
		code, text := returnReason(it.Refusal)
		w.Grow(wire.AppendMethod(w.Buf, it.Channel, &wire.BasicReturn{
			ReplyCode: code, ReplyText: text,
			Exchange: string(p.Exchange()), RoutingKey: string(p.RoutingKey()),
		}))
		return w.content(it)
	}
	return nil
}

// unfit gives back a delivery that does not fit into the client's frames, and ends its channel. It has failed, so
// that it does not come again for ever: its queue's delivery limit counts it.
func (w *writer) unfit(it *amqp.Item, to *consumer) {
	ch := to.channel
	w.Report(&ch.written, len(it.Message.Payload))
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.end.sessionClosing {
		return
	}
	ch.consumers.Take(it.Tag)
	ch.settler.later(to.number, []uint64{it.Message.ID}, fsm.RequeueFailed)
	if !ch.busy {
		ch.settler.flush()
	}
	ch.raise(errUnfit(wire.IDBasicDeliver, len(w.rendered.properties(&it.Message, w.frameMax)), w.frameMax), 0)
	ch.proceed()
}

// content adds header and body of a message.
func (w *writer) content(it *amqp.Item) error {
	p := it.Message.Payload
	properties := w.rendered.properties(&it.Message, w.frameMax)
	if p.IsBare() {
		return w.converted(it, properties)
	}
	body := p.Body()
	w.Grow(wire.AppendHeader(w.Buf, it.Channel, wire.ClassBasic, uint64(len(body)), properties))
	if len(body) < directBody {
		w.Grow(wire.AppendBody(w.Buf, it.Channel, body, w.frameMax))
		return nil
	}
	limit := wire.MaxPayload(w.frameMax)
	for len(body) > 0 {
		piece := body[:min(len(body), limit)]
		body = body[len(piece):]
		w.Grow(wire.AppendFrameStart(w.Buf, wire.FrameBody, it.Channel, uint32(len(piece))))
		w.Direct(piece)
		w.Grow(append(w.Buf, wire.FrameEnd))
		if err := w.FlushLarge(); err != nil {
			return err
		}
	}
	return nil
}

// Flushed acknowledges deliveries on behalf of a client that does not, once they
// are written.
func (w *writer) Flushed() {
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

// outbox is the connection's outbox for methods and messages.
//
// Lock order: consumers.mu, the outbox's, confirms.mu.
type outbox struct{ *amqp.Outbox }

// Kinds of items, besides frames.
const (
	outDeliver = amqp.Frames + 1 + iota // basic.deliver; the owner is the *consumer
	outGet                              // basic.get-ok
	outReturn                           // basic.return; without a refusal: there was no route
)

// push appends a method of a channel.
func (o outbox) push(channel uint16, m wire.Method) {
	o.Lock()
	o.pushLocked(channel, m)
	o.Unlock()
}

// pushLocked is push for a locked outbox.
func (o outbox) pushLocked(channel uint16, m wire.Method) {
	if o.Takes(channel == 0) {
		o.PushFrames(wire.AppendMethod(o.Encoded(), channel, m))
	}
}

// queueConfirms makes the writer ask c for the confirms that can be written.
func (o outbox) queueConfirms(c *confirms) {
	o.Lock()
	o.PushLast(c)
	o.Unlock()
}

// pushLast appends the confirms of a channel and its last method. Later
// confirms are lost. It returns the publishes that had no outcome.
func (o outbox) pushLast(c *confirms, m wire.Method) (count, bytes int64) {
	o.Lock()
	defer o.Unlock()
	if o.Takes(false) {
		o.PushFrames(c.AppendFrames(o.Encoded()))
	}
	count, bytes = c.close()
	o.pushLocked(c.channel, m)
	return count, bytes
}

// pushEnd appends connection.close or its ok. After it only methods of channel
// 0 are accepted.
func (o outbox) pushEnd(m wire.Method) {
	o.Lock()
	o.pushLocked(0, m)
	o.Close()
	o.Unlock()
}

// headOfHeader is what a header frame has besides the properties.
const headOfHeader = 12 + wire.FrameOverhead

// fitsFrame reports whether properties of some size fit into a header frame.
func fitsFrame(size int, frameMax uint32) bool { return size+headOfHeader <= int(frameMax) }
