package message

import (
	"encoding/hex"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Sections returns the sections of a stored message of AMQP 1.0, with the header
// that it came with. What does not decode is not there.
func Sections(payload fsm.Payload) (m wire10.Message) {
	if m.Parse(payload.Body()) != nil {
		m = wire10.Message{}
	}
	h := payload.BareHeader()
	m.Header, m.HasHeader, m.Annotations = wire10.Header{Durable: h.Durable}, true, Annotations(payload)
	if h.Priority >= 0 {
		m.Header.Priority = wire10.Some(byte(h.Priority))
	}
	if h.TTL >= 0 {
		m.Header.TTL = wire10.Some(uint32(h.TTL))
	}
	return m
}

// Annotations returns the annotations of a stored message of AMQP 1.0; what does
// not decode is none.
func Annotations(payload fsm.Payload) wire10.MapBytes {
	a := wire10.MapBytes(payload.Annotations())
	if a.CheckAnnotations() != nil {
		return nil
	}
	return a
}

func bareExpiration(payload fsm.Payload) string {
	if ttl := payload.BareHeader().TTL; ttl >= 0 {
		return strconv.FormatInt(int64(ttl), 10)
	}
	return ""
}

func bareHeaders(payload fsm.Payload, deaths []*logpb.Death) *fsm.Table {
	m := Sections(payload)
	if len(deaths) == 0 {
		return HeadersOf(&m)
	}
	t := headersOf(&m)
	set := deathHeaders(deaths)
	t = slices.DeleteFunc(t, func(f wire.Field) bool {
		_, ok := set.Get(f.Name)
		return ok
	})
	return Table(append(t, set...))
}

// HeadersOf returns what exchanges compare of a message of AMQP 1.0: its
// annotations, and then its application properties. What 0-9-1 cannot express is
// left out. nil: there are none.
func HeadersOf(m *wire10.Message) *fsm.Table { return Table(headersOf(m)) }

func headersOf(m *wire10.Message) wire.Table {
	left := maxValues
	t := tableOf(nil, m.Annotations.Walk(), &left)
	return tableOf(t, m.ApplicationProperties.Walk(), &left)
}

func bareProperty(payload fsm.Payload, name string) []byte {
	if name == "priority" {
		if n := payload.BareHeader().Priority; n >= 0 {
			return strconv.AppendInt(nil, int64(n), 10)
		}
		return nil
	}
	m := Sections(payload)
	var p wire10.Properties
	if m.ReadProperties(&p) != nil {
		p = wire10.Properties{} // but there may be annotations
	}
	return PropertyOf(&m, &p, name)
}

// PropertyOf returns the text of one of the properties that the broker reads; nil:
// there is none. p are those of m.
func PropertyOf(m *wire10.Message, p *wire10.Properties, name string) []byte {
	switch name {
	case "message_id":
		return IDText(p.MessageID)
	case "correlation_id":
		return IDText(p.CorrelationID)
	case "reply_to":
		return replyTo(p.ReplyTo)
	case "app_id":
		return p.GroupID
	case "timestamp":
		if p.CreationTime.Present {
			return strconv.AppendInt(nil, p.CreationTime.Value/1000, 10)
		}
	case "priority":
		if m.Header.Priority.Present {
			return strconv.AppendUint(nil, uint64(m.Header.Priority.Value), 10)
		}
	case headerGroup:
		v, _ := annotations(m.Annotations).get(headerGroup)
		if group := groupText(v); group != nil {
			return group
		}
		return p.GroupID
	}
	return nil
}

// IDText returns the id of a message as text; nil: it has none.
func IDText(id wire10.RawValue) []byte {
	switch v := id.Value(); v.Type {
	case wire10.String, wire10.Binary:
		return v.Bytes()
	case wire10.Ulong:
		return strconv.AppendUint(nil, v.Unsigned(), 10)
	case wire10.UUID:
		return appendUUID(nil, v.Bytes())
	}
	return nil
}

// appendUUID appends a UUID as a name.
func appendUUID(dst, id []byte) []byte {
	dst = append(dst, "urn:uuid:"...)
	for i, n := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[:n])
		id = id[n:]
	}
	return dst
}

// replyTo returns the routing key that leads to an address for replies: the name of
// its queue, or the address itself if it is of another kind.
func replyTo(address []byte) []byte {
	name, ok := strings.CutPrefix(string(address), "/queues/")
	if !ok {
		return address
	}
	if name, err := url.PathUnescape(name); err == nil {
		return []byte(name)
	}
	return address
}

// AnnotatedCopies returns the routing keys of the annotation x-cc. ok false: it is
// no list of strings that can be routing keys.
func AnnotatedCopies(a wire10.MapBytes) (keys []string, ok bool) {
	v, has := a.Get(annotationCC)
	if !has {
		return nil, true
	}
	if v.Type != wire10.List {
		return nil, false
	}
	for w := v.Walk(); w.Next(); {
		if w.Value.Type != wire10.String || len(w.Value.Bytes()) > fsm.MaxShort {
			return nil, false
		}
		keys = append(keys, string(w.Value.Bytes()))
	}
	return slices.Compact(keys), true
}

// Annotations that have other names than the headers of 0-9-1, or none there.
const (
	annotationCC     = "x-cc"
	annotationDeaths = "x-opt-deaths"
	// annotationTime is headerTime as clients of Service Bus call it.
	annotationTime = "x-opt-scheduled-enqueue-time"
)

// annotations are the encoded map of message annotations that were checked.
type annotations []byte

// get gives times in milliseconds where headers have numbers of them.
func (a annotations) get(name string) (wire.Value, bool) {
	v, ok := wire10.MapBytes(a).Get(name)
	if !ok {
		return wire.Value{}, false
	}
	switch {
	case v.Type == wire10.Timestamp && (name == headerTime || name == annotationTime):
		return wire.Int64(v.Signed()), true
	case v.Type == wire10.Ulong:
		return wire.Int64(int64(min(v.Unsigned(), math.MaxInt64))), true
	}
	left := maxValues
	out, ok := valueOf(v, &left)
	if !ok {
		out = wire.Value{Tag: wire.TagVoid} // it is there, and is nothing that anybody asks for
	}
	return out, true
}

// timeAnnotations are the names that have a meaning for when a message is ready.
var timeAnnotations = append([]string{annotationTime}, timeHeaders...)

// AnnotatedTimes is Times for annotations. rest are those to store: without what
// would take effect again in a dead letter.
func AnnotatedTimes(a wire10.MapBytes) (s *fsm.Schedule, d *fsm.Delay, rest wire10.MapBytes, err error) {
	if len(a) == 0 {
		return nil, nil, a, nil
	}
	from, until := annotations(a), headerTime
	if _, ok := a.Get(headerTime); !ok {
		until = annotationTime
	}
	if s, err = schedule(from, until); err != nil {
		return nil, nil, a, err
	}
	d = delay(from, s != nil)
	for w := a.Walk(); w.NextPair(); {
		delayed, err := misspelled(from, w.Key.Bytes(), timeAnnotations)
		if err != nil {
			return nil, nil, a, err
		}
		if delayed != nil {
			d = &fsm.Delay{Err: delayed}
		}
	}
	if s != nil {
		a = editAnnotations(a, &wire.Edit{RemoveHeaders: append([]string{annotationTime}, DueHeaders...)})
	}
	return s, d, a, nil
}

// editAnnotations returns annotations as changed by e, which changes only what is
// called headers in it; empty: none are left.
func editAnnotations(a wire10.MapBytes, e *wire.Edit) wire10.MapBytes {
	out, pairs := wire10.StartMap(nil), 0
	for w := a.Walk(); w.NextPair(); {
		name := string(w.Key.Bytes())
		_, set := e.SetHeaders.Get(name)
		if !set && !slices.Contains(e.RemoveHeaders, name) {
			out = append(out, w.Pair...)
			pairs++
		}
	}
	for i := range e.SetHeaders {
		f := &e.SetHeaders[i]
		out = wire10.AppendSymbol(out, f.Name)
		if f.Value.Tag == wire.TagString {
			out = wire10.AppendString(out, strings.ToValidUTF8(f.Value.Str, "\uFFFD"))
		} else {
			out = wire10.AppendLong(out, f.Value.Int)
		}
		pairs++
	}
	if pairs == 0 {
		return nil
	}
	return wire10.EndMap(out, 0, pairs)
}

// rewrittenBare is Rewritten for a message of AMQP 1.0.
func (how Properties) rewrittenBare(payload fsm.Payload, r fsm.Rewrite) []byte {
	r.Redirected = r.Redirected && how.ContinueHistory
	h, a := payload.BareHeader(), payload.Annotations()
	e := edit(annotations(Annotations(payload)), annotationCC, r)
	if e == nil && (!r.Died || h.TTL < 0) {
		return payload.List()
	}
	if r.Died {
		h.TTL = -1
	}
	if e != nil {
		a = editAnnotations(Annotations(payload), e)
	}
	return fsm.AppendBareList(nil, h, a)
}

// maxValues bounds the values that are read of a message at once, at any depth: an
// array of very many takes few bytes.
const maxValues = 1 << 16

// tableOf appends the pairs of a map whose keys are names of 0-9-1, as it has
// their values. left is how many values may still be read; it stops there.
func tableOf(t wire.Table, w wire10.Walk, left *int) wire.Table {
	for *left > 0 && w.NextPair() {
		k := w.Key.Type
		if (k != wire10.String && k != wire10.Symbol) || len(w.Key.Bytes()) > fsm.MaxShort {
			continue
		}
		if v, ok := valueOf(w.Value, left); ok {
			t = append(t, wire.Field{Name: string(w.Key.Bytes()), Value: v})
		}
	}
	return t
}

// valueOf returns a value as 0-9-1 has it; ok false: it has none.
func valueOf(v wire10.Value, left *int) (out wire.Value, ok bool) {
	*left--
	switch v.Type {
	case wire10.String, wire10.Symbol, wire10.Binary:
		return wire.String(string(v.Bytes())), true
	case wire10.UUID:
		return wire.String(string(appendUUID(nil, v.Bytes()))), true
	case wire10.Char:
		return wire.String(string(rune(min(v.Unsigned(), math.MaxInt32)))), true
	case wire10.Timestamp:
		return wire.Timestamp(uint64(max(v.Signed(), 0) / 1000)), true
	case wire10.List, wire10.Array:
		out.Tag = wire.TagArray
		for w := v.Walk(); *left > 0 && w.Next(); {
			if e, ok := valueOf(w.Value, left); ok {
				out.Array = append(out.Array, e)
			}
		}
		return out, true
	case wire10.Map:
		return wire.Nested(tableOf(nil, v.Walk(), left)), true
	}
	tag := tags[v.Type]
	return wire.Value{Tag: tag, Int: int64(v.Unsigned())}, tag != 0
}

// tags are the types of 0-9-1 for types of fixed width.
var tags = [...]byte{
	wire10.Null: wire.TagVoid, wire10.Boolean: wire.TagBool, wire10.Ubyte: wire.TagUint8, wire10.Byte: wire.TagInt8,
	wire10.Ushort: wire.TagUint16, wire10.Short: wire.TagInt16, wire10.Uint: wire.TagUint32, wire10.Int: wire.TagInt32,
	wire10.Ulong: wire.TagInt64, wire10.Long: wire.TagInt64, wire10.Float: wire.TagFloat32, wire10.Double: wire.TagFloat64,
	wire10.Described: 0,
}

// describeBare is Describe for a message of AMQP 1.0.
func describeBare(m *fsm.Message) *fsm.Table {
	raw := wire.AppendProperties(nil, listOf(m.Payload))
	if ChangesProperties(m) {
		raw = RenderProperties(nil, raw, m)
	}
	return describe(raw)
}

// listOf returns the property list of a message of AMQP 1.0 as a receiver by 0-9-1
// has it.
func listOf(payload fsm.Payload) *wire.Properties {
	m := Sections(payload)
	var from wire10.Properties
	if m.ReadProperties(&from) != nil {
		from = wire10.Properties{}
	}
	p := &wire.Properties{}
	text := func(flag wire.PropertyFlags, to *[]byte, v []byte) {
		if v != nil && len(v) <= fsm.MaxShort {
			p.Present, *to = p.Present|flag, v
		}
	}
	text(wire.FlagContentType, &p.ContentType, from.ContentType)
	text(wire.FlagContentEncoding, &p.ContentEncoding, from.ContentEncoding)
	text(wire.FlagCorrelationID, &p.CorrelationID, IDText(from.CorrelationID))
	text(wire.FlagReplyTo, &p.ReplyTo, replyTo(from.ReplyTo))
	if ttl := bareExpiration(payload); ttl != "" {
		text(wire.FlagExpiration, &p.Expiration, []byte(ttl))
	}
	text(wire.FlagMessageID, &p.MessageID, IDText(from.MessageID))
	text(wire.FlagUserID, &p.UserID, from.UserID)
	text(wire.FlagAppID, &p.AppID, from.GroupID)
	if m.Header.Durable {
		p.Present, p.DeliveryMode = p.Present|wire.FlagDeliveryMode, 2
	}
	if m.Header.Priority.Present {
		p.Present, p.Priority = p.Present|wire.FlagPriority, m.Header.Priority.Value
	}
	if from.CreationTime.Present {
		p.Present, p.Timestamp = p.Present|wire.FlagTimestamp, uint64(max(from.CreationTime.Value, 0)/1000)
	}
	if t := headersOf(&m); len(t) > 0 {
		p.Present, p.Headers = p.Present|wire.FlagHeaders, wire.AppendFields(nil, t)
	}
	return p
}
