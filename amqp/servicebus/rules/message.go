package rules

import (
	"bytes"
	"strings"

	"github.com/quorate/quorate/amqp/servicebus/edit"
	"github.com/quorate/quorate/amqp/v10/wire"
)

// property is one that the service itself gives a message: what stands behind sys. in an expression.
type property uint8

const (
	contentType property = iota + 1
	correlationID
	deliveryCount
	enqueuedSequenceNumber
	enqueuedTime
	expiresAt
	forcePersistence
	label
	messageID
	partitionKey
	replyTo
	replyToSessionID
	scheduledEnqueueTime
	sequenceNumber
	sessionID
	size
	timeToLive
	to
	viaPartitionKey
)

// system has the properties by their names in lower case.
var system = map[string]property{
	"contenttype": contentType, "correlationid": correlationID, "deliverycount": deliveryCount, "enqueuedsequencenumber": enqueuedSequenceNumber,
	"enqueuedtimeutc": enqueuedTime, "expiresatutc": expiresAt, "forcepersistence": forcePersistence, "label": label, "messageid": messageID,
	"partitionkey": partitionKey, "replyto": replyTo, "replytosessionid": replyToSessionID, "scheduledenqueuetimeutc": scheduledEnqueueTime,
	"sequencenumber": sequenceNumber, "sessionid": sessionID, "size": size, "timetolive": timeToLive, "to": to, "viapartitionkey": viaPartitionKey,
}

func systemNamed(name string) property { return system[strings.ToLower(name)] }

// fields are the properties that actions may change, with their places in an edit.
var fields = [viaPartitionKey + 1]edit.Field{
	contentType: edit.ContentType, correlationID: edit.CorrelationID, label: edit.Subject, messageID: edit.MessageID, replyTo: edit.ReplyTo,
	replyToSessionID: edit.ReplyToGroupID, sessionID: edit.GroupID, to: edit.To,
}

// Annotations that are properties of the service.
const (
	annotationPartition    = "x-opt-partition-key"
	annotationViaPartition = "x-opt-via-partition-key"
	annotationScheduled    = "x-opt-scheduled-enqueue-time"
)

// Facts are what a queue knows of a message.
type Facts struct {
	Number     uint64 // at the topic
	EnqueuedAt int64  // ms since 1970
	TTL        int64  // ms; negative: none
	Size       int
}

// Message is a message as rules read it.
type Message struct {
	facts       Facts
	sections    wire.Message
	properties  wire.Properties
	application []userProperty // the application properties
}

// userProperty is an application property.
type userProperty struct {
	name  []byte
	value wire.Value
}

// Read begins with a bare message and its annotations, of which it keeps views. What cannot be read has no properties.
func (m *Message) Read(bare []byte, annotations wire.MapBytes, f Facts) {
	*m = Message{facts: f, application: m.application[:0]}
	if m.sections.Parse(bare) != nil || m.sections.ReadProperties(&m.properties) != nil {
		m.sections, m.properties = wire.Message{}, wire.Properties{}
	}
	m.sections.Annotations = annotations
	for w := m.sections.ApplicationProperties.Walk(); w.NextPair(); {
		m.application = append(m.application, userProperty{w.Key.Bytes(), w.Value})
	}
}

// Release forgets the message, which may be large, and keeps the memory of its own.
func (m *Message) Release() {
	clear(m.application)
	*m = Message{application: m.application[:0]}
}

// system returns a property of the service.
func (m *Message) system(p property) Value {
	switch p {
	case contentType:
		return textValue(m.properties.ContentType)
	case correlationID:
		return idValue(m.properties.CorrelationID)
	case label:
		return textValue(m.properties.Subject)
	case messageID:
		return idValue(m.properties.MessageID)
	case replyTo:
		return textValue(m.properties.ReplyTo)
	case replyToSessionID:
		return textValue(m.properties.ReplyToGroupID)
	case sessionID:
		return textValue(m.properties.GroupID)
	case to:
		return textValue(m.properties.To)
	case partitionKey:
		return m.annotation(annotationPartition)
	case viaPartitionKey:
		return m.annotation(annotationViaPartition)
	case scheduledEnqueueTime:
		return m.annotation(annotationScheduled)
	}
	return m.facts.value(p)
}

func (m *Message) annotation(name string) Value {
	v, ok := m.sections.Annotations.Get(name)
	if !ok {
		return Value{}
	}
	return valueOf(v)
}

func (f *Facts) value(p property) Value {
	switch p {
	case sequenceNumber, enqueuedSequenceNumber:
		return IntOf(int64(f.Number))
	case enqueuedTime:
		return TimeOf(f.EnqueuedAt)
	case size:
		return IntOf(int64(f.Size))
	case deliveryCount:
		return IntOf(0)
	case forcePersistence:
		return BoolOf(true)
	case timeToLive:
		if f.TTL >= 0 {
			return DurationOf(f.TTL * TicksPerMilli)
		}
	case expiresAt:
		if f.TTL >= 0 {
			return TimeOf(f.EnqueuedAt + f.TTL)
		}
	}
	return Value{}
}

// idValue is the text of an id of any type.
func idValue(b wire.RawValue) Value {
	v := raw(b)
	if text, ok := v.format(); ok {
		return Value{kind: Text, text: text}
	}
	return v
}

// textValue is a property that is a text; nil: it is not there.
func textValue(b []byte) Value {
	if b == nil {
		return Value{}
	}
	return Value{kind: Text, text: b}
}

// user finds an application property, without case, but first as it is written; nil: there is none.
func (m *Message) user(name []byte) (found *userProperty) {
	for i := range m.application {
		switch p := &m.application[i]; {
		case bytes.Equal(p.name, name):
			return p
		case found == nil && bytes.EqualFold(p.name, name):
			found = p
		}
	}
	return found
}

// HasSession reports whether the message belongs to a session, whose id may be empty.
func (m *Message) HasSession() bool { return m.system(sessionID).kind != Unknown }
