package v10

import (
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	long := strings.Repeat("x", maxName)
	for _, c := range []struct {
		in            string
		exchange, key string
		source, bad   bool
	}{
		{in: "/queues/q", key: "q", source: true},
		{in: "/queues/a/b", key: "a/b", source: true},
		{in: "/queues/a%2Fb", key: "a/b", source: true},
		{in: "/queues/a%2fb%25+", key: "a/b%+", source: true},
		{in: "/queues/%C3%BC", key: "ü", source: true},
		{in: "/queues/ü ", key: "ü ", source: true},
		{in: "/queues/" + long, key: long, source: true},
		{in: "/exchanges/e", exchange: "e"},
		{in: "/exchanges/e/", exchange: "e"},
		{in: "/exchanges/e/k", exchange: "e", key: "k"},
		{in: "/exchanges/ex%2F%C3%BC/k%2F%C3%A9", exchange: "ex/ü", key: "k/é"},
		{in: "/exchanges/amq.quorate.command/lock.renew", exchange: "amq.quorate.command", key: "lock.renew"},

		{in: "", bad: true}, {in: "q", bad: true}, {in: "/queue/q", bad: true}, {in: "/amq/queue/q", bad: true}, {in: "/exchange/e", bad: true},
		{in: "/topic/x", bad: true}, {in: "/queues", bad: true}, {in: "/queues/", bad: true}, {in: "/exchanges", bad: true}, {in: "/exchanges/", bad: true},
		{in: "/exchanges//k", bad: true}, {in: "/exchanges/amq.default", bad: true}, {in: "/exchanges/amq.default/k", bad: true},
		{in: "/exchanges/amq%2Edefault/k", bad: true}, {in: "/exchanges/e/k/x", bad: true}, {in: "/exchanges/e/k/", bad: true},
		{in: "/queues/%zz", bad: true}, {in: "/queues/%2", bad: true}, {in: "/queues/%", bad: true}, {in: "/queues/%ff", bad: true}, {in: "/queues/\xff", bad: true},
		{in: "/queues/" + long + "x", bad: true}, {in: "/exchanges/e/" + long + "x", bad: true}, {in: " /queues/q", bad: true}, {in: "/Queues/q", bad: true},
	} {
		a, ok := parseAddress(c.in)
		if ok == c.bad || ok && (a != address{c.exchange, c.key} || a.isQueue() != c.source) {
			t.Errorf("%q: %+v, %v", c.in, a, ok)
		}
		queue, ok := parseSource(c.in)
		if ok != c.source || ok && queue != c.key {
			t.Errorf("source %q: %q, %v", c.in, queue, ok)
		}
	}
}

func TestQueueAddress(t *testing.T) {
	if s := queueAddress("a/b ü%+~"); s != "/queues/a%2Fb%20%C3%BC%25%2B~" {
		t.Error(s)
	}
}

// FuzzAddress: an address is refused, or names what another encoding of it names.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"/queues/q", "/queues/a%2Fb", "/exchanges/e/k", "/exchanges/%C3%BC", "/queues/%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, ok := parseAddress(s)
		if !ok {
			return
		}
		again := queueAddress(a.key)
		if !a.isQueue() {
			again = exchangePrefix + escape(a.exchange) + "/" + escape(a.key)
		}
		if b, ok := parseAddress(again); !ok || a != b {
			t.Fatalf("%q is %+v, %q is %+v", s, a, again, b)
		}
	})
}
