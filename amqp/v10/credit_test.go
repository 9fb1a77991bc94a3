package v10

import (
	"math"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

func TestCreditOfIncomingLink(t *testing.T) {
	var r receiving
	r.begin(math.MaxUint32, maxLinkCredit)
	for i := range maxLinkCredit {
		if r.left > maxLinkCredit/2 && r.refill() {
			t.Fatalf("refilled after %d", i)
		}
		if !r.message() {
			t.Fatalf("message %d is refused", i)
		}
		r.waiting.Add(1)
	}
	if r.message() {
		t.Fatal("a message without credit")
	}
	if r.refill() {
		t.Fatal("refilled while 170 publishes wait")
	}
	if r.waiting.Add(-1); !r.refill() || r.left != maxLinkCredit || r.refill() {
		t.Fatalf("%+v", &r)
	}
	var f wire.Flow
	if r.stamp(&f); f.DeliveryCount != wire.Some[uint32](maxLinkCredit-1) || f.LinkCredit != wire.Some[uint32](maxLinkCredit) {
		t.Errorf("%+v", f)
	}
}
