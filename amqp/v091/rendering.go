package v091

import (
	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// rendering is the properties of a message as it goes out. It is reused.
type rendering struct {
	of         *fsm.Message // whose properties it has
	from       messages.From10
	list, with []byte // of a message of another protocol; with what the broker adds
}

// properties returns the property list with which a message goes out. It is good until that of another one is wanted.
func (r *rendering) properties(m *fsm.Message, frameMax uint32) []byte {
	isBare, changes := m.Payload.IsBare(), messages.ChangesProperties(m)
	switch raw := m.Payload.Properties(); {
	case !isBare && !changes:
		return raw
	case !isBare && r.of != m:
		r.render(raw, m, int(frameMax)-headOfHeader)
	case isBare && r.of != m:
		r.convert(m, int(frameMax)-headOfHeader)
	}
	r.of = m
	if !changes {
		return r.list
	}
	return r.with
}

// convert makes the properties of a message of another protocol. Headers that do not fit into a frame, together with the broker's
// own, are left out.
func (r *rendering) convert(m *fsm.Message, limit int) {
	r.from.Read(m.Payload)
	r.list = r.from.AppendProperties(r.list[:0], limit)
	if !messages.ChangesProperties(m) {
		return
	}
	r.render(r.list, m, limit)
	if over := len(r.with) - limit; over > 0 {
		r.list = r.from.AppendProperties(r.list[:0], len(r.list)-over)
		r.render(r.list, m, limit)
	}
}

// render makes the properties of an encoded list, with what the broker adds: without what receivers have added, unless
// that fits.
func (r *rendering) render(list []byte, m *fsm.Message, limit int) {
	r.with = messages.RenderProperties(r.with[:0], list, m)
	if len(r.with) > limit && len(m.Annotations) > 0 {
		plain := *m
		plain.Annotations = nil
		r.with = messages.RenderProperties(r.with[:0], list, &plain)
	}
}

// converted is content for a message of another protocol, whose body lies in pieces.
func (w *writer) converted(it *amqp.Item, properties []byte) error {
	left, room := w.rendered.from.BodySize(), 0 // of the body; in the frame that is open
	w.Grow(wire.AppendHeader(w.Buf, it.Channel, wire.ClassBasic, uint64(left), properties))
	for piece := range w.rendered.from.Body {
		for len(piece) > 0 {
			if room == 0 {
				room = min(left, wire.MaxPayload(w.frameMax))
				w.Grow(wire.AppendFrameStart(w.Buf, wire.FrameBody, it.Channel, uint32(room)))
			}
			part := piece[:min(len(piece), room)]
			if len(part) < directBody {
				w.Grow(append(w.Buf, part...))
			} else {
				w.Direct(part)
			}
			piece, room, left = piece[len(part):], room-len(part), left-len(part)
			if room > 0 {
				continue
			}
			w.Grow(append(w.Buf, wire.FrameEnd))
			if err := w.FlushLarge(); err != nil {
				return err
			}
		}
	}
	return nil
}
