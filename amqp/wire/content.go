package wire

import (
	"encoding/binary"
	"fmt"
)

// MaxBodySize is the largest body a content header may announce.
const MaxBodySize = 512 << 20

// headerSize is the length of a content header without its property list.
const headerSize = 12

// ContentHeader is the payload of a header frame.
type ContentHeader struct {
	Class      uint16
	BodySize   uint64
	Properties []byte // flags and values, a view of the payload, not yet checked
}

// DecodeHeader reads the payload of the header frame that follows the given
// method. Errors name the method and are 505 for a header of another class or
// with a weight, 501 for one that is too short or announces more than
// MaxBodySize.
func DecodeHeader(payload []byte, class, method uint16) (ContentHeader, error) {
	if len(payload) < headerSize {
		return ContentHeader{}, frameError(FrameHeader, payload, "unknown_frame")
	}
	h := ContentHeader{
		Class:      binary.BigEndian.Uint16(payload),
		BodySize:   binary.BigEndian.Uint64(payload[4:]),
		Properties: payload[headerSize:],
	}
	code, text := CodeUnexpectedFrame, ""
	switch weight := binary.BigEndian.Uint16(payload[2:]); {
	case weight != 0:
		return ContentHeader{}, ExpectedHeader(class, method)
	case h.Class != class:
		text = fmt.Sprintf("expected content header for class %d, got one for class %d instead", class, h.Class)
	case h.BodySize > MaxBodySize:
		code = CodeFrameError
		text = fmt.Sprintf("content body size %d exceeds maximum allowed size %d", h.BodySize, MaxBodySize)
	default:
		return h, nil
	}
	return ContentHeader{}, &Error{Code: code, Text: text, ClassID: class, MethodID: method}
}

// AppendHeader appends a whole header frame. properties is an encoded property
// list, flags and values, and goes out as it is; an empty one stands for no
// properties.
func AppendHeader(dst []byte, channel, class uint16, bodySize uint64, properties []byte) []byte {
	if len(properties) == 0 {
		properties = noProperties
	}
	dst = AppendFrameStart(dst, FrameHeader, channel, uint32(headerSize+len(properties)))
	dst = binary.BigEndian.AppendUint16(dst, class)
	dst = append(dst, 0, 0) // weight
	dst = binary.BigEndian.AppendUint64(dst, bodySize)
	dst = append(dst, properties...)
	return append(dst, FrameEnd)
}
