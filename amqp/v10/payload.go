package v10

import (
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// store returns a message as a queue keeps it: what its sections say, byte for byte. It is the one allocation
// that a message costs.
func store(to address, m *wire.Message) (fsm.Payload, *wire.Error) {
	h := fsm.BareHeader{Durable: m.Header.Durable, Priority: -1, TTL: -1}
	if m.Header.Priority.Present {
		h.Priority = int(m.Header.Priority.Value)
	}
	if m.Header.TTL.Present {
		h.TTL = fsm.Millis(m.Header.TTL.Value)
	}
	p := make([]byte, 0, fsm.BareSize(len(to.exchange), len(to.key), len(m.Annotations), len(m.Bare)))
	p, err := fsm.AppendBareHead(p, to.exchange, to.key, h, m.Annotations, nil)
	if err != nil {
		return nil, wire.Errorf(wire.ConditionInvalidField, "%s", err)
	}
	return append(p, m.Bare...), nil
}

// bareOf is what a delivery ends with, which is written from where it is. A message of another protocol has its body in
// one data section.
func bareOf(m *fsm.Message) []byte { return m.Payload.Body() }

// appendHead appends what a delivery begins with.
func appendHead(dst []byte, m *fsm.Message) []byte {
	h := wire.Header{FirstAcquirer: m.Acquired == 0 && len(m.Deaths) == 0, DeliveryCount: m.Failed}
	if !m.Payload.IsBare() {
		dst = appendAnnotations(wire.Append(dst, &h), m, nil)
		return wire.StartData(dst, len(m.Payload.Body()))
	}
	stored := m.Payload.BareHeader()
	h.Durable = stored.Durable
	if stored.Priority >= 0 {
		h.Priority = wire.Some(byte(stored.Priority))
	}
	if stored.TTL >= 0 && len(m.Deaths) == 0 { // a dead letter does not die again by its own time
		h.TTL = wire.Some(uint32(stored.TTL))
	}
	return appendAnnotations(wire.Append(dst, &h), m, m.Payload.Annotations())
}

// renderedSize is the length of a message as it is delivered.
func (c *counts) renderedSize(m *fsm.Message) int {
	c.head = appendHead(c.head[:0], m)
	return len(c.head) + len(bareOf(m))
}

// appendAnnotations appends the annotations of a delivery: the server's, and those of the message that have other
// names.
func appendAnnotations(dst []byte, m *fsm.Message, stored wire.MapBytes) []byte {
	dst = wire.StartAnnotations(dst)
	at := len(dst)
	dst = wire.StartMap(dst)
	dst = wire.AppendString(wire.AppendSymbol(dst, "x-exchange"), m.Payload.Exchange())
	dst = wire.AppendString(wire.AppendSymbol(dst, "x-routing-key"), m.Payload.RoutingKey())
	pairs := 2
	if len(m.Deaths) > 0 {
		dst = appendDeaths(dst, m.Deaths)
		pairs += deathPairs
	}
	if m.Sequence != 0 {
		var n int
		dst, n = appendDelivery(dst, m)
		pairs += n
	}
	added := wire.MapBytes(m.Annotations)
	for w := added.Walk(); w.NextPair(); {
		if !isOurs(w.Key.Bytes(), m) {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	for w := stored.Walk(); w.NextPair(); {
		if _, replaced := added.Get(string(w.Key.Bytes())); !replaced && !isOurs(w.Key.Bytes(), m) {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	return wire.EndMap(dst, at, pairs)
}

// isOurs reports whether the server sets the annotation with this name.
func isOurs(name []byte, m *fsm.Message) bool {
	switch string(name) {
	case "x-exchange", "x-routing-key":
		return true
	case "x-opt-deaths", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange",
		"x-last-death-queue", "x-last-death-reason", "x-last-death-exchange":
		return len(m.Deaths) > 0
	case sequenceNumber, enqueuedTime, expiresAt, lockToken, lockedUntil:
		return m.Sequence != 0
	}
	return false
}

// Annotations of a delivery that is locked, or whose receiver wants to know.
const (
	sequenceNumber = "x-opt-sequence-number"
	enqueuedTime   = "x-opt-enqueued-time"
	expiresAt      = "x-opt-expires-at"
	lockToken      = "x-opt-lock-token"
	lockedUntil    = "x-opt-locked-until"
)

// appendDelivery appends those that apply, and returns how many these are.
func appendDelivery(dst []byte, m *fsm.Message) (_ []byte, pairs int) {
	dst = wire.AppendLong(wire.AppendSymbol(dst, sequenceNumber), int64(m.Sequence))
	pairs = 1
	if m.LockToken != "" {
		dst = wire.AppendString(wire.AppendSymbol(dst, lockToken), m.LockToken)
		pairs++
	}
	for _, t := range [...]struct {
		name string
		at   fsm.Time
	}{{lockedUntil, m.LockedUntil}, {enqueuedTime, m.EnqueuedAt}, {expiresAt, m.ExpireAt}} {
		if t.at != 0 {
			dst = wire.AppendTimestamp(wire.AppendSymbol(dst, t.name), int64(t.at))
			pairs++
		}
	}
	return dst, pairs
}

// deathPairs is how many annotations appendDeaths appends.
const deathPairs = 7

// appendDeaths appends the annotations of a death history, newest first.
func appendDeaths(dst []byte, deaths []*logpb.Death) []byte {
	first, last := deaths[0], deaths[0]
	dst = wire.AppendSymbol(dst, "x-opt-deaths")
	at := len(dst)
	dst = wire.StartMapArray(dst)
	for _, d := range deaths {
		if d.First {
			first = d
		}
		dst = appendDeath(dst, d)
	}
	dst = wire.EndMapArray(dst, at, len(deaths))
	for _, s := range [...]struct{ name, value string }{
		{"x-first-death-queue", first.Queue}, {"x-first-death-reason", fsm.ReasonName(first.Reason)}, {"x-first-death-exchange", first.Exchange},
		{"x-last-death-queue", last.Queue}, {"x-last-death-reason", fsm.ReasonName(last.Reason)}, {"x-last-death-exchange", last.LastExchange},
	} {
		dst = wire.AppendString(wire.AppendSymbol(dst, s.name), s.value)
	}
	return dst
}

// appendDeath appends one element of x-opt-deaths.
func appendDeath(dst []byte, d *logpb.Death) []byte {
	at := len(dst)
	dst = wire.StartMapElement(dst)
	dst = wire.AppendString(wire.AppendSymbol(dst, "queue"), d.Queue)
	dst = wire.AppendSymbol(wire.AppendSymbol(dst, "reason"), fsm.ReasonName(d.Reason))
	dst = wire.AppendUlong(wire.AppendSymbol(dst, "count"), d.Count)
	dst = wire.AppendTimestamp(wire.AppendSymbol(dst, "first-time"), d.Time)
	dst = wire.AppendString(wire.AppendSymbol(dst, "exchange"), d.Exchange)
	dst = wire.AppendStrings(wire.AppendSymbol(dst, "routing-keys"), d.RoutingKeys)
	return wire.EndMapElement(dst, at, 6)
}
