package message

import (
	"math"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/selector"
)

// Fields reads a stored message for selectors. What does not decode has no fields.
func Fields(p fsm.Payload) selector.Message {
	if p.IsBare() {
		f := &bareFields{header: p.BareHeader(), annotations: Annotations(p)}
		if f.message.Parse(p.Body()) != nil || f.message.ReadProperties(&f.properties) != nil {
			return &bareFields{header: f.header, annotations: f.annotations}
		}
		return f
	}
	f := &listFields{}
	f.list, _ = wire091.ParseProperties(p.Properties())
	return f
}

// bareFields are those of a message of AMQP 1.0.
type bareFields struct {
	header      fsm.BareHeader
	annotations wire10.MapBytes
	message     wire10.Message
	properties  wire10.Properties
}

// defaultPriority is that of a message that names none.
const defaultPriority = 4

func (f *bareFields) Field(s selector.Section, name string) selector.Value {
	switch s {
	case selector.Application:
		return entryField(f.message.ApplicationProperties, name, false)
	case selector.Annotations:
		return entryField(f.annotations, name, true)
	case selector.Properties:
		return f.property(name)
	}
	switch name {
	case "durable":
		return selector.BoolOf(f.header.Durable)
	case "priority":
		if f.header.Priority < 0 {
			return selector.IntOf(defaultPriority)
		}
		return selector.IntOf(int64(f.header.Priority))
	case "ttl":
		if f.header.TTL >= 0 {
			return selector.IntOf(int64(f.header.TTL))
		}
	}
	return selector.Value{}
}

func (f *bareFields) property(name string) selector.Value {
	p := &f.properties
	switch name {
	case "message_id":
		return raw(p.MessageID)
	case "correlation_id":
		return raw(p.CorrelationID)
	case "user_id":
		return textField(p.UserID)
	case "to":
		return textField(p.To)
	case "subject":
		return textField(p.Subject)
	case "reply_to":
		return textField(p.ReplyTo)
	case "content_type":
		return textField(p.ContentType)
	case "content_encoding":
		return textField(p.ContentEncoding)
	case "group_id":
		return textField(p.GroupID)
	case "reply_to_group_id":
		return textField(p.ReplyToGroupID)
	case "absolute_expiry_time":
		return integerField(p.AbsoluteExpiryTime)
	case "creation_time":
		return integerField(p.CreationTime)
	case "group_sequence":
		return integerField(p.GroupSequence)
	}
	return selector.Value{}
}

func integerField[N int64 | uint32](n wire10.Optional[N]) selector.Value {
	if !n.Present {
		return selector.Value{}
	}
	return selector.IntOf(int64(n.Value))
}

// textField is a property that is a string, a symbol or a binary; nil: it is not there.
func textField(b []byte) selector.Value {
	if b == nil {
		return selector.Value{}
	}
	return selector.TextOf(string(b))
}

// entryField looks for a key of a map. An identifier has no hyphen, so the keys of annotations are found with underscores
// in their place.
func entryField(m wire10.MapBytes, name string, annotation bool) selector.Value {
	for w := m.Walk(); w.NextPair(); {
		if k := w.Key.Bytes(); string(k) == name || annotation && isSpelt(k, name) {
			return simple(w.Value)
		}
	}
	return selector.Value{}
}

func isSpelt(key []byte, name string) bool {
	if len(key) != len(name) {
		return false
	}
	for i, c := range key {
		if c != name[i] && (c != '-' || name[i] != '_') {
			return false
		}
	}
	return true
}

func raw(b wire10.RawValue) selector.Value {
	if len(b) == 0 {
		return selector.Value{}
	}
	v, _, err := wire10.ReadValue(b)
	if err != nil {
		return selector.Value{}
	}
	return simple(v)
}

// simple is a value of AMQP 1.0; one of a type that selectors do not have is unknown.
func simple(v wire10.Value) selector.Value {
	if n, ok := v.Integer(); ok {
		return selector.IntOf(n)
	}
	switch v.Type {
	case wire10.Boolean:
		return selector.BoolOf(v.Bool())
	case wire10.Float, wire10.Double:
		return selector.FloatOf(v.Float())
	case wire10.Timestamp:
		return selector.IntOf(v.Signed())
	case wire10.String, wire10.Symbol:
		return selector.TextOf(string(v.Bytes()))
	}
	return selector.Value{}
}

// listFields are those of a message of AMQP 0-9-1, by the names that its properties have in AMQP 1.0. Headers are
// application properties, and annotations if they begin with x-.
type listFields struct{ list wire091.Properties }

func (f *listFields) Field(s selector.Section, name string) selector.Value {
	switch s {
	case selector.Application:
		return f.headerNamed(name)
	case selector.Annotations:
		for rest := f.list.Headers; len(rest) > 0; {
			key, after := wire091.NextField(rest)
			if isSpelt(key, name) {
				return f.headerNamed(string(key))
			}
			rest = after
		}
	case selector.Header:
		switch {
		case name == "durable":
			return selector.BoolOf(f.list.DeliveryMode == 2)
		case name == "priority" && f.list.Has(wire091.FlagPriority):
			return selector.IntOf(int64(f.list.Priority))
		case name == "priority":
			return selector.IntOf(defaultPriority)
		}
	case selector.Properties:
		return f.property(name)
	}
	return selector.Value{}
}

func (f *listFields) property(name string) selector.Value {
	p := &f.list
	switch name {
	case "message_id":
		return textField(p.MessageID)
	case "correlation_id":
		return textField(p.CorrelationID)
	case "user_id":
		return textField(p.UserID)
	case "subject":
		return textField(p.Type)
	case "reply_to":
		return textField(p.ReplyTo)
	case "content_type":
		return textField(p.ContentType)
	case "content_encoding":
		return textField(p.ContentEncoding)
	case "group_id":
		return textField(p.AppID)
	case "creation_time":
		if p.Has(wire091.FlagTimestamp) {
			return selector.IntOf(int64(p.Timestamp) * 1000)
		}
	}
	return selector.Value{}
}

func (f *listFields) headerNamed(name string) selector.Value {
	v, _ := f.list.Header(name)
	switch v.Tag {
	case wire091.TagBool:
		return selector.BoolOf(v.Int != 0)
	case wire091.TagString:
		return selector.TextOf(v.Str)
	case wire091.TagTimestamp:
		return selector.IntOf(v.Int * 1000)
	case wire091.TagFloat32:
		return selector.FloatOf(float64(math.Float32frombits(uint32(v.Int))))
	case wire091.TagFloat64:
		return selector.FloatOf(math.Float64frombits(uint64(v.Int)))
	case 'b', 'B', 's', 'u', 'I', 'i', 'l', 'L':
		return selector.IntOf(v.Int)
	}
	return selector.Value{}
}
