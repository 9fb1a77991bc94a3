package v091

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// withHeaders encodes properties that have these headers only.
func withHeaders(t *testing.T, headers ...wire.Field) []byte {
	t.Helper()
	raw, err := wire.EditProperties(nil, []byte{0, 0}, &wire.Edit{SetHeaders: headers})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func entry(queue, reason string, more ...wire.Field) wire.Value {
	return wire.Nested(append(wire.Table{{Name: "queue", Value: wire.String(queue)}, {Name: "reason", Value: wire.String(reason)}}, more...))
}

func TestHistoryOfClients(t *testing.T) {
	long := strings.Repeat("x", 256)
	count := func(n int64) wire.Field { return wire.Field{Name: "count", Value: wire.Int64(n)} }
	many := make([]wire.Value, 3*maxHistory)
	for i := range many {
		many[i] = entry(fmt.Sprint("q", i), "expired")
	}
	full := entry("q", "maxlen", count(2), wire.Field{Name: "exchange", Value: wire.String("x")},
		wire.Field{Name: "time", Value: wire.Timestamp(7)}, wire.Field{Name: "original-expiration", Value: wire.String("5")},
		wire.Field{Name: "routing-keys", Value: wire.Array(wire.String("a"), wire.Int64(1), wire.String(long), wire.String("b"))})
	for name, c := range map[string]struct {
		header wire.Value
		want   string
	}{
		"as the server writes it": {wire.Array(full), `reason:MAXLEN queue:"q" count:2 time:7000 exchange:"x" routing_keys:"a" routing_keys:"b" original_expiration:"5" first:true`},
		"an entry of each death":  {wire.Array(entry("q", "expired"), entry("p", "rejected"), entry("q", "expired")), `reason:EXPIRED queue:"q" count:2 | reason:REJECTED queue:"p" count:1 first:true`},
		"no array":                {wire.String("[I, am, not, array]"), ""},
		"no entries":              {wire.Array(wire.Int64(1), wire.Nested(nil), entry("", "expired"), entry("q", "boredom"), entry(long, "expired"), entry("\xff", "expired")), ""},
		"counts out of range":     {wire.Array(entry("q", "expired", count(-3)), entry("p", "expired", count(math.MaxInt64)), entry("p", "expired", count(math.MaxInt64))), fmt.Sprintf(`reason:EXPIRED queue:"q" count:1 | reason:EXPIRED queue:"p" count:%d first:true`, math.MaxInt64/2)},
	} {
		t.Run(name, func(t *testing.T) {
			raw := withHeaders(t, wire.Field{Name: "x-death", Value: c.header})
			var got []string
			for _, d := range (Properties{ContinueHistory: true}).Deaths(raw) {
				got = append(got, strings.Join(strings.Fields(d.String()), " "))
			}
			if s := strings.Join(got, " | "); s != c.want {
				t.Errorf("%s\nnot %s", s, c.want)
			}
			if d := (Properties{}).Deaths(raw); d != nil {
				t.Errorf("continued all the same: %v", d)
			}
		})
	}
	raw := withHeaders(t, wire.Field{Name: "x-death", Value: wire.Array(many...)}, wire.Field{Name: "x-first-death-queue", Value: wire.String("q5")},
		wire.Field{Name: "x-first-death-reason", Value: wire.String("expired")})
	deaths := (Properties{ContinueHistory: true}).Deaths(raw)
	if len(deaths) != maxHistory || !deaths[5].First || deaths[maxHistory-1].First || deaths[0].Reason != logpb.Death_EXPIRED {
		t.Errorf("%d entries: %v", len(deaths), deaths)
	}
}

// A letter that goes by the routing key of its queue has no header CC where
// dead letters are as before version 4.
func TestRedirected(t *testing.T) {
	tail := wire.Field{Name: "h", Value: wire.Int64(1)}
	raw := withHeaders(t, wire.Field{Name: "CC", Value: wire.Array(wire.String("a"))}, tail)
	if got := (Properties{}).Redirected(raw); string(got) != string(raw) {
		t.Errorf("changed: %q", got)
	}
	without := withHeaders(t, tail)
	old := Properties{ContinueHistory: true}
	if got := old.Redirected(raw); string(got) != string(without) {
		t.Errorf("%q, not %q", got, without)
	}
	if got := old.Redirected(without); string(got) != string(without) {
		t.Errorf("changed: %q", got)
	}
}

// What the last receiver has said replaces what an earlier one has, all of it.
func TestRemarked(t *testing.T) {
	said := func(reason, description string) (fields []wire.Field) {
		for name, text := range map[string]string{"x-dead-letter-reason": reason, "x-dead-letter-description": description} {
			if text != "" {
				fields = append(fields, wire.Field{Name: name, Value: wire.String(text)})
			}
		}
		return fields
	}
	for _, before := range [][2]string{{}, {"r1", ""}, {"r1", "d1"}} {
		for _, now := range []fsm.Remark{{}, {Reason: "r2"}, {Description: "d2"}, {Reason: "r2", Description: "d2"}} {
			raw := withHeaders(t, append(said(before[0], before[1]), wire.Field{Name: "k", Value: wire.String("v")})...)
			p, err := wire.ParseProperties(Properties{}.Remarked(raw, now))
			if err != nil {
				t.Fatal(err)
			}
			reason, _ := p.Header("x-dead-letter-reason")
			description, _ := p.Header("x-dead-letter-description")
			other, _ := p.Header("k")
			if reason.Str != now.Reason || description.Str != now.Description || other.Str != "v" {
				t.Errorf("%v, then %v: %q, %q", before, now, reason.Str, description.Str)
			}
		}
	}
}
