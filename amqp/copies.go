package amqp

import (
	"fmt"

	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// Headers that name more routing keys of a publish. Receivers see the first.
const (
	headerCC  = "CC"
	headerBCC = "BCC"
)

// maxCopies bounds the keys of each, in bytes with one more for each key.
const maxCopies = 1<<16 - 1

// copies appends the routing keys of a header that lists some. What is no text
// is ignored. The error is a precondition refusal: of another type of header, of
// a text that is too long for a routing key, or of too many of them. What can be
// used is appended all the same.
func copies(dst []string, p *wire.Properties, header string) ([]string, error) {
	v, ok := p.Header(header)
	if !ok {
		return dst, nil
	}
	if v.Tag != wire.TagArray {
		return dst, refuseHeader(header, v.Tag)
	}
	size, err := 0, error(nil)
	for _, key := range v.Array {
		switch {
		case key.Tag != wire.TagString:
		case len(key.Str) > fsm.MaxShort:
			err = refuseCopies("a routing key of %d bytes in %s, at most %d are allowed", len(key.Str), header, fsm.MaxShort)
		case size+1+len(key.Str) > maxCopies:
			return dst, refuseCopies("more than %d bytes of routing keys in %s", maxCopies, header)
		default:
			size += 1 + len(key.Str)
			dst = append(dst, key.Str)
		}
	}
	return dst, err
}

func refuseCopies(format string, args ...any) error {
	return fsm.Refuse(fsm.Precondition, "invalid message: "+fmt.Sprintf(format, args...))
}

func refuseHeader(header string, tag byte) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message: {unacceptable_type_in_header,%q,%s}", header, fsm.TypeName(uint32(tag))))
}
