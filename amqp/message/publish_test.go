package message

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Keys that a payload has no room for are refused; those beside them are kept,
// as a stored message must show the same keys as ever.
func TestCopies(t *testing.T) {
	key := func(n int) string { return strings.Repeat("k", n) }
	for name, c := range map[string]struct {
		keys []wire.Value
		want []string
		err  string
	}{
		"longest":     {[]wire.Value{wire.String(key(255))}, []string{key(255)}, ""},
		"other types": {[]wire.Value{wire.Int64(1), wire.String("a")}, []string{"a"}, ""},
		"too long":    {[]wire.Value{wire.String("a"), wire.String(key(256)), wire.String("b")}, []string{"a", "b"}, "invalid message: routing key of 256 bytes in BCC exceeds the limit of 255"},
		"most":        {slices.Repeat([]wire.Value{wire.String(key(254))}, 257), slices.Repeat([]string{key(254)}, 257), ""},
		"too many":    {slices.Repeat([]wire.Value{wire.String(key(255))}, 256), slices.Repeat([]string{key(255)}, 255), "invalid message: more than 65535 bytes of routing keys in BCC"},
		"empty ones":  {slices.Repeat([]wire.Value{wire.String("")}, 65_536), slices.Repeat([]string{""}, 65_535), "invalid message: more than 65535 bytes of routing keys in BCC"},
	} {
		p := mustHaveHeaders(t, wire.Field{Name: HeaderBCC, Value: wire.Array(c.keys...)})
		got, err := Copies(&p, HeaderBCC)
		if !slices.Equal(got, c.want) || (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %d keys, %v", name, len(got), err)
		}
		if name == "other types" {
			c.err = "no list of strings"
		}
		annotations := annotated(wire.Field{Name: HeaderCC, Value: wire.Array(c.keys...)})
		if got, ok := AnnotatedCopies(annotations); ok != (c.err == "") || ok && !slices.Equal(got, slices.Compact(c.want)) {
			t.Errorf("%s: 1.0: %d keys, %v", name, len(got), ok)
		}
	}
}

// timesOf reads the times to wait of a message that is published.
func timesOf(t testing.TB, p fsm.Payload) (*fsm.Schedule, *fsm.Delay, error) {
	t.Helper()
	if p.IsBare() {
		s, d, _, err := AnnotatedTimes(Annotations(p))
		return s, d, err
	}
	read, err := wire.ParseProperties(p.Properties())
	if err != nil {
		t.Fatal(err)
	}
	return Times(read.Headers)
}

func mustHaveHeaders(t testing.TB, headers ...wire.Field) wire.Properties {
	t.Helper()
	raw, err := wire.EditProperties(nil, []byte{0, 0}, &wire.Edit{SetHeaders: headers})
	if err != nil {
		t.Fatal(err)
	}
	p, err := wire.ParseProperties(raw)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Headers that were to be those of a schedule are refused; applications' own are
// not.
func TestMisspelled(t *testing.T) {
	for _, c := range []struct{ names, delayed, err string }{
		{names: "x-opt-delivery-delay x-opt-delivery-time x-schedule-id x-schedule-conflict x-delay"},
		{names: "x-opt-delivry-delay", err: "invalid x-opt-delivry-delay: unknown header; did you mean x-opt-delivery-delay?"},
		{names: "a X-Opt-Delivery-Time", err: "invalid X-Opt-Delivery-Time: unknown header; did you mean x-opt-delivery-time?"},
		{names: "x-opt-delivery-delay x-opt-delivery-delays"},
		{names: "x-shcedule-di", err: "invalid x-shcedule-di: unknown header; did you mean x-schedule-id?"},
		{names: "x-schedule-ids x-schedule-id"},
		{names: "x-schedule-repeat", err: "invalid x-schedule-repeat: not implemented"},
		{names: "x-schedule-count", err: "invalid x-schedule-count: not implemented"},
		{names: "x-schedule-seq x-count x-delivery-tag x-death x-request-id traceparent opt-delivery-delay x-day x-relays x"},
		{names: "x-dealy", delayed: "invalid x-dealy: unknown header; did you mean x-delay?"},
		{names: "x-dealy x-delay"},
		{names: strings.Repeat("x-", 100)},
	} {
		var fields []wire.Field
		for _, name := range strings.Fields(c.names) {
			value := wire.Int64(1)
			if strings.HasPrefix(name, "x-schedule-") {
				value = wire.String("ignore")
			}
			fields = append(fields, wire.Field{Name: name, Value: value})
		}
		for protocol, p := range forms(t, fields...) {
			if p.IsBare() && Annotations(p) == nil {
				continue // there all names begin with x-
			}
			_, delay, err := timesOf(t, p)
			var delayed error
			if delay != nil && delay.Err != nil && !strings.Contains(delay.Err.Error(), "cannot be combined") {
				delayed = delay.Err
			}
			for what, pair := range map[string]struct {
				got  error
				want string
			}{"delayed": {delayed, c.delayed}, "error": {err, c.err}} {
				if (pair.got != nil) != (pair.want != "") || pair.got != nil && pair.got.Error() != pair.want {
					t.Errorf("%s: %s: %s: %v", protocol, c.names, what, pair.got)
				}
			}
		}
	}
}

// How many annotations a message has decides how long it takes to look for misspelled ones, and not its square.
func TestManyMisspelled(t *testing.T) {
	const all = 600_000
	b := wire10.StartMap(nil)
	for range all {
		b = wire10.AppendNull(wire10.AppendSymbol(b, "x-opt-delivery-delays"))
	}
	b = wire10.EndMap(wire10.AppendLong(wire10.AppendSymbol(b, "x-opt-delivery-delay"), 0), 0, all+1)
	begun := time.Now()
	if _, _, _, err := AnnotatedTimes(b); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it takes %v", took)
	}
}

func BenchmarkMisspelled(b *testing.B) {
	p := mustHaveHeaders(b, wire.Field{Name: "x-request-id", Value: wire.String("1234")}, wire.Field{Name: "x-opt-delivery-delay", Value: wire.Int64(1)},
		wire.Field{Name: "traceparent", Value: wire.String("1234")})
	b.ReportAllocs()
	for b.Loop() {
		if _, delayed, err := Times(p.Headers); delayed != nil || err != nil {
			b.Fatal(err)
		}
	}
}

func TestParseExpiration(t *testing.T) {
	for _, c := range []struct {
		text      string
		ttl       fsm.Millis
		canonical bool
		refused   string
	}{
		{"0", 0, true, ""},
		{"5000", 5000, true, ""},
		{"315360000000", 315360000000, true, ""},
		{"+5", 5, false, ""},
		{"-0", 0, false, ""},
		{"00010", 10, false, ""},
		{"", -1, false, "no_integer"},
		{"abc", -1, false, "no_integer"},
		{" 5", -1, false, "no_integer"},
		{"+", -1, false, "no_integer"},
		{"--5", -1, false, "no_integer"},
		{"1.5", -1, false, `{leftover_string,".5"}`},
		{"10 ", -1, false, `{leftover_string," "}`},
		{"12x", -1, false, `{leftover_string,"x"}`},
		{"0x10", -1, false, `{leftover_string,"x10"}`},
		{"-1", -1, false, "{value_negative,-1}"},
		{"-007", -1, false, "{value_negative,-7}"},
		{"315360000001", -1, false, "{value_too_large,315360000001}"},
		{"+99999999999999999999999", -1, false, "{value_too_large,99999999999999999999999}"},
	} {
		ttl, canonical, err := ParseExpiration([]byte(c.text))
		want := ""
		if c.refused != "" {
			want = fmt.Sprintf("invalid expiration '%s': %s", c.text, c.refused)
		}
		got := ""
		if err != nil {
			got = err.Error()
		}
		if ttl != c.ttl || canonical != c.canonical || got != want {
			t.Errorf("%q: %d %v %q, want %d %v %q", c.text, ttl, canonical, got, c.ttl, c.canonical, want)
		}
	}
}

// What is said in another way in the two protocols, and what it comes to.
func TestTimes(t *testing.T) {
	text, long := wire.String, wire.Int64
	field := func(name string, v wire.Value) wire.Field { return wire.Field{Name: name, Value: v} }
	for name, c := range map[string]struct {
		fields   []wire.Field
		schedule *fsm.Schedule
		delay    *fsm.Delay
		refused  string // of the schedule, else of the delay
	}{
		"nothing":          {fields: []wire.Field{field("x-other", long(5))}},
		"delay":            {fields: []wire.Field{field(headerDelay, long(5))}, schedule: &fsm.Schedule{Delay: 5}},
		"delay in digits":  {fields: []wire.Field{field(headerDelay, text("5"))}, schedule: &fsm.Schedule{Delay: 5}},
		"time":             {fields: []wire.Field{field(headerTime, long(7000))}, schedule: &fsm.Schedule{Delay: -1, At: 7000}},
		"past":             {fields: []wire.Field{field(headerTime, long(-3))}, schedule: &fsm.Schedule{Delay: -1, At: 1}},
		"both, and a name": {fields: []wire.Field{field(headerDelay, long(5)), field(headerTime, long(9)), field(headerID, text("id")), field(headerConflict, text("ignore"))}, schedule: &fsm.Schedule{Delay: 5, At: 9, ID: "id", Conflict: logpb.Enqueue_IGNORE}},
		"x-delay":          {fields: []wire.Field{field(headerXDelay, long(5)), field(headerID, text("id")), field(headerConflict, text("reject"))}, delay: &fsm.Delay{For: 5, ID: "id", Conflict: logpb.Enqueue_REJECT}},
		"x-delay negative": {fields: []wire.Field{field(headerXDelay, long(-5))}},
		"no number":        {fields: []wire.Field{field(headerDelay, text("x"))}, refused: "invalid x-opt-delivery-delay 'x': no_integer"},
		"negative":         {fields: []wire.Field{field(headerDelay, long(-1))}, refused: "invalid x-opt-delivery-delay '-1': must be between 0 and 315360000000"},
		"a table":          {fields: []wire.Field{field(headerTime, wire.Nested(nil))}, refused: `invalid message: {unacceptable_type_in_header,"x-opt-delivery-time",table}`},
		"null":             {fields: []wire.Field{field(headerTime, wire.Value{Tag: wire.TagVoid})}, refused: `invalid message: {unacceptable_type_in_header,"x-opt-delivery-time",void}`},
		"strange conflict": {fields: []wire.Field{field(headerDelay, long(1)), field(headerConflict, text("win"))}, refused: "invalid x-schedule-conflict 'win': must be replace, reject or ignore"},
		"x-delay a list":   {fields: []wire.Field{field(headerXDelay, wire.Array())}, delay: &fsm.Delay{}, refused: `invalid message: {unacceptable_type_in_header,"x-delay",array}`},
		"both ways":        {fields: []wire.Field{field(headerXDelay, long(1)), field(headerDelay, long(1))}, schedule: &fsm.Schedule{Delay: 1}, delay: &fsm.Delay{For: 1}, refused: "invalid x-delay: cannot be combined with x-opt-delivery-delay or x-opt-delivery-time"},
	} {
		for protocol, p := range forms(t, c.fields...) {
			s, d, err := timesOf(t, p)
			if d != nil && d.Err != nil {
				d, err = &fsm.Delay{For: d.For, ID: d.ID, Conflict: d.Conflict}, d.Err
			}
			if (err != nil) != (c.refused != "") || err != nil && err.Error() != c.refused {
				t.Errorf("%s: %s: %v", protocol, name, err)
			}
			if !reflect.DeepEqual(s, c.schedule) || !reflect.DeepEqual(d, c.delay) {
				t.Errorf("%s: %s: %+v, %+v", protocol, name, s, d)
			}
		}
	}
}

// Times of AMQP 1.0 that headers cannot have, and what is left of the annotations: what would make a dead letter wait
// again goes, byte for byte the rest stays.
func TestAnnotatedTimes(t *testing.T) {
	at, other := wire10.AppendTimestamp(nil, 7001), wire10.AppendUbyte(nil, 5)
	encode := func(pairs ...any) wire10.MapBytes {
		b := wire10.StartMap(nil)
		for i := 0; i < len(pairs); i += 2 {
			b = append(wire10.AppendSymbol(b, pairs[i].(string)), pairs[i+1].([]byte)...)
		}
		return wire10.EndMap(b, 0, len(pairs)/2)
	}
	for name, c := range map[string]struct {
		given, kept wire10.MapBytes
		at          fsm.Time
		delay       fsm.Millis
		refused     string
	}{
		"none":                 {nil, nil, 0, 0, ""},
		"others":               {encode("x-a", other), encode("x-a", other), 0, 0, ""},
		"timestamp":            {encode("x-a", other, headerTime, at, "x-b", at), encode("x-a", other, "x-b", at), 7001, -1, ""},
		"of Service Bus":       {encode(annotationTime, at), nil, 7001, -1, ""},
		"both":                 {encode(annotationTime, wire10.AppendLong(nil, 1), headerTime, at), nil, 7001, -1, ""},
		"ubyte":                {encode(headerDelay, other, "x-schedule-id", wire10.AppendSymbol(nil, "s")), encode("x-schedule-id", wire10.AppendSymbol(nil, "s")), 0, 5, ""},
		"ulong":                {encode(headerTime, wire10.AppendUlong(nil, math.MaxUint64)), nil, math.MaxInt64, -1, ""},
		"Service Bus in words": {encode(annotationTime, wire10.AppendString(nil, "now")), encode(annotationTime, wire10.AppendString(nil, "now")), 0, 0, "invalid x-opt-scheduled-enqueue-time 'now': no_integer"},
		"decimal":              {encode(headerDelay, []byte("\x74\x00\x00\x00\x00")), encode(headerDelay, []byte("\x74\x00\x00\x00\x00")), 0, 0, `invalid message: {unacceptable_type_in_header,"x-opt-delivery-delay",void}`},
		"misspelled":           {encode("x-opt-scheduled-enqueu-time", at), encode("x-opt-scheduled-enqueu-time", at), 0, 0, "invalid x-opt-scheduled-enqueu-time: unknown header; did you mean x-opt-scheduled-enqueue-time?"},
	} {
		s, d, kept, err := AnnotatedTimes(c.given)
		if d != nil || (err != nil) != (c.refused != "") || err != nil && err.Error() != c.refused {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		if (s != nil) != (c.at != 0 || c.delay != 0) || s != nil && (s.At != c.at || s.Delay != c.delay) {
			t.Errorf("%s: %+v", name, s)
		}
		if !bytes.Equal(kept, c.kept) {
			t.Errorf("%s: %q is kept, not %q", name, kept, c.kept)
		}
	}
}

// A message that need not wait costs no allocation to find that out.
func TestTimesDoNotAllocate(t *testing.T) {
	headers := []wire.Field{{Name: "x-request-id", Value: wire.String("1234")}, {Name: "x-opt-partition-key", Value: wire.Int64(1)}, {Name: "x-b", Value: wire.Array()}}
	for protocol, p := range forms(t, headers...) {
		if n := testing.AllocsPerRun(100, func() {
			if s, d, err := timesOf(t, p); s != nil || d != nil || err != nil {
				t.Fatal(s, d, err)
			}
		}); n > 0 {
			t.Errorf("%s: %.0f allocations", protocol, n)
		}
	}
}
