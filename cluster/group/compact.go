package group

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io"
	"reflect"
)

// A struct is encoded field by field, without names: numbers as varints, what has a length with it, a pointer with whether it
// is nil. Fields that are not exported are left out. Who reads it has to have the same type: see layout.

// appendFields appends a value's encoding.
func appendFields(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Bool:
		return append(b, bit(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	case reflect.String:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...)
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0)
		}
		return appendFields(append(b, 1), v.Elem())
	case reflect.Slice:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(b, v.Bytes()...)
		}
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			b = appendFields(b, v.Index(i))
		}
		return b
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				b = appendFields(b, v.Field(i))
			}
		}
		return b
	}
	panic("a " + v.Kind().String() + " has no encoding")
}

func bit(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// fieldReader decodes what appendFields has encoded. What is too short, or no encoding, leaves an error.
type fieldReader struct {
	b   []byte
	err error
}

// end returns the first error, or that something is left.
func (r *fieldReader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return errors.New("bytes are left")
	}
	return r.err
}

func (r *fieldReader) uvarint() uint64 {
	n, size := binary.Uvarint(r.b)
	return decoded(r, n, size)
}

func (r *fieldReader) varint() int64 {
	n, size := binary.Varint(r.b)
	return decoded(r, n, size)
}

func decoded[N int64 | uint64](r *fieldReader, n N, size int) N {
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

func (r *fieldReader) fail() { r.b, r.err = nil, io.ErrUnexpectedEOF }

// take returns the next bytes.
func (r *fieldReader) take(n uint64) (b []byte) {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b, r.b = r.b[:n:n], r.b[n:]
	return b
}

// read decodes a value. Slices of bytes are parts of what is read.
func (r *fieldReader) read(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.uvarint() != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.varint())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.uvarint())
	case reflect.String:
		v.SetString(string(r.take(r.uvarint())))
	case reflect.Pointer:
		if r.uvarint() != 0 {
			v.Set(reflect.New(v.Type().Elem()))
			r.read(v.Elem())
		}
	case reflect.Slice:
		r.slice(v)
	case reflect.Array:
		for i := range v.Len() {
			r.read(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				r.read(v.Field(i))
			}
		}
	default:
		panic("a " + v.Kind().String() + " has no encoding")
	}
}

func (r *fieldReader) slice(v reflect.Value) {
	n := r.uvarint()
	switch {
	case n == 0:
		return
	case n > uint64(len(r.b)):
		r.fail()
		return
	case v.Type().Elem().Kind() == reflect.Uint8:
		v.SetBytes(r.take(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
	for i := range int(n) {
		r.read(v.Index(i))
	}
}

// layout is a number for what a type's encoding looks like: another one has, as good as certainly, another number.
func layout(t reflect.Type) uint32 {
	h := fnv.New32a()
	describe(h, t)
	return h.Sum32()
}

func describe(w io.Writer, t reflect.Type) {
	_, _ = io.WriteString(w, t.Kind().String()) // never fails
	switch t.Kind() {
	case reflect.Array:
		_, _ = w.Write([]byte{byte(t.Len())})
		describe(w, t.Elem())
	case reflect.Pointer, reflect.Slice:
		describe(w, t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				_, _ = io.WriteString(w, f.Name)
				describe(w, f.Type)
			}
		}
	}
}
