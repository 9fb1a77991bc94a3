package client

import (
	"encoding/binary"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/quorate/quorate/jepsen/internal/frames"
)

// Descriptors of AMQP 1.0 that the client reads.
const (
	codeBegin, codeAttach, codeFlow, codeTransfer, codeDisposition, codeDetach, codeEnd, codeClose = 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18
	codeAccepted, codeSASLOutcome                                                                  = 0x24, 0x44
	sectionHeader, sectionAnnotations, sectionProperties, sectionData                              = 0x70, 0x72, 0x73, 0x75
)

var errDamaged = errors.New("a frame that cannot be read")

// map10 is a table as AMQP 1.0 has it, with symbols for keys.
func map10(t amqp.Table) (m frames.Map) {
	for name, v := range t {
		switch n := v.(type) {
		case int:
			v = int64(n)
		case int32:
			v = int64(n)
		case time.Time:
			v = frames.Timestamp(n.UnixMilli())
		}
		m = append(m, frames.Symbol(name), v)
	}
	return m
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
