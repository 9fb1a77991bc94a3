package wire

import "encoding/binary"

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
