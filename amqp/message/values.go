package message

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

const (
	// maxDepth is how deep lists and maps of a value may be nested in each other for AMQP 1.0. What is deeper is left out.
	maxDepth = 60
	// maxText is the longest text, in bytes, that is a string there; a longer one is binary.
	maxText = 4096
)

// headers are encoded fields of 0-9-1 that must not be longer than limit. A header that does not fit is left out
// as a whole. Once that has happened to a list or a map there are no more of them, so that the work is bounded:
// a few bytes can stand for many null values.
//
// Invariant: len(b) ≤ limit if limit ≥ 0.
type headers struct {
	b     []byte
	limit int
	short bool // a part of the header being added does not fit
	full  bool // a list or a map did not fit
}

// reset empties the fields.
func (h *headers) reset(limit int) { h.b, h.limit, h.short, h.full = h.b[:0], limit, false, false }

// add adds a header, if there is such a value in 0-9-1.
func (h *headers) add(name []byte, v wire10.Value) {
	h.field(name, isCompound(v), func() bool { return h.value(v) })
}

// addText adds a header that is a text or bytes.
func (h *headers) addText(name string, tag byte, text []byte) {
	h.field([]byte(name), false, func() bool { return h.text(tag, text) })
}

// field adds a header whose value is appended by a function, which reports whether there is one.
func (h *headers) field(name []byte, compound bool, value func() bool) {
	if len(name) > fsm.MaxShort || compound && h.full {
		return
	}
	at := len(h.b)
	if h.name(name) && value() && !h.short {
		return
	}
	h.b = h.b[:at]
	h.full = h.full || compound && h.short
	h.short = false
}

// fits reports whether n more bytes fit.
func (h *headers) fits(n int) bool {
	h.short = h.short || n > h.limit-len(h.b)
	return !h.short
}

func (h *headers) name(name []byte) bool {
	if !h.fits(1 + len(name)) {
		return false
	}
	h.b = append(append(h.b, byte(len(name))), name...)
	return true
}

// text appends a value whose length is written in front of it.
func (h *headers) text(tag byte, text []byte) bool {
	if !h.fits(5 + len(text)) {
		return false
	}
	h.b = append(binary.BigEndian.AppendUint32(append(h.b, tag), uint32(len(text))), text...)
	return true
}

// number appends a value of fixed width: the lowest bytes of n.
func (h *headers) number(tag byte, width int, n uint64) bool {
	if !h.fits(1 + width) {
		return false
	}
	h.b = append(h.b, tag)
	for width > 0 {
		width--
		h.b = append(h.b, byte(n>>(8*width)))
	}
	return true
}

// numbers are the types of 0-9-1 for types of fixed width.
var numbers = [...]struct {
	tag   byte
	width int
}{
	wire10.Null: {wire091.TagVoid, 0}, wire10.Boolean: {wire091.TagBool, 1},
	wire10.Ubyte: {wire091.TagUint8, 1}, wire10.Byte: {wire091.TagInt8, 1},
	wire10.Ushort: {wire091.TagUint16, 2}, wire10.Short: {wire091.TagInt16, 2},
	wire10.Uint: {wire091.TagUint32, 4}, wire10.Int: {wire091.TagInt32, 4},
	wire10.Ulong: {wire091.TagInt64, 8}, wire10.Long: {wire091.TagInt64, 8},
	wire10.Float: {wire091.TagFloat32, 4}, wire10.Double: {wire091.TagFloat64, 8},
	wire10.Described: {},
}

// value appends a value. false: there is no such value in 0-9-1, or it does not fit.
func (h *headers) value(v wire10.Value) bool {
	switch v.Type {
	case wire10.String, wire10.Symbol, wire10.Binary:
		return h.text(wire091.TagString, v.Bytes())
	case wire10.UUID:
		var b [lenUUID]byte
		return h.text(wire091.TagString, appendUUID(b[:0], v.Bytes()))
	case wire10.Char:
		var b [utf8.UTFMax]byte
		return h.text(wire091.TagString, utf8.AppendRune(b[:0], rune(min(v.Unsigned(), math.MaxInt32))))
	case wire10.Timestamp:
		return h.number(wire091.TagTimestamp, 8, uint64(max(v.Signed(), 0)/1000))
	case wire10.List, wire10.Array:
		return h.array(v)
	case wire10.Map:
		return h.table(v)
	}
	if n := numbers[v.Type]; n.tag != 0 {
		return h.number(n.tag, n.width, v.Unsigned())
	}
	return false
}

// array appends a list or an array. Elements that do not exist in 0-9-1 are left out.
func (h *headers) array(v wire10.Value) bool {
	at, ok := h.start(wire091.TagArray)
	if !ok {
		return false
	}
	for w := v.Walk(); !v.HasDescriptor() && !h.short && w.Next(); {
		h.value(w.Value)
	}
	return h.end(at)
}

// table appends a map. Pairs that do not exist in 0-9-1 are left out.
func (h *headers) table(v wire10.Value) bool {
	at, ok := h.start(wire091.TagTable)
	if !ok {
		return false
	}
	for w := v.Walk(); !h.short && w.NextPair(); {
		if isName(w.Key) {
			h.pair(w.Key.Bytes(), w.Value)
		}
	}
	return h.end(at)
}

// pair appends a pair of a table, if there is such a value in 0-9-1.
func (h *headers) pair(name []byte, v wire10.Value) {
	if at := len(h.b); !h.name(name) || !h.value(v) {
		h.b = h.b[:at]
	}
}

// start begins a value in which there are others, end ends the one that begins at a position.
func (h *headers) start(tag byte) (at int, ok bool) {
	at = len(h.b)
	return at, h.text(tag, nil)
}

func (h *headers) end(at int) bool {
	binary.BigEndian.PutUint32(h.b[at+1:], uint32(len(h.b)-at-5))
	return !h.short
}

func isCompound(v wire10.Value) bool {
	return v.Type == wire10.List || v.Type == wire10.Array || v.Type == wire10.Map
}

// isName reports whether the key of a map can be a name in a table.
func isName(key wire10.Value) bool {
	return (key.Type == wire10.String || key.Type == wire10.Symbol) && len(key.Bytes()) <= fsm.MaxShort
}

// append10 appends a value of 0-9-1 in which there are no others. false: there is no such value in AMQP 1.0.
func append10(dst []byte, v wire091.Raw) ([]byte, bool) {
	switch v.Tag() {
	case wire091.TagString, wire091.TagBytes:
		return AppendSimple(dst, v.Tag(), 0, v.Bytes())
	case wire091.TagDecimal, wire091.TagArray, wire091.TagTable:
		return dst, false
	}
	return AppendSimple(dst, v.Tag(), v.Int(), nil)
}

// AppendSimple appends a value of 0-9-1 in which there are no others: a number, or a text or bytes. false: there is no such
// value in AMQP 1.0.
func AppendSimple(dst []byte, tag byte, n int64, text []byte) ([]byte, bool) {
	switch tag {
	case wire091.TagVoid:
		return wire10.AppendNull(dst), true
	case wire091.TagBool:
		return wire10.AppendBool(dst, n != 0), true
	case wire091.TagInt8:
		return wire10.AppendByte(dst, int8(n)), true
	case wire091.TagUint8:
		return wire10.AppendUbyte(dst, byte(n)), true
	case wire091.TagInt16:
		return wire10.AppendShort(dst, int16(n)), true
	case wire091.TagUint16:
		return wire10.AppendUshort(dst, uint16(n)), true
	case wire091.TagInt32:
		return wire10.AppendInt(dst, int32(n)), true
	case wire091.TagUint32:
		return wire10.AppendUint(dst, uint32(n)), true
	case wire091.TagInt64, wire091.TagInt64Alt:
		return wire10.AppendLong(dst, n), true
	case wire091.TagFloat32:
		return wire10.AppendFloatBits(dst, uint32(n)), true
	case wire091.TagFloat64:
		return wire10.AppendDoubleBits(dst, uint64(n)), true
	case wire091.TagTimestamp:
		return appendSeconds(dst, uint64(n))
	case wire091.TagString:
		return AppendText(dst, text), true
	case wire091.TagBytes:
		return wire10.AppendBinary(dst, text), true
	}
	return dst, false
}

// appendNested appends any value of 0-9-1. depth is how many there are around it.
func appendNested(dst []byte, v wire091.Raw, depth int) ([]byte, bool) {
	if v.Tag() != wire091.TagArray && v.Tag() != wire091.TagTable {
		return append10(dst, v)
	}
	if depth == maxDepth {
		return dst, false
	}
	at, n, ok := len(dst), 0, false
	if v.Tag() == wire091.TagTable {
		dst = wire10.StartMap(dst)
		for rest := v.Bytes(); len(rest) > 0; {
			var name []byte
			var e wire091.Raw
			name, e, rest = wire091.NextRaw(rest)
			if dst, ok = appendPair(dst, name, e, depth+1); ok {
				n++
			}
		}
		return wire10.EndMap(dst, at, n), true
	}
	dst = wire10.StartList(dst)
	for rest := v.Bytes(); len(rest) > 0; {
		var e wire091.Raw
		e, rest = wire091.NextElement(rest)
		if dst, ok = appendNested(dst, e, depth+1); ok {
			n++
		}
	}
	return wire10.EndList(dst, at, n), true
}

// appendPair appends a pair of a map whose keys are symbols. false: there is no such key or value in AMQP 1.0.
func appendPair(dst, name []byte, v wire091.Raw, depth int) ([]byte, bool) {
	if !isSymbol(name) {
		return dst, false
	}
	at := len(dst)
	if dst, ok := appendNested(wire10.AppendSymbol(dst, name), v, depth); ok {
		return dst, true
	}
	return dst[:at], false
}

// AppendText appends bytes that may be a text: as a string if AMQP 1.0 may have it so, else as binary.
func AppendText(dst, text []byte) []byte {
	if len(text) <= maxText && utf8.Valid(text) && bytes.IndexByte(text, 0) < 0 {
		return wire10.AppendString(dst, text)
	}
	return wire10.AppendBinary(dst, text)
}

// AppendName is AppendText for a name of something, which is short.
func AppendName(dst []byte, name string) []byte {
	if isName10(name) {
		return wire10.AppendString(dst, name)
	}
	return wire10.AppendBinary(dst, name)
}

// AppendNames appends an array of strings, or a list if one of the names is no string.
func AppendNames(dst []byte, names []string) []byte {
	if !slices.ContainsFunc(names, func(s string) bool { return !isName10(s) }) {
		return wire10.AppendStrings(dst, names)
	}
	at := len(dst)
	dst = wire10.StartList(dst)
	for _, s := range names {
		dst = AppendName(dst, s)
	}
	return wire10.EndList(dst, at, len(names))
}

func isName10(name string) bool {
	return utf8.ValidString(name) && strings.IndexByte(name, 0) < 0
}

// appendSeconds appends a time since 1970. false: AMQP 1.0 has no such time.
func appendSeconds(dst []byte, seconds uint64) ([]byte, bool) {
	if seconds > math.MaxInt64/1000 {
		return dst, false
	}
	return wire10.AppendTimestamp(dst, int64(seconds)*1000), true
}

// isSymbol reports whether a name is ASCII.
func isSymbol(name []byte) bool {
	for _, c := range name {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// A UUID is written as a name: urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f.
const (
	prefixUUID = "urn:uuid:"
	lenUUID    = len(prefixUUID) + 36
)

// partsUUID are the lengths of the groups, in bytes.
var partsUUID = [...]int{4, 2, 2, 2, 6}

func appendUUID(dst, id []byte) []byte {
	dst = append(dst, prefixUUID...)
	for i, n := range partsUUID {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, id[:n])
		id = id[n:]
	}
	return dst
}

// readUUID reads a UUID that is written so.
func readUUID(text []byte) (id [16]byte, ok bool) {
	if len(text) != lenUUID || string(text[:len(prefixUUID)]) != prefixUUID {
		return id, false
	}
	text = text[len(prefixUUID):]
	to := id[:0]
	for i, n := range partsUUID {
		if i > 0 {
			if text[0] != '-' {
				return id, false
			}
			text = text[1:]
		}
		if _, err := hex.Decode(id[len(to):], text[:2*n]); err != nil {
			return id, false
		}
		to, text = id[:len(to)+n], text[2*n:]
	}
	return id, true
}
