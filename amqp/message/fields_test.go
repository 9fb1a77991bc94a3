package message_test

import (
	"testing"

	"github.com/quorate/quorate/amqp/message"
	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/selector"
)

func mustMatch(t *testing.T, p fsm.Payload, want bool, texts ...string) {
	t.Helper()
	for _, text := range texts {
		s, err := selector.Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if s.Matches(message.Fields(p)) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}

// Fields of a message of AMQP 1.0 are those of its sections.
func TestFieldsOfBare(t *testing.T) {
	application := wire10.StartMap(nil)
	application = wire10.AppendString(wire10.AppendString(application, "colour"), "red")
	application = wire10.AppendUlong(wire10.AppendString(application, "n"), 5)
	annotations := wire10.AppendString(wire10.AppendSymbol(wire10.StartMap(nil), "x-shape-of"), "round")
	bare := wire10.Append(nil, &wire10.Properties{
		MessageID: wire10.AppendUlong(nil, 77), CorrelationID: wire10.AppendString(nil, "c"), UserID: []byte("u"), To: []byte("/queues/q"), Subject: []byte("s"),
		ContentType: []byte("text/plain"), CreationTime: wire10.Some[int64](1000), GroupID: []byte("g"), GroupSequence: wire10.Some[uint32](3),
	})
	bare = append(wire10.StartApplicationProperties(bare), wire10.EndMap(application, 0, 2)...)
	bare = wire10.AppendData(bare, []byte("body"))
	p, err := fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Durable: true, Priority: 7, TTL: 500}, wire10.EndMap(annotations, 0, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	p = append(p, bare...)
	mustMatch(t, p, true, "colour = 'red'", "n = 5", "h.priority = 7", "h.durable", "h.ttl = 500", "p.message_id = 77", "p.correlation_id = 'c'", "p.user_id = 'u'", "p.to = '/queues/q'",
		"p.subject = 's'", "p.content_type LIKE 'text/%'", "p.creation_time = 1000", "p.group_id = 'g'", "p.group_sequence = 3", "m.x_shape_of = 'round'",
		"p.reply_to IS NULL AND p.absolute_expiry_time IS NULL AND p.nothing IS NULL AND h.nothing IS NULL AND m.x IS NULL AND none IS NULL")
	mustMatch(t, p, false, "colour = 'blue'", "p.message_id = '77'", "m.colour = 'red'", "p.colour = 'red'")
	p, _ = fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, nil, nil)
	mustMatch(t, append(p, "garbage"...), true, "h.priority = 4", "NOT h.durable", "h.ttl IS NULL AND colour IS NULL AND p.subject IS NULL")
	for _, damaged := range []string{"\xd1\x00\x00\x00\x04\x00\x00\x00\x02", "\xc1\xff", "x"} {
		p, _ = fsm.AppendBareHead(nil, "", "q", fsm.BareHeader{Priority: -1, TTL: -1}, []byte(damaged), nil)
		mustMatch(t, append(p, bare...), true, "m.x IS NULL", "colour = 'red'")
	}
}

// Those of a message of AMQP 0-9-1 have the names that they have in AMQP 1.0.
func TestFieldsOfList(t *testing.T) {
	list := wire091.AppendProperties(nil, &wire091.Properties{
		Present:      wire091.FlagHeaders | wire091.FlagDeliveryMode | wire091.FlagPriority | wire091.FlagMessageID | wire091.FlagType | wire091.FlagAppID | wire091.FlagTimestamp,
		DeliveryMode: 2, Priority: 9, MessageID: []byte("m1"), Type: []byte("s"), AppID: []byte("g"), Timestamp: 5,
		Headers: wire091.AppendFields(nil, wire091.Table{
			{Name: "colour", Value: wire091.String("red")}, {Name: "n", Value: wire091.Int32(5)}, {Name: "yes", Value: wire091.Bool(true)}, {Name: "x-shape", Value: wire091.String("round")},
		}),
	})
	p := fsm.Payload(append(fsm.AppendPayloadHead(nil, "", "q", list), "body"...))
	mustMatch(t, p, true, "colour = 'red'", "n = 5", "yes", "h.priority = 9", "h.durable", "p.message_id = 'm1'", "p.subject = 's'", "p.group_id = 'g'", "p.creation_time = 5000", "m.x_shape = 'round'",
		"none IS NULL AND p.to IS NULL AND p.reply_to IS NULL")
	mustMatch(t, p, false, "colour = 'blue'", "p.colour = 'red'")
}
