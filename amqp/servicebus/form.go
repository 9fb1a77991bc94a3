package servicebus

import (
	"math"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/servicebus/entity"
	"github.com/quorate/quorate/amqp/servicebus/topics"
	"github.com/quorate/quorate/amqp/v10"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// States of messages.
const (
	stateActive    = 0
	stateDeferred  = 1
	stateScheduled = 2
)

// lastExpiry is the last time that programs can read, the end of the year 9999, in ms since 1970.
const lastExpiry = 253_402_300_799_999

// form is how messages of one queue look to its receivers. It implements v10.Form.
type form struct {
	sealer  *sealer // nil: messages are not locked
	part    entity.Part
	session bool // of a session: messages are free again when the link ends
	// uncounted is how long messages live that have no time of their own, in ms, if that is longer than queues count; 0: it is not.
	uncounted int64
	lost      func() *wire.State // the answer to an outcome that comes too late

	// Of links.
	side  *side
	path  entity.Path
	queue string
}

var _ v10.Form = (*form)(nil)

// AppendHead implements v10.Form.
func (f *form) AppendHead(dst []byte, m *fsm.Message) []byte {
	return f.appendHead(dst, m, stateActive, f.sealer != nil)
}

// appendHead appends what a message begins with, in a state, and locked or not.
func (f *form) appendHead(dst []byte, m *fsm.Message, state int32, locked bool) []byte {
	var from message.From091
	bare := m.Payload.IsBare()
	h := wire.Header{}
	if bare {
		stored := m.Payload.BareHeader()
		h.Durable = stored.Durable
		if stored.Priority >= 0 {
			h.Priority = wire.Some(byte(stored.Priority))
		}
	} else {
		from.Read(m.Payload)
		h = from.Header()
	}
	dst = f.appendHeader(dst, m, h)
	var own wire.MapBytes
	if bare {
		own = message.Annotations(m.Payload)
	}
	dst = f.appendDelivery(dst, m, own, locked)
	dst, at, pairs := f.startAnnotations(dst, m, own, state, locked)
	for w := own.Walk(); w.NextPair(); {
		if !isServices(string(w.Key.Bytes())) {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	if !bare {
		var n int
		dst, n = from.AppendAnnotations(dst, func(name []byte) bool { return isServices(string(name)) })
		pairs += n
	}
	dst = wire.EndMap(dst, at, pairs)
	switch {
	case f.rewrites(m):
		return f.appendRewritten(dst, m, &from)
	case bare:
		return dst
	}
	return from.AppendBare(dst)
}

// appendHeader appends the header: the time to live is what was in effect, the count that of deliveries before. The count is there
// if it is 0, too, since programs in JavaScript have no default for it.
func (f *form) appendHeader(dst []byte, m *fsm.Message, h wire.Header) []byte {
	count := countOf(m, f.part)
	h.FirstAcquirer, h.DeliveryCount, h.TTL = false, max(count, 1), wire.Optional[uint32]{}
	if at := f.expiresAt(m); at != 0 {
		h.TTL = wire.Some(uint32(min(max(at-int64(m.EnqueuedAt), 0), math.MaxUint32)))
	}
	dst = wire.Append(dst, &h)
	if count == 0 {
		dst[len(dst)-1] = 0 // it is the last field: a 1 of one octet
	}
	return dst
}

// countOf returns how many deliveries there were before. Among dead letters nothing is counted: they have the count with which they
// died.
func countOf(m *fsm.Message, part entity.Part) uint32 {
	if part != entity.Main && len(m.Deaths) > 0 {
		return m.Deaths[0].Failed
	}
	return m.Failed
}

// appendDelivery appends the annotations of the delivery: the sender's, and the token of a lock.
func (f *form) appendDelivery(dst []byte, m *fsm.Message, own wire.MapBytes, locked bool) []byte {
	sent := deliveryAnnotations(own)
	if !locked && len(sent) == 0 {
		return dst
	}
	dst = wire.StartDeliveryAnnotations(dst)
	at, pairs := len(dst), 0
	dst = wire.StartMap(dst)
	for w := sent.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) != annotationLockToken {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	if locked {
		dst = wire.AppendUUID(wire.AppendSymbol(dst, annotationLockToken), f.sealer.seal(handleOf(m)))
		pairs++
	}
	return wire.EndMap(dst, at, pairs)
}

// deliveryAnnotations returns those with which a message was sent.
func deliveryAnnotations(own wire.MapBytes) wire.MapBytes {
	for w := own.Walk(); w.NextPair(); {
		if string(w.Key.Bytes()) == annotationDelivery && w.Value.Type == wire.Map {
			return wire.MapBytes(w.Encoded)
		}
	}
	return nil
}

// startAnnotations begins the message annotations with those of the service.
func (f *form) startAnnotations(dst []byte, m *fsm.Message, own wire.MapBytes, state int32, locked bool) (_ []byte, at, pairs int) {
	dst = wire.StartAnnotations(dst)
	at, pairs = len(dst), 2
	dst = wire.StartMap(dst)
	dst = wire.AppendTimestamp(wire.AppendSymbol(dst, annotationEnqueued), int64(m.EnqueuedAt))
	dst = wire.AppendLong(wire.AppendSymbol(dst, annotationSequence), int64(m.Sequence))
	if locked {
		dst = wire.AppendTimestamp(wire.AppendSymbol(dst, annotationLocked), int64(m.LockedUntil))
		pairs++
	}
	if state != stateActive {
		dst = wire.AppendInt(wire.AppendSymbol(dst, annotationState), state)
		pairs++
	}
	if first, ok := own.Get(annotationFirst); ok && first.Type == wire.Long { // it came by a topic
		dst = wire.AppendLong(wire.AppendSymbol(dst, annotationFirst), first.Signed())
		pairs++
	}
	if f.part == entity.Main && len(m.Deaths) > 0 { // it died elsewhere, and was handed on
		dst = wire.AppendString(wire.AppendSymbol(dst, annotationDeadSource), m.Deaths[0].Queue)
		pairs++
	}
	return dst, at, pairs
}

// rewrites reports whether properties of a message differ from what is stored.
func (f *form) rewrites(m *fsm.Message) bool {
	return f.expiresAt(m) != 0 || len(m.Edit) > 0 || systemReason(m) != "" || !m.Payload.IsBare() && len(topics.HeaderGroup(m.Payload)) > 0
}

// expiresAt is when a message expires, as programs are told; 0: never.
func (f *form) expiresAt(m *fsm.Message) int64 {
	switch {
	case m.ExpireAt != 0:
		return min(int64(m.ExpireAt), lastExpiry)
	case f.uncounted > 0:
		return min(int64(m.EnqueuedAt)+f.uncounted, lastExpiry)
	}
	return 0
}

// appendRewritten appends the properties and application properties of a message as they are now; of one of another protocol all
// that follows, too.
func (f *form) appendRewritten(dst []byte, m *fsm.Message, from *message.From091) []byte {
	var sections wire.Message
	if m.Payload.IsBare() {
		sections = message.Sections(m.Payload)
	} else if sections.ParseRequest(topics.Converted(from, m.Payload)) != nil {
		return from.AppendBare(dst)
	}
	var p wire.Properties
	if at := f.expiresAt(m); at != 0 && sections.ReadProperties(&p) == nil {
		p.AbsoluteExpiryTime = wire.Some(at)
		sections.Properties = wire.Append(nil, &p)
	}
	changes, _ := edit.Parse(m.Edit) // what cannot be read changes nothing
	if reason := systemReason(m); reason != "" {
		_ = changes.Set(propertyReason, wire.AppendString(nil, reason))
		_ = changes.Set(propertyDescription, wire.AppendString(nil, systemDescriptions[reason]))
	}
	dst, err := changes.Apply(dst, &sections)
	if err != nil {
		dst = append(dst, sections.Properties...)
	}
	if !m.Payload.IsBare() {
		dst = append(dst, edit.Rest(&sections)...)
	}
	return dst
}

// Body implements v10.Form.
func (f *form) Body(m *fsm.Message) []byte {
	switch {
	case !f.rewrites(m):
		return m.Payload.Body()
	case !m.Payload.IsBare():
		return nil // the head has it
	}
	sections := message.Sections(m.Payload)
	return edit.Rest(&sections)
}

// encode returns a whole message.
func (f *form) encode(m *fsm.Message, state int32, locked bool) []byte {
	return append(f.appendHead(nil, m, state, locked), f.Body(m)...)
}

// AppendTag implements v10.Form.
func (f *form) AppendTag(dst []byte, id uint32, m *fsm.Message) []byte {
	if f.sealer == nil {
		return append(dst, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
	}
	t := f.sealer.seal(handleOf(m)).guid()
	return append(dst, t[:]...)
}

// Keeps implements v10.Form.
func (f *form) Keeps() bool { return f.sealer != nil && !f.session }

// Quiet implements v10.Form.
func (f *form) Quiet() bool { return f.sealer != nil }

// Application properties of dead letters.
const (
	propertyReason      = "DeadLetterReason"
	propertyDescription = "DeadLetterErrorDescription"
)

// systemDescriptions are what dead letters say that no receiver has rejected, by their reason.
var systemDescriptions = map[string]string{
	"TTLExpiredException":         "The message expired and was dead lettered.",
	"MaxDeliveryCountExceeded":    "Message could not be consumed after the maximum number of delivery attempts.",
	"MaxTransferHopCountExceeded": "The message was forwarded too often.",
	"Session ID is null.":         "Session enabled entity does not allow a message whose session identifier is null.",
	"TransferRefused":             "The entity to which messages are forwarded did not take the message.",
}

// systemReason returns why a message is a dead letter, if no receiver has said so; empty: it is none.
func systemReason(m *fsm.Message) string {
	if len(m.Deaths) == 0 {
		return ""
	}
	switch m.Deaths[0].Reason {
	case logpb.Death_EXPIRED, logpb.Death_GROUP_EXPIRED:
		return "TTLExpiredException"
	case logpb.Death_DELIVERY_LIMIT:
		return "MaxDeliveryCountExceeded"
	case logpb.Death_MAXHOPS:
		return "MaxTransferHopCountExceeded"
	case logpb.Death_UNROUTABLE:
		return "TransferRefused"
	}
	return ""
}
