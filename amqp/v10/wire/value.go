package wire

import (
	"encoding/binary"
	"math"
)

const (
	// maxDepth is how deep values may be nested in a performative.
	maxDepth = 32
	// maxMessageDepth is maxDepth for a section of a message.
	maxMessageDepth = 64
	// maxEmptyElements is how many elements an array may have that take no room.
	maxEmptyElements = 1 << 16
)

// MapBytes is an encoded map with its constructor: a view of what was decoded, or what is to
// be encoded. Empty: there is none.
type MapBytes []byte

// RawValue is an encoded value of any type, with its constructor. Empty: there is none.
type RawValue []byte

// Value is a value of any type, a view of its encoding.
//
// A described value is itself two values, which Walk gives.
type Value struct {
	Type Type

	number uint64 // fixed widths up to eight octets; signed ones are extended
	bytes  []byte // variable ones; a UUID; a decimal; the elements of compounds
	count  int
	item   []byte // array: constructor of its elements, with descriptor
}

// Bool returns a boolean.
func (v Value) Bool() bool { return v.number != 0 }

// Unsigned returns an unsigned integer or a char.
func (v Value) Unsigned() uint64 { return v.number }

// Signed returns a signed integer or a timestamp.
func (v Value) Signed() int64 { return int64(v.number) }

// Float returns a float or double.
func (v Value) Float() float64 {
	if v.Type == Float {
		return float64(math.Float32frombits(uint32(v.number)))
	}
	return math.Float64frombits(v.number)
}

// Bytes returns the contents of a binary, string, symbol, UUID or decimal.
func (v Value) Bytes() []byte { return v.bytes }

// Len is the number of elements of a list, map or array: of a map its keys and values.
func (v Value) Len() int { return v.count }

// Integer returns an integer of any type that an int64 can hold.
func (v Value) Integer() (n int64, ok bool) {
	switch v.Type {
	case Ubyte, Ushort, Uint, Ulong:
		return int64(v.number), v.number <= math.MaxInt64
	case Byte, Short, Int, Long:
		return int64(v.number), true
	}
	return 0, false
}

// Walk goes over the elements of a compound:
//
//	for w := v.Walk(); w.Next(); { … w.Value … }
type Walk struct {
	Key   Value // of a map, after NextPair
	Value Value
	Pair  []byte // encoding of both, after NextPair
	// Encoded is the encoding of Value, after NextPair.
	Encoded []byte

	rest []byte
	item []byte // see Value
	left int
}

// HasDescriptor reports whether the elements of an array are described values. Walk gives them without.
func (v Value) HasDescriptor() bool { return len(v.item) > 1 }

// Walk begins with the first element of a list, map or array, and with the descriptor of a described value.
func (v Value) Walk() Walk {
	w := Walk{rest: v.bytes, left: v.count}
	if n := len(v.item); n > 0 {
		w.item = v.item[n-1:] // a descriptor may be long, and there may be no end of elements
	}
	return w
}

// Walk begins with the first pair of a map that a decoder has returned.
func (m MapBytes) Walk() Walk {
	if len(m) == 0 {
		return Walk{}
	}
	v, _ := readElement(m[:1], m[1:])
	return v.Walk()
}

// Next goes to the next element, of a map the next key or value.
func (w *Walk) Next() bool {
	if w.left == 0 {
		return false
	}
	w.left--
	if w.item != nil {
		w.Value, w.rest = readElement(w.item, w.rest)
	} else {
		w.Value, w.rest = readChecked(w.rest)
	}
	return true
}

// NextPair goes to the next key of a map and its value.
func (w *Walk) NextPair() bool {
	pair := w.rest
	if !w.Next() {
		return false
	}
	w.Key = w.Value
	value := w.rest
	if !w.Next() {
		return false
	}
	w.Encoded = value[:len(value)-len(w.rest)]
	w.Pair = pair[:len(pair)-len(w.rest)]
	return true
}

// Get returns the first value whose key is this symbol or string.
func (m MapBytes) Get(key string) (Value, bool) {
	for w := m.Walk(); w.NextPair(); {
		if k := w.Key.Type; (k == Symbol || k == String) && string(w.Key.bytes) == key {
			return w.Value, true
		}
	}
	return Value{}, false
}

// Value returns a value that a decoder has returned.
func (r RawValue) Value() Value {
	if len(r) == 0 {
		return Value{Type: Null}
	}
	v, _ := readChecked(r)
	return v
}

// ReadValue reads the value at the start of b, and checks all that is in it. The value is a view of b.
func ReadValue(b []byte) (v Value, rest []byte, err error) {
	n, why := check(b, maxMessageDepth)
	if why != "" {
		return Value{}, nil, decodeError("%s", why)
	}
	v, _ = readChecked(b[:n])
	return v, b[n:], nil
}

// readChecked reads the value at the start of b, which check has accepted.
func readChecked(b []byte) (v Value, rest []byte) {
	if b[0] == described {
		n, _ := check(b, math.MaxInt)
		return Value{Type: Described, bytes: b[1:n], count: 2}, b[n:]
	}
	return readElement(b[:1], b[1:])
}

// readElement reads a value without its constructor, which lies elsewhere.
func readElement(constructor, b []byte) (v Value, rest []byte) {
	c := constructor[0]
	v.Type = typeOf[c]
	width := fixedWidth[c>>4]
	if width < 0 {
		width, b = readLength(c, b)
	}
	data, rest := b[:width], b[width:]
	switch v.Type {
	case List, Map, Array:
		v.count, v.item, v.bytes = readCount(c, data)
	case Binary, String, Symbol, UUID, Decimal:
		v.bytes = data
	default:
		v.number = readNumber(c, data)
	}
	return v, rest
}

// readNumber reads a number of at most eight octets.
func readNumber(c byte, data []byte) uint64 {
	switch c {
	case cTrue:
		return 1
	case cByte, cSmallInt, cSmallLong:
		return uint64(int8(data[0]))
	case cShort:
		return uint64(int16(binary.BigEndian.Uint16(data)))
	case cInt:
		return uint64(int32(binary.BigEndian.Uint32(data)))
	}
	n := uint64(0)
	for _, o := range data {
		n = n<<8 | uint64(o)
	}
	return n
}

// readLength reads the length in front of a value. It must be there.
func readLength(c byte, b []byte) (n int, rest []byte) {
	if widthOf(c) == 1 {
		return int(b[0]), b[1:]
	}
	return int(binary.BigEndian.Uint32(b)), b[4:]
}

// readCount splits the contents of a compound that check has accepted.
func readCount(c byte, data []byte) (count int, item, elements []byte) {
	if c == cList0 {
		return 0, nil, nil
	}
	count, data = readLength(c, data)
	if typeOf[c] != Array {
		return count, nil, data
	}
	n := 0
	for data[n] == described {
		m, _ := check(data[n+1:], math.MaxInt)
		n += 1 + m
	}
	return count, data[:n+1], data[n+1:]
}

// What is wrong with a value.
const (
	whyShort       = "a value is longer than what is left"
	whyConstructor = "unknown constructor"
	whyDeep        = "values are nested too deep"
	whyCount       = "a count does not fit"
	whyOdd         = "a map has a key without a value"
	whyEmpty       = "an array has too many elements"
)

// extent returns how many octets the value at the start of b has. It reads
// no more than constructors, descriptors and one length. depth bounds descriptors in descriptors.
func extent(b []byte, depth int) (n int, why string) {
	at := 0
	for at < len(b) && b[at] == described {
		if depth--; depth < 0 {
			return 0, whyDeep
		}
		d, why := extent(b[at+1:], depth)
		if why != "" {
			return 0, why
		}
		at += 1 + d
	}
	if at == len(b) {
		return 0, whyShort
	}
	n, why = extentOf(b[at], b[at+1:])
	return at + 1 + n, why
}

// extentOf is extent for a value behind its constructor.
func extentOf(c byte, b []byte) (n int, why string) {
	if typeOf[c] == 0 || c == described {
		return 0, whyConstructor
	}
	n = fixedWidth[c>>4]
	if n < 0 {
		w := widthOf(c)
		if len(b) < w {
			return 0, whyShort
		}
		n, _ = readLength(c, b)
		n += w
	}
	if n > len(b) {
		return 0, whyShort
	}
	return n, ""
}

// check is extent, and checks all that is in the value. depth is how deep it may be nested.
func check(b []byte, depth int) (n int, why string) {
	n, why = extent(b, depth)
	if why != "" {
		return 0, why
	}
	at := 0
	for b[at] == described {
		if depth--; depth < 0 {
			return 0, whyDeep
		}
		d, why := check(b[at+1:n], depth)
		if why != "" {
			return 0, why
		}
		at += 1 + d
	}
	return n, checkContents(b[at], b[at+1:n], depth)
}

// checkContents checks a value behind its constructor, which extent has accepted.
func checkContents(c byte, b []byte, depth int) (why string) {
	switch typeOf[c] {
	case List, Map, Array:
	default:
		return ""
	}
	if c == cList0 {
		return ""
	}
	if depth--; depth < 0 {
		return whyDeep
	}
	_, b = readLength(c, b)
	if len(b) < widthOf(c) {
		return whyShort
	}
	count, b := readLength(c, b)
	if typeOf[c] == Array {
		return checkArray(count, b, depth)
	}
	if typeOf[c] == Map && count%2 != 0 {
		return whyOdd
	}
	if count > len(b) {
		return whyCount
	}
	for range count {
		n, why := check(b, depth)
		if why != "" {
			return why
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return whyCount
	}
	return ""
}

// checkArray checks the constructor and the elements of an array.
func checkArray(count int, b []byte, depth int) (why string) {
	for len(b) > 0 && b[0] == described {
		if depth--; depth < 0 {
			return whyDeep
		}
		n, why := check(b[1:], depth)
		if why != "" {
			return why
		}
		b = b[1+n:]
	}
	if len(b) == 0 {
		return whyShort
	}
	c, b := b[0], b[1:]
	if typeOf[c] == 0 {
		return whyConstructor
	}
	if w := fixedWidth[c>>4]; w >= 0 {
		return checkFixed(count, w, len(b))
	}
	if count > len(b) {
		return whyCount
	}
	for range count {
		n, why := extentOf(c, b)
		if why == "" {
			why = checkContents(c, b[:n], depth)
		}
		if why != "" {
			return why
		}
		b = b[n:]
	}
	if len(b) > 0 {
		return whyCount
	}
	return ""
}

// checkFixed checks an array of so many elements of one width in so many octets.
func checkFixed(count, width, size int) (why string) {
	switch {
	case width == 0 && count > maxEmptyElements:
		return whyEmpty
	case uint64(count)*uint64(width) != uint64(size):
		return whyCount
	}
	return ""
}
