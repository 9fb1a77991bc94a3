package v091

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
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

// Body returns the body of a message as a delivery of it shows it.
func (Properties) Body(p fsm.Payload) []byte { return messages.Body(p) }

// Check reports what is wrong with a payload in the form of AMQP 1.0, which did not come by that protocol.
func (Properties) Check(p fsm.Payload) error { return messages.Check(p) }

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

// Publish makes a publish of a message that did not come over AMQP: properties are those of
// Describe. user is who publishes it. Replies to such a message are not possible. The error is a
// *fsm.Refusal. Its Number is 0.
func (Properties) Publish(user, exchange, key string, properties *fsm.Table, body []byte) (*fsm.Publish, error) {
	raw, err := Properties{}.Encode(properties)
	if err != nil {
		return nil, err
	}
	if limit := maxProperties(amqp.DefaultFrameMax); len(raw) > limit {
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

// Bounds of what is taken from a history that a client sent.
const (
	maxHistory      = 64                // pairs of queue and reason
	maxHistoryKeys  = 64                // routing keys of one
	maxHistoryCount = math.MaxInt64 / 2 // deaths of one
)

const (
	headerDeath       = "x-death"
	headerFirstReason = "x-first-death-reason"
	headerFirstQueue  = "x-first-death-queue"
)

// Deaths returns the history in the header x-death of a message as it was
// published, newest first: what a client read and published again, or what a
// server wrote that made an entry of each death and counted none. Entries of the
// same pair are one. What is no entry is left out. nil: the history of a message
// begins with its first death here.
func (how Properties) Deaths(raw []byte) []*logpb.Death {
	if !how.ContinueHistory {
		return nil
	}
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return nil
	}
	header, ok := p.Header(headerDeath)
	if !ok || header.Tag != wire.TagArray {
		return nil
	}
	var deaths []*logpb.Death
	for i := range header.Array {
		d := readDeath(header.Array[i].Table)
		if d == nil {
			continue
		}
		same := slices.IndexFunc(deaths, func(o *logpb.Death) bool { return o.Reason == d.Reason && o.Queue == d.Queue })
		switch {
		case same >= 0:
			deaths[same].Count = min(deaths[same].Count+d.Count, maxHistoryCount)
		case len(deaths) < maxHistory:
			deaths = append(deaths, d)
		}
	}
	if len(deaths) > 0 {
		firstDeath(&p, deaths).First = true
	}
	return deaths
}

// firstDeath finds the entry of a history that its message's headers call the
// first. If there is none it is the oldest.
func firstDeath(p *wire.Properties, deaths []*logpb.Death) *logpb.Death {
	reason, _ := p.Header(headerFirstReason)
	queue, _ := p.Header(headerFirstQueue)
	for _, d := range deaths {
		if fsm.ReasonName(d.Reason) == reason.Str && d.Queue == queue.Str {
			return d
		}
	}
	return deaths[len(deaths)-1]
}

// readDeath reads an entry of a history; nil: it is none.
func readDeath(t wire.Table) *logpb.Death {
	text := func(name string) string {
		if v, _ := t.Get(name); isShortText(&v) {
			return v.Str
		}
		return ""
	}
	d := &logpb.Death{
		Reason: reasonNamed(text("reason")), Queue: text("queue"), Exchange: text("exchange"),
		OriginalExpiration: text("original-expiration"), Count: 1,
	}
	if d.Reason == logpb.Death_NONE || d.Queue == "" {
		return nil
	}
	if v, _ := t.Get("count"); v.Int > 1 && strings.IndexByte("bBsuIil", v.Tag) >= 0 {
		d.Count = min(uint64(v.Int), maxHistoryCount)
	}
	if v, _ := t.Get("time"); v.Tag == wire.TagTimestamp {
		d.Time = min(max(v.Int, 0), int64(fsm.MaxTime)/1000) * 1000
	}
	keys, _ := t.Get("routing-keys")
	for i := range keys.Array[:min(len(keys.Array), maxHistoryKeys)] {
		if k := &keys.Array[i]; isShortText(k) {
			d.RoutingKeys = append(d.RoutingKeys, k.Str)
		}
	}
	return d
}

// isShortText reports whether a short string can hold a value.
func isShortText(v *wire.Value) bool {
	return v.Tag == wire.TagString && len(v.Str) <= fsm.MaxShort && utf8.ValidString(v.Str)
}

// reasonNamed is the inverse of fsm.ReasonName.
func reasonNamed(name string) logpb.Death_Reason {
	for r := logpb.Death_EXPIRED; r <= logpb.Death_MAXHOPS; r++ {
		if fsm.ReasonName(r) == name {
			return r
		}
	}
	return logpb.Death_NONE
}

const (
	headerRemarkReason      = "x-dead-letter-reason"
	headerRemarkDescription = "x-dead-letter-description"
)

// Remarked returns the properties of a dead letter with what its last receiver
// has said about it as headers, and without what an earlier one has. The result
// may be the argument.
func (Properties) Remarked(raw []byte, remark fsm.Remark) []byte {
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return raw
	}
	var e wire.Edit
	for _, h := range [...]struct{ name, text string }{
		{headerRemarkReason, remark.Reason}, {headerRemarkDescription, remark.Description},
	} {
		if h.text != "" {
			e.SetHeaders = append(e.SetHeaders, wire.Field{Name: h.name, Value: wire.String(h.text)})
		} else if _, ok := p.Header(h.name); ok {
			e.RemoveHeaders = append(e.RemoveHeaders, h.name)
		}
	}
	if len(e.SetHeaders)+len(e.RemoveHeaders) == 0 {
		return raw
	}
	out, err := wire.EditProperties(nil, raw, &e)
	if err != nil {
		return raw
	}
	return out
}

// Redirected returns the properties of a dead letter that goes by the routing
// key of its queue. The result may be the argument.
func (how Properties) Redirected(raw []byte) []byte {
	p, err := wire.ParseProperties(raw)
	if err != nil || !how.ContinueHistory {
		return raw
	}
	if _, ok := p.Header(headerCC); !ok {
		return raw
	}
	out, err := wire.EditProperties(nil, raw, &wire.Edit{RemoveHeaders: []string{headerCC}})
	if err != nil {
		return raw
	}
	return out
}

// catalogTable returns t as the catalog keeps tables; nil if it is
// empty. They share nothing.
func catalogTable(t wire.Table) *fsm.Table {
	if len(t) == 0 {
		return nil
	}
	return nestedTable(t)
}

// nestedTable is catalogTable for the value of a field, which is not nil if it is empty.
func nestedTable(t wire.Table) *fsm.Table {
	fields, values := t.Count()
	b := tableBuilder{fields: make([]logpb.Field, fields), values: make([]logpb.Value, values)}
	return b.table(t)
}

// tableBuilder has the memory for a table in two pieces: a client may send thousands of values again and again, and
// one allocation for each would keep the garbage collector busy.
type tableBuilder struct {
	fields []logpb.Field
	values []logpb.Value
}

func (b *tableBuilder) table(t wire.Table) *fsm.Table {
	fields := make([]*logpb.Field, len(t))
	for i := range t {
		f := &b.fields[0]
		b.fields = b.fields[1:]
		f.Name, f.Value = t[i].Name, b.value(&t[i].Value)
		fields[i] = f
	}
	return &fsm.Table{Fields: fields}
}

func (b *tableBuilder) value(v *wire.Value) *logpb.Value {
	out := &b.values[0]
	b.values = b.values[1:]
	out.Tag, out.Int = uint32(v.Tag), v.Int
	switch v.Tag {
	case wire.TagString, wire.TagBytes, wire.TagDecimal:
		out.Str = []byte(v.Str)
	case wire.TagTable:
		out.Table = b.table(v.Table)
	case wire.TagArray:
		out.Array = make([]*logpb.Value, len(v.Array))
		for i := range v.Array {
			out.Array[i] = b.value(&v.Array[i])
		}
	}
	return out
}
