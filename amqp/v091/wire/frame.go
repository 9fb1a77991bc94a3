package wire

import (
	"encoding/binary"
	"fmt"
)

// FrameOverhead is the number of octets a frame has beyond its payload. A
// negotiated frame size includes it.
const FrameOverhead = frameHeadSize + 1

const frameHeadSize = 7

// FrameHead is the start of a frame as the wire has it.
type FrameHead struct {
	Type    byte
	Channel uint16
	Size    uint32 // of the payload
}

// Frame is one frame as a Reader returns it.
type Frame struct {
	Type    byte
	Channel uint16
	Payload []byte // valid until the next call of the Reader
}

// AppendFrameStart appends what comes in front of a payload of size octets.
// The caller appends, or sends, payload and FrameEnd behind it; so a large body
// can be written from where it lies.
func AppendFrameStart(dst []byte, typ byte, channel uint16, size uint32) []byte {
	dst = append(dst, typ)
	dst = binary.BigEndian.AppendUint16(dst, channel)
	return binary.BigEndian.AppendUint32(dst, size)
}

// MaxPayload is the largest payload of a frame when frameMax is negotiated; 0
// means no limit. What is below the protocol's minimum counts as the minimum.
func MaxPayload(frameMax uint32) int {
	if frameMax == 0 {
		return 1<<31 - 1
	}
	return int(max(frameMax, FrameMinSize)) - FrameOverhead
}

// AppendBody appends body in frames of at most frameMax octets each, none for
// an empty body.
func AppendBody(dst []byte, channel uint16, body []byte, frameMax uint32) []byte {
	limit := MaxPayload(frameMax)
	for len(body) > 0 {
		n := min(len(body), limit)
		dst = AppendFrameStart(dst, FrameBody, channel, uint32(n))
		dst = append(dst, body[:n]...)
		dst = append(dst, FrameEnd)
		body = body[n:]
	}
	return dst
}

// AppendHeartbeat appends a heartbeat frame.
func AppendHeartbeat(dst []byte) []byte {
	return append(AppendFrameStart(dst, FrameHeartbeat, 0, 0), FrameEnd)
}

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
