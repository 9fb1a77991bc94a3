package fsm

import "encoding/binary"

// Payload is one message as it lies in the log, verbatim from publish to
// delivery:
//
//	exchange     length (1 byte), bytes
//	routing key  length (1 byte), bytes
//	properties   length (4 bytes, big endian), encoded AMQP property list:
//	             flags and values as in a content header frame
//	body         the rest
//
// The accessors need a valid payload (see Valid) and return slices of it.
type Payload []byte

// PayloadSize is the length of a payload with these parts.
func PayloadSize(exchange, routingKey, properties, body int) int {
	return 1 + exchange + 1 + routingKey + 4 + properties + body
}

// AppendPayloadHead appends everything but the body, which the caller appends.
// exchange and routingKey are at most 255 bytes long.
func AppendPayloadHead(dst []byte, exchange, routingKey string, properties []byte) []byte {
	dst = append(append(dst, byte(len(exchange))), exchange...)
	dst = append(append(dst, byte(len(routingKey))), routingKey...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(properties)))
	return append(dst, properties...)
}

// Valid reports whether all lengths inside p fit into p.
func (p Payload) Valid() bool {
	if len(p) < 1 {
		return false
	}
	at := 1 + int(p[0])
	if len(p) < at+1 {
		return false
	}
	at += 1 + int(p[at])
	if len(p) < at+4 {
		return false
	}
	return uint64(len(p)) >= uint64(at)+4+uint64(binary.BigEndian.Uint32(p[at:]))
}

// Exchange returns the name of the exchange the message was published to.
func (p Payload) Exchange() []byte { return p[1 : 1+p[0]] }

// RoutingKey returns the key the message was published with.
func (p Payload) RoutingKey() []byte {
	at := 1 + int(p[0])
	return p[at+1 : at+1+int(p[at])]
}

// Properties returns the encoded property list.
func (p Payload) Properties() []byte {
	at, n := p.properties()
	return p[at : at+n]
}

// Body returns the message body.
func (p Payload) Body() []byte {
	at, n := p.properties()
	return p[at+n:]
}

// HeadSize is the length of what comes before the encoded property list.
func (p Payload) HeadSize() int {
	at, _ := p.properties()
	return at
}

func (p Payload) properties() (at, n int) {
	at = 1 + int(p[0])
	at += 1 + int(p[at])
	return at + 4, int(binary.BigEndian.Uint32(p[at:]))
}
