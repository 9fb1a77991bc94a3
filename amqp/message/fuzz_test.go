package message

import (
	"bytes"
	"testing"

	client "github.com/Azure/go-amqp"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// FuzzTo091: whatever lies in a queue in the form of AMQP 1.0, a 0-9-1 client gets properties that it can read and that
// are no longer than they may be, and the body; and what it gets can go back.
func FuzzTo091(f *testing.F) {
	all := wire10.Properties{
		MessageID: text("m"), CorrelationID: uuid, UserID: []byte("u"), ReplyTo: []byte("/queues/q"), ContentType: []byte("t/p"), CreationTime: wire10.Some[int64](1), GroupID: []byte("g"),
	}
	value := append(wire10.StartValue(nil), list(text("v"))...)
	for _, v := range values {
		annotations := pairs(symbol("x-a"), v.in, symbol("x-l"), list(v.in), symbol("x-cc"), list(text("k")), symbol("x-opt-deaths"), list(pairs(symbol("count"), v.in)))
		f.Add(annotations, wire10.AppendData(append(wire10.Append(nil, &all), application(pairs(text("a"), v.in))...), []byte("body")), byte(7), 4096)
	}
	f.Add([]byte(nil), value, byte(0), 100)
	f.Add([]byte("\xc1\xff\xff"), []byte("\x00\x53"), byte(1), -1)
	f.Fuzz(func(t *testing.T, annotations, sections []byte, flags byte, limit int) {
		h := fsm.BareHeader{Durable: flags&1 != 0, Priority: int(flags>>1) - 1, TTL: fsm.Millis(flags>>2) - 1}
		p := bare(h, annotations, sections)
		var c From10
		c.Read(p)
		raw := c.AppendProperties(nil, limit)
		const base = 2 + 2 + 8 + 9*256 // what all but the headers can have
		if len(raw) > max(limit, base) {
			t.Fatalf("%d bytes, and not more than %d wanted", len(raw), limit)
		}
		list, err := wire091.ParseProperties(raw)
		if err != nil {
			t.Fatalf("%v: % x", err, raw)
		}
		if again := c.AppendProperties(nil, limit); !bytes.Equal(again, raw) {
			t.Fatalf("% x, and then % x", raw, again)
		}
		var body []byte
		for piece := range c.Body {
			body = append(body, piece...)
		}
		if n := c.BodySize(); n != len(body) || !bytes.Equal(Body(p), body) {
			t.Fatalf("a body of %d bytes, not %d", n, len(body))
		}
		m, _ := mustRender(t, old(raw, body))
		back := data(&m)
		if string(list.Type) == typeOfSections && m.Kind != wire10.BodyData {
			back = m.Body
		}
		if !bytes.Equal(back, body) && string(list.Type) != typeOfSections {
			t.Fatalf("% x came back as % x", body, back)
		}
	})
}

// FuzzTo10: whatever lies in a queue in the form of 0-9-1, a receiver of AMQP 1.0 gets a message that it can read down to
// the last value, and the body; and what it gets can go back.
func FuzzTo10(f *testing.F) {
	all := wire091.Properties{
		Present: 0xFFFC, DeliveryMode: 2, Priority: 1, Timestamp: 1, ContentType: []byte("t/p"), ContentEncoding: []byte("gzip"), CorrelationID: []byte("c"), ReplyTo: []byte("r"),
		Expiration: []byte("5"), MessageID: []byte(uuidText), Type: []byte("amqp-1.0"), UserID: []byte("u"), AppID: []byte("a"),
	}
	for _, v := range values {
		if v.want.Tag == 0 {
			continue
		}
		all.Headers = wire091.AppendFields(nil, wire091.Table{
			{Name: "a", Value: v.want}, {Name: "x-a", Value: v.want}, {Name: "x-l", Value: wire091.Array(v.want)}, {Name: "CC", Value: wire091.Array(wire091.String("k"))},
			{Name: "x-death", Value: wire091.Array(wire091.Nested(wire091.Table{{Name: "count", Value: v.want}, {Name: "reason", Value: v.want}, {Name: "time", Value: v.want}}))},
		})
		f.Add(wire091.AppendProperties(nil, &all), append(wire10.StartValue(nil), v.in...))
	}
	f.Add([]byte("\x00\x00"), []byte("body"))
	f.Add([]byte("\xff\xff"), []byte(nil))
	f.Fuzz(func(t *testing.T, properties, body []byte) {
		p := old(properties, body)
		m, read := mustRender(t, p)
		var c From091
		c.Read(p)
		switch {
		case c.sections:
			if !bytes.HasSuffix(m.Bare, body) || len(m.Body)+len(m.Footer) != len(body) {
				t.Fatalf("% x came as % x", body, m.Bare)
			}
		case m.Kind != wire10.BodyData || !bytes.Equal(data(&m), body):
			t.Fatalf("% x came as % x", body, m.Bare)
		default:
			if err := new(client.Message).UnmarshalBinary(render(p)); err != nil {
				t.Fatalf("another program cannot read it: %v: % x", err, render(p))
			}
		}
		back := mustShow(t, bare(noHeader, m.Annotations, m.Bare))
		if !c.sections && back.body != string(body) {
			t.Fatalf("% x came back as % x", body, back.body)
		}
		if list, err := wire091.ParseProperties(properties); err == nil {
			checkBack(t, &list, &back.Properties, &read)
		}
	})
}

// checkBack checks properties that have gone to AMQP 1.0 and back.
func checkBack(t *testing.T, was, is *wire091.Properties, between *wire10.Properties) {
	t.Helper()
	for _, x := range []struct {
		name    string
		was, is []byte
		kept    bool
	}{
		{"content-type", was.ContentType, is.ContentType, isSymbol(was.ContentType)},
		{"content-encoding", was.ContentEncoding, is.ContentEncoding, isSymbol(was.ContentEncoding)},
		{"message-id", was.MessageID, is.MessageID, between.MessageID.Value().Type == wire10.String},
		{"correlation-id", was.CorrelationID, is.CorrelationID, between.CorrelationID.Value().Type == wire10.String},
		{"reply-to", was.ReplyTo, is.ReplyTo, true},
		{"app-id", was.AppID, is.AppID, between.GroupID != nil},
	} {
		if x.kept && !bytes.Equal(x.was, x.is) {
			t.Fatalf("%s %q came back as %q", x.name, x.was, x.is)
		}
	}
	if between.CreationTime.Present && was.Timestamp != is.Timestamp {
		t.Fatalf("timestamp %d came back as %d", was.Timestamp, is.Timestamp)
	}
}
