package wire

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Composite is a described list: a pointer to one of the generated structs.
//
// Strings and symbols of a decoded one are copies. Slices of bytes are views of what was decoded:
// binaries, maps, values, and all of Properties.
type Composite interface {
	facts() *composite
	// appendTo appends the value with its descriptor.
	appendTo(b []byte) []byte
	// read reads the list at the start of b, which may hold values nested so deep.
	read(b []byte, depth int) (rest []byte, err *Error)
}

// composite is what is known of a type.
type composite struct {
	name   string
	code   byte
	fields []string
}

// Code returns the descriptor of c.
func Code(c Composite) byte { return c.facts().code }

// Decode reads the described value at the start of b into c, and returns what follows. It must have
// c's descriptor: see Peek. Errors name the type.
func Decode(b []byte, c Composite) (rest []byte, err error) {
	code, list, why := readDescriptor(b, maxDepth)
	if why == "" && code != uint64(c.facts().code) {
		why = "another descriptor"
	}
	if why != "" {
		return nil, decodeError("%s: %s", c.facts().name, why)
	}
	rest, e := c.read(list, maxDepth)
	if e != nil {
		return nil, e
	}
	return rest, nil
}

// Append appends c with its descriptor.
func Append(b []byte, c Composite) []byte { return c.appendTo(b) }

// Peek returns the descriptor of the body of a frame. What is no described value, or has a descriptor that the
// protocol does not have, is an error.
func Peek(body []byte) (code byte, err error) {
	c, _, why := readDescriptor(body, maxDepth)
	switch {
	case why != "":
		return 0, decodeError("frame body: %s", why)
	case c > math.MaxUint8 || compositeName(byte(c)) == "":
		return 0, decodeError("frame body: unknown descriptor")
	}
	return byte(c), nil
}

// readDescriptor reads a descriptor. A symbol that the protocol does not have is code 0.
func readDescriptor(b []byte, depth int) (code uint64, rest []byte, why string) {
	if len(b) < 2 || b[0] != described {
		return 0, nil, "no described value"
	}
	n, why := extent(b[1:], depth)
	if why != "" {
		return 0, nil, why
	}
	d, rest := b[1:1+n], b[1+n:]
	switch typeOf[d[0]] {
	case Ulong:
		return readNumber(d[0], d[1:]), rest, ""
	case Symbol:
		v, _ := readElement(d[:1], d[1:])
		return uint64(compositeCode(string(v.bytes))), rest, ""
	}
	return 0, nil, "a descriptor is neither ulong nor symbol"
}

// decoder reads the fields of one composite front to back. The first failure stays and empties
// the rest; fields read after it are zero.
//
// Invariant: left is how many fields of the list have not been read.
type decoder struct {
	of    *composite
	rest  []byte
	after []byte // what follows the list
	left  int
	index int // of the field after the one that is being read
	depth int
	err   *Error
}

// decode begins with the list at the start of b.
func decode(of *composite, b []byte, depth int) decoder {
	d := decoder{of: of, depth: depth - 1}
	n, why := 0, "no list"
	if len(b) > 0 && typeOf[b[0]] == List {
		n, why = extent(b, 1)
	}
	if d.depth < 0 {
		why = whyDeep
	}
	if why != "" {
		d.refuse(why)
		return d
	}
	list, after := b[:n], b[n:]
	d.after = after
	if c := list[0]; c != cList0 {
		_, list = readLength(c, list[1:])
		if len(list) < widthOf(c) {
			d.refuse(whyShort)
			return d
		}
		d.left, d.rest = readLength(c, list)
	}
	if d.left > len(d.rest) || d.left > len(of.fields) {
		d.refuse(whyCount)
	}
	return d
}

// finish returns what follows the list.
func (d *decoder) finish() ([]byte, *Error) {
	if d.err == nil && (d.left > 0 || len(d.rest) > 0) {
		d.refuse(whyCount)
	}
	return d.after, d.err
}

// refuse notes what is wrong with the list as a whole.
func (d *decoder) refuse(why string) { d.set(decodeError("%s: %s", d.of.name, why)) }

// fail notes what is wrong with the field that was read last.
func (d *decoder) fail(why string) {
	if d.err == nil {
		d.set(decodeError("%s: field %s: %s", d.of.name, d.of.fields[d.index-1], why))
	}
}

func (d *decoder) set(e *Error) {
	if d.err == nil {
		d.err = e
	}
	d.left, d.rest = 0, nil
}

// next goes to the next field, and reports whether it has a value.
func (d *decoder) next() bool {
	d.index++
	if d.left == 0 {
		return false
	}
	d.left--
	if len(d.rest) == 0 {
		d.fail(whyShort)
		return false
	}
	if d.rest[0] == cNull {
		d.rest = d.rest[1:]
		return false
	}
	return true
}

// value goes to the next field, which is of this type if there is one. data has
// its octets, without constructor and length.
func (d *decoder) value(t Type) (c byte, data []byte, ok bool) {
	if !d.next() {
		return 0, nil, false
	}
	c = d.rest[0]
	if typeOf[c] != t {
		d.fail("wrong type")
		return 0, nil, false
	}
	n, why := extentOf(c, d.rest[1:])
	if why != "" {
		d.fail(why)
		return 0, nil, false
	}
	data, d.rest = d.rest[1:1+n], d.rest[1+n:]
	if fixedWidth[c>>4] < 0 {
		_, data = readLength(c, data)
	}
	return c, data, true
}

// number reads a field of a type of fixed width.
func (d *decoder) number(t Type) (n uint64, ok bool) {
	c, data, ok := d.value(t)
	if !ok {
		return 0, false
	}
	return readNumber(c, data), true
}

func (d *decoder) boolean() Optional[bool] {
	n, ok := d.number(Boolean)
	return Optional[bool]{n != 0, ok}
}

func (d *decoder) ubyte() Optional[byte] {
	n, ok := d.number(Ubyte)
	return Optional[byte]{byte(n), ok}
}

func (d *decoder) ushort() Optional[uint16] {
	n, ok := d.number(Ushort)
	return Optional[uint16]{uint16(n), ok}
}

func (d *decoder) uint() Optional[uint32] {
	n, ok := d.number(Uint)
	return Optional[uint32]{uint32(n), ok}
}

func (d *decoder) ulong() Optional[uint64] {
	n, ok := d.number(Ulong)
	return Optional[uint64]{n, ok}
}

func (d *decoder) timestamp() Optional[int64] {
	n, ok := d.number(Timestamp)
	return Optional[int64]{int64(n), ok}
}

func (d *decoder) binary() Optional[[]byte] {
	_, data, ok := d.value(Binary)
	return Optional[[]byte]{data, ok}
}

// text reads a string without copying it.
func (d *decoder) text() Optional[[]byte] {
	_, data, ok := d.value(String)
	if ok && !utf8.Valid(data) {
		d.fail("no UTF-8")
		return Optional[[]byte]{}
	}
	return Optional[[]byte]{data, ok}
}

// token reads a symbol without copying it.
func (d *decoder) token() Optional[[]byte] {
	_, data, ok := d.value(Symbol)
	if ok && !isASCII(data) {
		d.fail("no ASCII")
		return Optional[[]byte]{}
	}
	return Optional[[]byte]{data, ok}
}

func (d *decoder) string() Optional[string] {
	t := d.text()
	return Optional[string]{string(t.Value), t.Present}
}

func (d *decoder) symbol() Optional[string] {
	t := d.token()
	return Optional[string]{string(t.Value), t.Present}
}

// any reads a field of any type, which it checks.
func (d *decoder) any() Optional[RawValue] {
	if !d.next() {
		return Optional[RawValue]{}
	}
	n, why := check(d.rest, d.depth)
	if why != "" {
		d.fail(why)
		return Optional[RawValue]{}
	}
	v := d.rest[:n:n]
	d.rest = d.rest[n:]
	return Optional[RawValue]{v, true}
}

// mapping reads a map, which it checks.
func (d *decoder) mapping() Optional[MapBytes] {
	v := d.any()
	if v.Present && typeOf[v.Value[0]] != Map {
		d.fail("wrong type")
		return Optional[MapBytes]{}
	}
	return Optional[MapBytes]{MapBytes(v.Value), v.Present}
}

// symbols reads an array of symbols, or one.
func (d *decoder) symbols() Optional[[]string] {
	raw := d.any()
	if !raw.Present {
		return Optional[[]string]{}
	}
	v, _ := readChecked(raw.Value)
	var list []string
	switch {
	case v.Type == Symbol:
		list = d.appendSymbol(nil, v)
	case v.Type == Array && typeOf[v.item[0]] == Symbol:
		list = make([]string, 0, v.count)
		for w := v.Walk(); w.Next(); {
			list = d.appendSymbol(list, w.Value)
		}
	default:
		d.fail("wrong type")
	}
	return Optional[[]string]{list, d.err == nil}
}

func (d *decoder) appendSymbol(list []string, v Value) []string {
	if !isASCII(v.bytes) {
		d.fail("no ASCII")
	}
	return append(list, string(v.bytes))
}

// descriptor goes to the next field, a described value, and reads its descriptor.
func (d *decoder) descriptor() (code uint64, ok bool) {
	if !d.next() {
		return 0, false
	}
	code, rest, why := readDescriptor(d.rest, d.depth)
	if why != "" {
		d.fail(why)
		return 0, false
	}
	d.rest = rest
	return code, true
}

// into reads the list of a nested composite behind its descriptor.
func (d *decoder) into(c Composite) {
	rest, err := c.read(d.rest, d.depth)
	if err != nil {
		d.fail(err.Description)
		return
	}
	d.rest = rest
}

// skip passes over a value behind its descriptor.
func (d *decoder) skip() {
	n, why := check(d.rest, d.depth)
	if why != "" {
		d.fail(why)
		return
	}
	d.rest = d.rest[n:]
}

func (d *decoder) error() *Error {
	code, ok := d.descriptor()
	if !ok {
		return nil
	}
	if code != uint64(factsOfError.code) {
		d.fail("wrong type")
		return nil
	}
	e := new(Error)
	d.into(e)
	return e
}

func (d *decoder) source() *Source {
	code, ok := d.descriptor()
	if !ok {
		return nil
	}
	if code != uint64(factsOfSource.code) {
		d.fail("wrong type")
		return nil
	}
	s := new(Source)
	d.into(s)
	return s
}

// target reads a target or a coordinator.
func (d *decoder) target() Composite {
	code, ok := d.descriptor()
	if !ok {
		return nil
	}
	var t Composite
	switch code {
	case uint64(factsOfTarget.code):
		t = new(Target)
	case uint64(factsOfCoordinator.code):
		t = new(Coordinator)
	default:
		d.fail("wrong type")
		return nil
	}
	d.into(t)
	return t
}

// required returns the value of a mandatory field.
func required[T any](d *decoder, o Optional[T]) T {
	if !o.Present && d.err == nil {
		d.fail("it is mandatory and missing")
	}
	return o.Value
}

// encoder appends the fields of one composite. Nulls at the end are left out.
//
// Invariants: kept ≤ n; b[:end] holds the first kept fields.
type encoder struct {
	b       []byte
	start   int // position of the list's constructor
	n, kept int
	end     int
}

// encode begins a composite.
func encode(b []byte, code byte) encoder {
	b = append(b, described, cSmallUlng, code, cList8, 0, 0)
	return encoder{b: b, start: len(b) - 3, end: len(b)}
}

// list8Head and list32Head are the octets in front of the fields of a list.
const (
	list8Head  = 3
	list32Head = 9
)

// finish ends the composite.
func (e *encoder) finish() []byte {
	if e.kept == 0 {
		return append(e.b[:e.start], cList0)
	}
	b := e.b[:e.end]
	fields := e.start + list8Head
	if size := len(b) - fields + 1; size <= math.MaxUint8 {
		b[e.start+1], b[e.start+2] = byte(size), byte(e.kept)
		return b
	}
	b = append(b, make([]byte, list32Head-list8Head)...)
	copy(b[e.start+list32Head:], b[fields:])
	b[e.start] = cList32
	binary.BigEndian.PutUint32(b[e.start+1:], uint32(len(b)-e.start-5))
	binary.BigEndian.PutUint32(b[e.start+5:], uint32(e.kept))
	return b
}

// put appends a field, which must be what follows e.b in b.
func (e *encoder) put(b []byte) {
	e.b = b
	e.n++
	e.kept, e.end = e.n, len(b)
}

func (e *encoder) null() {
	e.b = append(e.b, cNull)
	e.n++
}

func (e *encoder) boolean(v bool)        { e.put(AppendBool(e.b, v)) }
func (e *encoder) ubyte(v byte)          { e.put(AppendUbyte(e.b, v)) }
func (e *encoder) ushort(v uint16)       { e.put(AppendUshort(e.b, v)) }
func (e *encoder) uint(v uint32)         { e.put(AppendUint(e.b, v)) }
func (e *encoder) ulong(v uint64)        { e.put(AppendUlong(e.b, v)) }
func (e *encoder) timestamp(v int64)     { e.put(AppendTimestamp(e.b, v)) }
func (e *encoder) binary(v []byte)       { e.put(AppendBinary(e.b, v)) }
func (e *encoder) text(v []byte)         { e.put(AppendString(e.b, v)) }
func (e *encoder) token(v []byte)        { e.put(AppendSymbol(e.b, v)) }
func (e *encoder) string(v string)       { e.put(AppendString(e.b, v)) }
func (e *encoder) symbol(v string)       { e.put(AppendSymbol(e.b, v)) }
func (e *encoder) symbols(v []string)    { e.put(AppendSymbols(e.b, v)) }
func (e *encoder) any(v RawValue)        { e.put(append(e.b, v...)) }
func (e *encoder) mapping(v MapBytes)    { e.put(append(e.b, v...)) }
func (e *encoder) composite(c Composite) { e.put(c.appendTo(e.b)) }
