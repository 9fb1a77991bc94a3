package fsm

import (
	"bytes"
	"slices"
	"testing"
)

func TestPayload(t *testing.T) {
	for _, keys := range [][]string{nil, {"a"}, {"", "blind", string(bytes.Repeat([]byte("k"), 255))}} {
		properties, body := []byte{0, 0}, []byte("the body")
		p := Payload(append(AppendBlindHead([]byte{}, "x", "key", properties, keys), body...))
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
		head := len(p) - len(body)
		for n := range head {
			if p[:n].Valid() {
				t.Errorf("%d keys: valid with %d of %d bytes of the head", len(keys), n, head)
			}
		}
	}
}

// Whatever is valid can be taken apart.
func FuzzPayload(f *testing.F) {
	f.Add([]byte(AppendBlindHead(nil, "x", "k", []byte{0, 0}, []string{"a", "b"})))
	f.Add([]byte{0, 0, 0x80, 0, 0, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p := Payload(b); p.Valid() {
			p.Exchange()
			p.RoutingKey()
			p.Properties()
			p.BlindKeys()
			p.Body()
		}
	})
}
