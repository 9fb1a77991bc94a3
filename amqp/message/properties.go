package message

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Properties reads stored messages for those who must not know the wire formats.
// Messages that do not decode have no properties.
type Properties struct {
	// ContinueHistory: dead letters are as RabbitMQ made them before version 4.
	// The first death of a message here continues the history with which it was
	// published, and a letter that goes by the routing key of its queue loses its
	// other keys.
	ContinueHistory bool
}

// Expiration returns the time-to-live with which a message was published, in
// normal decimal form; empty: it has none.
func (Properties) Expiration(payload fsm.Payload) string {
	if payload.IsBare() {
		return bareExpiration(payload)
	}
	p, err := wire.ParseProperties(payload.Properties())
	if err != nil || !p.Has(wire.FlagExpiration) {
		return ""
	}
	ttl, _, err := ParseExpiration(p.Expiration)
	if err != nil {
		return string(p.Expiration)
	}
	return strconv.FormatInt(int64(ttl), 10)
}

// Headers returns what exchanges compare: the headers; of a message of AMQP 1.0
// its annotations and application properties. nil: there are none. deaths, if any,
// show in it as in a delivery.
func (Properties) Headers(payload fsm.Payload, deaths []*logpb.Death) *fsm.Table {
	if payload.IsBare() {
		return bareHeaders(payload, deaths)
	}
	raw := payload.Properties()
	if len(deaths) > 0 {
		raw = RenderProperties(nil, raw, &fsm.Message{Deaths: deaths})
	}
	p, err := wire.ParseProperties(raw)
	if err != nil || len(p.Headers) == 0 {
		return nil
	}
	t, err := wire.DecodeFields(p.Headers)
	if err != nil {
		return nil
	}
	return Table(t)
}

// Copies returns the routing keys of the header CC, or of the annotation x-cc.
func (Properties) Copies(payload fsm.Payload) []string {
	if payload.IsBare() {
		keys, _ := AnnotatedCopies(Annotations(payload)) // checked when they came in
		return keys
	}
	p, err := wire.ParseProperties(payload.Properties())
	if err != nil {
		return nil
	}
	keys, _ := Copies(&p, HeaderCC) // checked when they came in
	return keys
}

// Property returns the text of one of the properties that the broker reads, or of a header, by its name behind
// header:; in AMQP 1.0 of an application property, or else of an annotation. nil: there is none, or it is neither text
// nor a whole number. It may be a part of the payload.
func (Properties) Property(payload fsm.Payload, name string) []byte {
	if payload.IsBare() {
		return bareProperty(payload, name)
	}
	p, err := wire.ParseProperties(payload.Properties())
	if err != nil {
		return nil
	}
	return property(&p, name)
}

func property(p *wire.Properties, name string) []byte {
	if header, ok := strings.CutPrefix(name, headerPrefix); ok {
		v, _ := p.Header(header)
		return groupText(v)
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
	case headerGroup:
		v, _ := p.Header(headerGroup)
		return groupText(v)
	}
	return nil
}

const headerPrefix = "header:"

// headerGroup is the header, or the annotation, that names the group of a message.
const headerGroup = "x-group-id"

// groupText returns a text, or a whole number as one, such as the name of a group; nil: the value is neither.
func groupText(v wire.Value) []byte {
	switch {
	case v.Tag == wire.TagString:
		return []byte(v.Str)
	case isInteger(v.Tag):
		return strconv.AppendInt(nil, v.Int, 10)
	}
	return nil
}

// Describe returns the properties of a message as a delivery of it by 0-9-1 would
// show them, under the names of the HTTP API.
func (Properties) Describe(m *fsm.Message) *fsm.Table {
	if m.Payload.IsBare() {
		return describeBare(m)
	}
	raw := m.Payload.Properties()
	if ChangesProperties(m) {
		raw = RenderProperties(nil, raw, m)
	}
	return describe(raw)
}

// describe returns the properties of an encoded list.
func describe(raw []byte) *fsm.Table {
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
func (Properties) Body(p fsm.Payload) []byte { return Body(p) }

// Check reports what is wrong with a payload that no protocol has checked.
func (Properties) Check(p fsm.Payload) error { return Check(p) }

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

// Delay returns what x-delay asks for; 0: nothing, or nothing that can be read.
func (Properties) Delay(payload fsm.Payload) fsm.Millis {
	var d *fsm.Delay
	if payload.IsBare() {
		d = delay(annotations(Annotations(payload)), false)
	} else if p, err := wire.ParseProperties(payload.Properties()); err == nil {
		d = delay(fields(p.Headers), false)
	}
	if d == nil || d.Err != nil {
		return 0
	}
	return d.For
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

// wireTable is the inverse of Table.
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

// Deaths returns the history in the header x-death, or in the annotation
// x-opt-deaths, of a message as it was published, newest first: what a client read
// and published again, or what a server wrote that made an entry of each death and
// counted none. Entries of the same pair are one. What is no entry is left out.
// nil: the history of a message begins with its first death here.
func (how Properties) Deaths(payload fsm.Payload) []*logpb.Death {
	if !how.ContinueHistory {
		return nil
	}
	if payload.IsBare() {
		return history(annotations(Annotations(payload)), annotationDeaths)
	}
	p, err := wire.ParseProperties(payload.Properties())
	if err != nil {
		return nil
	}
	return history(fields(p.Headers), headerDeath)
}

func history[S source](from S, name string) []*logpb.Death {
	header, ok := from.get(name)
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
		firstDeath(from, deaths).First = true
	}
	return deaths
}

// firstDeath finds the entry of a history that its message's headers call the
// first. If there is none it is the oldest.
func firstDeath[S source](from S, deaths []*logpb.Death) *logpb.Death {
	reason, _ := from.get(headerFirstReason)
	queue, _ := from.get(headerFirstQueue)
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
	if v, _ := t.Get("count"); v.Int > 1 && isInteger(v.Tag) {
		d.Count = min(uint64(v.Int), maxHistoryCount)
	}
	if at, _ := t.Get("time"); at.Tag == wire.TagTimestamp {
		d.Time = min(max(at.Int, 0), int64(fsm.MaxTime)/1000) * 1000
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

// isInteger reports whether this is the type of a whole number that is no time.
func isInteger(tag byte) bool { return strings.IndexByte("bBsuIil", tag) >= 0 }

// reasonNamed is the inverse of fsm.ReasonName.
func reasonNamed(name string) logpb.Death_Reason {
	for r := logpb.Death_EXPIRED; r <= logpb.Death_QUEUE_DELETED; r++ {
		if fsm.ReasonName(r) == name {
			return r
		}
	}
	return logpb.Death_NONE
}

const (
	headerRemarkReason      = "x-dead-letter-reason"
	headerRemarkDescription = "x-dead-letter-description"
	headerRedriven          = "x-redriven" // how often
)

// Rewritten returns what a payload that leaves its queue has as its property list,
// or in the place of it. The result may be a part of the payload.
func (how Properties) Rewritten(payload fsm.Payload, r fsm.Rewrite) []byte {
	r.Redirected = r.Redirected && how.ContinueHistory
	if payload.IsBare() {
		return rewrittenBare(payload, r)
	}
	raw := payload.Properties()
	if r == (fsm.Rewrite{Died: r.Died}) {
		return raw // deliveries show no expiration of what has died
	}
	p, err := wire.ParseProperties(raw)
	if err != nil {
		return raw
	}
	e := edit(fields(p.Headers), HeaderCC, r)
	if e == nil {
		return raw
	}
	out, err := wire.EditProperties(nil, raw, e)
	if err != nil {
		return raw // they were checked when they came in
	}
	return out
}

// edit returns what r changes in the headers, or annotations, of a message; nil:
// nothing. keys is the name of that with more routing keys.
func edit[S source](from S, keys string, r fsm.Rewrite) *wire.Edit {
	var e wire.Edit
	if r.Waited {
		if d := delay(from, false); d != nil && d.Err == nil {
			v := wire.Int64(int64(-d.For))
			if -d.For >= math.MinInt32 {
				v = wire.Int32(int32(-d.For))
			}
			e.SetHeaders = append(e.SetHeaders, wire.Field{Name: headerXDelay, Value: v})
		}
	}
	if r.Remark != nil {
		for _, h := range [...]struct{ name, text string }{
			{headerRemarkReason, r.Remark.Reason}, {headerRemarkDescription, r.Remark.Description},
		} {
			if h.text != "" {
				e.SetHeaders = append(e.SetHeaders, wire.Field{Name: h.name, Value: wire.String(h.text)})
			} else if _, ok := from.get(h.name); ok {
				e.RemoveHeaders = append(e.RemoveHeaders, h.name)
			}
		}
	}
	if r.Redriven {
		n, _ := from.get(headerRedriven)
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: headerRedriven, Value: wire.Int64(min(max(n.Int, 0), math.MaxInt64-1) + 1)})
	}
	if _, ok := from.get(keys); ok && r.Redirected {
		e.RemoveHeaders = append(e.RemoveHeaders, keys)
	}
	if len(e.SetHeaders)+len(e.RemoveHeaders) == 0 {
		return nil
	}
	return &e
}

// Table returns t as the catalog keeps tables; nil if it is
// empty. They share nothing.
func Table(t wire.Table) *fsm.Table {
	if len(t) == 0 {
		return nil
	}
	return nestedTable(t)
}

// nestedTable is Table for the value of a field, which is not nil if it is empty.
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
