package message

import (
	"math"
	"unicode/utf8"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// From091 shows a message that came by 0-9-1 as AMQP 1.0 has it. What it returns are views of the payload.
//
// Nothing that a payload may contain makes it fail. Properties that cannot be read are none.
type From091 struct {
	list     wire091.Properties
	body     []byte
	sections bool // the body is encoded sections: all of it, since receivers trust this server, not a publisher
	copies   bool // there is a header CC
	deaths   bool // there is a header x-death
}

// Read begins with a payload that is not IsBare.
func (c *From091) Read(p fsm.Payload) {
	list, err := wire091.ParseProperties(p.Properties())
	if err != nil {
		list = wire091.Properties{}
	}
	*c = From091{list: list, body: p.Body()}
	for rest := list.Headers; len(rest) > 0; {
		var name []byte
		name, rest = wire091.NextField(rest)
		c.copies = c.copies || string(name) == HeaderCC
		c.deaths = c.deaths || string(name) == headerDeath
	}
	c.sections = string(list.Type) == typeOfSections && wire10.IsBody(c.body)
}

// Header returns what the message says itself.
func (c *From091) Header() (h wire10.Header) {
	h.Durable = c.list.DeliveryMode == 2
	if c.list.Has(wire091.FlagPriority) {
		h.Priority = wire10.Some(c.list.Priority)
	}
	if ttl, ok := decimal(c.list.Expiration); ok {
		h.TTL = wire10.Some(uint32(min(ttl, math.MaxUint32)))
	}
	return h
}

// AppendAnnotations appends the pairs of a map of annotations, but for those that others have, and returns how many
// there are.
func (c *From091) AppendAnnotations(dst []byte, others func(name []byte) bool) (out []byte, pairs int) {
	if c.hasType() && !others(nameType) {
		dst = AppendText(wire10.AppendSymbol(dst, annotationType), c.list.Type)
		pairs++
	}
	for rest := c.list.Headers; len(rest) > 0; {
		var name []byte
		var v wire091.Raw
		name, v, rest = wire091.NextRaw(rest)
		as := c.annotation(name)
		if as == nil || others(as) {
			continue
		}
		at, ok := len(dst), false
		if dst = wire10.AppendSymbol(dst, as); string(name) == headerDeath {
			dst, ok = appendHistory(dst, v)
		} else {
			dst, ok = appendNested(dst, v, 0)
		}
		if ok {
			pairs++
		} else {
			dst = dst[:at]
		}
	}
	return dst, pairs
}

// hasType reports whether the type is an annotation.
func (c *From091) hasType() bool { return c.list.Has(wire091.FlagType) && !c.sections }

// Names that are returned without an allocation.
var (
	nameCopies = []byte(annotationCopies)
	nameDeaths = []byte(annotationDeaths)
	nameType   = []byte(annotationType)
)

// annotation returns the name of the annotation that a header is; nil: it is none.
func (c *From091) annotation(name []byte) []byte {
	switch string(name) {
	case HeaderCC:
		return nameCopies
	case headerDeath:
		return nameDeaths
	case annotationCopies:
		if c.copies {
			return nil
		}
	case annotationDeaths:
		if c.deaths {
			return nil
		}
	case annotationType:
		if c.hasType() {
			return nil
		}
	}
	if isExtension(name) && isSymbol(name) {
		return name
	}
	return nil
}

// isExtension reports whether a header is an annotation in AMQP 1.0, and no application property.
func isExtension(name []byte) bool { return len(name) > 1 && name[0] == 'x' && name[1] == '-' }

// AppendBare appends what comes before the body, which ends the message.
func (c *From091) AppendBare(dst []byte) []byte {
	const shown = wire091.FlagMessageID | wire091.FlagUserID | wire091.FlagReplyTo | wire091.FlagCorrelationID | wire091.FlagContentType |
		wire091.FlagContentEncoding | wire091.FlagTimestamp | wire091.FlagAppID
	if c.list.Present&shown != 0 {
		dst = c.appendProperties(dst)
	}
	if len(c.list.Headers) > 0 {
		dst = c.appendApplication(dst)
	}
	if c.sections {
		return dst
	}
	return wire10.StartData(dst, len(c.body))
}

// appendProperties appends the section of properties.
func (c *From091) appendProperties(dst []byte) []byte {
	dst = wire10.StartProperties(dst)
	l, at := &c.list, len(dst)
	dst = c.appendID(wire10.StartList(dst), wire091.FlagMessageID, l.MessageID)
	if l.Has(wire091.FlagUserID) {
		dst = wire10.AppendBinary(dst, l.UserID)
	} else {
		dst = wire10.AppendNull(dst)
	}
	dst = wire10.AppendNull(wire10.AppendNull(dst)) // to, subject
	dst = c.appendReplyTo(dst)
	dst = c.appendID(dst, wire091.FlagCorrelationID, l.CorrelationID)
	dst = c.appendSymbol(dst, wire091.FlagContentType, l.ContentType)
	dst = c.appendSymbol(dst, wire091.FlagContentEncoding, l.ContentEncoding)
	dst = wire10.AppendNull(dst) // absolute-expiry-time
	created, ok := dst, false
	if l.Has(wire091.FlagTimestamp) {
		created, ok = appendSeconds(dst, l.Timestamp)
	}
	if !ok {
		created = wire10.AppendNull(dst)
	}
	dst = created
	if l.Has(wire091.FlagAppID) && utf8.Valid(l.AppID) {
		dst = wire10.AppendString(dst, l.AppID)
	} else {
		dst = wire10.AppendNull(dst)
	}
	const fields = 11 // up to group-id
	return wire10.EndList(dst, at, fields)
}

func (c *From091) appendID(dst []byte, flag wire091.PropertyFlags, id []byte) []byte {
	if !c.list.Has(flag) {
		return wire10.AppendNull(dst)
	}
	if u, ok := readUUID(id); ok {
		return wire10.AppendUUID(dst, u)
	}
	return AppendText(dst, id)
}

// appendReplyTo appends the address of the queue that replies go to.
func (c *From091) appendReplyTo(dst []byte) []byte {
	to := c.list.ReplyTo
	if len(to) == 0 {
		return wire10.AppendNull(dst)
	}
	var b [len(queuePrefix) + 3*fsm.MaxShort]byte
	return wire10.AppendString(dst, AppendEscaped(append(b[:0], queuePrefix...), to))
}

// appendSymbol appends a text, or null if it is no symbol.
func (c *From091) appendSymbol(dst []byte, flag wire091.PropertyFlags, text []byte) []byte {
	if !c.list.Has(flag) || !isSymbol(text) {
		return wire10.AppendNull(dst)
	}
	return wire10.AppendSymbol(dst, text)
}

// appendApplication appends the application properties, if there are any.
func (c *From091) appendApplication(dst []byte) []byte {
	start := len(dst)
	dst = wire10.StartApplicationProperties(dst)
	at, n := len(dst), 0
	dst = wire10.StartMap(dst)
	for rest := c.list.Headers; len(rest) > 0; {
		var name []byte
		var v wire091.Raw
		name, v, rest = wire091.NextRaw(rest)
		if isExtension(name) || string(name) == HeaderCC || string(name) == HeaderBCC || !utf8.Valid(name) {
			continue
		}
		before, ok := len(dst), false
		if dst, ok = append10(wire10.AppendString(dst, name), v); ok {
			n++
		} else {
			dst = dst[:before]
		}
	}
	if n == 0 {
		return dst[:start]
	}
	return wire10.EndMap(dst, at, n)
}
