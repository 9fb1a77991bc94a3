package message

import (
	"testing"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

// hotPaths are conversions of deliveries: they write into memory that is there.
func hotPaths() map[string]func() {
	properties := wire10.Properties{
		MessageID: wire10.AppendUlong(nil, 77), CorrelationID: uuid, ReplyTo: []byte("/queues/a%20b"), ContentType: []byte("text/plain"), CreationTime: wire10.Some[int64](1),
	}
	application := application(pairs(text("colour"), text("red"), text("weight"), wire10.AppendInt(nil, 5)))
	annotations := pairs(symbol("x-cc"), list(text("k")), symbol("x-own"), text("v"))
	header := fsm.BareHeader{Durable: true, Priority: 4, TTL: 60000}
	full := bare(header, annotations, wire10.AppendData(append(wire10.Append(nil, &properties), application...), make([]byte, 100)))
	value := bare(header, nil, append(wire10.StartValue(nil), list(text("v"))...))
	two := bare(noHeader, nil, append(wire10.AppendData(nil, make([]byte, 50)), wire10.AppendData(nil, make([]byte, 50))...))
	list := wire091.Properties{
		Present: 0xFFFC &^ wire091.FlagType, DeliveryMode: 2, Priority: 4, Timestamp: 1, ContentType: []byte("text/plain"), MessageID: []byte(uuidText), ReplyTo: []byte("a b"), Expiration: []byte("60000"),
		Headers: wire091.AppendFields(nil, wire091.Table{
			{Name: "colour", Value: wire091.String("red")}, {Name: "weight", Value: wire091.Int32(5)}, {Name: "CC", Value: wire091.Array(wire091.String("k"))}, {Name: "x-own", Value: wire091.String("v")},
			{Name: "x-death", Value: wire091.Array(wire091.Nested(wire091.Table{{Name: "queue", Value: wire091.String("q")}, {Name: "count", Value: wire091.Int64(1)}, {Name: "original-expiration", Value: wire091.String("5")}}))},
		}),
	}
	old1, old2 := old(wire091.AppendProperties(nil, &list), make([]byte, 100)), old([]byte{0x10, 0, 2}, make([]byte, 100))
	sections := old(wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagType, Type: []byte(typeOfSections)}), value.Body())
	var c From10
	dst := make([]byte, 0, 4096)
	to091 := func(p fsm.Payload) func() {
		return func() {
			c.Read(p)
			c.AppendProperties(dst, 4096)
			n := c.BodySize()
			for piece := range c.Body {
				n -= len(piece)
			}
			if n != 0 {
				panic("another size")
			}
		}
	}
	to10 := func(p fsm.Payload) func() {
		return func() {
			var from From091
			from.Read(p)
			b, n := from.AppendAnnotations(wire10.StartMap(dst), func(name []byte) bool { return string(name) == "x-exchange" })
			from.AppendBare(wire10.EndMap(b, 0, n))
		}
	}
	return map[string]func(){
		"to 0-9-1": to091(full), "value to 0-9-1": to091(value), "two data sections to 0-9-1": to091(two), "data to 0-9-1": to091(bare(header, nil, wire10.AppendData(nil, make([]byte, 100)))),
		"to 1.0": to10(old1), "body to 1.0": to10(old2), "sections to 1.0": to10(sections),
	}
}

// A delivery to a client of the other protocol costs no allocation.
func TestConversionsDoNotAllocate(t *testing.T) {
	for name, f := range hotPaths() {
		f()
		if n := testing.AllocsPerRun(100, f); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkConversions(b *testing.B) {
	for name, f := range hotPaths() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
