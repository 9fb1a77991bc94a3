package client

import (
	"encoding/binary"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Constructors and descriptors of AMQP 1.0 that the client writes.
const (
	codeOpen, codeBegin, codeAttach, codeFlow, codeTransfer      = 0x10, 0x11, 0x12, 0x13, 0x14
	codeDisposition, codeDetach, codeEnd, codeClose              = 0x15, 0x16, 0x17, 0x18
	codeAccepted, codeRejected, codeReleased                     = 0x24, 0x25, 0x26
	codeSource, codeTarget, codeSASLInit, codeSASLOutcome        = 0x28, 0x29, 0x41, 0x44
	sectionHeader, sectionAnnotations, sectionProperties         = 0x70, 0x72, 0x73
	sectionData                                             byte = 0x75
)

var (
	null, yes, no = []byte{0x40}, []byte{0x41}, []byte{0x42}
	errDamaged    = errors.New("a frame that cannot be read")
)

func number10(n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0x70}, n) }

// sized is a value of variable width, with its length in four octets.
func sized(constructor byte, b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{constructor}, uint32(len(b))), b...)
}

func string10(s string) []byte { return sized(0xb1, []byte(s)) }
func symbol10(s string) []byte { return sized(0xb3, []byte(s)) }

// compound is a list (0xd0) or a map (0xd1).
func compound(constructor byte, values ...[]byte) []byte {
	all := Join(values...)
	head := binary.BigEndian.AppendUint32([]byte{constructor}, uint32(len(all)+4))
	return append(binary.BigEndian.AppendUint32(head, uint32(len(values))), all...)
}

// described is a value with a descriptor, such as a performative or a section.
func described(code byte, value []byte) []byte { return append([]byte{0x00, 0x53, code}, value...) }

func performative(code byte, fields ...[]byte) []byte {
	return described(code, compound(0xd0, fields...))
}

// frame10 puts the frame's head in front of a body.
func frame10(kind byte, body ...[]byte) []byte {
	all := Join(body...)
	b := binary.BigEndian.AppendUint32(nil, uint32(len(all)+8))
	return append(append(b, 2, kind, 0, 0), all...)
}

// value10 is a value of a header table in AMQP 1.0.
func value10(v any) []byte {
	switch v := v.(type) {
	case bool:
		if v {
			return yes
		}
		return no
	case string:
		return string10(v)
	case int:
		return value10(int64(v))
	case int32:
		return value10(int64(v))
	case int64:
		return binary.BigEndian.AppendUint64([]byte{0x81}, uint64(v))
	case time.Time:
		return binary.BigEndian.AppendUint64([]byte{0x83}, uint64(v.UnixMilli()))
	}
	return null
}

// map10 is a map with symbols for keys.
func map10(t amqp.Table) []byte {
	var all [][]byte
	for name, v := range t {
		all = append(all, symbol10(name), value10(v))
	}
	return compound(0xd1, all...)
}

// size10 is the length of the value that b begins with; 0: there is none.
func size10(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	n, width := 0, int(0)
	switch c := b[0]; c >> 4 {
	case 0:
		d := size10(b[1:])
		if d == 0 {
			return 0
		}
		v := size10(b[1+d:])
		if v == 0 {
			return 0
		}
		return 1 + d + v
	case 4, 5, 6, 7, 8, 9:
		n = 1 + [...]int{0, 1, 2, 4, 8, 16}[c>>4-4]
	case 0xa, 0xc, 0xe:
		width = 1
	case 0xb, 0xd, 0xf:
		width = 4
	default:
		return 0
	}
	if width > 0 {
		if len(b) < 1+width {
			return 0
		}
		if n = 2 + int(b[1]); width == 4 {
			n = 5 + int(binary.BigEndian.Uint32(b[1:]))
		}
	}
	if n > len(b) {
		return 0
	}
	return n
}

// content is the code of a described value and what follows its descriptor.
func content(b []byte) (code byte, value []byte, err error) {
	switch {
	case len(b) > 3 && b[0] == 0 && b[1] == 0x53:
		return b[2], b[3:], nil
	case len(b) > 10 && b[0] == 0 && b[1] == 0x80:
		return b[9], b[10:], nil
	}
	return 0, nil, errDamaged
}

// elements are the values of a list, a map or an array of maps.
func elements(b []byte) [][]byte {
	if size10(b) == 0 {
		return nil
	}
	var count int
	var rest []byte
	switch b[0] {
	case 0xc0, 0xc1, 0xe0:
		count, rest = int(b[2]), b[3:]
	case 0xd0, 0xd1, 0xf0:
		count, rest = int(binary.BigEndian.Uint32(b[5:])), b[9:]
	}
	var all [][]byte
	if len(b) > 0 && b[0]>>4 >= 0xe && len(rest) > 0 { // elements of an array share a constructor
		constructor := rest[0]
		rest = rest[1:]
		for range count {
			one := append([]byte{constructor}, rest...)
			n := size10(one)
			if n == 0 {
				return all
			}
			all, rest = append(all, one[:n]), rest[n-1:]
		}
		return all
	}
	for range count {
		n := size10(rest)
		if n == 0 {
			return all
		}
		all, rest = append(all, rest[:n]), rest[n:]
	}
	return all
}

// uint10 is an unsigned value, or a timestamp.
func uint10(b []byte) uint64 {
	n := size10(b)
	if n == 0 || b[0] == 0x40 {
		return 0
	}
	u := uint64(0)
	for _, x := range b[1:n] {
		u = u<<8 | uint64(x)
	}
	return u
}

// bytes10 are those of a string, a symbol or a binary.
func bytes10(b []byte) []byte {
	switch n := size10(b); {
	case n == 0:
	case b[0]>>4 == 0xa:
		return b[2:n]
	case b[0]>>4 == 0xb:
		return b[5:n]
	}
	return nil
}

func text10(b []byte) string { return string(bytes10(b)) }

// list is the fields of a performative. Reading them allocates nothing.
type list [16][]byte

// fields reads those of the list that b begins with.
func fields(b []byte) (f list, err error) {
	n := size10(b)
	if n == 0 {
		return f, errDamaged
	}
	var rest []byte
	switch b[0] {
	case 0x45:
		return f, nil
	case 0xc0:
		rest = b[3:n]
	case 0xd0:
		rest = b[9:n]
	default:
		return f, errDamaged
	}
	for i := 0; i < len(f) && len(rest) > 0; i++ {
		n := size10(rest)
		if n == 0 {
			return f, errDamaged
		}
		f[i], rest = rest[:n], rest[n:]
	}
	return f, nil
}

// is reports whether a field is true.
func is(b []byte) bool {
	return len(b) == 1 && b[0] == 0x41 || len(b) == 2 && b[0] == 0x56 && b[1] == 1
}

func isNull(b []byte) bool { return len(b) == 0 || b[0] == 0x40 }
