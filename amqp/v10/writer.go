package v10

import (
	"github.com/quorate/quorate/amqp"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// directPiece is the length from which a piece of a message is written directly from the payload. Shorter ones are copied
// in between the frames.
const directPiece = 4 << 10

// writer encodes the items of the outbox. It belongs to the goroutine that writes.
type writer struct {
	*amqp.Writer
	piece int // how much of a message goes into a frame

	head    []byte // of the message that is being encoded
	tag     [maxTag]byte
	settled []settledWrite
	ids     []uint64

	performative wire.Transfer // reused
}

// settledWrite is a delivery that is settled once it is written.
type settledWrite struct {
	link *outgoingLink
	id   uint64
}

// Encode encodes the items of a batch.
func (w *writer) Encode(items []amqp.Item) error {
	for i := range items {
		it := &items[i]
		if !w.Skip(it) {
			if err := w.transfers(it); err != nil {
				return err
			}
		}
		if err := w.Done(it); err != nil {
			return err
		}
	}
	return nil
}

// transfers adds frames of a message.
func (w *writer) transfers(it *amqp.Item) error {
	l, m := it.Owner.(*outgoingLink), &it.Message
	defer func() { w.head = emptied(w.head) }()
	w.head = l.form.AppendHead(w.head, m)
	bare := l.form.Body(m)
	size := len(w.head) + len(bare)
	for at, end := int(uint32(it.Tag)), int(m.Ready); at < end; at++ {
		from := at * w.piece
		to := min(from+w.piece, size)
		w.performative = wire.Transfer{Handle: l.handle, Settled: wire.Some(l.settled), More: to < size}
		if at == 0 {
			id := uint32(it.Tag >> 32)
			w.performative.DeliveryID, w.performative.DeliveryTag = wire.Some(id), l.form.AppendTag(w.tag[:0], id, m)
			w.performative.MessageFormat = wire.Some[uint32](0)
		}
		w.Grow(wire.AppendTransfer(w.Buf, it.Channel, &w.performative, to-from))
		if from < len(w.head) {
			w.Grow(append(w.Buf, w.head[from:min(to, len(w.head))]...))
		}
		if piece := bare[max(from-len(w.head), 0):max(to-len(w.head), 0)]; len(piece) >= directPiece {
			w.Direct(piece)
		} else {
			w.Grow(append(w.Buf, piece...))
		}
		if to == size && !l.isAnswering() {
			w.Report(&l.session.written, len(m.Payload))
			if l.settled {
				w.settled = append(w.settled, settledWrite{l, m.ID})
			}
		}
		if err := w.FlushLarge(); err != nil {
			return err
		}
	}
	return nil
}

// Heartbeat appends an empty frame.
func (w *writer) Heartbeat(dst []byte) []byte { return wire.AppendHeartbeat(dst) }

// Flushed settles deliveries that the client does not settle, once they are written.
func (w *writer) Flushed() {
	for i := 0; i < len(w.settled); {
		link := w.settled[i].link
		w.ids = w.ids[:0]
		for i < len(w.settled) && w.settled[i].link == link {
			w.ids = append(w.ids, w.settled[i].id)
			i++
		}
		link.session.settleWritten(link, w.ids)
	}
	clear(w.settled)
	w.settled = w.settled[:0]
}
