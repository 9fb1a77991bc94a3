package servicebus

import (
	"testing"

	"github.com/quorate/quorate/fsm"
)

// A token is read by whoever has the key of its queue, and nothing else is a token (DS-6).
func TestLockTokens(t *testing.T) {
	one, two := newSealer([16]byte{1}), newSealer([16]byte{2})
	h := fsm.Handle{Number: 1 << 40, Acquired: 7}
	sealed := one.seal(h)
	if got, ok := one.open(sealed); !ok || got != h {
		t.Errorf("read %v", got)
	}
	if _, ok := two.open(sealed); ok {
		t.Error("read with another key")
	}
	for i := range sealed {
		other := sealed
		other[i] ^= 1
		if _, ok := one.open(other); ok {
			t.Errorf("read with a bit of octet %d flipped", i)
		}
	}
	if sealed.guid().guid() != sealed || sealed.guid() == sealed {
		t.Error("the order of octets of a Guid")
	}
	want := token{3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15}
	if got := (token{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}).guid(); got != want {
		t.Errorf("%v", got)
	}
}
