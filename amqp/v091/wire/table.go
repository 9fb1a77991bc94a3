package wire

import (
	"encoding/binary"
	"unsafe"
)

// Tags of field values, as brokers and clients in use agree on them; the text
// of the specification has other letters for s and U.
const (
	TagBool      = 't'
	TagInt8      = 'b'
	TagUint8     = 'B'
	TagInt16     = 's'
	TagUint16    = 'u'
	TagInt32     = 'I'
	TagUint32    = 'i'
	TagInt64     = 'l'
	TagInt64Alt  = 'L' // read as TagInt64 and always written as it
	TagFloat32   = 'f'
	TagFloat64   = 'd'
	TagDecimal   = 'D'
	TagString    = 'S'
	TagArray     = 'A'
	TagTimestamp = 'T'
	TagTable     = 'F'
	TagVoid      = 'V'
	TagBytes     = 'x'
)

// Limits of one table, which together bound its memory, whatever the frame size.
// Tables of methods are decoded as they arrive, headers of messages when they are
// needed: those that fit into a frame of the default size cannot reach their limit.
const (
	maxTableDepth     = 64      // values of type F or A around a value
	maxTableValues    = 1 << 17 // values, at any depth
	maxArgumentValues = 1 << 12 // the same in the arguments of a method
)

// Table is a field table in the order of the wire. A name may occur more than
// once; the first one counts.
type Table []Field

// Field is a named value. Names are at most 255 bytes long, of any content.
type Field struct {
	Name  string
	Value Value
}

// Value is one field value. Tag says which of the other members counts:
//
//	t b B s u I i l L T   Int; a bool is 0 or 1, T holds the bits of a uint64
//	f d                   Int, the IEEE 754 bits
//	S x                   Str
//	D                     Str, the five octets: scale, value
//	F                     Table
//	A                     Array
//	V and 0               none
type Value struct {
	Tag   byte
	Int   int64
	Str   string
	Table Table
	Array []Value
}

// Bool returns a value of type t.
func Bool(b bool) Value { return Value{Tag: TagBool, Int: int64(bit(b, 0))} }

// Int32 returns a value of type I.
func Int32(n int32) Value { return Value{Tag: TagInt32, Int: int64(n)} }

// Int64 returns a value of type l.
func Int64(n int64) Value { return Value{Tag: TagInt64, Int: n} }

// String returns a value of type S.
func String(s string) Value { return Value{Tag: TagString, Str: s} }

// Timestamp returns a value of type T, in seconds since the epoch.
func Timestamp(seconds uint64) Value { return Value{Tag: TagTimestamp, Int: int64(seconds)} }

// Nested returns a value of type F.
func Nested(t Table) Value { return Value{Tag: TagTable, Table: t} }

// Array returns a value of type A.
func Array(values ...Value) Value { return Value{Tag: TagArray, Array: values} }

// Get returns the first value with this name.
func (t Table) Get(name string) (Value, bool) {
	for i := range t {
		if t[i].Name == name {
			return t[i].Value, true
		}
	}
	return Value{}, false
}

// malformedTable is the error for every table that cannot be decoded.
func malformedTable() *Error {
	return &Error{Code: CodeSyntaxError, Text: "malformed field table"}
}

// DecodeTable reads b, which must be exactly one encoded table: its length and
// its fields. The result shares nothing with b.
func DecodeTable(b []byte) (Table, error) {
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) != uint64(len(b)-4) {
		return nil, malformedTable()
	}
	return DecodeFields(b[4:])
}

// DecodeFields reads the fields of a table without the length in front. The
// result shares nothing with b; an empty table is nil.
func DecodeFields(b []byte) (Table, error) {
	if !validFields(b, maxTableValues) {
		return nil, malformedTable()
	}
	return buildTable(string(b)), nil // one copy holds all names and strings
}

// LookupField finds the first field with this name in fields, which are encoded
// and known to be valid, without decoding the others. It is meant for
// Properties.Headers.
func LookupField(fields []byte, name string) (Value, bool) {
	for len(fields) > 0 {
		at := 1 + int(fields[0])
		end := at + valueSize(fields[at:])
		if string(fields[1:at]) == name {
			return buildValue(string(fields[at:end])), true
		}
		fields = fields[end:]
	}
	return Value{}, false
}

// NextField returns the name of the first of some fields, and the fields behind
// it. Requires: there is one, and fields are as LookupField requires.
func NextField(fields []byte) (name, rest []byte) {
	at := 1 + int(fields[0])
	return fields[1:at], fields[at+valueSize(fields[at:]):]
}

// Raw is an encoded value with its tag, a view of fields that are known to be valid.
type Raw []byte

// NextRaw is NextField with the value in between.
func NextRaw(fields []byte) (name []byte, v Raw, rest []byte) {
	at := 1 + int(fields[0])
	v, rest = NextElement(fields[at:])
	return fields[1:at], v, rest
}

// NextElement returns the first of the elements of an array, and those behind it. Requires: there is one.
func NextElement(elements []byte) (v Raw, rest []byte) {
	n := valueSize(elements)
	return elements[:n:n], elements[n:]
}

// Tag returns the type.
func (v Raw) Tag() byte { return v[0] }

// Int returns what Value.Int is, of a type that counts there.
func (v Raw) Int() int64 {
	n := int64(bigEndian(v[1:]))
	switch v[0] {
	case TagBool:
		return int64(bit(n != 0, 0))
	case TagInt8:
		return int64(int8(n))
	case TagInt16:
		return int64(int16(n))
	case TagInt32:
		return int64(int32(n))
	}
	return n
}

// Bytes returns the contents of a string or of bytes, the elements of an array, the fields of a table.
func (v Raw) Bytes() []byte { return v[5:] }

// encoded is a table or value being decoded: bytes while they are checked, a
// string once they are kept.
type encoded interface{ ~[]byte | ~string }

// valueSize returns the length of the value that b starts with, including the
// tag, or 0 if b does not start with a complete one. It does not check the
// contents of F and A.
func valueSize[B encoded](b B) int {
	if len(b) == 0 {
		return 0
	}
	size := uint64(0)
	switch b[0] {
	case TagVoid:
		size = 1
	case TagBool, TagInt8, TagUint8:
		size = 2
	case TagInt16, TagUint16:
		size = 3
	case TagInt32, TagUint32, TagFloat32:
		size = 5
	case TagDecimal:
		size = 6
	case TagInt64, TagInt64Alt, TagFloat64, TagTimestamp:
		size = 9
	case TagString, TagBytes, TagArray, TagTable:
		if len(b) < 5 {
			return 0
		}
		size = 5 + bigEndian(b[1:5])
	}
	if size > uint64(len(b)) {
		return 0
	}
	return int(size)
}

// bigEndian reads up to eight bytes as one number.
func bigEndian[B encoded](b B) uint64 {
	n := uint64(0)
	for i := range len(b) {
		n = n<<8 | uint64(b[i])
	}
	return n
}

// validFields reports whether b is a sequence of well-formed fields with at most
// this many values. It allocates nothing.
func validFields(b []byte, values int) bool {
	left := values
	return checkFields(b, 0, &left)
}

// checkFields is validFields at some depth; left is how many more values are
// allowed.
func checkFields(b []byte, depth int, left *int) bool {
	for len(b) > 0 {
		at := 1 + int(b[0])
		if at > len(b) {
			return false
		}
		size := checkValue(b[at:], depth, left)
		if size == 0 {
			return false
		}
		b = b[at+size:]
	}
	return true
}

// checkValue returns the length of the value that b starts with, or 0 if it
// is malformed anywhere inside.
func checkValue(b []byte, depth int, left *int) int {
	size := valueSize(b)
	if size == 0 || *left == 0 {
		return 0
	}
	*left--
	switch b[0] {
	case TagTable:
		if depth == maxTableDepth || !checkFields(b[5:size], depth+1, left) {
			return 0
		}
	case TagArray:
		if depth == maxTableDepth || !checkArray(b[5:size], depth+1, left) {
			return 0
		}
	}
	return size
}

func checkArray(b []byte, depth int, left *int) bool {
	for len(b) > 0 {
		size := checkValue(b, depth, left)
		if size == 0 {
			return false
		}
		b = b[size:]
	}
	return true
}

// buildTable decodes valid fields. It counts first, so that the table is
// allocated once and to size: nested values are skipped by their length, so
// every byte is read at most twice.
func buildTable(s string) Table {
	n := 0
	for rest := s; len(rest) > 0; n++ {
		rest = rest[1+int(rest[0]):]
		rest = rest[valueSize(rest):]
	}
	if n == 0 {
		return nil
	}
	t := make(Table, n)
	for i := range t {
		at := 1 + int(s[0])
		end := at + valueSize(s[at:])
		t[i] = Field{Name: s[1:at], Value: buildValue(s[at:end])}
		s = s[end:]
	}
	return t
}

// buildArray decodes valid values, as buildTable does fields.
func buildArray(s string) []Value {
	n := 0
	for rest := s; len(rest) > 0; n++ {
		rest = rest[valueSize(rest):]
	}
	if n == 0 {
		return nil
	}
	a := make([]Value, n)
	for i := range a {
		size := valueSize(s)
		a[i] = buildValue(s[:size])
		s = s[size:]
	}
	return a
}

// buildValue decodes s, exactly one valid value.
func buildValue(s string) Value {
	v := Value{Tag: s[0]}
	switch v.Tag {
	case TagBool:
		v.Int = int64(bit(s[1] != 0, 0))
	case TagInt8:
		v.Int = int64(int8(s[1]))
	case TagInt16:
		v.Int = int64(int16(bigEndian(s[1:])))
	case TagInt32:
		v.Int = int64(int32(bigEndian(s[1:])))
	case TagInt64Alt:
		v.Tag, v.Int = TagInt64, int64(bigEndian(s[1:]))
	case TagUint8, TagUint16, TagUint32, TagInt64, TagTimestamp, TagFloat32, TagFloat64:
		v.Int = int64(bigEndian(s[1:]))
	case TagDecimal:
		v.Str = s[1:]
	case TagString, TagBytes:
		v.Str = s[5:]
	case TagTable:
		v.Table = buildTable(s[5:])
	case TagArray:
		v.Array = buildArray(s[5:])
	}
	return v
}

// AppendTable appends the length and the fields of t.
func AppendTable(dst []byte, t Table) []byte {
	at := len(dst)
	return setLength(AppendFields(append(dst, 0, 0, 0, 0), t), at)
}

// AppendFields appends the fields of t without the length in front.
func AppendFields(dst []byte, t Table) []byte {
	for i := range t {
		dst = appendShortstr(dst, t[i].Name)
		dst = appendValue(dst, &t[i].Value)
	}
	return dst
}

// appendValue appends tag and value. It panics on an unknown tag, which is a
// bug of the caller, not of a client.
func appendValue(dst []byte, v *Value) []byte {
	switch v.Tag {
	case TagInt64Alt:
		dst = append(dst, TagInt64)
	case 0:
		return append(dst, TagVoid)
	default:
		dst = append(dst, v.Tag)
	}
	switch v.Tag {
	case TagVoid:
	case TagBool:
		dst = append(dst, bit(v.Int != 0, 0))
	case TagInt8, TagUint8:
		dst = append(dst, byte(v.Int))
	case TagInt16, TagUint16:
		dst = binary.BigEndian.AppendUint16(dst, uint16(v.Int))
	case TagInt32, TagUint32, TagFloat32:
		dst = binary.BigEndian.AppendUint32(dst, uint32(v.Int))
	case TagInt64, TagInt64Alt, TagTimestamp, TagFloat64:
		dst = binary.BigEndian.AppendUint64(dst, uint64(v.Int))
	case TagDecimal:
		var d [5]byte
		copy(d[:], v.Str)
		dst = append(dst, d[:]...)
	case TagString, TagBytes:
		dst = appendLongstr(dst, v.Str)
	case TagTable:
		dst = AppendTable(dst, v.Table)
	case TagArray:
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		for i := range v.Array {
			dst = appendValue(dst, &v.Array[i])
		}
		dst = setLength(dst, at)
	default:
		panic("wire: value with unknown tag " + string(rune(v.Tag)))
	}
	return dst
}

// Size is the memory of a decoded table in bytes, without the texts.
func (t Table) Size() int {
	n := len(t) * int(unsafe.Sizeof(Field{}))
	for i := range t {
		n += t[i].Value.size()
	}
	return n
}

func (v *Value) size() int {
	n := v.Table.Size() + len(v.Array)*int(unsafe.Sizeof(Value{}))
	for i := range v.Array {
		n += v.Array[i].size()
	}
	return n
}

// Count returns how many fields and values there are, at any depth.
func (t Table) Count() (fields, values int) {
	fields = len(t)
	for i := range t {
		f, v := t[i].Value.count()
		fields, values = fields+f, values+v
	}
	return fields, values
}

func (v *Value) count() (fields, values int) {
	fields, values = v.Table.Count()
	for i := range v.Array {
		f, n := v.Array[i].count()
		fields, values = fields+f, values+n
	}
	return fields, values + 1
}

// ArgumentsSize is Table.Size of the arguments of a method.
func ArgumentsSize(m Method) int {
	switch m := m.(type) {
	case *ExchangeDeclare:
		return m.Arguments.Size()
	case *ExchangeBind:
		return m.Arguments.Size()
	case *ExchangeUnbind:
		return m.Arguments.Size()
	case *QueueDeclare:
		return m.Arguments.Size()
	case *QueueBind:
		return m.Arguments.Size()
	case *QueueUnbind:
		return m.Arguments.Size()
	case *BasicConsume:
		return m.Arguments.Size()
	}
	return 0
}

// setLength stores the number of bytes that follow the four at position at in
// those four.
func setLength(dst []byte, at int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst
}
