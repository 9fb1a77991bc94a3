package message

import (
	"math"
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
	m.Header, m.Annotations = wire10.Header{Durable: h.Durable}, Annotations(payload)
	if h.Priority >= 0 {
		m.Header.Priority = wire10.Some(byte(h.Priority))
	}
	if h.TTL >= 0 {
		m.Header.TTL = wire10.Some(uint32(h.TTL))
	}
	return m
}

func bareExpiration(payload fsm.Payload) string {
	if ttl := payload.BareHeader().TTL; ttl >= 0 {
		return strconv.FormatInt(int64(ttl), 10)
	}
	return ""
}

func bareHeaders(payload fsm.Payload, deaths []*logpb.Death) *fsm.Table {
	m := Sections(payload)
	t := headersOf(&m)
	if len(deaths) > 0 {
		set := deathHeaders(deaths)
		t = slices.DeleteFunc(t, func(f wire.Field) bool {
			_, ok := set.Get(f.Name)
			return ok
		})
		t = append(t, set...)
	}
	return Table(t)
}

// HeadersOf returns what exchanges compare of a message of AMQP 1.0: its
// annotations, and then its application properties. What 0-9-1 cannot express, and
// what its headers would have no room for, is left out. nil: there are none.
func HeadersOf(m *wire10.Message) *fsm.Table { return Table(headersOf(m)) }

func headersOf(m *wire10.Message) wire.Table {
	var h headers
	h.reset(maxFields)
	for _, all := range [...]wire10.MapBytes{m.Annotations, m.ApplicationProperties} {
		for w := all.Walk(); w.NextPair(); {
			if isName(w.Key) {
				h.add(w.Key.Bytes(), w.Value)
			}
		}
	}
	return h.decoded()
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
	if header, ok := strings.CutPrefix(name, headerPrefix); ok {
		v, ok := annotations(m.ApplicationProperties).get(header)
		if !ok {
			v, _ = annotations(m.Annotations).get(header)
		}
		return groupText(v)
	}
	switch name {
	case "message_id":
		return IDText(p.MessageID)
	case "correlation_id":
		return IDText(p.CorrelationID)
	case "reply_to":
		if name, ok := appendQueue(nil, p.ReplyTo); ok {
			return name
		}
		return p.ReplyTo
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

// AnnotatedCopies returns the routing keys of the annotation x-cc. ok false: it is
// no list of strings that can be routing keys, or there are more than a header may
// have.
func AnnotatedCopies(a wire10.MapBytes) (keys []string, ok bool) {
	v, has := a.Get(annotationCopies)
	if !has {
		return nil, true
	}
	if v.Type != wire10.List {
		return nil, false
	}
	size := 0
	for w := v.Walk(); w.Next(); {
		size += 1 + len(w.Value.Bytes())
		if w.Value.Type != wire10.String || len(w.Value.Bytes()) > fsm.MaxShort || size > maxCopies {
			return nil, false
		}
		keys = append(keys, string(w.Value.Bytes()))
	}
	return slices.Compact(keys), true
}

// annotationTime is headerTime as clients of Service Bus call it.
const annotationTime = "x-opt-scheduled-enqueue-time"

// annotations are an encoded map that is valid.
type annotations []byte

// get gives times in milliseconds where headers have numbers of them, and a
// history as headers have it.
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
	var h headers
	h.reset(maxFields)
	if name == annotationDeaths {
		h.addHistory(v)
	} else {
		h.add([]byte(name), v)
	}
	if t := h.decoded(); len(t) > 0 {
		return t[0].Value, true
	}
	return wire.Value{Tag: wire.TagVoid}, true // it is there, and is nothing that anybody asks for
}

// timeAnnotations are the names that have a meaning for when a message is ready.
var timeAnnotations = append([]string{annotationTime}, timeHeaders...)

// maxSpelled is how many annotations of a message are looked at for misspelled names: none has more that somebody has
// written, and looking costs much more than decoding.
const maxSpelled = 1024

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
	names := spelling[annotations]{from: from, known: timeAnnotations}
	for w, n := a.Walk(), 0; n < maxSpelled && w.NextPair(); n++ {
		delayed, err := names.misspelled(w.Key.Bytes())
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
		switch f.Value.Tag {
		case wire.TagString:
			out = wire10.AppendString(out, strings.ToValidUTF8(f.Value.Str, "\uFFFD"))
		case wire.TagInt32:
			out = wire10.AppendInt(out, int32(f.Value.Int))
		default:
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
func rewrittenBare(payload fsm.Payload, r fsm.Rewrite) []byte {
	h, a := payload.BareHeader(), payload.Annotations()
	e := edit(annotations(Annotations(payload)), annotationCopies, r)
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

// decoded returns the fields.
func (h *headers) decoded() wire.Table {
	t, err := wire.DecodeFields(h.b)
	if err != nil {
		return nil // there are too many values
	}
	return t
}

// Value returns a value as the catalog keeps values; nil: there are none of its kind.
func Value(v wire10.Value) *logpb.Value {
	var h headers
	h.reset(maxFields)
	h.add(nil, v)
	if t := Table(h.decoded()); t != nil {
		return t.Fields[0].Value
	}
	return nil
}

// describeBare is Describe for a message of AMQP 1.0.
func describeBare(m *fsm.Message) *fsm.Table {
	var c From10
	c.Read(m.Payload)
	raw := c.AppendProperties(nil, maxList)
	if ChangesProperties(m) {
		raw = RenderProperties(nil, raw, m)
	}
	return describe(raw)
}

// maxList bounds the properties that are shown of one message.
const maxList = 1 << 20
