package message

import (
	"slices"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// ChangesProperties reports whether m goes out with other properties than it
// came in with.
func ChangesProperties(m *fsm.Message) bool {
	return tellsCounts(m) || len(m.Deaths) > 0 || m.ScheduledFor != 0 || m.LockToken != "" || len(m.Annotations) > 0
}

// tellsCounts reports whether m goes out with the headers that count how often
// it was handed out. Some clients fail at them, so they are added only where the
// peer adds them, too: not by classic queues, whatever limits them, unless the
// receiver has asked to know more.
func tellsCounts(m *fsm.Message) bool { return m.Acquired > 0 && (!m.Classic || m.LockToken != "") }

// RenderProperties appends the property list of a message for which
// ChangesProperties is true: raw, and what the broker knows of its past and of
// the delivery.
func RenderProperties(dst, raw []byte, m *fsm.Message) []byte {
	var e wire.Edit
	if len(m.Deaths) > 0 {
		e.Remove = wire.FlagExpiration
		e.SetHeaders = deathHeaders(m.Deaths)
	}
	if tellsCounts(m) {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-acquired-count", Value: wire.Int64(int64(m.Acquired))})
	}
	if tellsCounts(m) && m.Failed > 0 {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-delivery-count", Value: wire.Int64(int64(m.Failed))})
	}
	if m.ScheduledFor != 0 {
		e.SetHeaders = append(e.SetHeaders, wire.Field{Name: "x-scheduled-for", Value: wire.Int64(int64(m.ScheduledFor))})
	}
	if m.LockToken != "" {
		e.RemoveHeaders = infoHeaders
		e.SetHeaders = append(e.SetHeaders, deliveryInfo(m)...)
	}
	if added := Added(m); len(added) > 0 {
		e.SetHeaders = append(e.SetHeaders, addedHeaders(added, &e)...)
	}
	out, err := wire.EditProperties(dst, raw, &e)
	if err != nil {
		return append(dst, raw...) // they were checked when they came in
	}
	return out
}

// infoHeaders are what a receiver may ask to know of a delivery. What a client has
// published under these names, perhaps with another delivery's values, goes.
var infoHeaders = []string{"x-lock-token", "x-locked-until", "x-lock-remaining", "x-expires-at", "x-enqueued-at"}

// deliveryInfo renders the infoHeaders that apply to a delivery.
func deliveryInfo(m *fsm.Message) wire.Table {
	t := wire.Table{{Name: infoHeaders[0], Value: wire.String(m.LockToken)}}
	if m.LockedUntil != 0 {
		t = append(t, wire.Field{Name: infoHeaders[1], Value: wire.Int64(int64(m.LockedUntil))},
			wire.Field{Name: infoHeaders[2], Value: wire.Int64(int64(m.LockRemaining))})
	}
	for i, at := range [...]fsm.Time{m.ExpireAt, m.EnqueuedAt} {
		if at != 0 {
			t = append(t, wire.Field{Name: infoHeaders[3+i], Value: wire.Int64(int64(at))})
		}
	}
	return t
}

// maxAdded bounds the headers that are made of what receivers have added to a message: a few bytes can stand for many
// values.
const maxAdded = 4 * fsm.MaxAnnotationBytes

// addedHeaders renders annotations that receivers of AMQP 1.0 have added, which stand in front of what the message came
// with, but for the names that e has.
func addedHeaders(annotations wire10.MapBytes, e *wire.Edit) wire.Table {
	var h headers
	h.reset(maxAdded)
	h.addAnnotations(annotations)
	return slices.DeleteFunc(h.decoded(), func(f wire.Field) bool {
		_, has := e.SetHeaders.Get(f.Name)
		return has || slices.Contains(e.RemoveHeaders, f.Name)
	})
}

// deathHeaders renders a death history, newest first.
func deathHeaders(deaths []*logpb.Death) wire.Table {
	tables := make([]wire.Value, len(deaths))
	first, last := deaths[0], deaths[0]
	for i, d := range deaths {
		tables[i] = wire.Nested(deathTable(d))
		if d.First {
			first = d // its pair may have died again, and moved to the front
		}
	}
	return wire.Table{
		{Name: "x-death", Value: wire.Array(tables...)},
		{Name: "x-first-death-reason", Value: wire.String(fsm.ReasonName(first.Reason))},
		{Name: "x-first-death-queue", Value: wire.String(first.Queue)},
		{Name: "x-first-death-exchange", Value: wire.String(first.Exchange)},
		{Name: "x-last-death-reason", Value: wire.String(fsm.ReasonName(last.Reason))},
		{Name: "x-last-death-queue", Value: wire.String(last.Queue)},
		{Name: "x-last-death-exchange", Value: wire.String(last.LastExchange)},
	}
}

func deathTable(d *logpb.Death) wire.Table {
	keys := make([]wire.Value, len(d.RoutingKeys))
	for i, k := range d.RoutingKeys {
		keys[i] = wire.String(k)
	}
	t := make(wire.Table, 0, 7)
	if d.OriginalExpiration != "" {
		t = append(t, wire.Field{Name: "original-expiration", Value: wire.String(d.OriginalExpiration)})
	}
	return append(t,
		wire.Field{Name: "count", Value: wire.Int64(int64(d.Count))},
		wire.Field{Name: "reason", Value: wire.String(fsm.ReasonName(d.Reason))},
		wire.Field{Name: "queue", Value: wire.String(d.Queue)},
		wire.Field{Name: "time", Value: wire.Timestamp(uint64(d.Time / 1000))},
		wire.Field{Name: "exchange", Value: wire.String(d.Exchange)},
		wire.Field{Name: "routing-keys", Value: wire.Array(keys...)},
	)
}
