package amqp

import (
	"math"
	"strconv"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Properties reads encoded property lists for those who must not know the
// wire format. Lists that do not decode have no properties.
type Properties struct {
	// ContinueHistory: dead letters are as RabbitMQ made them before version 4.
	// The first death of a message here continues the history in the header
	// x-death with which it was published, and a letter that goes by the routing
	// key of its queue loses the header CC.
	ContinueHistory bool
}

// Expiration returns the expiration property in normal decimal form, empty if
// there is none.
func (Properties) Expiration(raw []byte) string {
	p, err := wire.ParseProperties(raw)
	if err != nil || !p.Has(wire.FlagExpiration) {
		return ""
	}
	ttl, _, err := parseExpiration(p.Expiration)
	if err != nil {
		return string(p.Expiration)
	}
	return strconv.FormatInt(int64(ttl), 10)
}

// Headers returns the headers property, nil if there is none. deaths, if any,
// show in it as in a delivery.
func (Properties) Headers(raw []byte, deaths []*logpb.Death) *fsm.Table {
	if len(deaths) > 0 {
		raw = renderProperties(nil, raw, &fsm.Message{Deaths: deaths})
	}
	p, err := wire.ParseProperties(raw)
	if err != nil || len(p.Headers) == 0 {
		return nil
	}
	t, err := wire.DecodeFields(p.Headers)
	if err != nil {
		return nil
	}
	return catalogTable(t)
}

// Copies returns the routing keys of the header CC.
func (Properties) Copies(raw []byte) []string {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return nil
	}
	keys, _ := copies(nil, &p, headerCC) // checked when they came in
	return keys
}

// Property returns the text of one of the properties that the broker reads; nil
// if there is none. It may be a part of raw.
func (Properties) Property(raw []byte, name string) []byte {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return nil
	}
	switch name {
	case "message_id":
		return p.MessageID
	case "correlation_id":
		return p.CorrelationID
	case "reply_to":
		return p.ReplyTo
	case "app_id":
		return p.AppID
	case "timestamp":
		if p.Has(wire.FlagTimestamp) {
			return strconv.AppendUint(nil, p.Timestamp, 10)
		}
	case "priority":
		if p.Has(wire.FlagPriority) {
			return strconv.AppendUint(nil, uint64(p.Priority), 10)
		}
	}
	return nil
}

// Describe returns the properties of a message as a delivery of it would show
// them, under the names of the HTTP API.
func (Properties) Describe(raw []byte, m *fsm.Message) *fsm.Table {
	if changesProperties(m) {
		raw = renderProperties(nil, raw, m)
	}
	t := &fsm.Table{}
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return t
	}
	add := func(flag wire.PropertyFlags, name string, v *logpb.Value) {
		if p.Has(flag) {
			t.Fields = append(t.Fields, &logpb.Field{Name: name, Value: v})
		}
	}
	text := func(b []byte) *logpb.Value { return &logpb.Value{Tag: uint32(wire.TagString), Str: b} }
	number := func(n uint64) *logpb.Value { return &logpb.Value{Tag: uint32(wire.TagInt64), Int: int64(n)} }
	add(wire.FlagContentType, "content_type", text(p.ContentType))
	add(wire.FlagContentEncoding, "content_encoding", text(p.ContentEncoding))
	if headers, err := wire.DecodeFields(p.Headers); err == nil {
		add(wire.FlagHeaders, "headers", &logpb.Value{Tag: uint32(wire.TagTable), Table: nestedTable(headers)})
	}
	add(wire.FlagDeliveryMode, "delivery_mode", number(uint64(p.DeliveryMode)))
	add(wire.FlagPriority, "priority", number(uint64(p.Priority)))
	add(wire.FlagCorrelationID, "correlation_id", text(p.CorrelationID))
	add(wire.FlagReplyTo, "reply_to", text(p.ReplyTo))
	add(wire.FlagExpiration, "expiration", text(p.Expiration))
	add(wire.FlagMessageID, "message_id", text(p.MessageID))
	add(wire.FlagTimestamp, "timestamp", &logpb.Value{Tag: uint32(wire.TagTimestamp), Int: int64(p.Timestamp)})
	add(wire.FlagType, "type", text(p.Type))
	add(wire.FlagUserID, "user_id", text(p.UserID))
	add(wire.FlagAppID, "app_id", text(p.AppID))
	add(wire.FlagClusterID, "cluster_id", text(p.ClusterID))
	return t
}

// Answer returns the properties of an answer of the broker itself to a request
// with this correlation id; nil: it has none. Its body is JSON.
func (Properties) Answer(correlationID []byte) []byte {
	p := wire.Properties{Present: wire.FlagContentType, ContentType: []byte("application/json")}
	if correlationID != nil {
		p.Present |= wire.FlagCorrelationID
		p.CorrelationID = correlationID
	}
	return wire.AppendProperties(nil, &p)
}

// Reason returns the reply code and text with which a refused command is
// returned. why nil: there is no such command.
func (Properties) Reason(why *fsm.Refusal) (code uint16, text string) { return returnReason(why) }

// Delay returns what the header x-delay asks for; 0: nothing, or nothing that
// can be read.
func (Properties) Delay(raw []byte) fsm.Millis {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return 0
	}
	if d := delay(&p, false); d != nil && d.Err == nil {
		return d.For
	}
	return 0
}

// Delayed returns the properties of a message that has waited: those it was
// published with, with the delay negated.
func (Properties) Delayed(raw []byte) []byte {
	n := Properties{}.Delay(raw)
	if n == 0 {
		return raw
	}
	v := wire.Int64(int64(-n))
	if -n >= math.MinInt32 {
		v = wire.Int32(int32(-n))
	}
	out, err := wire.EditProperties(nil, raw, &wire.Edit{SetHeaders: wire.Table{{Name: headerXDelay, Value: v}}})
	if err != nil {
		return raw // they were checked when they came in
	}
	return out
}
