package amqp

import (
	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
)

// publish hands a message to the broker. The gate is held.
func (ch *channel) publish(m *message) error {
	c := ch.conn
	if m.immediate {
		return errNotImplemented(wire.IDBasicPublish, "immediate=true")
	}
	if most := c.server.cfg.MaxMessageSize; m.size > uint64(most) {
		return errMessageSize(m.size, most)
	}
	if ch.tx != nil {
		return ch.holdPublish(m)
	}
	return ch.enqueue(m)
}

// prepare makes m the message that is being published; nil: none is.
func (ch *channel) prepare(m *message) {
	ch.publishing = m
	if m != nil {
		m.publish.Headers, m.publish.Property = ch.headers, ch.property
	}
}

// enqueue publishes a message. The gate is held.
func (ch *channel) enqueue(m *message) error {
	c, p := ch.conn, &m.publish
	size := len(p.Payload)
	c.flow.add(1, int64(size))
	p.Number = ch.confirms.add(uint32(size))
	ch.prepare(m)
	routed, err := ch.session.Publish(p)
	ch.prepare(nil)
	if err != nil || routed {
		return err // the channel's end releases what was added
	}
	if m.mandatory {
		c.out.lock()
		c.out.pushMessage(outItem{kind: outReturn, channel: ch, message: fsm.Message{Payload: p.Payload}})
		c.out.unlock()
	}
	ch.Settled(p.Number, p.Number, true)
	return nil
}

// publishHeaders decodes the headers of the message that is being published.
func (ch *channel) publishHeaders() *fsm.Table {
	m := ch.publishing
	if m == nil {
		return nil
	}
	fields := m.fields
	if fields == nil {
		p, err := wire.ParseProperties(m.publish.Payload.Properties())
		if err != nil {
			return nil // they were checked when they came in
		}
		fields = p.Headers
	}
	t, err := wire.DecodeFields(fields)
	if err != nil {
		return nil
	}
	return catalogTable(t)
}

// publishProperty returns a property of the message that is being published.
func (ch *channel) publishProperty(name string) []byte {
	if ch.publishing == nil {
		return nil
	}
	return Properties{}.Property(ch.publishing.publish.Payload.Properties(), name)
}

// Settled takes the outcome of publishes.
func (ch *channel) Settled(first, last uint64, ok bool) {
	count, bytes, queue := ch.confirms.settle(first, last, ok)
	ch.conn.flow.release(count, bytes)
	if c := ch.committing.Load(); c != nil {
		c.note(first, last, ok)
	}
	if queue {
		ch.conn.out.queueConfirms(ch)
	}
}
