package fsm

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestPayload(t *testing.T) {
	for _, keys := range [][]string{nil, {"a"}, {"", "blind", string(bytes.Repeat([]byte("k"), 255))}} {
		properties, body := []byte{0, 0}, []byte("the body")
		head, err := AppendHead([]byte{}, "x", "key", properties, keys)
		if err != nil {
			t.Fatal(err)
		}
		p := Payload(append(head, body...))
		if want := PayloadSize(1, 3, 2, len(body)) + BlindSize(keys); len(p) != want {
			t.Errorf("%d keys: %d bytes, not %d", len(keys), len(p), want)
		}
		if !p.Valid() {
			t.Errorf("%d keys: not valid", len(keys))
		}
		if string(p.Exchange()) != "x" || string(p.RoutingKey()) != "key" || !bytes.Equal(p.Properties(), properties) ||
			!bytes.Equal(p.Body(), body) || !slices.Equal(p.BlindKeys(), keys) {
			t.Errorf("%d keys: %q %q %q %q %q", len(keys), p.Exchange(), p.RoutingKey(), p.Properties(), p.Body(), p.BlindKeys())
		}
		for n := range head {
			if p[:n].Valid() {
				t.Errorf("%d keys: valid with %d of %d bytes of the head", len(keys), n, len(head))
			}
		}
	}
}

// Parts are written in full or not at all, whatever their length.
func TestPayloadPartTooLong(t *testing.T) {
	long := func(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("k", n%2) }
	many := func(n, size int) []string { return slices.Repeat([]string{long(size)}, n) }
	for name, c := range map[string]struct {
		exchange, key string
		blind         []string
		fits          bool
	}{
		"longest":              {long(255), long(255), many(255, 255), true},
		"exchange":             {exchange: long(256)},
		"routing key":          {key: long(256)},
		"routing key of 300":   {key: long(300)},
		"routing key of 70000": {key: long(70_000)},
		"blind key":            {blind: many(1, 256)},
		"most blind keys":      {blind: append(many(255, 255), long(254)), fits: true},
		"too many blind keys":  {blind: many(256, 255)},
		"many empty ones":      {blind: many(65_536, 0)},
	} {
		head, err := AppendHead([]byte("before"), c.exchange, c.key, []byte{0, 0}, c.blind)
		if !c.fits {
			if !errors.Is(err, ErrHead) || string(head) != "before" {
				t.Errorf("%s: %d bytes, %v", name, len(head), err)
			}
			continue
		}
		p := Payload(head[len("before"):])
		if err != nil || !p.Valid() || string(p.Exchange()) != c.exchange || string(p.RoutingKey()) != c.key || !slices.Equal(p.BlindKeys(), c.blind) {
			t.Errorf("%s: %v, valid %v", name, err, p.Valid())
		}
	}
}

// A payload whose lengths were cut can still be read: as a body.
func TestReadable(t *testing.T) {
	key := strings.Repeat("é", 150)
	damaged := append([]byte{0, byte(len(key) & 0xff)}, key...) // 300 bytes behind a length of 44
	damaged = append(damaged, 0, 0, 0, 2, 0, 0)
	for name, b := range map[string][]byte{"cut length": damaged, "nothing": nil, "one byte": {9}} {
		p := Readable(b)
		if Payload(b).Valid() || !p.Valid() || !bytes.Equal(p.Body(), b) || len(p.RoutingKey()) != 0 {
			t.Errorf("%s: %q", name, p)
		}
	}
	whole := Payload(AppendPayloadHead(nil, "x", "k", nil))
	if p := Readable(whole); &p[0] != &whole[0] {
		t.Error("a valid payload was copied")
	}
}

func TestShort(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{strings.Repeat("k", 256), strings.Repeat("k", 255)},
		{strings.Repeat("é", 128), strings.Repeat("é", 127)},
		{"k" + strings.Repeat("é", 200), "k" + strings.Repeat("é", 127)},
		{strings.Repeat("\x80", 300), strings.Repeat("\x80", 255)},
	} {
		if got := Short(c.in); got != c.out {
			t.Errorf("%d bytes: %d bytes, not %d", len(c.in), len(got), len(c.out))
		}
	}
}

// Whatever is valid can be taken apart.
func FuzzPayload(f *testing.F) {
	head, err := AppendHead(nil, "x", "k", []byte{0, 0}, []string{"a", "b"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head)
	f.Add([]byte{0, 0, 0x80, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, p := range []Payload{b, Readable(b)} {
			if !p.Valid() {
				continue
			}
			p.Exchange()
			p.RoutingKey()
			p.Properties()
			p.BlindKeys()
			p.Body()
		}
	})
}
