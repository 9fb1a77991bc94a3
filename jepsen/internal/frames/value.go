// Package frames is a client of AMQP 1.0 that sends the frames it is given, right or
// wrong, and shows the frames that it receives.
//
// Its codec is its own and plain: it is held against that of the stock client by its
// tests, and shares no mistake with the server's.
package frames

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Types of values that Go has no type of its own for. The others are nil, bool, uint8 … uint64,
// int8 … int64, float32, float64, string and []byte.
type (
	Symbol    string
	Char      rune
	Timestamp int64 // milliseconds
	UUID      [16]byte
	// Raw is a value that is encoded already.
	Raw []byte
	// List holds values of any types.
	List []any
	// Map holds keys and values in turn.
	Map []any
	// Array holds values of the type that a constructor names.
	Array struct {
		Code   byte
		Values []any
	}
	// Described is a value with its descriptor.
	Described struct{ Descriptor, Value any }
)

// Get returns the value of a key, nil if there is none. Symbols and strings are the
// same here.
func (m Map) Get(key string) any {
	for i := 0; i+1 < len(m); i += 2 {
		if Text(m[i]) == key {
			return m[i+1]
		}
	}
	return nil
}

// Keys returns the keys in their order.
func (m Map) Keys() (keys []string) {
	for i := 0; i+1 < len(m); i += 2 {
		keys = append(keys, Text(m[i]))
	}
	return keys
}

// Text returns what a string, symbol or binary says; empty for all else.
func Text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case Symbol:
		return string(v)
	case []byte:
		return string(v)
	}
	return ""
}

// Int returns an integer of any type, a timestamp, or a boolean; -1 for all else.
func Int(v any) int {
	switch v := v.(type) {
	case uint8:
		return int(v)
	case uint16:
		return int(v)
	case uint32:
		return int(v)
	case uint64:
		return int(v)
	case int8:
		return int(v)
	case int16:
		return int(v)
	case int32:
		return int(v)
	case int64:
		return int(v)
	case Timestamp:
		return int(v)
	case bool:
		if v {
			return 1
		}
		return 0
	}
	return -1
}

// Append encodes a value.
func Append(b []byte, v any) []byte {
	switch v := v.(type) {
	case Raw:
		return append(b, v...)
	case nil:
		return append(b, 0x40)
	case bool:
		if v {
			return append(b, 0x41)
		}
		return append(b, 0x42)
	case Described:
		b = append(b, 0)
		if code, ok := v.Descriptor.(uint64); ok && code < 256 {
			b = append(b, 0x53, byte(code))
		} else {
			b = Append(b, v.Descriptor)
		}
		return Append(b, v.Value)
	case Composite:
		return Append(b, v.described())
	}
	code := codeOf(v)
	return appendBare(append(b, code), code, v)
}

// codeOf returns the constructor that a value is written with.
func codeOf(v any) byte {
	long := func(size int, short byte) byte {
		if size > 255 {
			return short + 0x10
		}
		return short
	}
	switch v := v.(type) {
	case uint8:
		return 0x50
	case uint16:
		return 0x60
	case uint32:
		return 0x70
	case uint64:
		return 0x80
	case int8:
		return 0x51
	case int16:
		return 0x61
	case int32:
		return 0x71
	case int64:
		return 0x81
	case float32:
		return 0x72
	case float64:
		return 0x82
	case Char:
		return 0x73
	case Timestamp:
		return 0x83
	case UUID:
		return 0x98
	case []byte:
		return long(len(v), 0xa0)
	case string:
		return long(len(v), 0xa1)
	case Symbol:
		return long(len(v), 0xa3)
	case List:
		return 0xd0
	case Map:
		return 0xd1
	case Array:
		return 0xf0
	}
	panic(fmt.Sprintf("no type of AMQP 1.0: %T", v))
}

// appendBare encodes a value without its constructor.
func appendBare(b []byte, code byte, v any) []byte {
	switch v := v.(type) {
	case uint8:
		return append(b, v)
	case int8:
		return append(b, byte(v))
	case uint16:
		return binary.BigEndian.AppendUint16(b, v)
	case int16:
		return binary.BigEndian.AppendUint16(b, uint16(v))
	case uint32:
		return binary.BigEndian.AppendUint32(b, v)
	case int32:
		return binary.BigEndian.AppendUint32(b, uint32(v))
	case Char:
		return binary.BigEndian.AppendUint32(b, uint32(v))
	case float32:
		return binary.BigEndian.AppendUint32(b, math.Float32bits(v))
	case uint64:
		return binary.BigEndian.AppendUint64(b, v)
	case int64:
		return binary.BigEndian.AppendUint64(b, uint64(v))
	case Timestamp:
		return binary.BigEndian.AppendUint64(b, uint64(v))
	case float64:
		return binary.BigEndian.AppendUint64(b, math.Float64bits(v))
	case UUID:
		return append(b, v[:]...)
	case []byte, string, Symbol:
		text := Text(v)
		if code >= 0xb0 {
			b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		} else {
			b = append(b, byte(len(text)))
		}
		return append(b, text...)
	case List:
		return appendItems(b, v)
	case Map:
		return appendItems(b, v)
	case Array:
		items := []byte{v.Code}
		for _, item := range v.Values {
			items = appendBare(items, v.Code, item)
		}
		return appendSized(b, len(v.Values), items)
	}
	panic(fmt.Sprintf("no type of AMQP 1.0: %T", v))
}

func appendItems(b []byte, all []any) []byte {
	var items []byte
	for _, v := range all {
		items = Append(items, v)
	}
	return appendSized(b, len(all), items)
}

// appendSized encodes what comes after the constructor of a compound value.
func appendSized(b []byte, count int, items []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(items)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(count))
	return append(b, items...)
}

var errShort = errors.New("a value is cut short")

// Parse decodes the first value, and returns what comes after it.
func Parse(b []byte) (v any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errShort
	}
	if b[0] != 0 {
		return parseBare(b[0], b[1:])
	}
	descriptor, rest, err := Parse(b[1:])
	if err != nil {
		return nil, nil, err
	}
	v, rest, err = Parse(rest)
	return composed(Described{descriptor, v}), rest, err
}

// parseBare decodes a value whose constructor is known.
func parseBare(code byte, b []byte) (v any, rest []byte, err error) {
	size := 0
	switch code >> 4 {
	case 4:
	case 5:
		size = 1
	case 6:
		size = 2
	case 7:
		size = 4
	case 8:
		size = 8
	case 9:
		size = 16
	case 0xa, 0xc, 0xe:
		if len(b) < 1 {
			return nil, nil, errShort
		}
		size, b = int(b[0]), b[1:]
	case 0xb, 0xd, 0xf:
		if len(b) < 4 {
			return nil, nil, errShort
		}
		size, b = int(binary.BigEndian.Uint32(b)), b[4:]
	default:
		return nil, nil, fmt.Errorf("constructor %#x", code)
	}
	if len(b) < size {
		return nil, nil, errShort
	}
	if code >= 0xc0 {
		v, err = compound(code, b[:size])
	} else {
		v, err = primitive(code, b[:size])
	}
	return v, b[size:], err
}

func primitive(code byte, b []byte) (any, error) {
	var n uint64
	if len(b) <= 8 {
		for _, octet := range b {
			n = n<<8 | uint64(octet)
		}
	}
	switch code {
	case 0x40:
		return nil, nil
	case 0x41, 0x42:
		return code == 0x41, nil
	case 0x56:
		return n == 1, nil
	case 0x50:
		return uint8(n), nil
	case 0x51:
		return int8(n), nil
	case 0x60:
		return uint16(n), nil
	case 0x61:
		return int16(n), nil
	case 0x43, 0x52, 0x70:
		return uint32(n), nil
	case 0x71:
		return int32(n), nil
	case 0x54:
		return int32(int8(n)), nil
	case 0x44, 0x53, 0x80:
		return n, nil
	case 0x81:
		return int64(n), nil
	case 0x55:
		return int64(int8(n)), nil
	case 0x72:
		return math.Float32frombits(uint32(n)), nil
	case 0x82:
		return math.Float64frombits(n), nil
	case 0x73:
		return Char(n), nil
	case 0x83:
		return Timestamp(n), nil
	case 0x98:
		return UUID(b), nil
	case 0x74, 0x84, 0x94:
		return Raw(append([]byte{code}, b...)), nil
	case 0xa0, 0xb0:
		return append([]byte{}, b...), nil
	case 0xa1, 0xb1:
		return string(b), nil
	case 0xa3, 0xb3:
		return Symbol(b), nil
	case 0x45:
		return List{}, nil
	}
	return nil, fmt.Errorf("constructor %#x", code)
}

// compound decodes a list, map or array from its size on.
func compound(code byte, b []byte) (any, error) {
	width := 4
	if code < 0xd0 || code>>4 == 0xe {
		width = 1
	}
	if len(b) < width {
		return nil, errShort
	}
	count := int(b[0])
	if width == 4 {
		count = int(binary.BigEndian.Uint32(b))
	}
	b = b[width:]
	var of byte
	if code >= 0xe0 {
		if len(b) < 1 {
			return nil, errShort
		}
		of, b = b[0], b[1:]
	}
	all := []any{}
	for range count {
		var v any
		var err error
		if code >= 0xe0 {
			v, b, err = parseBare(of, b)
		} else {
			v, b, err = Parse(b)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%d octets too many in a compound value", len(b))
	}
	switch code {
	case 0xc0, 0xd0:
		return List(all), nil
	case 0xc1, 0xd1:
		return Map(all), nil
	case 0xe0, 0xf0:
		return Array{of, all}, nil
	}
	return nil, fmt.Errorf("constructor %#x", code)
}
