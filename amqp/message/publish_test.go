package message

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
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
