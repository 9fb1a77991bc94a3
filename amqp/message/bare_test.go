package message

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func TestHeadersForExchanges(t *testing.T) {
	b := wire10.StartApplicationProperties(nil)
	at := len(b)
	b = wire10.StartMap(b)
	pairs := 0
	add := func(name string, value []byte) {
		b = append(wire10.AppendString(b, name), value...)
		pairs++
	}
	add("string", wire10.AppendString(nil, "s"))
	add("symbol", wire10.AppendSymbol(nil, "s"))
	add("binary", wire10.AppendBinary(nil, "s"))
	add("ubyte", wire10.AppendUbyte(nil, 200))
	add("int", wire10.AppendInt(nil, -5))
	add("ulong", wire10.AppendUlong(nil, 7))
	add("bool", wire10.AppendBool(nil, true))
	add("null", wire10.AppendNull(nil))
	add("time", wire10.AppendTimestamp(nil, 5999))
	add("uuid", []byte("\x98\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"))
	add("char", []byte("\x73\x00\x00\x00\xfc"))
	add("decimal", []byte("\x74\x00\x00\x00\x00")) // has no counterpart
	b = wire10.EndMap(b, at, pairs)
	m := new(wire10.Message)
	if err := m.Parse(wire10.AppendData(b, nil)); err != nil {
		t.Fatal(err)
	}
	got := map[string]*logpb.Value{}
	for _, f := range HeadersOf(m).Fields {
		got[f.Name] = f.Value
	}
	for name, want := range map[string]struct {
		tag  byte
		n    int64
		text string
	}{
		"string": {'S', 0, "s"}, "symbol": {'S', 0, "s"}, "binary": {'S', 0, "s"}, "ubyte": {'B', 200, ""}, "int": {'I', -5, ""}, "ulong": {'l', 7, ""},
		"bool": {'t', 1, ""}, "null": {'V', 0, ""}, "time": {'T', 5, ""}, "uuid": {'S', 0, "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f"}, "char": {'S', 0, "ü"},
	} {
		if v := got[name]; v == nil || v.Tag != uint32(want.tag) || v.Int != want.n || string(v.Str) != want.text {
			t.Errorf("%s is %v, want %+v", name, v, want)
		}
	}
	if len(got) != 11 {
		t.Errorf("%d headers", len(got))
	}
}

// section encodes properties of a message; those without a name here are null.
func section(id, correlation []byte, replyTo, group string, created int64) []byte {
	b := wire10.AppendDescriptor(nil, 0x73)
	at := len(b)
	b = wire10.StartList(b)
	null := wire10.AppendNull(nil)
	for _, v := range [][]byte{
		id, wire10.AppendBinary(nil, "guest"), wire10.AppendString(nil, "/queues/to"), wire10.AppendString(nil, "subject"), wire10.AppendString(nil, replyTo),
		correlation, wire10.AppendSymbol(nil, "text/plain"), wire10.AppendSymbol(nil, "gzip"), null, wire10.AppendTimestamp(nil, created), wire10.AppendString(nil, group),
	} {
		if v == nil {
			v = null
		}
		b = append(b, v...)
	}
	return wire10.EndList(b, at, 11)
}

// applicationOf encodes application properties.
func applicationOf(fields ...wire.Field) []byte {
	b := wire10.StartApplicationProperties(nil)
	at := len(b)
	b = wire10.StartMap(b)
	for _, f := range fields {
		b = appendValue(wire10.AppendString(b, f.Name), f.Value)
	}
	return wire10.EndMap(b, at, len(fields))
}

// someBare is a message that has everything.
func someBare() fsm.Payload {
	annotations := annotated(
		wire.Field{Name: headerXDelay, Value: wire.Int64(9)}, wire.Field{Name: HeaderCC, Value: wire.Array(wire.String("other"))}, wire.Field{Name: "x-a", Value: wire.String("a")},
		wire.Field{Name: headerDeath, Value: wire.Array(entry("q", "expired", wire.Field{Name: "ttl", Value: wire.Int64(50)}, wire.Field{Name: "first-time", Value: wire.Timestamp(7)}))},
	)
	sections := slices.Concat(
		section(wire10.AppendUlong(nil, 77), wire10.AppendString(nil, "c"), "/queues/a%2Fb", "g", 5999),
		applicationOf(wire.Field{Name: "colour", Value: wire.String("red")}, wire.Field{Name: "none", Value: wire.Value{Tag: wire.TagVoid}}),
		wire10.AppendData(nil, []byte("body")),
	)
	return bare(fsm.BareHeader{Durable: true, Priority: 7, TTL: 500}, annotations, sections)
}

func TestBareProperties(t *testing.T) {
	p, how := someBare(), Properties{ContinueHistory: true}
	for name, want := range map[string]string{
		"message_id": "77", "correlation_id": "c", "reply_to": "a/b", "app_id": "g", "timestamp": "5", "priority": "7", headerGroup: "g", "type": "",
	} {
		if got := string(how.Property(p, name)); got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
	if how.Expiration(p) != "500" || how.Delay(p) != 9 || !slices.Equal(how.Copies(p), []string{"other"}) {
		t.Errorf("expires after %s, waits for %d, copies %q", how.Expiration(p), how.Delay(p), how.Copies(p))
	}
	deaths := how.Deaths(p)
	if len(deaths) != 1 || deaths[0].Queue != "q" || deaths[0].OriginalExpiration != "50" || deaths[0].Time != 7000 || !deaths[0].First {
		t.Errorf("deaths %v", deaths)
	}
	none := bare(noHeader, nil, wire10.AppendData(nil, nil))
	for _, name := range []string{"message_id", "correlation_id", "reply_to", "app_id", "timestamp", "priority", headerGroup} {
		if got := how.Property(none, name); got != nil {
			t.Errorf("%s of a message without is %q", name, got)
		}
	}
	if how.Expiration(none) != "" || how.Delay(none) != 0 || how.Copies(none) != nil || how.Headers(none, nil) != nil || how.Deaths(none) != nil {
		t.Error("a message without anything says something")
	}
}

// The ids of all types that there are, as text.
func TestBareIDs(t *testing.T) {
	for want, id := range map[string][]byte{
		"text": wire10.AppendString(nil, "text"), "\xff\x00": wire10.AppendBinary(nil, "\xff\x00"), "18446744073709551615": wire10.AppendUlong(nil, math.MaxUint64),
		"urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f": []byte("\x98\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"),
		"": wire10.AppendBool(nil, true),
	} {
		p := bare(noHeader, nil, append(section(id, id, "r", "g", 0), wire10.AppendData(nil, nil)...))
		for _, name := range []string{"message_id", "correlation_id"} {
			if got := string(Properties{}.Property(p, name)); got != want {
				t.Errorf("%s is %q, not %q", name, got, want)
			}
		}
	}
}

// The group of a message is what x-group-id says, a text or a number; in AMQP 1.0 it is else the group-id.
func TestGroup(t *testing.T) {
	for name, c := range map[string]struct {
		fields []wire.Field
		old    string // in 0-9-1
		bare   string // in 1.0, with the group-id g
	}{
		"none":     {nil, "", "g"},
		"text":     {[]wire.Field{{Name: headerGroup, Value: wire.String("a")}}, "a", "a"},
		"empty":    {[]wire.Field{{Name: headerGroup, Value: wire.String("")}}, "", ""},
		"a number": {[]wire.Field{{Name: headerGroup, Value: wire.Int64(-5)}}, "-5", "-5"},
		"a table":  {[]wire.Field{{Name: headerGroup, Value: wire.Nested(nil)}}, "", "g"},
	} {
		if got := string(Properties{}.Property(mustHave(t, c.fields...), headerGroup)); got != c.old {
			t.Errorf("%s: 0-9-1: %q, not %q", name, got, c.old)
		}
		before := append(section(nil, nil, "r", "g", 0), applicationOf(wire.Field{Name: headerGroup, Value: wire.String("no annotation")})...)
		p := bare(noHeader, annotated(c.fields...), wire10.AppendData(before, nil))
		if got := string(Properties{}.Property(p, headerGroup)); got != c.bare {
			t.Errorf("%s: 1.0: %q, not %q", name, got, c.bare)
		}
	}
}

// A dead letter shows its history to exchanges as a delivery of it would, in both protocols by the same names; what its
// publisher has written under them is not there.
func TestHeadersOfDeadLetters(t *testing.T) {
	deaths := []*logpb.Death{{Queue: "q", Reason: logpb.Death_EXPIRED, Count: 2, Exchange: "x", First: true, LastExchange: "y"}}
	for protocol, p := range forms(t, wire.Field{Name: "x-first-death-queue", Value: wire.String("forged")}, wire.Field{Name: "x-k", Value: wire.String("v")}) {
		got := map[string]int{}
		for _, f := range (Properties{}).Headers(p, deaths).GetFields() {
			got[f.Name]++
			if f.Name == "x-first-death-queue" && string(f.Value.GetStr()) != "q" {
				t.Errorf("%s: %v", protocol, f)
			}
		}
		want := map[string]int{"x-k": 1, "x-death": 1}
		for _, which := range []string{"first", "last"} {
			for _, what := range []string{"queue", "reason", "exchange"} {
				want["x-"+which+"-death-"+what] = 1
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v", protocol, got)
		}
	}
}

// What a header exchange may look at is found in the annotations first.
func TestBareHeaders(t *testing.T) {
	p := bare(noHeader, annotated(wire.Field{Name: "x-a", Value: wire.String("annotation")}),
		wire10.AppendData(applicationOf(wire.Field{Name: "x-a", Value: wire.String("property")}, wire.Field{Name: "b", Value: wire.Int64(1)}), nil))
	fields := (Properties{}).Headers(p, nil).GetFields()
	if len(fields) != 3 || fields[0].Name != "x-a" || string(fields[0].Value.Str) != "annotation" || fields[2].Name != "b" || fields[2].Value.Int != 1 {
		t.Errorf("%v", fields)
	}
}

// An array of many values that take no room does not take it here, however often it comes, and hides nothing behind it.
func TestManyEmptyValues(t *testing.T) {
	array := []byte("\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40") // 65,536 times null
	b := wire10.StartMap(nil)
	for range 1000 {
		b = append(wire10.AppendSymbol(b, "x-a"), array...)
	}
	b = wire10.EndMap(wire10.AppendLong(wire10.AppendSymbol(b, "x-z"), 1), 0, 1001)
	p := bare(noHeader, b, wire10.AppendData(nil, nil))
	if Annotations(p) == nil {
		t.Fatal("the annotations do not decode")
	}
	values, last := 0, ""
	for _, f := range (Properties{}).Headers(p, nil).GetFields() {
		values += 1 + len(f.Value.Array)
		last = f.Name
	}
	if values > maxFields || last != "x-z" {
		t.Errorf("%d values, the last in %s", values, last)
	}
}

// Each damage of a message that a log can have is no more than missing properties.
func TestDamagedMessages(t *testing.T) {
	whole := someBare()
	list := len(whole) - len(whole.Body())
	for i := whole.HeadSize(); i < len(whole); i++ {
		if i >= list {
			readAll(t, slices.Clone(whole[:i]))
		}
		for _, b := range []byte{0, 0x40, 0x45, 0xc1, 0xff, whole[i] + 1} {
			p := slices.Clone(whole)
			p[i] = b
			readAll(t, p)
		}
	}
}

// readAll reads all that can be read of a message, and rewrites it.
func readAll(t testing.TB, p fsm.Payload) {
	t.Helper()
	before := slices.Clone(p)
	how := Properties{ContinueHistory: true}
	for _, name := range []string{"message_id", "correlation_id", "reply_to", "app_id", "timestamp", "priority", headerGroup} {
		how.Property(p, name)
	}
	how.Expiration(p)
	how.Delay(p)
	how.Copies(p)
	how.Headers(p, how.Deaths(p))
	how.Describe(&fsm.Message{Payload: p, Acquired: 1})
	list := how.Rewritten(p, fsm.Rewrite{Died: true, Waited: true, Redirected: true, Remark: &fsm.Remark{Reason: "\xff"}})
	out, err := p.Repack("x", "k", list, nil)
	if err != nil || !out.Valid() || out.IsBare() != p.IsBare() || !bytes.Equal(out.Body(), p.Body()) {
		t.Fatalf("%q is rewritten as %q, %v", p, out, err)
	}
	if out.IsBare() && Annotations(out) == nil && len(out.Annotations()) > 0 {
		t.Fatalf("%q is rewritten with annotations that do not decode: %q", p, out)
	}
	if !bytes.Equal(p, before) {
		t.Fatalf("%q has become %q", before, p)
	}
}

func FuzzStored(f *testing.F) {
	f.Add([]byte(someBare()))
	f.Add([]byte(mustHave(f, wire.Field{Name: headerXDelay, Value: wire.Int64(1)})))
	f.Fuzz(func(t *testing.T, b []byte) { readAll(t, fsm.Readable(b)) })
}

// The text of a header is what it says, a text or a number; in AMQP 1.0 an application property, or else an annotation.
func TestHeaderText(t *testing.T) {
	const name = "header:k"
	for what, c := range map[string]struct {
		v    wire.Value
		want string
	}{
		"text": {wire.String("a"), "a"}, "a number": {wire.Int64(-5), "-5"}, "a truth value": {wire.Value{Tag: wire.TagBool, Int: 1}, ""},
	} {
		field := wire.Field{Name: "k", Value: c.v}
		other := wire.Field{Name: "k", Value: wire.String("other")}
		for protocol, p := range map[string]fsm.Payload{
			"0-9-1":          mustHave(t, field),
			"1.0":            bare(noHeader, annotated(other), wire10.AppendData(applicationOf(field), nil)),
			"1.0, annotated": bare(noHeader, annotated(field), wire10.AppendData(nil, nil)),
		} {
			if got := string(Properties{}.Property(p, name)); got != c.want {
				t.Errorf("%s, %s: %q, not %q", what, protocol, got, c.want)
			}
			if got := (Properties{}).Property(p, "header:other"); got != nil {
				t.Errorf("%s, %s: a header that is not there is %q", what, protocol, got)
			}
		}
	}
}
