package v091

import (
	"strconv"

	"github.com/quorate/quorate/amqp"
	messages "github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// content assembles the publishes of a channel: basic.publish, then a header,
// then body frames. It belongs to the reader.
//
// Invariants: in contentBody, len(payload) + remaining = total; in contentNone,
// remaining = 0. Before a body arrives no more than eagerBody is allocated for it. counted is 0 for less than
// smallContent.
type content struct {
	user      string        // of the login, for user-id
	maxSize   uint64        // of a body
	maxList   int           // of the properties
	replyName func() string // returns the routing key of replies to the channel
	memory    *amqp.Account // of the channel

	stage     contentStage
	request   request // of kind requestPublish: what is assembled
	remaining uint64  // octets of the body still to come
	total     int     // length of the whole payload
	counted   int64   // of the payload's memory, in memory
	admitted  bool    // the broker has been asked whether it may be published

	// exchange and key are those of the last publish, so that the next one need
	// not allocate.
	exchange, key string
}

type contentStage uint8

const (
	contentNone   contentStage = iota
	contentHeader              // the header is next
	contentBody                // body frames are next
	contentSkip                // the same, for a body that is discarded
)

// message is one publish on its way through the channel.
type message struct {
	publish              fsm.Publish
	mandatory, immediate bool
	size                 uint64 // of the body
	list                 int    // size of the properties
	// fields are the encoded headers as published, if those in the payload
	// differ; else nil.
	fields []byte
	// blind are the routing keys of the header BCC.
	blind []string
}

const basicPublish = uint16(wire.IDBasicPublish & 0xFFFF)

// begin handles basic.publish.
func (c *content) begin(payload []byte) error {
	var v wire.BasicPublishView
	if err := wire.DecodePublish(payload, &v); err != nil {
		return unnamed(err)
	}
	if string(v.Exchange) != c.exchange {
		c.exchange = string(v.Exchange)
	}
	if string(v.RoutingKey) != c.key {
		c.key = string(v.RoutingKey)
	}
	c.request.kind = requestPublish
	c.request.message = message{
		publish:   fsm.Publish{Exchange: c.exchange, RoutingKey: c.key, TTL: -1, Priority: -1},
		mandatory: v.Mandatory, immediate: v.Immediate,
	}
	c.stage = contentHeader
	return nil
}

// header handles the content header. ready: the request must be submitted now,
// and then released.
func (c *content) header(payload []byte) (ready bool, err error) {
	h, err := wire.DecodeHeader(payload, wire.ClassBasic, basicPublish)
	if err != nil {
		return false, err
	}
	properties, err := wire.ParseProperties(h.Properties)
	if err != nil {
		return false, err
	}
	m := &c.request.message
	m.size, m.list = h.BodySize, len(h.Properties)
	c.remaining = h.BodySize
	if m.immediate || m.size > c.maxSize || m.list > c.maxList {
		// It will be refused; until then nothing of it is stored.
		c.stage = contentSkip
		c.endSkipped()
		return true, nil
	}
	encoded := c.readProperties(m, &properties, h.Properties)
	m.publish.MessageID, m.publish.CorrelationID = fsm.Label(properties.MessageID), fsm.Label(properties.CorrelationID)
	c.total = fsm.PayloadSize(len(m.publish.Exchange), len(m.publish.RoutingKey), len(encoded), int(m.size)) + fsm.BlindSize(m.blind)
	size := c.total - int(m.size) + min(int(m.size), eagerBody)
	m.publish.Payload, err = fsm.AppendHead(make([]byte, 0, size), m.publish.Exchange, m.publish.RoutingKey, encoded, m.blind)
	if err != nil {
		return false, err
	}
	c.stage = contentBody
	return c.complete(), nil
}

// body reads the payload of a body frame with size octets. ready is as in header.
func (c *content) body(in *wire.Reader, size int) (ready bool, err error) {
	if uint64(size) > c.remaining {
		return false, wire.BodyTooLong(wire.ClassBasic, basicPublish)
	}
	if c.stage == contentSkip || size == 0 {
		if err := in.SkipPayload(); err != nil || c.stage == contentNone {
			return false, err
		}
		c.remaining -= uint64(size)
		c.endSkipped()
		return false, nil
	}
	p := grow(c.request.message.publish.Payload, size, c.total)
	if err := in.ReadPayloadInto(p[len(p) : len(p)+size]); err != nil {
		return false, err
	}
	if c.stage == contentNone {
		return false, nil // dropped meanwhile
	}
	c.request.message.publish.Payload = p[:len(p)+size]
	c.remaining -= uint64(size)
	return c.complete(), nil
}

// grow returns p with capacity for n more octets, of total in the end. Only a
// body longer than eagerBody is ever moved.
func grow(p fsm.Payload, n, total int) fsm.Payload {
	if cap(p)-len(p) >= n {
		return p
	}
	grown := make(fsm.Payload, len(p), min(max(4*cap(p), len(p)+n), total))
	copy(grown, p)
	return grown
}

// complete ends the assembly if the body is complete.
func (c *content) complete() bool {
	if c.remaining > 0 {
		return false
	}
	c.stage = contentNone
	return true
}

// endSkipped ends a body that was skipped.
func (c *content) endSkipped() {
	if c.remaining == 0 {
		c.stage = contentNone
	}
}

// smallContent is the memory below which an incomplete message counts as part of its channel.
const smallContent = 4 << 10

// count counts the memory of an incomplete message. It returns the account whose bound it exceeds; nil: none, or
// the message may do so.
func (c *content) count(may bool) (over *amqp.Account) {
	n := int64(cap(c.request.message.publish.Payload)) - c.counted
	switch {
	case n == 0 || c.counted+n < smallContent:
		return nil
	case may:
		c.memory.Add(n)
	default:
		if over = c.memory.Take(n); over != nil {
			return over
		}
	}
	c.counted += n
	return nil
}

// release drops the submitted message, which belongs to the broker now.
func (c *content) release() {
	c.request.message, c.admitted = message{}, false
	if c.counted > 0 {
		c.memory.Add(-c.counted)
		c.counted = 0
	}
}

// isPartial reports whether a message is incomplete.
func (c *content) isPartial() bool { return c.stage != contentNone }

// reset drops an incomplete message.
func (c *content) reset() {
	c.release()
	c.stage, c.remaining, c.total = contentNone, 0, 0
}

// readProperties extracts what the broker needs from the properties. It returns
// their encoding for storage: without BCC, and with an expiration in its usual
// form.
func (c *content) readProperties(m *message, p *wire.Properties, encoded []byte) []byte {
	if p.Has(wire.FlagPriority) {
		m.publish.Priority = int(p.Priority)
	}
	if p.Has(wire.FlagUserID) && string(p.UserID) != c.user {
		m.publish.UserError = refuseUserID(p.UserID, c.user)
	}
	changed := false
	if p.Has(wire.FlagReplyTo) && string(p.ReplyTo) == fsm.ReplyQueue {
		m.publish.WantsReply = true
		p.ReplyTo = []byte(c.replyName())
		changed = true
	}
	if p.Has(wire.FlagExpiration) {
		ttl, canonical, err := messages.ParseExpiration(p.Expiration)
		m.publish.TTL, m.publish.TTLError, m.publish.HasExpiration = ttl, err, err == nil
		if err == nil && !canonical {
			p.Expiration = strconv.AppendInt(nil, int64(ttl), 10)
			changed = true
		}
	}
	if changed {
		encoded = wire.AppendProperties(nil, p)
	}
	if len(p.Headers) > 0 {
		return c.readHeaders(m, p, encoded)
	}
	return encoded
}

// readHeaders extracts what the broker needs from the headers: more routing
// keys, and a time to wait. It removes from them what receivers must not see,
// and what would take effect again in a dead letter.
func (c *content) readHeaders(m *message, p *wire.Properties, encoded []byte) []byte {
	var err error
	if m.publish.Copies, err = messages.Copies(p, messages.HeaderCC); err == nil {
		m.blind, err = messages.Copies(p, messages.HeaderBCC)
	}
	if err == nil {
		m.publish.Schedule, m.publish.Delay, err = messages.Times(p.Headers)
	}
	if m.publish.HeadersError = err; err != nil {
		return encoded
	}
	var out []string
	if _, ok := p.Header(messages.HeaderBCC); ok {
		m.publish.Copies = append(m.publish.Copies, m.blind...)
		out = append(out, messages.HeaderBCC)
	}
	if m.publish.Schedule != nil {
		out = append(out, messages.DueHeaders...)
	}
	if len(out) == 0 {
		return encoded
	}
	m.fields = append([]byte(nil), p.Headers...)
	if edited, err := wire.EditProperties(nil, encoded, &wire.Edit{RemoveHeaders: out}); err == nil {
		encoded = edited
	}
	return encoded
}
