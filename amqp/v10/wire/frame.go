package wire

import "encoding/binary"

// Types of frames.
const (
	FrameAMQP = 0
	FrameSASL = 1
)

// FrameMinSize is the least that a peer may set as the size of the largest frame.
const FrameMinSize = 512

// frameHead is the number of octets in front of a frame's body.
const frameHead = 8

// Frame is one frame as a Reader returns it.
type Frame struct {
	Channel uint16
	Body    []byte // valid until the next call of the Reader; empty: a heartbeat
}

// ProtocolHeader is the header of the protocol: its id is 0 for AMQP, 3 for SASL.
func ProtocolHeader(id byte) [8]byte { return [8]byte{'A', 'M', 'Q', 'P', id, 1, 0, 0} }

// AppendFrame appends a whole frame.
func AppendFrame(dst []byte, channel uint16, c Composite) []byte {
	typ := byte(FrameAMQP)
	if code := c.facts().code; code >= factsOfSASLMechanisms.code && code <= factsOfSASLOutcome.code {
		typ = FrameSASL
	}
	at := len(dst)
	return endFrame(c.appendTo(startFrame(dst, typ, channel)), at, 0)
}

// AppendTransfer appends the frame of a transfer without its payload of so many octets, which the caller
// appends or sends behind it. It allocates nothing.
func AppendTransfer(dst []byte, channel uint16, t *Transfer, payload int) []byte {
	at := len(dst)
	return endFrame(t.appendTo(startFrame(dst, FrameAMQP, channel)), at, payload)
}

// AppendDisposition is AppendFrame without allocating.
func AppendDisposition(dst []byte, channel uint16, d *Disposition) []byte {
	at := len(dst)
	return endFrame(d.appendTo(startFrame(dst, FrameAMQP, channel)), at, 0)
}

// AppendFlow is AppendFrame without allocating.
func AppendFlow(dst []byte, channel uint16, f *Flow) []byte {
	at := len(dst)
	return endFrame(f.appendTo(startFrame(dst, FrameAMQP, channel)), at, 0)
}

// AppendHeartbeat appends an empty frame.
func AppendHeartbeat(dst []byte) []byte {
	at := len(dst)
	return endFrame(startFrame(dst, FrameAMQP, 0), at, 0)
}

// startFrame appends the start of a frame whose size is open.
func startFrame(dst []byte, typ byte, channel uint16) []byte {
	return append(dst, 0, 0, 0, 0, frameHead/4, typ, byte(channel>>8), byte(channel))
}

// endFrame sets the size of the frame that starts at position at, which more octets follow.
func endFrame(dst []byte, at, more int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at+more))
	return dst
}
