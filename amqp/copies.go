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

// copies appends the routing keys of a header that lists some. What is no text,
// or too long for a routing key, is ignored. The error is a precondition
// refusal.
func copies(dst []string, p *wire.Properties, header string) ([]string, error) {
	v, ok := p.Header(header)
	if !ok {
		return dst, nil
	}
	if v.Tag != wire.TagArray {
		return dst, refuseHeader(header, v.Tag)
	}
	size := 0
	for _, key := range v.Array {
		if key.Tag != wire.TagString || len(key.Str) > 255 {
			continue
		}
		if size += 1 + len(key.Str); size > maxCopies {
			break
		}
		dst = append(dst, key.Str)
	}
	return dst, nil
}

func refuseHeader(header string, tag byte) error {
	return fsm.Refuse(fsm.Precondition, fmt.Sprintf("invalid message: {unacceptable_type_in_header,%q,%s}", header, fsm.TypeName(uint32(tag))))
}
