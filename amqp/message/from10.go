// Package message converts messages between protocols: a queue keeps a message as it came, and a client gets it as its
// own protocol has it. Conversion is total: nothing that a payload may contain makes it fail, or a client
// disconnect. It allocates nothing, and depends on the message alone.
package message

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"unicode/utf8"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// typeOfSections is the type of a message of 0-9-1 whose body is that of a message of AMQP 1.0: encoded sections.
const typeOfSections = "amqp-1.0"

var nameSections = []byte(typeOfSections)

// Names of annotations that have another one in 0-9-1, and what they are there.
const (
	annotationCopies = "x-cc"
	annotationDeaths = "x-opt-deaths"
	annotationType   = "x-basic-type"
)

// Headers with ids that are no short string.
const (
	headerMessageID     = "x-message-id"
	headerCorrelationID = "x-correlation-id"
)

// maxFields bounds the headers that are made of one message, which package wire bounds, too.
const maxFields = 1 << 17

// From10 shows a message that came by AMQP 1.0 as 0-9-1 has it. It is reused: what it returns are views of the
// payload and of its own memory, and good until the next Read.
//
// Nothing that a payload may contain makes it fail. A bare message that cannot be read has no properties, and is its body.
type From10 struct {
	payload     fsm.Payload
	annotations wire10.MapBytes
	message     wire10.Message
	properties  wire10.Properties
	readable    bool // the bare message is one

	list    wire091.Properties
	headers headers
	texts   []byte // what list needs besides the payload
}

// Read begins with a payload that IsBare.
func (c *From10) Read(p fsm.Payload) {
	c.payload, c.annotations = p, Annotations(p)
	c.readable = c.message.Parse(p.Body()) == nil
	if !c.readable {
		c.message = wire10.Message{}
	}
	if c.message.ReadProperties(&c.properties) != nil {
		c.properties = wire10.Properties{}
	}
}

// Release forgets the payload, which may be large, and keeps the memory of its own.
func (c *From10) Release() {
	if c.payload != nil {
		*c = From10{headers: headers{b: c.headers.b[:0]}, texts: c.texts[:0]}
	}
}

// Annotations returns the annotations with which a payload that IsBare was published; empty: none that can be read.
func Annotations(p fsm.Payload) wire10.MapBytes { return readableMap(p.Annotations()) }

// Added returns the annotations that receivers have added to a message; empty: none that can be read.
func Added(m *fsm.Message) wire10.MapBytes { return readableMap(m.Annotations) }

func readableMap(m []byte) wire10.MapBytes {
	if len(m) == 0 {
		return nil
	}
	if v, rest, err := wire10.ReadValue(m); err != nil || len(rest) > 0 || v.Type != wire10.Map {
		return nil
	}
	return m
}

// Check reports what a receiver could not read in a payload, but for its body by 0-9-1. Publishes are checked when they come.
func Check(p fsm.Payload) error {
	if !p.IsBare() {
		raw := p.Properties()
		if len(raw) == 0 {
			return nil // there are none
		}
		_, err := wire091.ParseProperties(raw)
		return err
	}
	sections := p.Body()
	if m := p.Annotations(); len(m) > 0 {
		if Annotations(p) == nil {
			return errAnnotations
		}
		sections = append(append(wire10.StartAnnotations(nil), m...), sections...)
	}
	var m wire10.Message
	if err := m.Parse(sections); err != nil {
		return err
	}
	if len(m.Bare) != len(p.Body()) {
		return errSections
	}
	return m.ReadProperties(new(wire10.Properties))
}

var (
	errAnnotations = errors.New("annotations that are no map")
	errSections    = errors.New("a header or annotations before the bare message")
)

// BodySize is the length of the body.
func (c *From10) BodySize() (n int) {
	for piece := range c.Body {
		n += len(piece)
	}
	return n
}

// Body gives the pieces of the body: the contents of the data sections, or other sections as they are.
func (c *From10) Body(yield func([]byte) bool) {
	switch {
	case !c.readable:
		yield(c.payload.Body())
	case c.message.Kind == wire10.BodyData:
		c.message.Data(yield)
	default:
		yield(c.message.Body)
	}
}

// Body returns the body of a message of either form, as 0-9-1 has it.
func Body(p fsm.Payload) []byte {
	if !p.IsBare() {
		return p.Body()
	}
	var c From10
	c.Read(p)
	var body []byte
	for piece := range c.Body {
		if body == nil {
			body = slices.Clip(piece)
			continue
		}
		body = append(body, piece...)
	}
	return body
}

// AppendProperties appends the property list. Headers that would make it longer than limit are left out.
func (c *From10) AppendProperties(dst []byte, limit int) []byte {
	c.fill()
	at := len(dst)
	dst = wire091.AppendProperties(dst, &c.list)
	c.headers.reset(min(limit-(len(dst)-at)-4, maxFields))
	c.fillHeaders()
	if len(c.headers.b) == 0 {
		return dst
	}
	c.list.Present |= wire091.FlagHeaders
	c.list.Headers = c.headers.b
	return wire091.AppendProperties(dst[:at], &c.list)
}

// fill makes the list without the headers.
func (c *From10) fill() {
	p, l, h := &c.properties, &c.list, c.payload.BareHeader()
	*l, c.texts = wire091.Properties{}, c.texts[:0]
	if h.Durable {
		l.Present, l.DeliveryMode = wire091.FlagDeliveryMode, 2
	}
	if h.Priority >= 0 {
		l.Present, l.Priority = l.Present|wire091.FlagPriority, byte(h.Priority)
	}
	if h.TTL >= 0 {
		c.text(wire091.FlagExpiration, &l.Expiration, c.kept(strconv.AppendInt(c.texts, int64(h.TTL), 10)))
	}
	if t := p.CreationTime; t.Present {
		l.Present, l.Timestamp = l.Present|wire091.FlagTimestamp, uint64(max(t.Value, 0)/1000)
	}
	c.text(wire091.FlagContentType, &l.ContentType, p.ContentType)
	c.text(wire091.FlagContentEncoding, &l.ContentEncoding, p.ContentEncoding)
	c.text(wire091.FlagCorrelationID, &l.CorrelationID, c.id(p.CorrelationID))
	c.text(wire091.FlagMessageID, &l.MessageID, c.id(p.MessageID))
	c.text(wire091.FlagReplyTo, &l.ReplyTo, c.replyTo())
	c.text(wire091.FlagType, &l.Type, c.typeName())
	c.text(wire091.FlagAppID, &l.AppID, p.GroupID)
	if utf8.Valid(p.UserID) {
		c.text(wire091.FlagUserID, &l.UserID, p.UserID)
	}
}

// text sets a property, unless there is none or it does not fit. A text is nil if there is none.
func (c *From10) text(flag wire091.PropertyFlags, to *[]byte, text []byte) {
	if text != nil && len(text) <= fsm.MaxShort {
		c.list.Present |= flag
		*to = text
	}
}

// kept keeps what was appended to c.texts, and returns it alone.
func (c *From10) kept(longer []byte) []byte {
	at := len(c.texts)
	c.texts = longer
	return longer[at:len(longer):len(longer)]
}

// id returns an id as a property has it; nil: it is not there.
func (c *From10) id(id wire10.RawValue) []byte {
	switch v := id.Value(); v.Type {
	case wire10.String:
		return v.Bytes()
	case wire10.Ulong:
		return c.kept(strconv.AppendUint(c.texts, v.Unsigned(), 10))
	case wire10.UUID:
		return c.kept(appendUUID(c.texts, v.Bytes()))
	}
	return nil
}

// replyTo returns the name of a queue, or another address as it is.
func (c *From10) replyTo() []byte {
	if longer, ok := appendQueue(c.texts, c.properties.ReplyTo); ok {
		return c.kept(longer)
	}
	return c.properties.ReplyTo
}

// appendQueue appends the name of the queue that has this address. false: it is that of something else.
func appendQueue(dst, address []byte) ([]byte, bool) {
	name, ok := bytes.CutPrefix(address, []byte(queuePrefix))
	if !ok || len(name) == 0 || len(name) > 3*fsm.MaxShort {
		return dst, false
	}
	return AppendUnescaped(dst, name)
}

// typeName is what the property type says; nil: nothing.
func (c *From10) typeName() []byte {
	if c.readable && c.message.Kind != wire10.BodyData {
		return nameSections
	}
	if v, _ := c.annotations.Get(annotationType); isText(v) {
		return v.Bytes()
	}
	return nil
}

func isText(v wire10.Value) bool {
	return v.Type == wire10.String || v.Type == wire10.Symbol || v.Type == wire10.Binary
}

// fillHeaders makes the headers: of application properties, annotations, and ids that are no property.
func (c *From10) fillHeaders() {
	h := &c.headers
	_, hasCopies := c.annotations.Get(annotationCopies)
	_, hasDeaths := c.annotations.Get(annotationDeaths)
	for w := c.message.ApplicationProperties.Walk(); w.NextPair(); {
		name := w.Key.Bytes()
		if hasCopies && string(name) == HeaderCC || hasDeaths && string(name) == headerDeath {
			continue // an annotation has this name
		}
		h.add(name, w.Value)
	}
	h.addAnnotations(c.annotations)
	h.addID(headerMessageID, c.properties.MessageID)
	h.addID(headerCorrelationID, c.properties.CorrelationID)
}

// addAnnotations adds annotations that are no property.
func (h *headers) addAnnotations(m wire10.MapBytes) {
	for w := m.Walk(); w.NextPair(); {
		if !isName(w.Key) {
			continue
		}
		switch name := w.Key.Bytes(); string(name) {
		case annotationCopies:
			h.add([]byte(HeaderCC), w.Value)
		case annotationDeaths:
			h.addHistory(w.Value)
		case annotationType:
			if !isText(w.Value) || len(w.Value.Bytes()) > fsm.MaxShort {
				h.add(name, w.Value)
			}
		default:
			h.add(name, w.Value)
		}
	}
}

// addID adds an id that is no short string.
func (h *headers) addID(name string, id wire10.RawValue) {
	switch v := id.Value(); {
	case v.Type == wire10.Binary:
		h.addText(name, wire091.TagBytes, v.Bytes())
	case v.Type == wire10.String && len(v.Bytes()) > fsm.MaxShort:
		h.addText(name, wire091.TagString, v.Bytes())
	}
}

// addHistory adds the header x-death.
func (h *headers) addHistory(v wire10.Value) {
	h.field([]byte(headerDeath), isCompound(v), func() bool { return h.history(v) })
}
