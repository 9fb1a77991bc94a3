package amqp

import (
	"context"
	"errors"
	"log/slog"

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

// errUnrouted says that a message has to be published once more when the
// broker's view is up to date: its queue may have been declared, its exchange
// bound, at another node a moment ago.
var errUnrouted = errors.New("no queue in this view")

// publishLater publishes a message for which the broker must be asked first.
// Busy is set, the gate is not held.
func (ch *channel) publishLater(ctx context.Context, m *message) error {
	if err := ch.askRequester(ctx, m); err != nil {
		return err
	}
	for {
		ch.gate.Lock()
		if ch.closing {
			ch.gate.Unlock()
			return nil
		}
		err := ch.publish(m)
		ch.gate.Unlock()
		if !errors.Is(err, errUnrouted) {
			return err
		}
		ch.refresh(ctx, m)
	}
}

// refresh brings the broker's view up to date for a message. If that fails the
// present one must do.
func (ch *channel) refresh(ctx context.Context, m *message) {
	if err := ch.session.Refresh(ctx); err != nil {
		ch.conn.log.Debug("view not refreshed", slog.Any("error", err))
	}
	m.refreshed = true
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
	case !m.refreshed && (err == nil && p.Exchange == "" || ch.session.Behind()):
		return errUnrouted
	case err != nil:
		return err // the channel's end releases what was added
	}
	if m.mandatory {
		ch.Returned(p.Payload)
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

// Refused takes the answer to a publish that asked the broker for something.
func (ch *channel) Refused(payload fsm.Payload, why *fsm.Refusal) {
	defer ch.conn.contain("take what the broker tells")
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

// Settled takes the outcome of publishes.
func (ch *channel) Settled(first, last uint64, ok bool) {
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
