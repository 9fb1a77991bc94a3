package v10

import (
	"cmp"
	"strconv"

	"github.com/quorate/quorate/amqp/message"
	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// store returns a message as a queue keeps it: with these annotations, and else with what its sections say, byte for
// byte. It is the one allocation that a message costs.
func store(to address, m *wire.Message, annotations wire.MapBytes) (fsm.Payload, *wire.Error) {
	h := fsm.BareHeader{Durable: m.Header.Durable, Priority: -1, TTL: -1}
	if m.Header.Priority.Present {
		h.Priority = int(m.Header.Priority.Value)
	}
	if m.Header.TTL.Present {
		h.TTL = fsm.Millis(m.Header.TTL.Value)
	}
	p := make([]byte, 0, fsm.BareSize(len(to.exchange), len(to.key), len(annotations), len(m.Bare)))
	p, err := fsm.AppendBareHead(p, to.exchange, to.key, h, annotations, nil)
	if err != nil {
		return nil, wire.Errorf(wire.ConditionInvalidField, "%s", err)
	}
	return append(p, m.Bare...), nil
}

// appendHead appends what a delivery begins with. It depends on nothing but the message: its length is asked for before
// the frames are made.
func appendHead(dst []byte, m *fsm.Message) []byte {
	if !m.Payload.IsBare() {
		return appendConverted(dst, m)
	}
	stored := m.Payload.BareHeader()
	h := wire.Header{Durable: stored.Durable}
	if stored.Priority >= 0 {
		h.Priority = wire.Some(byte(stored.Priority))
	}
	if stored.TTL >= 0 {
		h.TTL = wire.Some(uint32(stored.TTL))
	}
	added := addedTo(m)
	dst, at, pairs := startAnnotations(appendHeader(dst, m, &h), m, added.pairs)
	for w := message.Annotations(m.Payload).Walk(); w.NextPair(); {
		if w.Key.Type == wire.Symbol && !isOurs(m, added, w.Key.Bytes()) {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	return wire.EndMap(dst, at, pairs)
}

// appendConverted is appendHead for a message of another protocol.
func appendConverted(dst []byte, m *fsm.Message) []byte {
	var from message.From091
	from.Read(m.Payload)
	h := from.Header()
	added := addedTo(m)
	dst, at, pairs := startAnnotations(appendHeader(dst, m, &h), m, added.pairs)
	dst, n := from.AppendAnnotations(dst, func(name []byte) bool { return isOurs(m, added, name) })
	return from.AppendBare(wire.EndMap(dst, at, pairs+n))
}

// appendHeader appends the header, which has what the message says of itself. A dead letter does not die again by its own
// time.
func appendHeader(dst []byte, m *fsm.Message, h *wire.Header) []byte {
	h.FirstAcquirer, h.DeliveryCount = m.Acquired == 0 && len(m.Deaths) == 0, m.Failed
	if len(m.Deaths) > 0 {
		h.TTL = wire.Optional[uint32]{}
	}
	return wire.Append(dst, h)
}

// renderedSize is the length of a message as it is delivered.
func (c *counts) renderedSize(f Form, m *fsm.Message) int {
	c.head = f.AppendHead(c.head, m)
	size := len(c.head) + len(f.Body(m))
	c.head = emptied(c.head)
	return size
}

// keptHead is how large a buffer of a head may be that is kept for the next one.
const keptHead = 64 << 10

// emptied returns a buffer of a head for the next one.
func emptied(head []byte) []byte {
	if cap(head) > keptHead {
		return nil
	}
	return head[:0]
}

// startAnnotations begins the map of the annotations of a delivery with those of the server, and with those that receivers have
// added: pairs of them. Those of the message that have other names follow. The map starts at position at.
func startAnnotations(dst []byte, m *fsm.Message, added wire.MapBytes) (out []byte, at, pairs int) {
	dst = wire.StartAnnotations(dst)
	at = len(dst)
	dst = wire.StartMap(dst)
	dst = message.AppendText(wire.AppendSymbol(dst, "x-exchange"), m.Payload.Exchange())
	dst = message.AppendText(wire.AppendSymbol(dst, "x-routing-key"), m.Payload.RoutingKey())
	pairs = 2
	if len(m.Deaths) > 0 {
		dst = appendDeaths(dst, m.Deaths)
		pairs += deathPairs
	}
	if m.ScheduledFor != 0 {
		dst = wire.AppendLong(wire.AppendSymbol(dst, scheduledFor), int64(m.ScheduledFor))
		pairs++
	}
	if m.Sequence != 0 {
		var n int
		dst, n = appendDelivery(dst, m)
		pairs += n
	}
	for w := added.Walk(); w.NextPair(); {
		if w.Key.Type == wire.Symbol && !isServers(m, w.Key.Bytes()) {
			dst = append(dst, w.Pair...)
			pairs++
		}
	}
	return dst, at, pairs
}

// isOurs reports whether startAnnotations has set an annotation with this name.
func isOurs(m *fsm.Message, a added, name []byte) bool {
	_, has := a.names[string(name)]
	return has || isServers(m, name)
}

// added is what receivers have added to a message. Its names are looked for once for each annotation that the message
// came with, of which there may be very many.
type added struct {
	pairs wire.MapBytes
	names map[string]struct{} // nil: there are none
}

func addedTo(m *fsm.Message) (a added) {
	if a.pairs = message.Added(m); len(a.pairs) == 0 {
		return a
	}
	a.names = map[string]struct{}{}
	for w := a.pairs.Walk(); w.NextPair(); {
		a.names[string(w.Key.Bytes())] = struct{}{}
	}
	return a
}

// isServers reports whether the server itself sets the annotation with this name.
func isServers(m *fsm.Message, name []byte) bool {
	switch string(name) {
	case "x-exchange", "x-routing-key":
		return true
	case "x-opt-deaths", "x-first-death-queue", "x-first-death-reason", "x-first-death-exchange",
		"x-last-death-queue", "x-last-death-reason", "x-last-death-exchange":
		return len(m.Deaths) > 0
	case scheduledFor:
		return m.ScheduledFor != 0
	case sequenceNumber, enqueuedTime, expiresAt, lockToken, lockedUntil:
		return m.Sequence != 0
	}
	return false
}

// scheduledFor is the annotation with the time at which a message was to be ready.
const scheduledFor = "x-scheduled-for"

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
		dst = message.AppendName(wire.AppendSymbol(dst, s.name), s.value)
	}
	return dst
}

// appendDeath appends one element of x-opt-deaths.
func appendDeath(dst []byte, d *logpb.Death) []byte {
	at := len(dst)
	dst = wire.StartMapElement(dst)
	dst = message.AppendName(wire.AppendSymbol(dst, "queue"), d.Queue)
	dst = wire.AppendSymbol(wire.AppendSymbol(dst, "reason"), fsm.ReasonName(d.Reason))
	dst = wire.AppendUlong(wire.AppendSymbol(dst, "count"), d.Count)
	dst = wire.AppendTimestamp(wire.AppendSymbol(dst, "first-time"), d.Time)
	dst = wire.AppendTimestamp(wire.AppendSymbol(dst, "last-time"), cmp.Or(d.LastTime, d.Time))
	dst = message.AppendName(wire.AppendSymbol(dst, "exchange"), d.Exchange)
	dst = message.AppendNames(wire.AppendSymbol(dst, "routing-keys"), d.RoutingKeys)
	pairs := 7
	if ttl, err := strconv.ParseUint(d.OriginalExpiration, 10, 32); err == nil {
		dst = wire.AppendUint(wire.AppendSymbol(dst, "ttl"), uint32(ttl))
		pairs++
	}
	return wire.EndMapElement(dst, at, pairs)
}
