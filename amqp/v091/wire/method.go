package wire

import "encoding/binary"

// Method is one method of the protocol: a pointer to one of the generated
// structs. Its strings are copies; reserved arguments are omitted, ignored when
// read and written as zero.
type Method interface {
	ClassID() uint16
	MethodID() uint16
	appendArgs([]byte) []byte
}

// readable is a Method whose arguments can be decoded.
type readable interface {
	Method
	readArgs(*arguments)
}

// PeekID returns the id of the method in the payload of a method frame, for
// comparison with the ID constants, and 0 if the payload is too short for one.
func PeekID(payload []byte) uint32 {
	if len(payload) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(payload)
}

// ID returns the id of m: its class in the upper and its method number in the
// lower half, like the ID constants.
func ID(m Method) uint32 { return uint32(m.ClassID())<<16 | uint32(m.MethodID()) }

// DecodeMethod decodes the payload of a method frame. The result shares nothing
// with payload. Errors are *Error: 501 for arguments that are too short, too
// long or not UTF-8, 502 for a malformed table, 503 for an unknown method. All
// but the last name the method in ClassID and MethodID; the caller decides
// whether a client sees that.
func DecodeMethod(payload []byte) (Method, error) {
	if len(payload) < 4 {
		return nil, frameError(FrameMethod, payload, "unknown_frame")
	}
	m := newMethod(PeekID(payload))
	if m == nil {
		return nil, &Error{Code: CodeCommandInvalid, Text: "unimplemented method"}
	}
	a := arguments{rest: payload[4:]}
	m.readArgs(&a)
	if err := a.finish(payload); err != nil {
		return nil, err
	}
	return m, nil
}

// BasicPublishView is basic.publish with its strings still in the payload of
// the frame; it is valid as long as the payload is.
type BasicPublishView struct {
	Exchange, RoutingKey []byte
	Mandatory, Immediate bool
}

// DecodePublish reads the payload of a frame with IDBasicPublish into p,
// without allocating. Errors are as those of DecodeMethod.
func DecodePublish(payload []byte, p *BasicPublishView) error {
	a := arguments{rest: payload[4:]}
	a.short() // reserved
	p.Exchange = a.shortstrBytes()
	p.RoutingKey = a.shortstrBytes()
	bits := a.octet()
	p.Mandatory = bits&1 != 0
	p.Immediate = bits&2 != 0
	return a.finish(payload)
}

// DecodeAck reads the payload of a frame with IDBasicAck into m, without
// allocating.
func DecodeAck(payload []byte, m *BasicAck) error {
	a := arguments{rest: payload[4:]}
	m.readArgs(&a)
	return a.finish(payload)
}

// DecodeNack reads the payload of a frame with IDBasicNack into m, without
// allocating.
func DecodeNack(payload []byte, m *BasicNack) error {
	a := arguments{rest: payload[4:]}
	m.readArgs(&a)
	return a.finish(payload)
}

// DecodeReject reads the payload of a frame with IDBasicReject into m, without
// allocating.
func DecodeReject(payload []byte, m *BasicReject) error {
	a := arguments{rest: payload[4:]}
	m.readArgs(&a)
	return a.finish(payload)
}

// AppendMethod appends a complete method frame. Short strings longer than 255
// bytes are truncated.
func AppendMethod(dst []byte, channel uint16, m Method) []byte {
	dst, at := startMethod(dst, channel, ID(m))
	return endFrame(m.appendArgs(dst), at)
}

// AppendDeliver appends a whole basic.deliver frame without allocating.
func AppendDeliver(dst []byte, channel uint16, consumerTag string, deliveryTag uint64, redelivered bool, exchange, routingKey []byte) []byte {
	dst, at := startMethod(dst, channel, IDBasicDeliver)
	dst = appendShortstr(dst, consumerTag)
	dst = binary.BigEndian.AppendUint64(dst, deliveryTag)
	dst = append(dst, bit(redelivered, 0))
	dst = appendShortstr(dst, exchange)
	dst = appendShortstr(dst, routingKey)
	return endFrame(dst, at)
}

// AppendGetOK appends a whole basic.get-ok frame without allocating.
func AppendGetOK(dst []byte, channel uint16, deliveryTag uint64, redelivered bool, exchange, routingKey []byte, messageCount uint32) []byte {
	dst, at := startMethod(dst, channel, IDBasicGetOK)
	dst = binary.BigEndian.AppendUint64(dst, deliveryTag)
	dst = append(dst, bit(redelivered, 0))
	dst = appendShortstr(dst, exchange)
	dst = appendShortstr(dst, routingKey)
	dst = binary.BigEndian.AppendUint32(dst, messageCount)
	return endFrame(dst, at)
}

// AppendAck appends a whole basic.ack frame without allocating.
func AppendAck(dst []byte, channel uint16, deliveryTag uint64, multiple bool) []byte {
	dst, at := startMethod(dst, channel, IDBasicAck)
	dst = binary.BigEndian.AppendUint64(dst, deliveryTag)
	return endFrame(append(dst, bit(multiple, 0)), at)
}

// AppendNack appends a complete basic.nack frame without allocating. When a
// broker nacks a publish, requeue has no meaning and is not set.
func AppendNack(dst []byte, channel uint16, deliveryTag uint64, multiple bool) []byte {
	dst, at := startMethod(dst, channel, IDBasicNack)
	dst = binary.BigEndian.AppendUint64(dst, deliveryTag)
	return endFrame(append(dst, bit(multiple, 0)), at)
}

// startMethod appends the start of a frame, with the size still open, and the
// id. at is for endFrame.
func startMethod(dst []byte, channel uint16, id uint32) (frame []byte, at int) {
	dst = AppendFrameStart(dst, FrameMethod, channel, 0)
	return binary.BigEndian.AppendUint32(dst, id), len(dst) - 4
}

// endFrame sets the size of the frame whose size field lies at position at,
// and ends it.
func endFrame(dst []byte, at int) []byte {
	return append(setLength(dst, at), FrameEnd)
}
