package wire

import (
	"encoding/binary"
	"unicode/utf8"
)

// failure is what is wrong with the arguments of a method.
type failure byte

const (
	fine failure = iota
	badLength
	badUTF8
	badTable
)

// arguments reads the arguments of one method front to back. The first
// failure stays and empties the rest; values read after it are zero.
type arguments struct {
	rest []byte
	bad  failure
}

func (a *arguments) fail(f failure) {
	if a.bad == fine {
		a.bad = f
	}
	a.rest = nil
}

// take returns the next n bytes, or nil if there are not so many.
func (a *arguments) take(n uint64) []byte {
	if n > uint64(len(a.rest)) {
		a.fail(badLength)
		return nil
	}
	b := a.rest[:n]
	a.rest = a.rest[n:]
	return b
}

func (a *arguments) octet() byte {
	if b := a.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (a *arguments) short() uint16 {
	if b := a.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (a *arguments) long() uint32 {
	if b := a.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a *arguments) longlong() uint64 {
	if b := a.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// shortstrBytes returns a view of a short string, which must be UTF-8.
func (a *arguments) shortstrBytes() []byte {
	b := a.take(uint64(a.octet()))
	if !utf8.Valid(b) {
		a.fail(badUTF8)
		return nil
	}
	return b
}

func (a *arguments) shortstr() string { return string(a.shortstrBytes()) }

func (a *arguments) longstr() string { return string(a.take(uint64(a.long()))) }

func (a *arguments) table() Table { return buildTable(string(a.fields(maxArgumentValues))) }

// fields returns a view of a table of at most so many values, without its length and
// checked throughout.
func (a *arguments) fields(values int) []byte {
	size := a.long()
	if a.bad != fine {
		return nil
	}
	if uint64(size) > uint64(len(a.rest)) {
		a.fail(badTable)
		return nil
	}
	b := a.take(uint64(size))
	if !validFields(b, values) {
		a.fail(badTable)
		return nil
	}
	return b
}

// finish returns what is wrong with the method frame whose payload was read.
func (a *arguments) finish(payload []byte) error {
	if a.bad == fine && len(a.rest) == 0 {
		return nil
	}
	var e *Error
	switch a.bad {
	case badTable:
		e = malformedTable()
	case badUTF8:
		e = &Error{Code: CodeFrameError, Text: "Malformed UTF-8 in shortstr"}
	default:
		// More octets than a reply text can show are not worth rendering.
		e = &Error{Code: CodeFrameError, Text: "cannot decode " + octets(payload[4:min(len(payload), 4+maxShortstr)])}
	}
	e.ClassID = binary.BigEndian.Uint16(payload)
	e.MethodID = binary.BigEndian.Uint16(payload[2:])
	return e
}

// appendShortstr appends s with its length. A short string has no room for
// more than 255 bytes: what is longer is cut between two runes.
func appendShortstr[B encoded](dst []byte, s B) []byte {
	if len(s) > maxShortstr {
		n := maxShortstr
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return append(append(dst, byte(len(s))), s...)
}

func appendLongstr(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(s))), s...)
}

// bit returns an octet with one bit set if b holds.
func bit(b bool, position int) byte {
	if b {
		return 1 << position
	}
	return 0
}
