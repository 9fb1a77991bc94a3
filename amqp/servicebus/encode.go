package servicebus

import (
	"encoding/binary"

	"github.com/quorate/quorate/amqp/v10/wire"
)

// fields is a map that is being encoded, whose keys are texts.
type fields struct {
	b     []byte
	pairs int
}

func newFields() *fields { return &fields{b: wire.StartMap(nil)} }

// key begins a pair; its value is appended next.
func (f *fields) key(name string) []byte {
	f.pairs++
	return wire.AppendString(f.b, name)
}

func (f *fields) timestamp(name string, v int64) { f.b = wire.AppendTimestamp(f.key(name), v) }
func (f *fields) int(name string, v int32)       { f.b = wire.AppendInt(f.key(name), v) }

// raw adds an encoded value.
func (f *fields) raw(name string, v []byte) { f.b = append(f.key(name), v...) }

// binary adds a binary, or null.
func (f *fields) binary(name string, v []byte, null bool) {
	if b := f.key(name); null {
		f.b = wire.AppendNull(b)
	} else {
		f.b = wire.AppendBinary(b, v)
	}
}

func (f *fields) end() []byte { return wire.EndMap(f.b, 0, f.pairs) }

// Constructors of elements of arrays.
const (
	cArray32   = 0xf0
	cLong      = 0x81
	cTimestamp = 0x83
	cString32  = 0xb1
)

// appendArray appends an array of values of eight octets.
func appendArray[N ~int64 | ~uint64](b []byte, constructor byte, values []N) []byte {
	b = startArray(b, 1+8*len(values), len(values), constructor)
	for _, v := range values {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// appendTexts appends an array of strings.
func appendTexts(b []byte, values []string) []byte {
	size := 1
	for _, v := range values {
		size += 4 + len(v)
	}
	b = startArray(b, size, len(values), cString32)
	for _, v := range values {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	return b
}

func startArray(b []byte, size, count int, constructor byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, cArray32), uint32(4+size))
	return append(binary.BigEndian.AppendUint32(b, uint32(count)), constructor)
}

// maxNamed is how many messages a request may name.
const maxNamed = 1000

// numbersIn reads a list or array of integers.
func numbersIn(v wire.Value) (all []uint64, ok bool) {
	if v.Type != wire.List && v.Type != wire.Array || v.Len() == 0 || v.Len() > maxNamed {
		return nil, false
	}
	for w := v.Walk(); w.Next(); {
		n, is := w.Value.Integer()
		if b := w.Value.Bytes(); w.Value.Type == wire.Binary && len(b) == 8 {
			n, is = int64(binary.BigEndian.Uint64(b)), true
		}
		if !is {
			return nil, false
		}
		all = append(all, uint64(n))
	}
	return all, true
}

// tokensIn reads a list or array of UUIDs.
func tokensIn(v wire.Value) (all []token, ok bool) {
	if v.Type != wire.List && v.Type != wire.Array || v.Len() == 0 || v.Len() > maxNamed {
		return nil, false
	}
	for w := v.Walk(); w.Next(); {
		if b := w.Value.Bytes(); w.Value.Type != wire.UUID && w.Value.Type != wire.Binary || len(b) != 16 {
			return nil, false
		}
		all = append(all, token(w.Value.Bytes()))
	}
	return all, true
}
