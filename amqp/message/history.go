package message

import (
	"math"
	"strconv"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
)

// A message that was read after its death may be published again, with its history as its publisher has read it. Both
// protocols have one, an array of tables, under other names:
//
//	x-death              x-opt-deaths
//	count: integer       count: ulong
//	reason: longstr      reason: symbol
//	time                 first-time
//	                     last-time
//	original-expiration  ttl: uint

// history appends x-opt-deaths as x-death. What is no map is left out.
func (h *headers) history(v wire10.Value) bool {
	if v.Type != wire10.Array && v.Type != wire10.List {
		return h.value(v)
	}
	at, ok := h.start(wire091.TagArray)
	if !ok {
		return false
	}
	for w := v.Walk(); !v.HasDescriptor() && !h.short && w.Next(); {
		if w.Value.Type == wire10.Map {
			h.death(w.Value)
		}
	}
	return h.end(at)
}

// death appends an entry of a history.
func (h *headers) death(v wire10.Value) {
	at, ok := h.start(wire091.TagTable)
	if !ok {
		return
	}
	for w := v.Walk(); !h.short && w.NextPair(); {
		if !isName(w.Key) {
			continue
		}
		switch name := w.Key.Bytes(); string(name) {
		case "last-time":
		case "first-time":
			h.pair([]byte("time"), w.Value)
		case "ttl":
			if n, ok := w.Value.Integer(); ok && h.name([]byte("original-expiration")) {
				var b [20]byte
				h.text(wire091.TagString, strconv.AppendInt(b[:0], n, 10))
			}
		default:
			h.pair(name, w.Value)
		}
	}
	h.end(at)
}

// appendHistory appends x-death as x-opt-deaths. What is no table is left out.
func appendHistory(dst []byte, v wire091.Raw) ([]byte, bool) {
	if v.Tag() != wire091.TagArray {
		return appendNested(dst, v, 0)
	}
	at, n := len(dst), 0
	dst = wire10.StartMapArray(dst)
	for rest := v.Bytes(); len(rest) > 0; {
		var e wire091.Raw
		e, rest = wire091.NextElement(rest)
		if e.Tag() == wire091.TagTable {
			dst = appendDeath(dst, e.Bytes())
			n++
		}
	}
	return wire10.EndMapArray(dst, at, n), true
}

// appendDeath appends an entry of a history, of which these are the fields.
func appendDeath(dst, fields []byte) []byte {
	at, n := len(dst), 0
	dst = wire10.StartMapElement(dst)
	for len(fields) > 0 {
		var name []byte
		var v wire091.Raw
		name, v, fields = wire091.NextRaw(fields)
		before := len(dst)
		var ok bool
		if dst, ok = appendDeathPair(dst, name, v); ok {
			n++
		} else {
			dst = dst[:before]
		}
	}
	return wire10.EndMapElement(dst, at, n)
}

// appendDeathPair appends one field of an entry. false: what it has appended is to be dropped.
func appendDeathPair(dst, name []byte, v wire091.Raw) ([]byte, bool) {
	switch string(name) {
	case "count":
		if n, ok := integer(v); ok && n >= 0 {
			return wire10.AppendUlong(wire10.AppendSymbol(dst, name), uint64(n)), true
		}
	case "reason":
		if v.Tag() == wire091.TagString && isSymbol(v.Bytes()) {
			return wire10.AppendSymbol(wire10.AppendSymbol(dst, name), v.Bytes()), true
		}
	case "time":
		return append10(wire10.AppendSymbol(dst, "first-time"), v)
	case "original-expiration":
		if v.Tag() == wire091.TagString {
			n, ok := decimal(v.Bytes())
			return wire10.AppendUint(wire10.AppendSymbol(dst, "ttl"), uint32(min(n, math.MaxUint32))), ok
		}
	}
	return appendPair(dst, name, v, 2)
}

// integer returns a value that is an integer.
func integer(v wire091.Raw) (int64, bool) {
	switch v.Tag() {
	case wire091.TagInt8, wire091.TagUint8, wire091.TagInt16, wire091.TagUint16, wire091.TagInt32, wire091.TagUint32, wire091.TagInt64, wire091.TagInt64Alt:
		return v.Int(), true
	}
	return 0, false
}

// decimal reads a whole number of at most 18 digits.
func decimal(text []byte) (n uint64, ok bool) {
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(text) > 0 && len(text) <= 18
}
