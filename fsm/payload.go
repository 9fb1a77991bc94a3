package fsm

import (
	"encoding/binary"
	"errors"
	"math"
)

// Payload is one message as it lies in the log, verbatim from publish to
// delivery:
//
//	exchange     length (1 byte), bytes
//	routing key  length (1 byte), bytes
//	properties   length (4 bytes, big endian), encoded AMQP property list:
//	             flags and values as in a content header frame
//	blind keys   only if the properties' length has its highest bit set: length
//	             (2 bytes, big endian), keys, each as length (1 byte), bytes
//	body         the rest
//
// A message that came by AMQP 1.0 lies there in a second form, see bare.go: its
// header and annotations are in the place of the property list, the bare message
// in that of the body.
//
// Blind keys are routing keys of the publish that no receiver may see. They are
// kept for the dead letter of the message, which is routed by all of its keys.
//
// The accessors need a valid payload (see Valid) and return slices of it.
type Payload []byte

const (
	// blindBit is set in the properties' length if there are blind keys.
	blindBit = 1 << 31
	// bareBit is set there in the form of AMQP 1.0.
	bareBit = 1 << 30
)

// PayloadSize is the length of a payload with these parts and no blind keys.
func PayloadSize(exchange, routingKey, properties, body int) int {
	return 1 + exchange + 1 + routingKey + 4 + properties + body
}

// BlindSize is how much blind keys add to the payload.
func BlindSize(keys []string) int {
	if len(keys) == 0 {
		return 0
	}
	n := 2
	for _, k := range keys {
		n += 1 + len(k)
	}
	return n
}

// ErrHead is returned if a part of a payload is longer than its length field
// can express.
var ErrHead = errors.New("part of a message is longer than a payload can hold")

// AppendHead appends everything but the body, which the caller appends. It
// returns ErrHead, and dst, if exchange, routingKey or one of the blind keys is
// longer than MaxShort, or if all blind keys together do not fit.
func AppendHead(dst []byte, exchange, routingKey string, properties []byte, blind []string) ([]byte, error) {
	if !headFits(exchange, routingKey, len(properties), blind) {
		return dst, ErrHead
	}
	dst = appendWay(dst, exchange, routingKey, len(properties), 0, blind)
	return appendBlind(append(dst, properties...), blind), nil
}

// appendWay appends what comes before the property list, or what is in its place.
func appendWay(dst []byte, exchange, routingKey string, properties int, form uint32, blind []string) []byte {
	dst = append(append(dst, byte(len(exchange))), exchange...)
	dst = append(append(dst, byte(len(routingKey))), routingKey...)
	size := uint32(properties) | form
	if len(blind) > 0 {
		size |= blindBit
	}
	return binary.BigEndian.AppendUint32(dst, size)
}

// appendBlind appends the section of blind keys.
func appendBlind(dst []byte, blind []string) []byte {
	if len(blind) == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(BlindSize(blind)-2))
	for _, k := range blind {
		dst = append(append(dst, byte(len(k))), k...)
	}
	return dst
}

func headFits(exchange, routingKey string, properties int, blind []string) bool {
	if len(exchange) > MaxShort || len(routingKey) > MaxShort || properties >= bareBit || BlindSize(blind)-2 > math.MaxUint16 {
		return false
	}
	for _, k := range blind {
		if len(k) > MaxShort {
			return false
		}
	}
	return true
}

// AppendPayloadHead is AppendHead for parts that are known to fit; it panics if
// they do not.
func AppendPayloadHead(dst []byte, exchange, routingKey string, properties []byte) []byte {
	dst, err := AppendHead(dst, exchange, routingKey, properties, nil)
	if err != nil {
		panic(err)
	}
	return dst
}

// Readable returns p if it is valid. Otherwise it returns a payload with p as
// its body and without exchange, routing key and properties: an older program
// may have written invalid bytes to a log or a link, and a consumer must still
// get the message.
func Readable(p []byte) Payload {
	if Payload(p).Valid() {
		return p
	}
	return append(AppendPayloadHead(make([]byte, 0, PayloadSize(0, 0, 0, len(p))), "", "", nil), p...)
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
	n := binary.BigEndian.Uint32(p[at:])
	size := int64(n &^ (blindBit | bareBit))
	if n&bareBit != 0 && size < bareHeaderSize {
		return false
	}
	rest := int64(len(p)-at-4) - size
	if n&blindBit == 0 || rest < 2 {
		return rest >= 0 && n&blindBit == 0
	}
	return validKeys(p[int64(len(p))-rest:])
}

// validKeys reports whether b begins with a section of blind keys.
func validKeys(b []byte) bool {
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n {
		return false
	}
	for b = b[2 : 2+n]; len(b) > 0; b = b[1+int(b[0]):] {
		if len(b) < 1+int(b[0]) {
			return false
		}
	}
	return true
}

// Exchange returns the name of the exchange the message was published to.
func (p Payload) Exchange() []byte { return p[1 : 1+int(p[0])] }

// RoutingKey returns the key the message was published with.
func (p Payload) RoutingKey() []byte {
	at := 1 + int(p[0])
	return p[at+1 : at+1+int(p[at])]
}

// Properties returns the encoded property list. It is empty in the form of AMQP
// 1.0, whose properties are in the bare message.
func (p Payload) Properties() []byte {
	at, n, _ := p.properties()
	if p.IsBare() {
		return nil
	}
	return p[at : at+n]
}

// List returns the encoded property list, or what is in its place in the form of
// AMQP 1.0: the header values and the annotations, see AppendBareList.
func (p Payload) List() []byte {
	at, n, _ := p.properties()
	return p[at : at+n]
}

// Repack returns a payload of p's form with p's body and other parts; list is what
// List returns for it. The error is ErrHead.
func (p Payload) Repack(exchange, routingKey string, list []byte, blind []string) (Payload, error) {
	if !headFits(exchange, routingKey, len(list), blind) {
		return nil, ErrHead
	}
	form := uint32(0)
	if p.IsBare() {
		form = bareBit
	}
	body := p.Body()
	out := make([]byte, 0, PayloadSize(len(exchange), len(routingKey), len(list), len(body))+BlindSize(blind))
	out = append(appendWay(out, exchange, routingKey, len(list), form, blind), list...)
	return append(appendBlind(out, blind), body...), nil
}

// BlindKeys returns copies of the blind keys.
func (p Payload) BlindKeys() (keys []string) {
	at, n, blind := p.properties()
	if blind == 0 {
		return nil
	}
	for rest := p[at+n+2 : at+n+blind]; len(rest) > 0; rest = rest[1+int(rest[0]):] {
		keys = append(keys, string(rest[1:1+int(rest[0])]))
	}
	return keys
}

// Body returns the message body; in the form of AMQP 1.0 the bare message and its
// footer.
func (p Payload) Body() []byte {
	at, n, blind := p.properties()
	return p[at+n+blind:]
}

// HeadSize is the length of what comes before the encoded property list, or before
// what is in its place.
func (p Payload) HeadSize() int {
	at, _, _ := p.properties()
	return at
}

// properties returns where the property list, or what is in its place, begins, its length, and that of
// the section of blind keys behind it.
func (p Payload) properties() (at, n, blind int) {
	at = 1 + int(p[0])
	at += 1 + int(p[at])
	size := binary.BigEndian.Uint32(p[at:])
	at, n = at+4, int(size&^(blindBit|bareBit))
	if size&blindBit != 0 {
		blind = 2 + int(binary.BigEndian.Uint16(p[at+n:]))
	}
	return at, n, blind
}
