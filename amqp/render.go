package amqp

import (
	"github.com/quorate/quorate/amqp/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// changesProperties reports whether m goes out with other properties than it
// came in with.
func changesProperties(m *fsm.Message) bool {
	return tellsCounts(m) || len(m.Deaths) > 0 || m.ScheduledFor != 0
}

// tellsCounts reports whether m goes out with the headers that count how often
// it was handed out. Some clients cannot decode them, so they are added only
// where the peer adds them, too: not by queues that are not replicated.
func tellsCounts(m *fsm.Message) bool { return m.Acquired > 0 && !m.Local }

// renderProperties appends the property list of a message that was handed out
// before, is a dead letter or was scheduled: raw and what the broker knows of
// its past.
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
	out, err := wire.EditProperties(dst, raw, &e)
	if err != nil {
		return append(dst, raw...) // they were checked when they came in
	}
	return out
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
	}
	return "unknown"
}
