package message

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	wire091 "github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
)

const uuidBytes = "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"

var uuid = wire10.AppendUUID(nil, [16]byte([]byte(uuidBytes)))

const uuidText = "urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f"

func TestPropertiesOfBareMessage(t *testing.T) {
	created := wire10.Some[int64](5999)
	for _, c := range []struct {
		name string
		h    fsm.BareHeader
		p    wire10.Properties
		want wire091.Properties
		long wire091.Table
	}{
		{name: "none", h: noHeader},
		{name: "header", h: fsm.BareHeader{Durable: true, Priority: 9, TTL: math.MaxUint32}, want: wire091.Properties{
			Present: wire091.FlagDeliveryMode | wire091.FlagPriority | wire091.FlagExpiration, DeliveryMode: 2, Priority: 9, Expiration: []byte("4294967295"),
		}},
		{name: "zeros", h: fsm.BareHeader{}, want: wire091.Properties{Present: wire091.FlagPriority | wire091.FlagExpiration, Expiration: []byte("0")}},
		{name: "texts", h: noHeader, p: wire10.Properties{
			MessageID: text("m"), CorrelationID: text("c"), UserID: []byte("u"), To: []byte("/queues/t"), Subject: []byte("s"), ReplyTo: []byte("/queues/a%2Fb%20%C3%BC"),
			ContentType: []byte("t/p"), ContentEncoding: []byte("gzip"), AbsoluteExpiryTime: created, CreationTime: created, GroupID: []byte("g"),
			GroupSequence: wire10.Some[uint32](7), ReplyToGroupID: []byte("r"),
		}, want: wire091.Properties{
			Present: wire091.FlagMessageID | wire091.FlagCorrelationID | wire091.FlagUserID | wire091.FlagReplyTo | wire091.FlagContentType |
				wire091.FlagContentEncoding | wire091.FlagTimestamp | wire091.FlagAppID,
			MessageID: []byte("m"), CorrelationID: []byte("c"), UserID: []byte("u"), ReplyTo: []byte("a/b ü"), ContentType: []byte("t/p"),
			ContentEncoding: []byte("gzip"), Timestamp: 5, AppID: []byte("g"),
		}},
		{name: "numbers", h: noHeader, p: wire10.Properties{MessageID: wire10.AppendUlong(nil, math.MaxUint64), CorrelationID: uuid}, want: wire091.Properties{
			Present: wire091.FlagMessageID | wire091.FlagCorrelationID, MessageID: []byte("18446744073709551615"), CorrelationID: []byte(uuidText),
		}},
		{
			name: "bytes", h: noHeader, p: wire10.Properties{MessageID: wire10.AppendBinary(nil, "\x00m"), CorrelationID: wire10.AppendBinary(nil, "")},
			long: wire091.Table{{Name: "x-message-id", Value: wire091.Value{Tag: 'x', Str: "\x00m"}}, {Name: "x-correlation-id", Value: wire091.Value{Tag: 'x'}}},
		},
		{
			name: "long", h: noHeader, p: wire10.Properties{MessageID: text(strings.Repeat("m", 256)), CorrelationID: text(strings.Repeat("c", 255))},
			want: wire091.Properties{Present: wire091.FlagCorrelationID, CorrelationID: bytes.Repeat([]byte("c"), 255)},
			long: wire091.Table{{Name: "x-message-id", Value: wire091.String(strings.Repeat("m", 256))}},
		},
		{name: "too long", h: noHeader, p: wire10.Properties{
			UserID: make([]byte, 256), ReplyTo: bytes.Repeat([]byte("r"), 256), ContentType: make([]byte, 256), ContentEncoding: make([]byte, 256), GroupID: make([]byte, 256),
			CreationTime: wire10.Some[int64](-5),
		}, want: wire091.Properties{Present: wire091.FlagTimestamp}},
		{name: "odd", h: noHeader, p: wire10.Properties{MessageID: list(), CorrelationID: wire10.AppendNull(nil), UserID: []byte("\xff"), ReplyTo: []byte("/queues/%zz")},
			want: wire091.Properties{Present: wire091.FlagReplyTo, ReplyTo: []byte("/queues/%zz")}},
		{name: "no name", h: noHeader, p: wire10.Properties{ReplyTo: []byte("/queues/")}, want: wire091.Properties{Present: wire091.FlagReplyTo, ReplyTo: []byte("/queues/")}},
		{name: "another address", h: noHeader, p: wire10.Properties{ReplyTo: []byte("/exchanges/e/k")}, want: wire091.Properties{Present: wire091.FlagReplyTo, ReplyTo: []byte("/exchanges/e/k")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mustShow(t, bare(c.h, nil, wire10.AppendData(wire10.Append(nil, &c.p), []byte("body"))))
			if !reflect.DeepEqual(got.headers, c.long) {
				t.Errorf("the headers are %+v, not %+v", got.headers, c.long)
			}
			got.Headers = nil
			got.Present &^= wire091.FlagHeaders
			if !reflect.DeepEqual(got.Properties, c.want) {
				t.Errorf("%+v\nwant %+v", got.Properties, c.want)
			}
			if got.body != "body" {
				t.Errorf("the body is %q", got.body)
			}
		})
	}
}

// values of AMQP 1.0, and what they are in 0-9-1. A tag of 0: nothing.
var values = []struct {
	name string
	in   []byte
	want wire091.Value
}{
	{"string", text("ü"), wire091.String("ü")},
	{"symbol", symbol("s"), wire091.String("s")},
	{"binary", wire10.AppendBinary(nil, "\xff"), wire091.String("\xff")},
	{"ubyte", wire10.AppendUbyte(nil, 200), wire091.Value{Tag: 'B', Int: 200}},
	{"byte", wire10.AppendByte(nil, -3), wire091.Value{Tag: 'b', Int: -3}},
	{"ushort", wire10.AppendUshort(nil, 60000), wire091.Value{Tag: 'u', Int: 60000}},
	{"short", wire10.AppendShort(nil, -300), wire091.Value{Tag: 's', Int: -300}},
	{"uint", wire10.AppendUint(nil, 4e9), wire091.Value{Tag: 'i', Int: 4e9}},
	{"uint of a byte", wire10.AppendUint(nil, 5), wire091.Value{Tag: 'i', Int: 5}},
	{"int", wire10.AppendInt(nil, -70000), wire091.Int32(-70000)},
	{"ulong", wire10.AppendUlong(nil, math.MaxUint64), wire091.Int64(-1)},
	{"long", wire10.AppendLong(nil, math.MinInt64), wire091.Int64(math.MinInt64)},
	{"float", wire10.AppendFloatBits(nil, math.Float32bits(1.5)), wire091.Value{Tag: 'f', Int: int64(math.Float32bits(1.5))}},
	{"double", wire10.AppendDoubleBits(nil, math.Float64bits(-2.5)), wire091.Value{Tag: 'd', Int: int64(math.Float64bits(-2.5))}},
	{"boolean", wire10.AppendBool(nil, true), wire091.Bool(true)},
	{"boolean of an octet", []byte("\x56\x00"), wire091.Bool(false)},
	{"timestamp", wire10.AppendTimestamp(nil, 5999), wire091.Timestamp(5)},
	{"timestamp before 1970", wire10.AppendTimestamp(nil, -5999), wire091.Timestamp(0)},
	{"null", wire10.AppendNull(nil), wire091.Value{Tag: 'V'}},
	{"uuid", uuid, wire091.String(uuidText)},
	{"char", []byte("\x73\x00\x00\x00\xfc"), wire091.String("ü")},
	{"char that is none", []byte("\x73\xff\xff\xff\xff"), wire091.String("\uFFFD")},
	{"decimal32", []byte("\x74\x00\x00\x00\x00"), wire091.Value{}},
	{"decimal64", []byte("\x84\x00\x00\x00\x00\x00\x00\x00\x00"), wire091.Value{}},
	{"decimal128", append([]byte{0x94}, make([]byte, 16)...), wire091.Value{}},
	{"described", []byte("\x00\x53\x01\xa1\x01x"), wire091.Value{}},
}

// Every type is converted or left out, as an application property and within a list, an array and a map.
func TestValuesOfBareMessage(t *testing.T) {
	compare := func(t *testing.T, what string, got, want wire091.Value) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	for _, c := range values {
		t.Run(c.name, func(t *testing.T) {
			pair := func(name []byte) []byte { return pairs(name, c.in) }
			annotations := pairs(symbol("x-plain"), c.in, symbol("x-list"), list(c.in, text("end")), symbol("x-map"), pair(text("k")), symbol("x-symbols"), pair(symbol("k")))
			got := mustShow(t, bare(noHeader, annotations, wire10.AppendData(application(pair(text("p"))), nil)))
			want := wire091.Table{{Name: "k", Value: c.want}}
			list := wire091.Array(c.want, wire091.String("end"))
			if c.want.Tag == 0 {
				want, list.Array = nil, list.Array[1:]
			}
			for _, name := range []string{"p", "x-plain"} {
				v, ok := got.headers.Get(name)
				if ok != (c.want.Tag != 0) {
					t.Errorf("%s is there: %v", name, ok)
				}
				compare(t, name, v, c.want)
			}
			v, _ := got.headers.Get("x-list")
			compare(t, "in a list", v, list)
			for _, name := range []string{"x-map", "x-symbols"} {
				v, _ = got.headers.Get(name)
				compare(t, name, v, wire091.Nested(want))
			}
		})
	}
}

// Arrays are as lists. What describes its elements has no counterpart, and neither have they.
func TestArraysOfBareMessage(t *testing.T) {
	numbers := []byte("\xe0\x06\x02\x61\x00\x01\xff\xff")
	nulls := []byte("\xf0\x00\x00\x00\x05\x00\x00\x00\x03\x40")
	described := []byte("\xe0\x06\x01\x00\x53\x05\x50\x07")
	keys := pairs(list(), text("a"), wire10.AppendInt(nil, 1), text("b"), text(strings.Repeat("n", 256)), text("c"), text("d"), text("e"))
	got := mustShow(t, bare(noHeader, pairs(symbol("x-numbers"), numbers, symbol("x-nulls"), nulls, symbol("x-described"), described, symbol("x-keys"), keys),
		wire10.AppendData(nil, nil)))
	void := wire091.Value{Tag: 'V'}
	want := wire091.Table{
		{Name: "x-numbers", Value: wire091.Array(wire091.Value{Tag: 's', Int: 1}, wire091.Value{Tag: 's', Int: -1})},
		{Name: "x-nulls", Value: wire091.Array(void, void, void)}, {Name: "x-described", Value: wire091.Array()},
		{Name: "x-keys", Value: wire091.Nested(wire091.Table{{Name: "d", Value: wire091.String("e")}})},
	}
	if fmt.Sprint(got.headers) != fmt.Sprint(want) {
		t.Errorf("%+v\nwant %+v", got.headers, want)
	}
}

func TestBodyOfBareMessage(t *testing.T) {
	sequence := []byte("\x00\x53\x76\xc0\x03\x01\x52\x07")
	value := append(wire10.StartValue(nil), text("v")...)
	footer := []byte("\x00\x53\x78\xc1\x01\x00")
	two := append(wire10.AppendData(nil, []byte("one")), wire10.AppendData(nil, []byte("two"))...)
	for _, c := range []struct {
		name           string
		sections       []byte
		body, typeName string
	}{
		{"one data section", wire10.AppendData(nil, []byte("one")), "one", "kind"},
		{"two data sections", two, "onetwo", "kind"},
		{"none in it", wire10.AppendData(nil, nil), "", "kind"},
		{"footer", append(wire10.AppendData(nil, []byte("one")), footer...), "one", "kind"},
		{"value", value, string(value), "amqp-1.0"},
		{"sequences", append(sequence, sequence...), string(sequence) + string(sequence), "amqp-1.0"},
		{"value and footer", append(value, footer...), string(value), "amqp-1.0"},
		{"garbage", []byte("garbage"), "garbage", "kind"},
		{"nothing", nil, "", "kind"},
		{"garbage behind properties", append(wire10.Append(nil, &wire10.Properties{UserID: []byte("u")}), 0xff), "\x00\x53\x73\xc0\x05\x02\x40\xa0\x01u\xff", "kind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := mustShow(t, bare(noHeader, pairs(symbol("x-basic-type"), text("kind")), c.sections))
			if got.body != c.body || string(got.Type) != c.typeName || len(got.headers) > 0 || got.UserID != nil {
				t.Errorf("%q of type %q with %v, want %q of %q", got.body, got.Type, got.headers, c.body, c.typeName)
			}
		})
	}
}

// An annotation whose counterpart has another name goes before an application property of that name.
func TestAnnotationsOfBareMessage(t *testing.T) {
	copies := list(text("a"), text("b"))
	got := mustShow(t, bare(noHeader, pairs(symbol("x-cc"), copies, symbol("x-own"), text("own"), symbol("x-basic-type"), list()),
		wire10.AppendData(application(pairs(text("CC"), text("mine"), text("x-death"), text("mine"), text("x-p"), text("p"))), nil)))
	want := wire091.Table{
		{Name: "x-death", Value: wire091.String("mine")}, {Name: "x-p", Value: wire091.String("p")},
		{Name: "CC", Value: wire091.Array(wire091.String("a"), wire091.String("b"))}, {Name: "x-own", Value: wire091.String("own")},
		{Name: "x-basic-type", Value: wire091.Array()},
	}
	if fmt.Sprint(got.headers) != fmt.Sprint(want) || got.Has(wire091.FlagType) {
		t.Errorf("%+v\nwant %+v", got.headers, want)
	}
	for name, damaged := range map[string][]byte{
		"no map": text("x"), "cut": pairs(symbol("x-a"), text("a"))[:9], "too much": append(pairs(), 0x40), "garbage": []byte("\xc1\xff"),
	} {
		if got := mustShow(t, bare(noHeader, damaged, wire10.AppendData(nil, []byte("b")))); len(got.headers) > 0 || got.body != "b" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A history that was read there and published again is one here.
func TestHistoryOfBareMessage(t *testing.T) {
	b := wire10.StartMapArray(nil)
	b = wire10.StartMapElement(b)
	start := len(b) - 8
	for _, x := range [][]byte{
		symbol("queue"), text("q"), symbol("reason"), symbol("expired"), symbol("count"), wire10.AppendUlong(nil, 3), symbol("first-time"), wire10.AppendTimestamp(nil, 5000),
		symbol("last-time"), wire10.AppendTimestamp(nil, 9000), symbol("exchange"), text("e"), symbol("routing-keys"), wire10.AppendStrings(nil, []string{"k", "l"}),
		symbol("ttl"), wire10.AppendUint(nil, 700),
	} {
		b = append(b, x...)
	}
	b = wire10.EndMapArray(wire10.EndMapElement(b, start, 8), 0, 1)
	got := mustShow(t, bare(noHeader, pairs(symbol("x-opt-deaths"), b), wire10.AppendData(nil, nil)))
	want := wire091.Table{{Name: "x-death", Value: wire091.Array(wire091.Nested(wire091.Table{
		{Name: "queue", Value: wire091.String("q")}, {Name: "reason", Value: wire091.String("expired")}, {Name: "count", Value: wire091.Int64(3)},
		{Name: "time", Value: wire091.Timestamp(5)}, {Name: "exchange", Value: wire091.String("e")},
		{Name: "routing-keys", Value: wire091.Array(wire091.String("k"), wire091.String("l"))}, {Name: "original-expiration", Value: wire091.String("700")},
	}))}}
	if fmt.Sprint(got.headers) != fmt.Sprint(want) {
		t.Errorf("%+v\nwant %+v", got.headers, want)
	}
	// And back again.
	m, _ := mustRender(t, old(wire091.AppendProperties(nil, &wire091.Properties{Present: wire091.FlagHeaders, Headers: wire091.AppendFields(nil, want)}), nil))
	again, _ := m.Annotations.Get("x-opt-deaths")
	w := again.Walk()
	if again.Type != wire10.Array || !w.Next() {
		t.Fatalf("%+v", again)
	}
	for name, want := range map[string]wire10.Type{
		"queue": wire10.String, "reason": wire10.Symbol, "count": wire10.Ulong, "first-time": wire10.Timestamp, "exchange": wire10.String, "routing-keys": wire10.List, "ttl": wire10.Uint,
	} {
		found := false
		for e := w.Value.Walk(); e.NextPair(); {
			found = found || string(e.Key.Bytes()) == name && e.Value.Type == want
		}
		if !found {
			t.Errorf("there is no %s of type %v", name, want)
		}
	}
}

// Of a history only entries count.
func TestOddHistoryOfBareMessage(t *testing.T) {
	for _, c := range []struct {
		in   []byte
		want wire091.Value
	}{
		{text("none"), wire091.String("none")}, {list(text("no entry"), pairs(text("ttl"), text("no number"), text("last-time"), text("x"), list(), text("x")), wire10.AppendNull(nil)), wire091.Array(wire091.Nested(nil))},
	} {
		got := mustShow(t, bare(noHeader, pairs(symbol("x-opt-deaths"), c.in), wire10.AppendData(nil, nil)))
		if v, _ := got.headers.Get("x-death"); fmt.Sprint(v) != fmt.Sprint(c.want) {
			t.Errorf("%+v, want %+v", v, c.want)
		}
	}
}

// Headers that do not fit are left out, and those that do are there. A few bytes that stand for many values cost no more than fits.
func TestHeadersThatDoNotFit(t *testing.T) {
	many := []byte("\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40") // 65536 times null
	annotations := pairs(symbol("x-large"), text(strings.Repeat("l", 500)), symbol("x-list"), list(), symbol("x-many"), list(many, many, many), symbol("x-more"), list(text("a")), symbol("x-long"), text(strings.Repeat("l", 500)), symbol("x-short"), text("s"))
	p := bare(fsm.BareHeader{Durable: true, Priority: 1, TTL: 2}, annotations, wire10.AppendData(nil, nil))
	const base = 2 + 1 + 1 + 2 // flags, delivery-mode, priority, expiration
	limits := []int{4096, 1 << 17, 1 << 20}
	for n := range 700 {
		limits = append(limits, n-1)
	}
	for _, limit := range limits {
		var c From10
		c.Read(p)
		raw := c.AppendProperties(make([]byte, 3), limit)[3:]
		list, err := wire091.ParseProperties(raw)
		if err != nil {
			t.Fatal(err)
		}
		headers, err := wire091.DecodeFields(list.Headers)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > max(limit, base) || list.DeliveryMode != 2 || string(list.Expiration) != "2" {
			t.Errorf("%d bytes for %d: %+v", len(raw), limit, list)
		}
		_, many := headers.Get("x-many")
		_, more := headers.Get("x-more")
		_, long := headers.Get("x-long")
		_, short := headers.Get("x-short")
		_, small := headers.Get("x-list")
		if small != (limit >= base+4+12) && limit < 500 || many || more || long && limit < 500 || !long && limit > 2000 || limit == 300 && !short {
			t.Errorf("limit %d: %v %v %v %v %v", limit, small, many, more, long, short)
		}
		if cap(c.headers.b) > 1<<18 {
			t.Errorf("%d bytes for headers that are not shown", cap(c.headers.b))
		}
	}
}

// What comes by no protocol is checked as if it had.
func TestCheck(t *testing.T) {
	body := wire10.AppendData(nil, []byte("b"))
	properties := wire10.Properties{Subject: []byte("s")}
	for name, c := range map[string]struct {
		annotations, sections []byte
		ok                    bool
	}{
		"body": {nil, body, true}, "all": {pairs(symbol("x-a"), text("a")), append(wire10.Append(nil, &properties), body...), true},
		"nothing": {nil, nil, false}, "garbage": {nil, []byte("garbage"), false}, "no body": {nil, wire10.Append(nil, &properties), false},
		"no annotations": {[]byte{0xff}, body, false}, "two maps": {append(pairs(), pairs()...), body, false}, "a key": {pairs(symbol("a"), text("a")), body, false},
		"header":            {nil, append(wire10.Append(nil, &wire10.Header{Durable: true}), body...), false},
		"annotations again": {nil, append(append(wire10.StartAnnotations(nil), pairs()...), body...), false},
		"properties":        {nil, append([]byte("\x00\x53\x73\xc0\x04\x04\x40\x40\x43\x40"), body...), false},
	} {
		if err := Check(bare(noHeader, c.annotations, c.sections)); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
