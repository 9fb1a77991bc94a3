package servicebus

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// Annotations of messages.
const (
	annotationScheduled  = "x-opt-scheduled-enqueue-time"
	annotationEnqueued   = "x-opt-enqueued-time"
	annotationSequence   = "x-opt-sequence-number"
	annotationFirst      = "x-opt-enqueue-sequence-number"
	annotationLocked     = "x-opt-locked-until"
	annotationState      = "x-opt-message-state"
	annotationLockToken  = "x-opt-lock-token"
	annotationDeadSource = "x-opt-deadletter-source"

	// Kept with a message, and shown to no client of this dialect: its group, of which clients of 0-9-1 read; its delivery annotations.
	annotationGroup    = entity.GroupAnnotation
	annotationDelivery = "x-opt-delivery-annotations"
)

// isServices reports whether the service says an annotation itself.
func isServices(name string) bool {
	switch name {
	case annotationEnqueued, annotationSequence, annotationFirst, annotationLocked, annotationState, annotationLockToken,
		annotationDeadSource, annotationGroup, annotationDelivery:
		return true
	}
	return false
}

// maxSessionID is the length of the longest id of a session, in characters.
const maxSessionID = 128

// messageReader turns messages as clients send them into publishes to the queue of a sender.
type messageReader struct {
	of         *sender
	message    wire.Message
	properties wire.Properties
}

func (r *messageReader) init(of *sender) { r.of = of }

// read reads a message. What is stored is the message as it came, but for what senders have no say in: when it expires, and what
// the service annotates. A message without an id is given one, since programs settle by it.
func (r *messageReader) read(encoded []byte, out *fsm.Publish) *wire.Error {
	m, p, s := &r.message, &r.properties, r.of.side
	if err := m.ParseRequest(encoded); err != nil {
		return s.refuse(wire.ConditionDecode, "%s", err)
	}
	if err := m.ReadProperties(p); err != nil {
		return s.refuse(wire.ConditionDecode, "%s", err)
	}
	sessions := r.of.entity.Queue != nil && r.of.entity.Queue.RequiresSession
	switch {
	case sessions && p.GroupID == nil:
		return s.refuse(wire.ConditionNotAllowed, textSessionID)
	case len(p.GroupID) > maxSessionID && len([]rune(string(p.GroupID))) > maxSessionID:
		return s.refuse(conditionArgument, "The SessionId is longer than %d characters.", maxSessionID)
	}
	*out = fsm.Publish{
		RoutingKey: r.of.queue, TTL: -1, Priority: -1, MessageID: fsm.Label(message.IDText(p.MessageID)),
		CorrelationID: fsm.Label(message.IDText(p.CorrelationID)), Headers: noHeaders, Property: noProperty,
	}
	h := fsm.BareHeader{Durable: m.Header.Durable, Priority: -1, TTL: -1}
	if m.Header.TTL.Present {
		out.TTL, out.HasExpiration = fsm.Millis(m.Header.TTL.Value), true
		h.TTL = out.TTL
	}
	if m.Header.Priority.Present {
		out.Priority = int(m.Header.Priority.Value)
		h.Priority = out.Priority
	}
	if at, ok := m.Annotations.Get(annotationScheduled); ok && at.Type == wire.Timestamp && fsm.Time(at.Signed()) > fsm.Time(s.dialect.Directory.Now().UnixMilli()) {
		out.Schedule = &fsm.Schedule{At: fsm.Time(at.Signed()), Delay: -1}
	}
	bare := r.bare()
	annotations := r.annotations()
	payload := make([]byte, 0, fsm.BareSize(0, len(r.of.queue), len(annotations), len(bare)))
	payload, err := fsm.AppendBareHead(payload, "", r.of.queue, h, annotations, nil)
	if err != nil {
		return s.refuse(conditionArgument, "%s", err)
	}
	out.Payload = append(payload, bare...)
	return nil
}

func noHeaders() *fsm.Table    { return nil }
func noProperty(string) []byte { return nil }

// bare returns the bare message as it is stored.
func (r *messageReader) bare() []byte {
	m, p := &r.message, &r.properties
	if len(p.MessageID) > 0 && !p.AbsoluteExpiryTime.Present {
		return m.Bare
	}
	if len(p.MessageID) == 0 {
		var id [16]byte
		_, _ = rand.Read(id[:]) // it never fails
		p.MessageID = wire.AppendString(nil, hex.EncodeToString(id[:]))
	}
	p.AbsoluteExpiryTime = wire.Optional[int64]{}
	return append(wire.Append(make([]byte, 0, len(m.Bare)+64), p), m.Bare[len(m.Properties):]...)
}

// annotations returns the annotations with which a message is stored.
func (r *messageReader) annotations() wire.MapBytes {
	m, id := &r.message, r.properties.GroupID
	ours := id != nil || len(m.DeliveryAnnotations) > 0
	for w := m.Annotations.Walk(); w.NextPair() && !ours; {
		ours = isServices(string(w.Key.Bytes()))
	}
	if !ours {
		return m.Annotations
	}
	b, pairs := wire.StartMap(nil), 0
	for w := m.Annotations.Walk(); w.NextPair(); {
		if !isServices(string(w.Key.Bytes())) {
			b = append(b, w.Pair...)
			pairs++
		}
	}
	if id != nil {
		b = wire.AppendString(wire.AppendSymbol(b, annotationGroup), entity.GroupOf(string(id)))
		pairs++
	}
	if len(m.DeliveryAnnotations) > 0 {
		b = append(wire.AppendSymbol(b, annotationDelivery), m.DeliveryAnnotations...)
		pairs++
	}
	return wire.EndMap(b, 0, pairs)
}
