package v10

import (
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// maxArgumentText is the longest text of an argument, in bytes, that is a string; a longer one is a binary.
const maxArgumentText = 4096

// appendArguments appends the arguments of a queue or binding as a map. What has no counterpart in 1.0 is left out.
func appendArguments(b []byte, t *fsm.Table) []byte {
	return appendTable(b, t, func(b []byte, name string) []byte { return wire.AppendString(b, strings.ToValidUTF8(name, "\uFFFD")) })
}

// appendNested is appendArguments for a table in one, whose keys are symbols, as far as they can be.
func appendNested(b []byte, t *fsm.Table) []byte {
	return appendTable(b, t, func(b []byte, name string) []byte {
		if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
			return wire.AppendString(b, strings.ToValidUTF8(name, "\uFFFD"))
		}
		return wire.AppendSymbol(b, name)
	})
}

func appendTable(b []byte, t *fsm.Table, appendKey func([]byte, string) []byte) []byte {
	at, pairs := len(b), 0
	b = wire.StartMap(b)
	for _, f := range t.GetFields() {
		before := len(b)
		b = appendKey(b, f.GetName())
		var ok bool
		if b, ok = appendArgument(b, f.GetValue()); ok {
			pairs++
		} else {
			b = b[:before]
		}
	}
	return wire.EndMap(b, at, pairs)
}

// appendArgument appends a value of 0-9-1. ok false: there is none like it, and nothing is appended.
func appendArgument(b []byte, v *logpb.Value) (_ []byte, ok bool) {
	n := v.GetInt()
	switch v.GetTag() {
	case 'S':
		if text := v.GetStr(); len(text) <= maxArgumentText && utf8.Valid(text) && strings.IndexByte(string(text), 0) < 0 {
			return wire.AppendString(b, text), true
		}
		return wire.AppendBinary(b, v.GetStr()), true
	case 'x':
		return wire.AppendBinary(b, v.GetStr()), true
	case 't':
		return wire.AppendBool(b, n != 0), true
	case 'b':
		return wire.AppendByte(b, int8(n)), true
	case 'B':
		return wire.AppendUbyte(b, byte(n)), true
	case 's':
		return wire.AppendShort(b, int16(n)), true
	case 'u':
		return wire.AppendUshort(b, uint16(n)), true
	case 'I':
		return wire.AppendInt(b, int32(n)), true
	case 'i':
		return wire.AppendUint(b, uint32(n)), true
	case 'l', 'L':
		return wire.AppendLong(b, n), true
	case 'f':
		return wire.AppendFloatBits(b, uint32(n)), true
	case 'd':
		return wire.AppendDoubleBits(b, uint64(n)), true
	case 'T':
		return wire.AppendTimestamp(b, n*1000), true
	case 'V':
		return wire.AppendNull(b), true
	case 'F':
		return appendNested(b, v.GetTable()), true
	case 'A':
		at, count := len(b), 0
		b = wire.StartList(b)
		for _, e := range v.GetArray() {
			if b, ok = appendArgument(b, e); ok {
				count++
			}
		}
		return wire.EndList(b, at, count), true
	}
	return b, false // a decimal
}
