package amqp

import (
	"context"
	"slices"
	"time"

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

// publishLater publishes a message for which the broker must be asked first.
// Busy is set, the gate is not held.
func (ch *channel) publishLater(m *message) error {
	if !ch.awaitRoutes() {
		return nil
	}
	if m.isReply() {
		ctx, cancel := context.WithTimeout(ch.conn.ctx, ch.conn.server.cfg.OperationTimeout)
		defer cancel()
		if err := ch.askRequester(ctx, m); err != nil {
			return err
		}
	}
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if ch.closing {
		return nil
	}
	m.publish.Fresh = true
	return ch.publish(m)
}

// routesPace is how often who waits for routes looks whether the channel ends.
const routesPace = time.Second

// awaitRoutes returns when the broker knows for certain where messages go: for
// as long as it does not, publishes wait, and stay unconfirmed. It returns false
// if the channel has ended meanwhile, or its client has asked for that and has
// waited long enough; what is waiting goes nowhere then. Busy is set, the gate
// is not held.
func (ch *channel) awaitRoutes() bool {
	var asked time.Time
	for !ch.goesAdrift(&asked) {
		ctx, cancel := context.WithTimeout(ch.conn.ctx, routesPace)
		err := ch.session.Refresh(ctx)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// goesAdrift reports whether publishes are not to wait for routes any more.
// asked is when the client was first seen to have asked for the channel's end.
func (ch *channel) goesAdrift(asked *time.Time) bool {
	ch.gate.Lock()
	defer ch.gate.Unlock()
	if asked.IsZero() && (ch.conn.leaves.Load() || slices.ContainsFunc(ch.queue, isClose)) {
		*asked = time.Now()
	}
	late := !asked.IsZero() && time.Since(*asked) >= ch.conn.server.cfg.OperationTimeout
	ch.adrift = ch.adrift || late || ch.closing || ch.state != channelOpen || ch.conn.ctx.Err() != nil
	return ch.adrift
}

func isClose(r request) bool { return r.kind == requestClose }

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
	if p.Number == 0 {
		size := len(p.Payload)
		c.flow.add(1, int64(size))
		p.Number = ch.confirms.add(uint32(size))
	}
	p.Mandatory = m.mandatory
	ch.prepare(m)
	routed, err := ch.session.Publish(p)
	ch.prepare(nil)
	switch {
	case routed:
		return nil
	case err != nil:
		return err // fsm.ErrNotFresh, or the channel's end releases what was added
	}
	if m.mandatory {
		ch.Returned(p.Payload)
	}
	ch.Confirmed(p.Number, p.Number, true)
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

// Refused takes the answer to a publish that asked the broker for something.
func (ch *channel) Refused(payload fsm.Payload, why *fsm.Refusal) {
	defer ch.conn.contain("take what the broker tells")
	ch.noteRefused(why)
	out := ch.conn.out
	out.lock()
	out.pushMessage(outItem{kind: outReturn, channel: ch, message: fsm.Message{Payload: payload}, refusal: why})
	out.unlock()
}

// Returned takes a mandatory message that leads nowhere after all.
func (ch *channel) Returned(payload fsm.Payload) {
	defer ch.conn.contain("take what the broker tells")
	out := ch.conn.out
	out.lock()
	out.pushMessage(outItem{kind: outReturn, channel: ch, message: fsm.Message{Payload: payload}})
	out.unlock()
}

// Confirmed takes the outcome of publishes.
func (ch *channel) Confirmed(first, last uint64, ok bool) {
	defer ch.conn.contain("take what the broker tells")
	count, bytes, queue := ch.confirms.settle(first, last, ok)
	ch.conn.flow.release(count, bytes)
	if c := ch.committing.Load(); c != nil {
		c.note(first, last, ok)
	}
	if queue {
		ch.conn.out.queueConfirms(ch)
	}
}
