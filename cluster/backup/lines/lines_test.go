package lines

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/amqp/v091"
	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
)

// everyType are headers of all types, with names and texts that are no text.
var everyType = wire.Table{
	{Name: "z", Value: wire.String("first")}, {Name: "a", Value: wire.Bool(true)}, {Name: "a", Value: wire.Bool(false)},
	{Name: "int8", Value: wire.Value{Tag: wire.TagInt8, Int: -128}}, {Name: "uint8", Value: wire.Value{Tag: wire.TagUint8, Int: 255}},
	{Name: "int16", Value: wire.Value{Tag: wire.TagInt16, Int: -32768}}, {Name: "uint16", Value: wire.Value{Tag: wire.TagUint16, Int: 65535}},
	{Name: "int32", Value: wire.Int32(math.MinInt32)}, {Name: "uint32", Value: wire.Value{Tag: wire.TagUint32, Int: math.MaxUint32}},
	{Name: "int64", Value: wire.Int64(math.MinInt64)}, {Name: "more", Value: wire.Int64(1<<53 + 1)},
	{Name: "float32", Value: wire.Value{Tag: wire.TagFloat32, Int: int64(math.Float32bits(0.1))}},
	{Name: "float64", Value: wire.Value{Tag: wire.TagFloat64, Int: int64(math.Float64bits(2))}},
	{Name: "-0", Value: wire.Value{Tag: wire.TagFloat64, Int: math.MinInt64}},
	{Name: "inf", Value: wire.Value{Tag: wire.TagFloat32, Int: int64(math.Float32bits(float32(math.Inf(-1))))}},
	{Name: "decimal", Value: wire.Value{Tag: wire.TagDecimal, Str: "\x02\xff\xff\xff\x85"}},
	{Name: "timestamp", Value: wire.Timestamp(math.MaxUint64)}, {Name: "void", Value: wire.Value{Tag: wire.TagVoid}},
	{Name: "bytes", Value: wire.Value{Tag: wire.TagBytes, Str: "\x00\xff"}}, {Name: "no text", Value: wire.String("\xfe\xff")},
	{Name: "", Value: wire.String("<&>\u2028\x00")}, {Name: "\xc3\x28", Value: wire.Bool(true)}, {Name: "base64:", Value: wire.Bool(true)},
	{Name: "table", Value: wire.Nested(wire.Table{{Name: "headers", Value: wire.Nested(wire.Table{{Name: "table", Value: wire.Nested(nil)}})}})},
	{Name: "array", Value: wire.Array(wire.Int32(1), wire.Array(), wire.Nested(wire.Table{{Name: "x", Value: wire.String("y")}}))},
}

func mustPayload(t *testing.T, exchange, key string, properties, body []byte, blind ...string) fsm.Payload {
	t.Helper()
	head, err := fsm.AppendHead(nil, exchange, key, properties, blind)
	if err != nil {
		t.Fatal(err)
	}
	return append(fsm.Payload(head), body...)
}

// encodedHeaders returns properties with these fields.
func encodedHeaders(fields []byte) []byte {
	return wire.AppendProperties(nil, &wire.Properties{Present: wire.FlagHeaders, Headers: fields})
}

// full has every property.
func full() []byte {
	return wire.AppendProperties(nil, &wire.Properties{
		Present: wire.FlagContentType | wire.FlagContentEncoding | wire.FlagHeaders | wire.FlagDeliveryMode | wire.FlagPriority | wire.FlagCorrelationID |
			wire.FlagReplyTo | wire.FlagExpiration | wire.FlagMessageID | wire.FlagTimestamp | wire.FlagType | wire.FlagUserID | wire.FlagAppID | wire.FlagClusterID,
		ContentType: []byte("text/plain"), ContentEncoding: []byte("\xff"), Headers: wire.AppendFields(nil, everyType), DeliveryMode: 2, Priority: 9,
		CorrelationID: []byte("c"), ReplyTo: []byte("r"), Expiration: []byte("60000"), MessageID: []byte(""), Timestamp: 1 << 40, Type: []byte("t"),
		UserID: []byte("u"), AppID: []byte("a"), ClusterID: []byte("x"),
	})
}

func messages(t *testing.T) []Message {
	return []Message{
		{Payload: mustPayload(t, "", "q", nil, nil), State: &logpb.MessageState{Place: uint32(queue.Ready)}},
		{Payload: mustPayload(t, "x", "\xff", full(), []byte("text"), "blind", "\xfe"), State: &logpb.MessageState{
			Place: uint32(queue.CheckedOut), Priority: 31, Acquired: 3, Failed: 2, ExpireAt: 1_700_000_000_123, HasExpiration: true, GroupId: "g",
			MessageId: "m", CorrelationId: "c\xff", Hops: 7,
		}},
		{Payload: mustPayload(t, "x", "k", encodedHeaders(nil), []byte("\xff\x00")), State: &logpb.MessageState{
			Place: uint32(queue.Scheduled), DueAt: math.MaxInt64, ScheduleId: "s", ScheduledFor: -1, TtlPlusOne: 1, TtlCeilingPlusOne: 2,
		}},
		{Payload: mustPayload(t, "x", "k", encodedHeaders([]byte("\x01xt\x02")), nil), State: &logpb.MessageState{
			Place: uint32(queue.Waiting), Reason: logpb.Death_DELIVERY_LIMIT, Forwarded: true, Deaths: []*logpb.Death{
				{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 2, Time: 5, Exchange: "x", RoutingKeys: []string{"a", "\xff"}, OriginalExpiration: "7", First: true, LastExchange: "y"},
				{Reason: logpb.Death_MAXHOPS, Queue: "p"},
			},
		}},
		{Payload: mustPayload(t, "x", "k", encodedHeaders(wire.AppendFields(nil, wire.Table{{Name: "NaN", Value: wire.Value{Tag: wire.TagFloat64, Int: 0x7ff8000000000123}}})), []byte("\u2028"))},
		{Payload: mustBare(t, fsm.BareHeader{Priority: -1, TTL: -1}, "", "\x00Sw@"), State: &logpb.MessageState{Place: uint32(queue.Ready)}},
		{Payload: mustBare(t, fsm.BareHeader{Durable: true, Priority: 0, TTL: 1<<32 - 1}, "\xc1\x01\x00", "\x00\x53\x75\xa0\x01\xff", "blind")},
		{Payload: mustPayload(t, "x", "k", encodedHeaders(nil), nil), State: &logpb.MessageState{
			Place: uint32(queue.Ready), Deaths: []*logpb.Death{{Reason: logpb.Death_EXPIRED, Queue: "q", Count: 2, Time: 5, LastTime: 9}},
			Annotations: []*logpb.Annotation{{Key: []byte("\xa3\x03x-a"), Value: []byte("\x53\x07")}, {Key: []byte("\xa3\x03x-b"), Value: []byte("\x40")}},
		}},
		{Payload: mustBare(t, fsm.BareHeader{Priority: -1, TTL: -1}, "", "\x00Sw@"), State: &logpb.MessageState{
			Place: uint32(queue.Returned), Annotations: []*logpb.Annotation{{Key: []byte("\xa3\x03x-a"), Value: []byte("\xa1\x01b")}, {Key: []byte("\xa3\x03x-b"), Value: []byte("@")}},
		}},
		{Payload: mustPayload(t, "x", "k", encodedHeaders(nil), nil), State: &logpb.MessageState{Place: uint32(queue.Ready), UniqueKey: []byte("sixteen bytes \x00\xff")}},
	}
}

func mustBare(t *testing.T, h fsm.BareHeader, annotations, bare string, blind ...string) fsm.Payload {
	t.Helper()
	p, err := fsm.AppendBareHead(nil, "x", "k", h, []byte(annotations), blind)
	must(t, err)
	return append(p, bare...)
}

func written(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b, v091.Properties{})
	must(t, w.Head(NewHead("c", "0.1.0", "/", "q\xff", 1)))
	for _, m := range messages(t) {
		must(t, w.Message(m))
	}
	must(t, w.End(End{Messages: uint64(len(messages(t))), Settled: 1}))
	return b.Bytes()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What is read is what was written, byte by byte.
func TestRoundTrip(t *testing.T) {
	raw := written(t)
	for line := range bytes.Lines(raw) {
		if !json.Valid(line) {
			t.Errorf("no JSON: %s", line)
		}
	}
	r := NewReader(bytes.NewReader(raw), v091.Properties{})
	for i, want := range messages(t) {
		m, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Payload, want.Payload) || !proto.Equal(m.State, want.State) {
			t.Errorf("message %d: %q\n%v\nis read as %q\n%v", i, want.Payload, want.State, m.Payload, m.State)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Error(err)
	}
}

// People see properties with their names, types and order, and bytes only where there is no text.
func TestReadable(t *testing.T) {
	all := strings.Split(string(written(t)), "\n")
	for _, want := range []string{
		`"headers":{"z":"first","a":true,"a":false,"int8":{"int8":-128},`, `"int64":-9223372036854775808,"more":9007199254740993,"float32":{"float32":0.1},"float64":{"float64":2},"-0":{"float64":-0},"inf":{"float32":"-Infinity"},`,
		`"decimal":{"decimal":[2,-123]},"timestamp":{"timestamp":18446744073709551615},"void":null,"bytes":{"bytes":"AP8="},"no text":{"string_base64":"/v8="},`,
		`"table":{"table":{"headers":{"table":{"table":{"table":{}}}}}}`, `"array":[{"int32":1},[],{"table":{"x":"y"}}]`,
		`"routing_key":{"base64":"/w=="}`, `"priority":9,"correlation_id":"c"`, `"expiration":"60000"`, `"timestamp":1099511627776`, `"body":"text"`,
		`"expires_at":"2023-11-14T22:13:20.123Z"`,
	} {
		if !strings.Contains(all[2], want) {
			t.Errorf("no %s in\n%s", want, all[2])
		}
	}
	if !strings.Contains(all[3], `"properties":{"headers":{}},"body_base64":"/wA="`) || !strings.Contains(all[4], `"properties_base64":"IA`) || !strings.Contains(all[5], `"properties_base64"`) {
		t.Errorf("%s\n%s\n%s", all[3], all[4], all[5])
	}
}

// A line that lacks, or anything that is none, is refused, with its number.
func TestRefused(t *testing.T) {
	whole := slices.Collect(bytes.Lines(written(t)))
	read := func(lines ...[]byte) (n int, err error) {
		r := NewReader(bytes.NewReader(slices.Concat(lines...)), v091.Properties{})
		for ; err == nil; n++ {
			_, err = r.Next()
		}
		return n - 1, err
	}
	for i := range whole[1:] {
		if _, err := read(slices.Delete(slices.Clone(whole), i+1, i+2)...); !errors.Is(err, ErrNotWhole) {
			t.Errorf("without line %d: %v", i+2, err)
		}
	}
	if _, err := read(append(slices.Clone(whole), whole[1])...); !errors.Is(err, ErrLine) {
		t.Errorf("a line behind the last one: %v", err)
	}
	if n, err := read([]byte("\n  \n"), []byte(`{"body":"by hand"}`)); n != 1 || err != io.EOF {
		t.Errorf("by hand: %d, %v", n, err)
	}
	long := strings.Repeat("x", 256)
	for line, why := range map[string]string{
		`{"body":"x"`: "EOF", `{"body":"x"} {}`: "follows it", `[]`: "array", `{}`: "body", `{"body":"x","body_base64":"eA=="}`: "body", `{"body":"x","bodi":1}`: "bodi",
		`{"body":"x","routing_key":"` + long + `"}`: "longer", `{"body":"x","properties":[]}`: "object", `{"body":"x","properties":{},"properties_base64":"eA=="}`: "exclude",
		`{"body":"x","properties":{"headers":{"a":{"int8":128}}}}`: "128", `{"body":"x","properties":{"headers":{"a":{}}}}`: "table", `{"body":"x","properties":{"headers":{"a":{"int9":1}}}}`: "int9",
		`{"body":"x","properties":{"headers":{"a":{"int8":1,"int16":1}}}}`: "more than", `{"body":"x","properties":{"headers":{"a":{"decimal":[1]}}}}`: "decimal",
		`{"body":"x","properties":{"headers":{"a":{"float64":"x"}}}}`: "x", `{"body":"x","properties":{"headers":{"base64:?":1}}}`: "base64",
		`{"body":"x","properties":{"headers":{"` + long + `":1}}}`: "headers", `{"body":"x","properties":{"priority":256}}`: "priority", `{"body":"x","properties":{"prio":1}}`: "prio",
		`{"body":"x","properties":{"headers":{"a":` + strings.Repeat(`[`, 70) + strings.Repeat(`]`, 70) + `}}}`: "deep",
		`{"body":"x","state":{"place":"nowhere"}}`:                                                              "nowhere", `{"body":"x","state":{"place":"ready","reason":"x"}}`: "reason", `{"body":"x","state":{"place":"ready","expires_at":"tomorrow"}}`: "tomorrow",
		`{"body":"x","amqp_1_0":{},"properties_base64":"eA=="}`: "excludes", `{"body":"x","amqp_1_0":{"ttl":4294967296}}`: "ttl",
		`{"body":"x","amqp_1_0":{}}`: "described", `{"body":"\u0000Ss\u0045","amqp_1_0":{}}`: "no body", `{"body":"\u0000SpE\u0000Sw@","amqp_1_0":{}}`: "before", `{"body":"\u0000Sw@\u0000SsE","amqp_1_0":{}}`: "order",
		`{"body":"\u0000Sw@","amqp_1_0":{"annotations_base64":"eA=="}}`: "annotations", `{"body":"\u0000SqE\u0000Sw@","amqp_1_0":{}}`: "type",
		`{"body":"x","properties_base64":"eA=="}`: "propert", `{"body":"x","properties_base64":"IAAAAAAF"}`: "table", `{"body":"x","properties_base64":"AAAA"}`: "propert",
		`{"body":"\u0000Ss\u00c0\u0002\u0001C\u0000Sw@","amqp_1_0":{}}`:                                                                                                                        "",
		`{"body":"x","state":{"place":"ready","annotations":[{"key_base64":"eA==","value_base64":"QA=="}]}}`:                                                                                   "annotation",
		`{"body":"x","state":{"place":"ready","annotations":[{"key_base64":"owN4LWE="}]}}`:                                                                                                     "annotation",
		`{"body":"x","state":{"place":"ready","annotations":[` + strings.Repeat(`{"key_base64":"owN4LWE=","value_base64":"QA=="},`, 64) + `{"key_base64":"owN4LWE=","value_base64":"QA=="}]}}`: "more than 64 annotations",
		`{"quorate_queue_export":2}`: "version 2", `{"failed":"the leader has gone"}`: "the leader has gone",
	} {
		if _, err := read([]byte(`{"body":"x"}`+"\n"), []byte(line)); err == io.EOF || !strings.Contains(err.Error(), "line 2: ") || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", line, err)
		}
	}
}
