package message

import (
	"bytes"
	"math"
	"strings"
	"testing"

	client "github.com/Azure/go-amqp"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
)

// withHeaders is a property list with headers only.
func withHeaders(t wire091.Table) []byte {
	return wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagHeaders, Headers: wire091.AppendFields(nil, t)})
}

func TestPropertiesOfOldMessage(t *testing.T) {
	all := wire091.Properties{
		Present: 0xFFFC &^ wire091.FlagHeaders, DeliveryMode: 2, Priority: 0, Timestamp: 7, ContentType: []byte("t/p"), ContentEncoding: []byte("gzip"), CorrelationID: []byte(strings.ToUpper(uuidText)),
		ReplyTo: []byte("a/b ü"), Expiration: []byte("500"), MessageID: []byte(uuidText), Type: []byte("kind"), UserID: []byte("\xffu"), AppID: []byte("app"), ClusterID: []byte("c"),
	}
	m, p := mustRender(t, old(wire091.AppendProperties(nil, &all), []byte("body")))
	if want := (wire10.Header{Durable: true, Priority: wire10.Some[byte](0), TTL: wire10.Some[uint32](500)}); m.Header != want {
		t.Errorf("%+v, want %+v", m.Header, want)
	}
	if v, _ := m.Annotations.Get("x-basic-type"); string(v.Bytes()) != "kind" || v.Type != wire10.String {
		t.Errorf("the type is %+v", v)
	}
	if v := p.MessageID.Value(); v.Type != wire10.UUID || string(v.Bytes()) != uuidBytes {
		t.Errorf("the id is %+v", v)
	}
	if v := p.CorrelationID.Value(); v.Type != wire10.String || string(v.Bytes()) != strings.ToUpper(uuidText) {
		t.Errorf("the correlation id is %+v", v) // its prefix is another one
	}
	if string(p.UserID) != "\xffu" || p.To != nil || p.Subject != nil || string(p.ReplyTo) != "/queues/a%2Fb%20%C3%BC" || string(p.ContentType) != "t/p" ||
		string(p.ContentEncoding) != "gzip" || p.AbsoluteExpiryTime.Present || p.CreationTime != wire10.Some[int64](7000) || string(p.GroupID) != "app" || p.GroupSequence.Present {
		t.Errorf("%+v", p)
	}
	if string(data(&m)) != "body" || m.ApplicationProperties != nil {
		t.Errorf("%+v", m)
	}
}

// What AMQP 1.0 cannot hold is left out, or is of another type.
func TestOddPropertiesOfOldMessage(t *testing.T) {
	odd := wire091.Properties{
		Present: 0xFFFC &^ wire091.FlagHeaders, DeliveryMode: 1, Priority: 255, Timestamp: math.MaxUint64, ContentType: []byte("ü"), ContentEncoding: []byte("\xff"), CorrelationID: []byte("a\x00b"),
		Expiration: []byte("9999999999"), MessageID: []byte("\xff"), Type: []byte("\xff"), AppID: []byte("\xff"),
	}
	m, p := mustRender(t, old(wire091.AppendProperties(nil, &odd), nil))
	if m.Header.Durable || m.Header.Priority != wire10.Some[byte](255) || m.Header.TTL != wire10.Some[uint32](math.MaxUint32) {
		t.Errorf("%+v", m.Header)
	}
	if p.ContentType != nil || p.ContentEncoding != nil || p.CreationTime.Present || p.GroupID != nil || p.ReplyTo != nil || len(p.UserID) > 0 ||
		p.MessageID.Value().Type != wire10.Binary || p.CorrelationID.Value().Type != wire10.Binary {
		t.Errorf("%+v", p)
	}
	if v, _ := m.Annotations.Get("x-basic-type"); v.Type != wire10.Binary {
		t.Errorf("the type is %+v", v)
	}
	if m.Kind != wire10.BodyData || len(data(&m)) > 0 {
		t.Errorf("%+v", m)
	}
	// A list that cannot be read is none, and the body is what it was.
	for _, damaged := range []string{"", "\xff", "\xff\xff", "\x20\x00\xff\xff\xff\xff", "\x80\x00\x05abc"} {
		m, p := mustRender(t, old([]byte(damaged), []byte("body")))
		if string(data(&m)) != "body" || p.ContentType != nil || m.ApplicationProperties != nil {
			t.Errorf("%q: %+v", damaged, m)
		}
	}
}

func TestHeadersOfOldMessage(t *testing.T) {
	long := strings.Repeat("l", 4097)
	for _, c := range []struct {
		name string
		in   wire091.Value
		want []byte // nil: left out
	}{
		{"t", wire091.Bool(true), wire10.AppendBool(nil, true)},
		{"b", wire091.Value{Tag: 'b', Int: -3}, wire10.AppendByte(nil, -3)},
		{"B", wire091.Value{Tag: 'B', Int: 200}, wire10.AppendUbyte(nil, 200)},
		{"s", wire091.Value{Tag: 's', Int: -300}, wire10.AppendShort(nil, -300)},
		{"u", wire091.Value{Tag: 'u', Int: 60000}, wire10.AppendUshort(nil, 60000)},
		{"I", wire091.Int32(-70000), wire10.AppendInt(nil, -70000)},
		{"i", wire091.Value{Tag: 'i', Int: 4e9}, wire10.AppendUint(nil, 4e9)},
		{"l", wire091.Int64(math.MinInt64), wire10.AppendLong(nil, math.MinInt64)},
		{"f", wire091.Value{Tag: 'f', Int: int64(math.Float32bits(1.5))}, wire10.AppendFloatBits(nil, math.Float32bits(1.5))},
		{"d", wire091.Value{Tag: 'd', Int: int64(math.Float64bits(-2.5))}, wire10.AppendDoubleBits(nil, math.Float64bits(-2.5))},
		{"T", wire091.Timestamp(5), wire10.AppendTimestamp(nil, 5000)},
		{"late T", wire091.Timestamp(math.MaxUint64), nil},
		{"V", wire091.Value{Tag: 'V'}, wire10.AppendNull(nil)},
		{"x", wire091.Value{Tag: 'x', Str: "b"}, wire10.AppendBinary(nil, "b")},
		{"S", wire091.String("ü"), text("ü")},
		{"S of 4096", wire091.String(long[1:]), text(long[1:])},
		{"S of 4097", wire091.String(long), wire10.AppendBinary(nil, long)},
		{"S with NUL", wire091.String("a\x00"), wire10.AppendBinary(nil, "a\x00")},
		{"S that is no text", wire091.String("\xff"), wire10.AppendBinary(nil, "\xff")},
		{"D", wire091.Value{Tag: 'D', Str: "\x01\x00\x00\x00\x05"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			nested := wire091.Table{{Name: "k", Value: c.in}, {Name: "ü", Value: wire091.Bool(true)}}
			m, _ := mustRender(t, old(withHeaders(wire091.Table{
				{Name: "p", Value: c.in}, {Name: "x-p", Value: c.in}, {Name: "x-list", Value: wire091.Array(c.in, wire091.Bool(true))}, {Name: "x-map", Value: wire091.Nested(nested)},
				{Name: "array", Value: wire091.Array(c.in)}, {Name: "table", Value: wire091.Nested(nested)}, {Name: "end", Value: wire091.Bool(true)},
			}), nil))
			var want, inMap [][]byte
			inList := [][]byte{wire10.AppendBool(nil, true)}
			if c.want != nil {
				want, inMap, inList = [][]byte{text("p"), c.want}, [][]byte{symbol("k"), c.want}, append([][]byte{c.want}, inList...)
			}
			if got, want := []byte(m.ApplicationProperties), pairs(append(want, text("end"), wire10.AppendBool(nil, true))...); !bytes.Equal(got, want) {
				t.Errorf("% x\nwant % x", got, want)
			}
			var all [][]byte
			if c.want != nil {
				all = [][]byte{symbol("x-p"), c.want}
			}
			all = append(all, symbol("x-list"), list(inList...), symbol("x-map"), pairs(inMap...))
			if got, want := []byte(m.Annotations), pairs(all...); !bytes.Equal(got, want) {
				t.Errorf("% x\nwant % x", got, want)
			}
		})
	}
}

// Receivers see the routing keys of CC, and never those of BCC. A header does not take the place of what comes from
// another one.
func TestSpecialHeadersOfOldMessage(t *testing.T) {
	keys := wire091.Array(wire091.String("a"), wire091.String("b"))
	raw := wire091.AppendProperties(nil, &wire091.Properties{
		Present: wire091.FlagHeaders | wire091.FlagType, Type: []byte("kind"), Headers: wire091.AppendFields(nil, wire091.Table{
			{Name: "x-cc", Value: wire091.String("mine")}, {Name: "CC", Value: keys}, {Name: "BCC", Value: wire091.String("secret")}, {Name: "x-basic-type", Value: wire091.String("mine")},
			{Name: "x-opt-deaths", Value: wire091.String("mine")}, {Name: "x-death", Value: wire091.Array(wire091.String("no table"))},
			{Name: "x-ü", Value: wire091.Bool(true)}, {Name: "\xff", Value: wire091.Bool(true)}, {Name: "x", Value: wire091.Bool(true)}, {Name: "x-", Value: wire091.Bool(true)},
		}),
	})
	m, _ := mustRender(t, old(raw, nil))
	want := pairs(symbol("x-basic-type"), text("kind"), symbol("x-cc"), list(text("a"), text("b")), symbol("x-opt-deaths"), []byte("\xf0\x00\x00\x00\x05\x00\x00\x00\x00\xd1"),
		symbol("x-"), wire10.AppendBool(nil, true))
	if !bytes.Equal(m.Annotations, want) {
		t.Errorf("% x\nwant % x", m.Annotations, want)
	}
	if want := pairs(text("x"), wire10.AppendBool(nil, true)); !bytes.Equal(m.ApplicationProperties, want) {
		t.Errorf("% x\nwant % x", m.ApplicationProperties, want)
	}
	// Without these they are what they say.
	m, _ = mustRender(t, old(withHeaders(wire091.Table{
		{Name: "x-cc", Value: keys}, {Name: "x-basic-type", Value: wire091.String("mine")}, {Name: "x-opt-deaths", Value: wire091.String("mine")},
	}), nil))
	if n := m.Annotations.Walk(); !n.NextPair() || !n.NextPair() || !n.NextPair() || n.NextPair() {
		t.Errorf("% x", m.Annotations)
	}
	var c From091
	c.Read(old(raw, nil))
	if b, n := c.AppendAnnotations(nil, func([]byte) bool { return true }); len(b) > 0 || n > 0 {
		t.Errorf("annotations that are another's: % x", b)
	}
}

// Sections that came as the body of a 0-9-1 message are those of the delivery. What is none is data, so that it
// harms no receiver.
func TestSectionsOfOldMessage(t *testing.T) {
	value := append(wire10.StartValue(nil), list(text("v"), wire10.AppendNull(nil))...)
	sequence := []byte("\x00\x53\x76\xc0\x03\x01\x52\x07")
	many := append(wire10.AppendData(nil, []byte("a")), wire10.AppendData(nil, []byte("b"))...)
	header := wire10.Header{Durable: true}
	properties := wire10.Properties{UserID: []byte("root")}
	for _, c := range []struct {
		name     string
		body     []byte
		sections bool
	}{
		{"value", value, true}, {"sequences", append(sequence, sequence...), true}, {"data", many, true}, {"footer", append(many, "\x00\x53\x78\xc1\x01\x00"...), true},
		{"two values", append(value, value...), false}, {"value and data", append(value, many...), false}, {"footer only", []byte("\x00\x53\x78\xc1\x01\x00"), false},
		{"footer before data", append([]byte("\x00\x53\x78\xc1\x01\x00"), many...), false}, {"data of no bytes", []byte("\x00\x53\x75\xa1\x01a"), false},
		{"nothing", nil, false}, {"text", []byte("text"), false}, {"cut", value[:len(value)-1], false}, {"more", append(value, 0), false},
		{"header", append(wire10.Append(nil, &header), value...), false}, {"properties", append(wire10.Append(nil, &properties), value...), false},
		{"application properties", append(application(pairs()), value...), false}, {"annotations", append(append(wire10.StartAnnotations(nil), pairs()...), value...), false},
		{"for one delivery", append([]byte("\x00\x53\x71\xc1\x01\x00"), value...), false},
		{"garbage within", []byte("\x00\x53\x77\xc0\x03\x01\xff\x07"), false}, {"too deep", append(wire10.StartValue(nil), deep(70)...), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := old(wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagType, Type: []byte("amqp-1.0")}), c.body)
			m, _ := mustRender(t, p)
			_, typed := m.Annotations.Get("x-basic-type")
			if c.sections && (typed || !bytes.Equal(m.Bare, c.body)) {
				t.Errorf("%v, % x", typed, m.Bare)
			}
			if !c.sections && (!typed || m.Kind != wire10.BodyData || !bytes.Equal(data(&m), c.body)) {
				t.Errorf("%v, % x", typed, m.Bare)
			}
			if err := new(client.Message).UnmarshalBinary(render(p)); err != nil {
				t.Error(err)
			}
		})
	}
}

// Without that type a body is data, whatever it looks like.
func TestBodyThatIsNearlySections(t *testing.T) {
	body := wire10.AppendData(nil, []byte("a"))
	if m, _ := mustRender(t, old([]byte{0, 0}, body)); !bytes.Equal(data(&m), body) {
		t.Errorf("% x", m.Bare)
	}
}

// Values of a history that are of another type stay what they are.
func TestOddHistoryOfOldMessage(t *testing.T) {
	entry := wire091.Table{
		{Name: "count", Value: wire091.Int64(-1)}, {Name: "reason", Value: wire091.String("ü")}, {Name: "time", Value: wire091.Bool(true)},
		{Name: "original-expiration", Value: wire091.String("none")}, {Name: "ü", Value: wire091.Bool(true)},
	}
	m, _ := mustRender(t, old(withHeaders(wire091.Table{{Name: "x-death", Value: wire091.Array(wire091.Int64(5), wire091.Nested(entry))}}), nil))
	v, _ := m.Annotations.Get("x-opt-deaths")
	w := v.Walk()
	if !w.Next() || v.Len() != 1 {
		t.Fatalf("%+v", v)
	}
	e := w.Value.Walk()
	for _, want := range []struct {
		name string
		t    wire10.Type
	}{{"count", wire10.Long}, {"reason", wire10.String}, {"first-time", wire10.Boolean}} {
		if !e.NextPair() || string(e.Key.Bytes()) != want.name || e.Value.Type != want.t {
			t.Errorf("%s is %+v, not of type %v", e.Key.Bytes(), e.Value, want.t)
		}
	}
	if e.NextPair() {
		t.Errorf("%s is there", e.Key.Bytes())
	}
}

// Names are strings if they can be, and an array of them is one if all are.
func TestNames(t *testing.T) {
	for _, c := range []struct{ in, want string }{{"ü", "\xa1\x02ü"}, {"\xff", "\xa0\x01\xff"}, {"a\x00", "\xa0\x02a\x00"}} {
		if got := AppendName(nil, c.in); string(got) != c.want {
			t.Errorf("%q is % x", c.in, got)
		}
	}
	if b := AppendNames(nil, []string{"a", "b"}); !bytes.Equal(b, wire10.AppendStrings(nil, []string{"a", "b"})) {
		t.Errorf("% x", b)
	}
	if b := AppendNames(nil, []string{"a", "\xff"}); !bytes.Equal(b, list(text("a"), wire10.AppendBinary(nil, "\xff"))) {
		t.Errorf("% x", b)
	}
}

// deep is so many lists, one in the other.
func deep(n int) []byte {
	b := wire10.AppendNull(nil)
	for range n {
		b = list(b)
	}
	return b
}

// Values that are nested as deep as 0-9-1 allows have an end in AMQP 1.0.
func TestDeepHeadersOfOldMessage(t *testing.T) {
	v := wire091.Bool(true)
	for range 64 {
		v = wire091.Array(v)
	}
	raw := withHeaders(wire091.Table{{Name: "x-deep", Value: v}})
	if _, err := wire091.ParseProperties(raw); err != nil {
		t.Fatal(err)
	}
	m, _ := mustRender(t, old(raw, nil))
	in, _ := m.Annotations.Get("x-deep")
	n := 0
	for in.Type == wire10.List {
		w := in.Walk()
		w.Next()
		in = w.Value
		n++
	}
	if n != maxDepth {
		t.Errorf("%d lists", n)
	}
}
