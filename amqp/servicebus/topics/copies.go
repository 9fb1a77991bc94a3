package topics

import (
	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// annotationNumber says which number a message had in the first queue that has taken it.
const annotationNumber = "x-opt-enqueue-sequence-number"

// sections returns a message as AMQP 1.0 has it: from its properties on, and its annotations.
func sections(p fsm.Payload) (bare []byte, annotations wire.MapBytes) {
	if p.IsBare() {
		return p.Body(), message.Annotations(p)
	}
	_, bare, annotations = converted(p)
	return bare, annotations
}

// converted is sections for a message that came by 0-9-1, with its header.
func converted(p fsm.Payload) (h fsm.BareHeader, bare []byte, annotations wire.MapBytes) {
	var c message.From091
	c.Read(p)
	header := c.Header()
	h = fsm.BareHeader{Durable: header.Durable, Priority: -1, TTL: -1}
	if header.Priority.Present {
		h.Priority = int(header.Priority.Value)
	}
	if header.TTL.Present {
		h.TTL = fsm.Millis(header.TTL.Value)
	}
	bare = Converted(&c, p)
	m, pairs := c.AppendAnnotations(wire.StartMap(nil), func([]byte) bool { return false })
	if pairs > 0 {
		annotations = wire.EndMap(m, 0, pairs)
	}
	return h, bare, annotations
}

// Converted returns a message of 0-9-1 as AMQP 1.0 has it, from its properties on. The group that a header names is its session. c has
// read it.
func Converted(c *message.From091, p fsm.Payload) []byte {
	bare := append(c.AppendBare(nil), p.Body()...)
	group := HeaderGroup(p)
	var m wire.Message
	var properties wire.Properties
	if len(group) == 0 || m.Parse(bare) != nil || m.ReadProperties(&properties) != nil {
		return bare
	}
	properties.GroupID = []byte(entity.SessionOf(string(group)))
	return append(wire.Append(nil, &properties), bare[len(m.Properties):]...)
}

// HeaderGroup is the group that a header of a message of 0-9-1 names; empty: none does.
func HeaderGroup(p fsm.Payload) []byte {
	return message.Properties{}.Property(p, entity.GroupAnnotation)
}

// Edited returns the copy of a message that an edit makes, with the number of the message at its topic. A message that
// cannot be read stays as it is.
func (Filters) Edited(p fsm.Payload, encoded []byte, sequence uint64) fsm.Payload {
	e, err := edit.Parse(encoded)
	if err != nil {
		return p
	}
	var h fsm.BareHeader
	var bare []byte
	var annotations wire.MapBytes
	if p.IsBare() {
		h, bare, annotations = p.BareHeader(), p.Body(), message.Annotations(p)
	} else {
		h, bare, annotations = converted(p)
	}
	var m wire.Message
	if m.Parse(bare) != nil {
		return p
	}
	head, err := e.Apply(nil, &m)
	if err != nil {
		return p
	}
	if _, dead := e.Property(deadReason); dead {
		h.TTL = -1
	}
	if session, changed := e.Field(edit.GroupID); changed {
		annotations = grouped(annotations, session)
	}
	annotations = numbered(annotations, sequence)
	rest, blind := edit.Rest(&m), p.BlindKeys()
	size := fsm.BareSize(len(p.Exchange()), len(p.RoutingKey()), len(annotations), len(head)+len(rest)) + fsm.BlindSize(blind)
	out, err := fsm.AppendBareHead(make([]byte, 0, size), string(p.Exchange()), string(p.RoutingKey()), h, annotations, blind)
	if err != nil {
		return p
	}
	return append(append(out, head...), rest...)
}

// grouped returns annotations with the group that is a session; empty: with none.
func grouped(annotations wire.MapBytes, session wire.RawValue) wire.MapBytes {
	var group wire.RawValue
	if len(session) > 0 {
		group = wire.AppendString(nil, entity.GroupOf(string(session.Value().Bytes())))
	}
	return replaced(annotations, entity.GroupAnnotation, group)
}

// numbered returns annotations with the number, unless they have one.
func numbered(annotations wire.MapBytes, sequence uint64) wire.MapBytes {
	if _, had := annotations.Get(annotationNumber); had {
		return annotations
	}
	return replaced(annotations, annotationNumber, wire.AppendLong(nil, int64(sequence)))
}

// replaced returns annotations with a value in the place of what a name had; empty: with none.
func replaced(annotations wire.MapBytes, name string, value wire.RawValue) wire.MapBytes {
	out, pairs := wire.StartMap(nil), 0
	for w := annotations.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) != name {
			out = append(out, w.Pair...)
			pairs++
		}
	}
	if len(value) > 0 {
		out = append(wire.AppendSymbol(out, name), value...)
		pairs++
	}
	return wire.EndMap(out, 0, pairs)
}
