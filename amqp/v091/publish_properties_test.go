package v091

import (
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
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
		p := mustHaveHeaders(t, wire.Field{Name: headerBCC, Value: wire.Array(c.keys...)})
		got, err := copies(nil, &p, headerBCC)
		if !slices.Equal(got, c.want) || (err != nil) != (c.err != "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %d keys, %v", name, len(got), err)
		}
	}
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
			fields = append(fields, wire.Field{Name: name, Value: wire.Int64(1)})
		}
		p := mustHaveHeaders(t, fields...)
		delayed, err := misspelled(&p)
		for what, pair := range map[string]struct {
			got  error
			want string
		}{"delayed": {delayed, c.delayed}, "error": {err, c.err}} {
			if (pair.got != nil) != (pair.want != "") || pair.got != nil && pair.got.Error() != pair.want {
				t.Errorf("%s: %s: %v", c.names, what, pair.got)
			}
		}
	}
}

func BenchmarkMisspelled(b *testing.B) {
	p := mustHaveHeaders(b, wire.Field{Name: "x-request-id", Value: wire.String("1234")}, wire.Field{Name: "x-opt-delivery-delay", Value: wire.Int64(1)},
		wire.Field{Name: "traceparent", Value: wire.String("1234")})
	b.ReportAllocs()
	for b.Loop() {
		if delayed, err := misspelled(&p); delayed != nil || err != nil {
			b.Fatal(err)
		}
	}
}
