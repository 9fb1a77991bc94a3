package wire

import (
	"bytes"
	"math"
	"reflect"
	"testing"
	"time"

	foreign "github.com/Azure/go-amqp"
	"pgregory.net/rapid"
)

// drawMessage is a message that the other codec can encode.
func drawMessage(t *rapid.T) *foreign.Message {
	text := rapid.StringMatching(`[a-zü/-]{0,9}|[a-z]{256,300}`)
	maybe := func(name string) *string {
		if !rapid.Bool().Draw(t, name+" present") {
			return nil
		}
		s := text.Draw(t, name)
		return &s
	}
	id := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Uint64(), func(n uint64) any { return n }), rapid.Map(text, func(s string) any { return s }),
		rapid.Just[any]([]byte("id")), rapid.Just[any](foreign.UUID{1, 2, 3}),
	)
	m := &foreign.Message{}
	if rapid.Bool().Draw(t, "header") {
		m.Header = &foreign.MessageHeader{
			Durable: rapid.Bool().Draw(t, "durable"), Priority: rapid.Byte().Draw(t, "priority"),
			TTL:           time.Duration(rapid.Uint32().Draw(t, "ttl")) * time.Millisecond,
			FirstAcquirer: rapid.Bool().Draw(t, "first"), DeliveryCount: rapid.Uint32().Draw(t, "count"),
		}
	}
	if rapid.Bool().Draw(t, "annotations") {
		m.Annotations = foreign.Annotations{"x-opt-a": rapid.Int64().Draw(t, "annotation"), "x-opt-b": []any{"a", uint32(1)}}
		m.DeliveryAnnotations = foreign.Annotations{"x-d": true}
	}
	if rapid.Bool().Draw(t, "properties") {
		created := time.UnixMilli(rapid.Int64Range(0, 1<<41).Draw(t, "created")).UTC()
		m.Properties = &foreign.MessageProperties{
			MessageID: id.Draw(t, "id"), UserID: []byte(text.Draw(t, "user")), To: maybe("to"), Subject: maybe("subject"), ReplyTo: maybe("reply to"),
			CorrelationID: id.Draw(t, "correlation"), ContentType: maybe("type"), CreationTime: &created, GroupID: maybe("group"), ReplyToGroupID: maybe("reply group"),
		}
		if s := m.Properties.ContentType; s != nil {
			*s = "text/plain"
		}
	}
	m.ApplicationProperties = map[string]any{
		"bool": rapid.Bool().Draw(t, "b"), "int": rapid.Int32().Draw(t, "i"), "ubyte": rapid.Byte().Draw(t, "u"), "long": rapid.Int64().Draw(t, "l"),
		"double": rapid.Float64().Draw(t, "f"), "string": text.Draw(t, "s"), "binary": []byte("b"), "null": nil,
	}
	switch rapid.IntRange(0, 2).Draw(t, "body") {
	case 0:
		m.Data = rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 300), 1, 3).Draw(t, "data")
	case 1:
		m.Value = map[string]any{"a": text.Draw(t, "value")}
	default:
		m.Sequence = [][]any{{text.Draw(t, "element"), uint64(7)}, {}}
	}
	if rapid.Bool().Draw(t, "footer") {
		m.Footer = foreign.Annotations{"x-f": "f"}
	}
	return m
}

// What go-amqp encodes means the same here.
func TestMessagesOfGoAMQP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawMessage(t)
		b, err := want.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		m := new(Message)
		if err := m.Parse(b); err != nil {
			t.Fatalf("%v: % x", err, b)
		}
		compare(t, m, want)
	})
}

// FuzzGoAMQP: a message that go-amqp understands, too, means the same to both.
func FuzzGoAMQP(f *testing.F) {
	head, bare := hexHeader+hexDelivery+hexAnnotations, hexProperties+hexApplication
	for _, s := range []string{head + bare + hexData + hexFooter, hexData + hexData, hexSequence, bare + hexValue} {
		f.Add(mustHex(f, s))
	}
	for _, m := range recordedMessages(f) {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m := new(Message)
		if m.Parse(in) != nil || m.ReadProperties(new(Properties)) != nil {
			return
		}
		other := new(foreign.Message)
		if !understood(other, in) {
			return
		}
		compare(t, m, other)
	})
}

// understood reports whether the other codec reads b: it neither refuses it nor panics.
func understood(m *foreign.Message, b []byte) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return m.UnmarshalBinary(b) == nil
}

type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

func compare(t failer, m *Message, want *foreign.Message) {
	t.Helper()
	if want.Header != nil {
		h := foreign.MessageHeader{
			Durable: m.Header.Durable, Priority: m.Header.Priority.Or(4), TTL: time.Duration(m.Header.TTL.Value) * time.Millisecond,
			FirstAcquirer: m.Header.FirstAcquirer, DeliveryCount: m.Header.DeliveryCount,
		}
		// A list that ends before the priority has it as 0 there.
		if *want.Header != h && (want.Header.Priority != 0 || m.Header.Priority.Present) {
			t.Errorf("header %+v, want %+v", h, want.Header)
		}
	}
	compareProperties(t, m, want.Properties)
	for k, v := range want.ApplicationProperties {
		compareEntry(t, m.ApplicationProperties, len(want.ApplicationProperties), k, v)
	}
	for k, v := range want.Annotations {
		if name, ok := k.(string); ok {
			compareEntry(t, m.Annotations, len(want.Annotations), name, v)
		}
	}
	var data [][]byte
	for d := range m.Data {
		data = append(data, d)
	}
	if len(data) != len(want.Data) || len(data) > 0 && !bytes.Equal(bytes.Join(data, nil), bytes.Join(want.Data, nil)) {
		t.Errorf("data %q, want %q", data, want.Data)
	}
	if m.Kind == BodySequence != (len(want.Sequence) > 0) || len(m.Footer) > 0 != (want.Footer != nil) {
		t.Errorf("body of kind %d, footer % x, want %v, %v", m.Kind, m.Footer, want.Sequence, want.Footer)
	}
}

// compareEntry compares a value of a map, unless it has a key twice: there each codec has its own choice.
func compareEntry(t failer, m MapBytes, size int, key string, want any) {
	t.Helper()
	if w := m.Walk(); w.left != 2*size {
		return
	}
	if got, ok := m.Get(key); !ok || !same(got, want) {
		t.Errorf("%q is %v, want %v", key, got, want)
	}
}

func compareProperties(t failer, m *Message, want *foreign.MessageProperties) {
	t.Helper()
	if want == nil {
		return
	}
	p := new(Properties)
	if err := m.ReadProperties(p); err != nil {
		t.Fatalf("properties: %v", err)
	}
	for _, c := range []struct {
		name string
		got  []byte
		want *string
	}{
		{"to", p.To, want.To}, {"subject", p.Subject, want.Subject}, {"reply-to", p.ReplyTo, want.ReplyTo}, {"content-type", p.ContentType, want.ContentType},
		{"group-id", p.GroupID, want.GroupID}, {"reply-to-group-id", p.ReplyToGroupID, want.ReplyToGroupID},
	} {
		if (c.got == nil) != (c.want == nil) || c.want != nil && string(c.got) != *c.want {
			t.Errorf("%s %q, want %v", c.name, c.got, c.want)
		}
	}
	if !bytes.Equal(p.UserID, want.UserID) || want.CreationTime != nil && p.CreationTime.Value != want.CreationTime.UnixMilli() {
		t.Errorf("properties %+v, want %+v", p, want)
	}
	if !same(p.MessageID.Value(), want.MessageID) || !same(p.CorrelationID.Value(), want.CorrelationID) {
		t.Errorf("ids %s, %s, want %v, %v", render(p.MessageID.Value()), render(p.CorrelationID.Value()), want.MessageID, want.CorrelationID)
	}
}

// same reports whether a value is what the other codec has read; values of which it makes something else are.
func same(v Value, want any) bool {
	switch w := want.(type) {
	case nil:
		return v.Type == Null
	case bool:
		return v.Type == Boolean && v.Bool() == w
	case uint8, uint16, uint32, uint64:
		return v.Unsigned() == reflect.ValueOf(w).Uint()
	case int8, int16, int32, int64:
		return v.Signed() == reflect.ValueOf(w).Int()
	case float64:
		return v.Type == Double && math.Float64bits(v.Float()) == math.Float64bits(w)
	case string:
		return (v.Type == String || v.Type == Symbol) && string(v.Bytes()) == w
	case []byte:
		return v.Type == Binary && bytes.Equal(v.Bytes(), w)
	case foreign.UUID:
		return v.Type == UUID && bytes.Equal(v.Bytes(), w[:])
	}
	return true
}

// What is encoded here means the same to go-amqp.
func TestGoAMQPReadsMessages(t *testing.T) {
	b := Append(nil, &Header{Durable: true, Priority: Some[byte](9), TTL: Some[uint32](1000), DeliveryCount: 2})
	at := len(StartAnnotations(b))
	b = EndMap(AppendUint(AppendSymbol(StartMap(StartAnnotations(b)), "x-opt-a"), 1), at, 1)
	b = Append(b, &Properties{MessageID: AppendUlong(nil, 7), Subject: []byte("200"), CreationTime: Some[int64](1500)})
	at = len(StartApplicationProperties(b))
	b = EndMap(AppendString(AppendString(StartMap(StartApplicationProperties(b)), "k"), "v"), at, 1)
	b = AppendData(b, []byte("hello"))
	got := new(foreign.Message)
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	subject, created := "200", time.UnixMilli(1500).UTC()
	want := &foreign.Message{
		Header:                &foreign.MessageHeader{Durable: true, Priority: 9, TTL: time.Second, DeliveryCount: 2},
		Annotations:           foreign.Annotations{"x-opt-a": uint32(1)},
		Properties:            &foreign.MessageProperties{MessageID: uint64(7), Subject: &subject, CreationTime: &created},
		ApplicationProperties: map[string]any{"k": "v"},
		Data:                  [][]byte{[]byte("hello")},
	}
	theirs, err := want.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := got.MarshalBinary(); err != nil || !bytes.Equal(again, theirs) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
}
