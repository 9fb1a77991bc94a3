package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Constructors: the octet in front of each value. Its upper half says how long
// the value is.
const (
	described = 0x00

	cNull      = 0x40
	cTrue      = 0x41
	cFalse     = 0x42
	cUint0     = 0x43
	cUlong0    = 0x44
	cList0     = 0x45
	cUbyte     = 0x50
	cByte      = 0x51
	cSmallUint = 0x52
	cSmallUlng = 0x53
	cSmallInt  = 0x54
	cSmallLong = 0x55
	cBool      = 0x56
	cUshort    = 0x60
	cShort     = 0x61
	cUint      = 0x70
	cInt       = 0x71
	cFloat     = 0x72
	cChar      = 0x73
	cDecimal32 = 0x74
	cUlong     = 0x80
	cLong      = 0x81
	cDouble    = 0x82
	cTimestamp = 0x83
	cDecimal64 = 0x84
	cDecimal   = 0x94
	cUUID      = 0x98
	cBinary8   = 0xa0
	cString8   = 0xa1
	cSymbol8   = 0xa3
	cBinary32  = 0xb0
	cString32  = 0xb1
	cSymbol32  = 0xb3
	cList8     = 0xc0
	cMap8      = 0xc1
	cList32    = 0xd0
	cMap32     = 0xd1
	cArray8    = 0xe0
	cArray32   = 0xf0
)

// Type is a type of values.
type Type byte

// Types. Decimal is one for all three widths.
const (
	Null Type = iota + 1
	Boolean
	Ubyte
	Ushort
	Uint
	Ulong
	Byte
	Short
	Int
	Long
	Float
	Double
	Decimal
	Char
	Timestamp
	UUID
	Binary
	String
	Symbol
	List
	Map
	Array
	Described
)

// typeOf has the type of each constructor; 0: there is no such constructor.
var typeOf = [256]Type{
	described: Described, cNull: Null, cTrue: Boolean, cFalse: Boolean, cBool: Boolean,
	cUbyte: Ubyte, cUshort: Ushort, cUint: Uint, cSmallUint: Uint, cUint0: Uint, cUlong: Ulong, cSmallUlng: Ulong, cUlong0: Ulong,
	cByte: Byte, cShort: Short, cInt: Int, cSmallInt: Int, cLong: Long, cSmallLong: Long,
	cFloat: Float, cDouble: Double, cDecimal32: Decimal, cDecimal64: Decimal, cDecimal: Decimal,
	cChar: Char, cTimestamp: Timestamp, cUUID: UUID,
	cBinary8: Binary, cBinary32: Binary, cString8: String, cString32: String, cSymbol8: Symbol, cSymbol32: Symbol,
	cList0: List, cList8: List, cList32: List, cMap8: Map, cMap32: Map, cArray8: Array, cArray32: Array,
}

// fixedWidth is the length of a value by the upper half of its constructor; -1: it is
// written in front of the value.
var fixedWidth = [16]int{4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 0xa: -1, 0xb: -1, 0xc: -1, 0xd: -1, 0xe: -1, 0xf: -1}

// widthOf is how many octets the length of a value has whose constructor says that there is
// one.
func widthOf(constructor byte) int {
	if constructor>>4&1 == 0 {
		return 1
	}
	return 4
}

// Optional is a field of which it matters whether it is there.
type Optional[T any] struct {
	Value   T
	Present bool
}

// Some returns a field that is there.
func Some[T any](v T) Optional[T] { return Optional[T]{v, true} }

// Or returns the value, or v if there is none.
func (o Optional[T]) Or(v T) T {
	if o.Present {
		return o.Value
	}
	return v
}

// AppendNull appends null.
func AppendNull(b []byte) []byte { return append(b, cNull) }

// AppendBool appends a boolean.
func AppendBool(b []byte, v bool) []byte {
	if v {
		return append(b, cTrue)
	}
	return append(b, cFalse)
}

// AppendUbyte appends a ubyte.
func AppendUbyte(b []byte, v byte) []byte { return append(b, cUbyte, v) }

// AppendUshort appends a ushort.
func AppendUshort(b []byte, v uint16) []byte {
	return binary.BigEndian.AppendUint16(append(b, cUshort), v)
}

// AppendUint appends a uint.
func AppendUint(b []byte, v uint32) []byte {
	switch {
	case v == 0:
		return append(b, cUint0)
	case v <= math.MaxUint8:
		return append(b, cSmallUint, byte(v))
	}
	return binary.BigEndian.AppendUint32(append(b, cUint), v)
}

// AppendUlong appends a ulong.
func AppendUlong(b []byte, v uint64) []byte {
	switch {
	case v == 0:
		return append(b, cUlong0)
	case v <= math.MaxUint8:
		return append(b, cSmallUlng, byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, cUlong), v)
}

// AppendInt appends an int.
func AppendInt(b []byte, v int32) []byte {
	if v == int32(int8(v)) {
		return append(b, cSmallInt, byte(v))
	}
	return binary.BigEndian.AppendUint32(append(b, cInt), uint32(v))
}

// AppendLong appends a long.
func AppendLong(b []byte, v int64) []byte {
	if v == int64(int8(v)) {
		return append(b, cSmallLong, byte(v))
	}
	return binary.BigEndian.AppendUint64(append(b, cLong), uint64(v))
}

// AppendByte appends a byte, which has a sign.
func AppendByte(b []byte, v int8) []byte { return append(b, cByte, byte(v)) }

// AppendShort appends a short.
func AppendShort(b []byte, v int16) []byte {
	return binary.BigEndian.AppendUint16(append(b, cShort), uint16(v))
}

// AppendFloatBits appends a float.
func AppendFloatBits(b []byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(append(b, cFloat), v)
}

// AppendDoubleBits appends a double.
func AppendDoubleBits(b []byte, v uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, cDouble), v)
}

// AppendUUID appends a UUID.
func AppendUUID(b []byte, v [16]byte) []byte { return append(append(b, cUUID), v[:]...) }

// AppendTimestamp appends a timestamp in milliseconds since 1970.
func AppendTimestamp(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, cTimestamp), uint64(v))
}

// encoded is what a value of variable length is given as.
type encoded interface{ ~string | ~[]byte }

// AppendBinary appends a binary.
func AppendBinary[B encoded](b []byte, v B) []byte { return appendVariable(b, cBinary8, v) }

// AppendString appends a string, which must be UTF-8.
func AppendString[B encoded](b []byte, v B) []byte { return appendVariable(b, cString8, v) }

// AppendSymbol appends a symbol, which must be ASCII.
func AppendSymbol[B encoded](b []byte, v B) []byte { return appendVariable(b, cSymbol8, v) }

// appendVariable appends v with its length. short is the constructor for short ones.
func appendVariable[B encoded](b []byte, short byte, v B) []byte {
	if len(v) <= math.MaxUint8 {
		b = append(b, short, byte(len(v)))
	} else {
		b = binary.BigEndian.AppendUint32(append(b, short|0x10), uint32(len(v)))
	}
	return append(b, v...)
}

// AppendSymbols appends an array of symbols, each of at most 255 bytes.
func AppendSymbols(b []byte, v []string) []byte {
	at := len(b)
	b = append(b, cArray32, 0, 0, 0, 0, 0, 0, 0, 0, cSymbol8)
	for _, s := range v {
		s = s[:min(len(s), math.MaxUint8)]
		b = append(append(b, byte(len(s))), s...)
	}
	return endCompound(b, at, len(v))
}

// AppendStrings appends an array of strings, each of at most 255 bytes.
func AppendStrings(b []byte, v []string) []byte {
	at := len(b)
	b = append(b, cArray32, 0, 0, 0, 0, 0, 0, 0, 0, cString8)
	for _, s := range v {
		s = s[:min(len(s), math.MaxUint8)]
		b = append(append(b, byte(len(s))), s...)
	}
	return endCompound(b, at, len(v))
}

// StartMapArray appends the start of an array of maps. Its elements come next, EndMapArray ends it as EndMap a map.
func StartMapArray(b []byte) []byte { return append(b, cArray32, 0, 0, 0, 0, 0, 0, 0, 0, cMap32) }

// EndMapArray ends the array of so many maps that starts at position at.
func EndMapArray(b []byte, at, maps int) []byte { return endCompound(b, at, maps) }

// StartMapElement is StartMap for an element of such an array.
func StartMapElement(b []byte) []byte { return append(b, 0, 0, 0, 0, 0, 0, 0, 0) }

// EndMapElement is EndMap for an element of such an array.
func EndMapElement(b []byte, at, pairs int) []byte { return endCompound(b, at-1, 2*pairs) }

// StartMap appends the start of a map. Its keys and values are appended next, EndMap with the
// length of the slice before StartMap ends it.
func StartMap(b []byte) []byte { return append(b, cMap32, 0, 0, 0, 0, 0, 0, 0, 0) }

// EndMap ends the map of so many pairs that starts at position at.
func EndMap(b []byte, at, pairs int) []byte { return endCompound(b, at, 2*pairs) }

// StartList is StartMap for a list.
func StartList(b []byte) []byte { return append(b, cList32, 0, 0, 0, 0, 0, 0, 0, 0) }

// EndList ends the list of so many values that starts at position at.
func EndList(b []byte, at, values int) []byte { return endCompound(b, at, values) }

// AppendDescriptor appends the start of a described value; the value follows.
func AppendDescriptor(b []byte, code byte) []byte { return append(b, described, cSmallUlng, code) }

// endCompound sets size and count of the compound that starts at position at.
func endCompound(b []byte, at, count int) []byte {
	binary.BigEndian.PutUint32(b[at+1:], uint32(len(b)-at-5))
	binary.BigEndian.PutUint32(b[at+5:], uint32(count))
	return b
}

// isASCII reports whether b is a symbol.
func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
