package amqp

import (
	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// content is a basic.publish under assembly: the method, then a header, then
// body frames.
type content struct {
	stage     contentStage
	request   request // of kind requestPublish
	remaining uint64  // octets of the body still to come
	total     int     // length of the whole payload
}

type contentStage uint8

const (
	contentNone   contentStage = iota
	contentHeader              // the header is next
	contentBody                // body frames are next
	contentSkip                // the same, of a body nobody wants
)

// message is one publish as it goes through the channel.
type message struct {
	publish              fsm.Publish
	mandatory, immediate bool
	size                 uint64 // of the body
	// fields are the encoded headers as published, if those in the payload
	// are not the same; else nil.
	fields []byte
	// blind are the routing keys of the header BCC.
	blind []string
}

const basicPublish = uint16(wire.IDBasicPublish & 0xFFFF)

// frame processes a frame of the channel. The reader calls it; the frame's
// payload is still to be read.
func (ch *channel) frame(head wire.FrameHead) error {
	switch {
	case ch.deaf.Load():
		return ch.ignore(head)
	case head.Type == wire.FrameBody && ch.content.stage >= contentBody:
		return ch.body(int(head.Size))
	}
	payload, err := ch.conn.in.ReadPayload()
	if err != nil {
		return err
	}
	switch {
	case head.Type == wire.FrameMethod && ch.content.stage == contentNone:
		return ch.method(payload)
	case head.Type == wire.FrameHeader && ch.content.stage == contentHeader:
		return ch.header(payload)
	case ch.content.stage == contentNone:
		return wire.ExpectedMethod()
	case ch.content.stage == contentHeader:
		return wire.ExpectedHeader(wire.ClassBasic, basicPublish)
	}
	return wire.ExpectedBody(wire.ClassBasic, basicPublish)
}

// ignore drops a frame of a channel whose close the client has not answered,
// unless it is about closing.
func (ch *channel) ignore(head wire.FrameHead) error {
	ch.content = content{}
	if head.Type != wire.FrameMethod {
		return ch.conn.in.SkipPayload()
	}
	payload, err := ch.conn.in.ReadPayload()
	if err != nil {
		return err
	}
	switch wire.PeekID(payload) {
	case wire.IDChannelClose:
		return ch.askClose()
	case wire.IDChannelCloseOK:
		ch.answerClose()
	case wire.IDChannelOpen:
		if !ch.crossed.Load() {
			return nil
		}
		// The client takes the answer to its own close for the end.
		ch.answerClose()
		if free, err := ch.waitFinished(); !free {
			return err
		}
		ch.conn.forget(ch)
		return ch.conn.firstFrame(head, payload)
	}
	return nil
}

// method processes a method frame.
func (ch *channel) method(payload []byte) error {
	c := ch.conn
	s := &c.request.settle
	switch id := wire.PeekID(payload); id {
	case wire.IDBasicPublish:
		return ch.beginContent(payload)
	case wire.IDBasicAck:
		var m wire.BasicAck
		if err := wire.DecodeAck(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, m.Multiple, fsm.Ack}
	case wire.IDBasicNack:
		var m wire.BasicNack
		if err := wire.DecodeNack(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, m.Multiple, outcome(m.Requeue, fsm.Requeue)}
	case wire.IDBasicReject:
		var m wire.BasicReject
		if err := wire.DecodeReject(payload, &m); err != nil {
			return unnamed(err)
		}
		*s = settlement{id, m.DeliveryTag, false, outcome(m.Requeue, fsm.RequeueFailed)}
	default:
		return ch.otherMethod(payload)
	}
	c.request.kind = requestSettle
	return ch.submit(&c.request)
}

func outcome(requeue bool, requeued fsm.Outcome) fsm.Outcome {
	if requeue {
		return requeued
	}
	return fsm.Discard
}

// otherMethod processes a method of which there are not many.
func (ch *channel) otherMethod(payload []byte) error {
	m, err := decodeOnChannel(payload)
	if err != nil {
		return err
	}
	switch m.(type) {
	case *wire.ChannelOpen:
		return errSecondOpen()
	case *wire.ChannelClose:
		return ch.askClose()
	case *wire.ChannelCloseOK, *wire.BasicCancelOK:
		return nil
	}
	if m.ClassID() == wire.ClassConnection {
		return errUnimplementedMethod(wire.ID(m))
	}
	return ch.submit(&request{kind: requestMethod, method: m})
}

// beginContent processes basic.publish.
func (ch *channel) beginContent(payload []byte) error {
	var v wire.BasicPublishView
	if err := wire.DecodePublish(payload, &v); err != nil {
		return unnamed(err)
	}
	if string(v.Exchange) != ch.exchange {
		ch.exchange = string(v.Exchange)
	}
	if string(v.RoutingKey) != ch.key {
		ch.key = string(v.RoutingKey)
	}
	r := &ch.content.request
	r.kind = requestPublish
	r.message = message{
		publish:   fsm.Publish{Exchange: ch.exchange, RoutingKey: ch.key, TTL: -1, Priority: -1},
		mandatory: v.Mandatory, immediate: v.Immediate,
	}
	ch.content.stage = contentHeader
	return nil
}

// header processes the content header.
func (ch *channel) header(payload []byte) error {
	h, err := wire.DecodeHeader(payload, wire.ClassBasic, basicPublish)
	if err != nil {
		return err
	}
	properties, err := wire.ParseProperties(h.Properties)
	if err != nil {
		return err
	}
	ch.conn.published = true
	m := &ch.content.request.message
	m.size = h.BodySize
	ch.content.remaining = h.BodySize
	if m.immediate || m.size > uint64(ch.conn.server.cfg.MaxMessageSize) {
		// It will be refused; until then nothing of it is kept.
		ch.content.stage = contentSkip
		err := ch.submit(&ch.content.request)
		ch.content.request = request{}
		ch.endOfBody()
		return err
	}
	encoded := ch.readProperties(m, &properties, h.Properties)
	ch.content.total = fsm.PayloadSize(len(m.publish.Exchange), len(m.publish.RoutingKey), len(encoded), int(m.size)) + fsm.BlindSize(m.blind)
	room := ch.content.total - int(m.size) + min(int(m.size), eagerBody)
	m.publish.Payload, err = fsm.AppendHead(make([]byte, 0, room), m.publish.Exchange, m.publish.RoutingKey, encoded, m.blind)
	if err != nil {
		return err
	}
	ch.content.stage = contentBody
	return ch.complete()
}

// body processes a body frame with size octets, which are still to be read.
func (ch *channel) body(size int) error {
	in, c := ch.conn.in, &ch.content
	if uint64(size) > c.remaining {
		return wire.BodyTooLong(wire.ClassBasic, basicPublish)
	}
	if c.stage == contentSkip || size == 0 {
		if err := in.SkipPayload(); err != nil {
			return err
		}
		c.remaining -= uint64(size)
		ch.endOfBody()
		return nil
	}
	p := makeRoom(c.request.message.publish.Payload, size, c.total)
	if err := in.ReadPayloadInto(p[len(p) : len(p)+size]); err != nil {
		return err
	}
	c.request.message.publish.Payload = p[:len(p)+size]
	c.remaining -= uint64(size)
	return ch.complete()
}

// makeRoom returns p with room for n more octets, of which it will hold total
// in the end. Only a body longer than eagerBody ever moves.
func makeRoom(p fsm.Payload, n, total int) fsm.Payload {
	if cap(p)-len(p) >= n {
		return p
	}
	grown := make(fsm.Payload, len(p), min(max(2*cap(p), len(p)+n), total))
	copy(grown, p)
	return grown
}

// complete publishes the message if its body is complete.
func (ch *channel) complete() error {
	if ch.content.remaining > 0 {
		return nil
	}
	ch.content.stage = contentNone
	err := ch.submit(&ch.content.request)
	ch.content.request.message = message{} // it is the broker's now
	return err
}

// endOfBody ends a body that was skipped.
func (ch *channel) endOfBody() {
	if ch.content.remaining == 0 {
		ch.content.stage = contentNone
	}
}
