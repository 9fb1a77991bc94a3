package fsm

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	known := []string{"x-message-ttl", "x-max-length", "x-max-length-bytes", "x-hold"}
	for name, want := range map[string]string{
		"x-message-ttl": "x-message-ttl", "X-Message-TTL": "x-message-ttl", "x-mesage-ttl": "x-message-ttl", "x-message-tlt": "x-message-ttl",
		"x-message_ttl": "x-message-ttl", "x-message-ttls": "x-message-ttl", "x-massege-ttl": "x-message-ttl", "xmessagettl": "x-message-ttl",
		"x-messagettls1": "", "x-max-lenght": "x-max-length", "x-max-length-byte": "x-max-length-bytes", "x-max-length-bits": "x-max-length-bytes",
		"x-hodl": "x-hold", "x-foo": "", "x-": "", "": "", "x-max": "", strings.Repeat("x", 255): "",
	} {
		if got := Nearest(name, known, 2); got != want {
			t.Errorf("%q: %q, not %q", name, got, want)
		}
	}
}

// naiveDistance tries every way to make a name of the other.
func naiveDistance(a, b string) int {
	switch {
	case a == "" || b == "":
		return len(a) + len(b)
	case a[0] == b[0]:
		return naiveDistance(a[1:], b[1:])
	}
	d := 1 + min(naiveDistance(a[1:], b), naiveDistance(a, b[1:]), naiveDistance(a[1:], b[1:]))
	if len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0] {
		d = min(d, 1+naiveDistance(a[2:], b[2:]))
	}
	return d
}

func TestDistance(t *testing.T) {
	word := rapid.StringMatching("[abc]{0,7}")
	rapid.Check(t, func(t *rapid.T) {
		a, b, limit := word.Draw(t, "a"), word.Draw(t, "b"), rapid.IntRange(0, 3).Draw(t, "limit")
		if got, want := distance(a, b, limit), naiveDistance(a, b); min(got, limit+1) != min(want, limit+1) {
			t.Fatalf("%q and %q: %d, not %d", a, b, got, want)
		}
	})
}

func BenchmarkNearest(b *testing.B) {
	known := []string{"x-opt-delivery-delay", "x-opt-delivery-time", "x-schedule-id", "x-schedule-conflict"}
	b.ReportAllocs()
	for b.Loop() {
		Nearest("x-request-number-of-user", known, 2)
	}
}
