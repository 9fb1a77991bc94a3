package message

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

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
			for protocol, p := range forms(t, wire.Field{Name: "x-death", Value: c.header}) {
				var got []string
				for _, d := range (Properties{ContinueHistory: true}).Deaths(p) {
					got = append(got, strings.Join(strings.Fields(d.String()), " "))
				}
				if s := strings.Join(got, " | "); s != c.want {
					t.Errorf("%s: %s\nnot %s", protocol, s, c.want)
				}
				if d := (Properties{}).Deaths(p); d != nil {
					t.Errorf("%s: continued all the same: %v", protocol, d)
				}
			}
		})
	}
	for protocol, p := range forms(t, wire.Field{Name: "x-death", Value: wire.Array(many...)}, wire.Field{Name: "x-first-death-queue", Value: wire.String("q5")},
		wire.Field{Name: "x-first-death-reason", Value: wire.String("expired")}) {
		deaths := (Properties{ContinueHistory: true}).Deaths(p)
		if len(deaths) != maxHistory || !deaths[5].First || deaths[maxHistory-1].First || deaths[0].Reason != logpb.Death_EXPIRED {
			t.Errorf("%s: %d entries: %v", protocol, len(deaths), deaths)
		}
	}
}

// again returns a message of p's form with what it is rewritten as.
func again(t *testing.T, how Properties, p fsm.Payload, r fsm.Rewrite) fsm.Payload {
	t.Helper()
	out, err := p.Repack(string(p.Exchange()), "k", how.Rewritten(p, r), nil)
	if err != nil || !bytes.Equal(out.Body(), p.Body()) {
		t.Fatalf("%v: the body is %q", err, out.Body())
	}
	return out
}

// A letter that goes by the routing key of its queue has no other keys where dead
// letters are as before version 4.
func TestRewrittenRedirected(t *testing.T) {
	tail := wire.Field{Name: "x-h", Value: wire.Int64(1)}
	without := forms(t, tail)
	for protocol, p := range forms(t, wire.Field{Name: "CC", Value: wire.Array(wire.String("a"))}, tail) {
		r := fsm.Rewrite{Redirected: true}
		if got := again(t, Properties{}, p, r); !bytes.Equal(got, p) {
			t.Errorf("%s: changed: %q", protocol, got)
		}
		old := Properties{ContinueHistory: true}
		if got := again(t, old, p, r); !bytes.Equal(got, without[protocol]) {
			t.Errorf("%s: %q, not %q", protocol, got, without[protocol])
		}
		if got := again(t, old, p, fsm.Rewrite{Waited: true}); !bytes.Equal(got, p) {
			t.Errorf("%s: changed: %q", protocol, got)
		}
		if got := again(t, old, without[protocol], r); !bytes.Equal(got, without[protocol]) {
			t.Errorf("%s: changed: %q", protocol, got)
		}
	}
}

// What the last receiver has said replaces what an earlier one has, all of it.
func TestRewrittenRemarked(t *testing.T) {
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
			for protocol, p := range forms(t, append(said(before[0], before[1]), wire.Field{Name: "x-k", Value: wire.String("v")})...) {
				got := headersText(again(t, Properties{}, p, fsm.Rewrite{Remark: &now}))
				want := map[string]string{"x-k": "v"}
				for _, f := range said(now.Reason, now.Description) {
					want[f.Name] = f.Value.Str
				}
				if !maps.Equal(got, want) {
					t.Errorf("%s: %v, then %v: %v", protocol, before, now, got)
				}
				if kept := headersText(again(t, Properties{}, p, fsm.Rewrite{Died: true})); !maps.Equal(kept, headersText(p)) {
					t.Errorf("%s: %v has become %v", protocol, before, kept)
				}
			}
		}
	}
}

// A message says how often it was redriven, and all else stays.
func TestRewrittenRedriven(t *testing.T) {
	for before, want := range map[int64]int64{-1: 1, 0: 1, 1: 2, math.MaxInt64: math.MaxInt64} {
		fields := []wire.Field{{Name: "x-k", Value: wire.String("v")}}
		if before != 0 {
			fields = append(fields, wire.Field{Name: "x-redriven", Value: wire.Int64(before)})
		}
		for protocol, p := range forms(t, fields...) {
			got := again(t, Properties{}, p, fsm.Rewrite{Redriven: true})
			var n int64
			for _, f := range (Properties{}).Headers(got, nil).GetFields() {
				if f.Name == "x-redriven" {
					n = f.Value.GetInt()
				}
			}
			if n != want || headersText(got)["x-k"] != "v" {
				t.Errorf("%s: %d, then %d, not %d", protocol, before, n, want)
			}
		}
	}
}

// headersText returns the headers of a message as texts.
func headersText(p fsm.Payload) map[string]string {
	m := map[string]string{}
	for _, f := range (Properties{}).Headers(p, nil).GetFields() {
		m[f.Name] = string(f.Value.GetStr())
	}
	return m
}
