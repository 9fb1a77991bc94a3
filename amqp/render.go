package amqp

import (
	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// changesProperties reports whether m goes out with other properties than it
// came in with.
func changesProperties(m *fsm.Message) bool {
	return tellsCounts(m) || len(m.Deaths) > 0 || m.ScheduledFor != 0 || m.LockToken != ""
}

// headOfHeader is what a header frame has besides the properties.
const headOfHeader = 12 + wire.FrameOverhead

// fitsFrame reports whether properties of some size fit into a header frame.
func fitsFrame(size int, frameMax uint32) bool { return size+headOfHeader <= int(frameMax) }

// tellsCounts reports whether m goes out with the headers that count how often
// it was handed out. Some clients fail at them, so they are added only where the
// peer adds them, too: not by classic queues, whatever limits them, unless the
// receiver has asked to know more.
func tellsCounts(m *fsm.Message) bool { return m.Acquired > 0 && (!m.Classic || m.LockToken != "") }

// renderProperties appends the property list of a message for which
// changesProperties is true: raw, and what the broker knows of its past and of
// the delivery.
func renderProperties(dst, raw []byte, m *fsm.Message) []byte {
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
	out, err := wire.EditProperties(dst, raw, &e)
	if err != nil {
		return append(dst, raw...) // they were checked when they came in
	}
	return out
}

// renderedSize is the size of the property list with which a message goes out.
func renderedSize(m *fsm.Message) int {
	raw := m.Payload.Properties()
	if changesProperties(m) {
		raw = renderProperties(nil, raw, m)
	}
	return len(raw)
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
		{Name: "x-first-death-reason", Value: wire.String(reasonName(first.Reason))},
		{Name: "x-first-death-queue", Value: wire.String(first.Queue)},
		{Name: "x-first-death-exchange", Value: wire.String(first.Exchange)},
		{Name: "x-last-death-reason", Value: wire.String(reasonName(last.Reason))},
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
		wire.Field{Name: "reason", Value: wire.String(reasonName(d.Reason))},
		wire.Field{Name: "queue", Value: wire.String(d.Queue)},
		wire.Field{Name: "time", Value: wire.Timestamp(uint64(d.Time / 1000))},
		wire.Field{Name: "exchange", Value: wire.String(d.Exchange)},
		wire.Field{Name: "routing-keys", Value: wire.Array(keys...)},
	)
}

func reasonName(r logpb.Death_Reason) string {
	switch r {
	case logpb.Death_EXPIRED:
		return "expired"
	case logpb.Death_REJECTED:
		return "rejected"
	case logpb.Death_MAXLEN:
		return "maxlen"
	case logpb.Death_DELIVERY_LIMIT:
		return "delivery_limit"
	case logpb.Death_UNROUTABLE:
		return "unroutable"
	case logpb.Death_GROUP_EXPIRED:
		return "group_expired"
	case logpb.Death_MAXHOPS:
		return "maxhops"
	}
	return "unknown"
}
