package fsm

import (
	"encoding/binary"

	"github.com/quorate/quorate/proto/logpb"
)

// A message that came by AMQP 1.0 is kept as it came. In the place of the property
// list are
//
//	header        flags (1 byte), priority (1 byte), ttl (4 bytes, big endian): what
//	              of the header section a queue keeps
//	annotations   the map of the message annotations, encoded, verbatim; empty: none
//
// and in the place of the body the bare message and its footer, byte for byte.
// Nothing is decoded to store it or to give it back to a receiver of that protocol.
//
// A program that does not know this form would take it for a message that is
// damaged: so nothing brings one into a log before the cluster has version BareSince.

// BareSince is the machine version from which on messages may lie in logs in the
// form of AMQP 1.0.
const BareSince = 3

// bareHeaderSize is the length of the header values.
const bareHeaderSize = 6

// Flags of the header values.
const (
	bareDurable = 1 << iota
	barePriority
	bareTTL
)

// BareHeader is what a queue keeps of the header section of a message. TTL and
// Priority are as in Publish; a TTL has 32 bits.
type BareHeader struct {
	Durable  bool
	Priority int    // -1: none
	TTL      Millis // -1: none
}

// BareSize is the length of a payload of AMQP 1.0 with these parts and no blind
// keys.
func BareSize(exchange, routingKey, annotations, bare int) int {
	return PayloadSize(exchange, routingKey, bareHeaderSize+annotations, bare)
}

// AppendBareHead appends everything but the bare message, which the caller appends.
// It fails as AppendHead does. A TTL or a priority out of range counts as none.
func AppendBareHead(dst []byte, exchange, routingKey string, h BareHeader, annotations []byte, blind []string) ([]byte, error) {
	n := bareHeaderSize + len(annotations)
	if !headFits(exchange, routingKey, n, blind) {
		return dst, ErrHead
	}
	dst = appendWay(dst, exchange, routingKey, n, bareBit, blind)
	return appendBlind(AppendBareList(dst, h, annotations), blind), nil
}

// AppendBareList appends what is in the place of the property list.
func AppendBareList(dst []byte, h BareHeader, annotations []byte) []byte {
	return append(h.append(dst), annotations...)
}

func (h BareHeader) append(dst []byte) []byte {
	var flags, priority byte
	var ttl uint32
	if h.Durable {
		flags |= bareDurable
	}
	if h.Priority >= 0 && h.Priority <= 255 {
		flags, priority = flags|barePriority, byte(h.Priority)
	}
	if h.TTL >= 0 && h.TTL < 1<<32 {
		flags, ttl = flags|bareTTL, uint32(h.TTL)
	}
	return binary.BigEndian.AppendUint32(append(dst, flags, priority), ttl)
}

// IsBare reports whether p has the form of AMQP 1.0.
func (p Payload) IsBare() bool {
	at := 1 + int(p[0])
	at += 1 + int(p[at])
	return binary.BigEndian.Uint32(p[at:])&bareBit != 0
}

// BareHeader returns the header values of a payload that IsBare.
func (p Payload) BareHeader() BareHeader {
	at, _, _ := p.properties()
	h := BareHeader{Durable: p[at]&bareDurable != 0, Priority: -1, TTL: -1}
	if p[at]&barePriority != 0 {
		h.Priority = int(p[at+1])
	}
	if p[at]&bareTTL != 0 {
		h.TTL = Millis(binary.BigEndian.Uint32(p[at+2:]))
	}
	return h
}

// Annotations returns the encoded map of the message annotations of a payload that
// IsBare; empty: it has none.
func (p Payload) Annotations() []byte {
	at, n, _ := p.properties()
	return p[at+bareHeaderSize : at+n]
}

// MaxAnnotations bounds what receivers have added to one message, and
// MaxAnnotationBytes its keys and values together. The newest annotations that fit are
// kept.
const (
	MaxAnnotations     = 64
	MaxAnnotationBytes = 4096
)

// AnnotationMap encodes annotations as a map of AMQP 1.0; nil: there are none.
func AnnotationMap(list []*logpb.Annotation) []byte {
	size, n := 4, 0
	for _, a := range list {
		if len(a.Key) > 0 {
			size += len(a.Key) + len(a.Value)
			n++
		}
	}
	if n == 0 {
		return nil
	}
	m := append(make([]byte, 0, 5+size), 0xd1) // map32
	m = binary.BigEndian.AppendUint32(m, uint32(size))
	m = binary.BigEndian.AppendUint32(m, uint32(2*n))
	for _, a := range list {
		if len(a.Key) > 0 {
			m = append(append(m, a.Key...), a.Value...)
		}
	}
	return m
}

// MaxEdit bounds the edit of a message, in bytes.
const MaxEdit = 32 << 10

// EditOf returns the edit among what receivers have added to a message: what the last one
// that said so wants changed in it, which only fronts read; empty: nothing. It is the
// annotation without a key, is bounded by itself, and counts in the size of the message.
func EditOf(list []*logpb.Annotation) []byte {
	for _, a := range list {
		if len(a.GetKey()) == 0 {
			return a.GetValue()
		}
	}
	return nil
}
