package v10

import (
	"math"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

func TestIncomingWindow(t *testing.T) {
	var w incoming
	w.begin(math.MaxUint32, 300, false)
	for i := range maxIncomingWindow {
		if left := max(300-i, 0); w.remote() != uint32(left) {
			t.Fatalf("the client may send %d by its own window, want %d", w.remote(), left)
		}
		if w.isLow() != (i >= maxIncomingWindow/2) {
			t.Fatalf("low after %d: %v", i, w.isLow())
		}
		if !w.transfer() {
			t.Fatalf("transfer %d is refused", i)
		}
	}
	if w.transfer() {
		t.Fatal("a window of 0 lets one through")
	}
	if w.next != maxIncomingWindow-1 {
		t.Errorf("next id %d", w.next)
	}
	if w.refill(); !w.transfer() || w.left != maxIncomingWindow-1 {
		t.Errorf("%+v after a refill", w)
	}
}

func TestAlarmShutsWindow(t *testing.T) {
	var w incoming
	w.begin(0, 0, false)
	w.transfer()
	if !w.setAlarm(true) || w.setAlarm(true) || w.left != 0 || w.isLow() {
		t.Fatalf("%+v", w)
	}
	for i := range maxIncomingWindow {
		if !w.transfer() {
			t.Fatalf("transfer %d on its way is refused", i)
		}
		w.refill()
	}
	if w.transfer() {
		t.Fatal("a shut window lets more through")
	}
	if !w.setAlarm(false) || w.left != maxIncomingWindow || w.grace != 0 {
		t.Fatalf("%+v", w)
	}
	if w.begin(0, 0, true); w.transfer() {
		t.Fatal("a session that begins during an alarm has a window")
	}
}

func TestOutgoingWindow(t *testing.T) {
	for _, c := range []struct {
		name   string
		next   uint32
		seen   wire.Optional[uint32]
		window uint32
		left   uint32
		ok     bool
	}{
		{"at once", 0, wire.Some[uint32](0), 5, 5, true},
		{"absent", 3, wire.Optional[uint32]{}, 5, 2, true},
		{"three on their way", 3, wire.Some[uint32](0), 5, 2, true},
		{"more on their way than the window has", 9, wire.Some[uint32](0), 5, 0, true},
		{"beyond 2^32", 1, wire.Some[uint32](math.MaxUint32), 5, 3, true},
		{"largest", 7, wire.Some[uint32](7), math.MaxUint32, math.MaxUint32, true},
		{"ahead of what was sent", 0, wire.Some[uint32](77), 5, 0, false},
		{"one ahead", 3, wire.Some[uint32](4), 5, 0, false},
	} {
		w := outgoing{next: c.next}
		if ok := w.flow(c.seen, c.window); ok != c.ok || w.window != c.left {
			t.Errorf("%s: %+v, %v", c.name, w, ok)
		}
	}
	w := outgoing{window: 2}
	for i := range 3 {
		if w.take() != (i < 2) {
			t.Errorf("transfer %d: %+v", i, w)
		}
	}
	if w.next != 2 {
		t.Errorf("next id %d", w.next)
	}
}

func TestStampedFlow(t *testing.T) {
	var f wire.Flow
	(&incoming{next: 1, left: 2}).stamp(&f, &outgoing{next: 3})
	want := wire.Flow{NextIncomingID: wire.Some[uint32](1), IncomingWindow: 2, NextOutgoingID: 3, OutgoingWindow: math.MaxUint32}
	if f.NextIncomingID != want.NextIncomingID || f.IncomingWindow != 2 || f.NextOutgoingID != 3 || f.OutgoingWindow != want.OutgoingWindow {
		t.Errorf("%+v", f)
	}
}
