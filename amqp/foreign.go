package amqp

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Publish makes a publish of a message that did not come over AMQP: properties are those of
// Describe. user is who publishes it. Replies to such a message are not possible. The error is a
// *fsm.Refusal. Its Number is 0.
func (Properties) Publish(user, exchange, key string, properties *fsm.Table, body []byte) (*fsm.Publish, error) {
	raw, err := Properties{}.Encode(properties)
	if err != nil {
		return nil, err
	}
	if limit := maxProperties(defaultFrameMax); len(raw) > limit {
		return nil, fsm.Refuse(fsm.Precondition, errPropertiesSize(len(raw), limit).Text)
	}
	read, err := wire.ParseProperties(raw)
	if err != nil {
		return nil, err
	}
	m := &message{publish: fsm.Publish{Exchange: exchange, RoutingKey: key, TTL: -1, Priority: -1}, mandatory: true}
	p := &m.publish
	c := content{user: user, replyName: func() string { return "" }}
	encoded := c.readProperties(m, &read, raw)
	p.MessageID, p.CorrelationID = fsm.Label(read.MessageID), fsm.Label(read.CorrelationID)
	head, err := fsm.AppendHead(nil, exchange, key, encoded, m.blind)
	if err != nil {
		return nil, fsm.Refuse(fsm.Precondition, err.Error())
	}
	p.Payload = append(fsm.Payload(head), body...)
	from := &publisher{current: m}
	p.Headers, p.Property = from.currentHeaders, from.currentProperty
	return p, nil
}

// Encode encodes properties that have the names and types that Describe gives them. The error is a
// *fsm.Refusal.
func (Properties) Encode(t *fsm.Table) ([]byte, error) {
	list, err := propertiesFrom(t)
	if err != nil {
		return nil, err
	}
	raw := wire.AppendProperties(nil, list)
	if _, err := wire.ParseProperties(raw); err != nil {
		return nil, fsm.Refuse(fsm.Precondition, "properties or headers are too large or nested too deeply")
	}
	return raw, nil
}

// errUnknownProperty and errPropertyType are returned by setProperty.
var (
	errUnknownProperty = errors.New("unknown_property")
	errPropertyType    = errors.New("unacceptable_type_in_property")
)

// propertiesFrom makes a property list of named values. The error is a *fsm.Refusal.
func propertiesFrom(t *fsm.Table) (*wire.Properties, error) {
	p := &wire.Properties{}
	for _, f := range t.GetFields() {
		if err := setProperty(p, f.GetName(), f.GetValue()); err != nil {
			return nil, fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message: {%v,%s}", err, f.GetName()))
		}
	}
	return p, nil
}

// setProperty sets one property. A number may be given by its digits. A void value is no value.
func setProperty(p *wire.Properties, name string, v *logpb.Value) error {
	if v.GetTag() == uint32(wire.TagVoid) {
		return nil
	}
	switch name {
	case "headers":
		if v.GetTag() != uint32(wire.TagTable) || !shortNames(v) {
			return errPropertyType
		}
		p.Headers = wire.AppendFields(nil, wireTable(v.GetTable()))
		p.Present |= wire.FlagHeaders
		return nil
	case "delivery_mode":
		return setNumber(p, wire.FlagDeliveryMode, v, math.MaxUint8, func(n uint64) { p.DeliveryMode = byte(n) })
	case "priority":
		return setNumber(p, wire.FlagPriority, v, math.MaxUint8, func(n uint64) { p.Priority = byte(n) })
	case "timestamp":
		return setNumber(p, wire.FlagTimestamp, v, math.MaxUint64, func(n uint64) { p.Timestamp = n })
	}
	flag, to := textProperty(p, name)
	if to == nil {
		return errUnknownProperty
	}
	if v.GetTag() != uint32(wire.TagString) || len(v.GetStr()) > fsm.MaxShort {
		return errPropertyType
	}
	p.Present |= flag
	*to = v.GetStr()
	return nil
}

// setNumber sets a property that is a whole number from 0 to limit.
func setNumber(p *wire.Properties, flag wire.PropertyFlags, v *logpb.Value, limit uint64, set func(uint64)) error {
	n, err := uint64(v.GetInt()), error(nil)
	switch byte(v.GetTag()) {
	case wire.TagInt64:
		if v.GetInt() < 0 {
			err = errPropertyType
		}
	case wire.TagTimestamp:
	case wire.TagString:
		n, err = strconv.ParseUint(string(v.GetStr()), 10, 64)
	default:
		err = errPropertyType
	}
	if err != nil || n > limit {
		return errPropertyType
	}
	p.Present |= flag
	set(n)
	return nil
}

// textProperty returns the flag and the place of a property that is a short string; nil: it is none.
func textProperty(p *wire.Properties, name string) (wire.PropertyFlags, *[]byte) {
	switch name {
	case "content_type":
		return wire.FlagContentType, &p.ContentType
	case "content_encoding":
		return wire.FlagContentEncoding, &p.ContentEncoding
	case "correlation_id":
		return wire.FlagCorrelationID, &p.CorrelationID
	case "reply_to":
		return wire.FlagReplyTo, &p.ReplyTo
	case "expiration":
		return wire.FlagExpiration, &p.Expiration
	case "message_id":
		return wire.FlagMessageID, &p.MessageID
	case "type":
		return wire.FlagType, &p.Type
	case "user_id":
		return wire.FlagUserID, &p.UserID
	case "app_id":
		return wire.FlagAppID, &p.AppID
	case "cluster_id":
		return wire.FlagClusterID, &p.ClusterID
	}
	return 0, nil
}

// shortNames reports whether all names within a value are short strings.
func shortNames(v *logpb.Value) bool {
	for _, f := range v.GetTable().GetFields() {
		if len(f.GetName()) > fsm.MaxShort || !shortNames(f.GetValue()) {
			return false
		}
	}
	for _, e := range v.GetArray() {
		if !shortNames(e) {
			return false
		}
	}
	return true
}

// wireTable is the inverse of catalogTable.
func wireTable(t *fsm.Table) wire.Table {
	var list wire.Table
	for _, f := range t.GetFields() {
		list = append(list, wire.Field{Name: f.GetName(), Value: wireValue(f.GetValue())})
	}
	return list
}

func wireValue(v *logpb.Value) wire.Value {
	out := wire.Value{Tag: byte(v.GetTag()), Int: v.GetInt()}
	switch out.Tag {
	case wire.TagString, wire.TagBytes, wire.TagDecimal:
		out.Str = string(v.GetStr())
	case wire.TagTable:
		out.Table = wireTable(v.GetTable())
	case wire.TagArray:
		for _, e := range v.GetArray() {
			out.Array = append(out.Array, wireValue(e))
		}
	}
	return out
}
