package v10

import (
	"bytes"
	"testing"

	"github.com/quorate/quorate/amqp/v10/wire"
)

func mustRefuse(t *testing.T, e *wire.Error, condition string) {
	t.Helper()
	if e == nil || e.Condition != condition {
		t.Fatalf("err = %v, want %s", e, condition)
	}
}

func first(id uint32, more bool) *wire.Transfer {
	return &wire.Transfer{DeliveryID: wire.Some(id), More: more}
}

func TestDeliveryOfOneFrame(t *testing.T) {
	a := assembly{mode: sendMixed, limit: 10}
	in := []byte("hello")
	got, done, err := a.add(first(7, false), in)
	if err != nil || !done || &got[0] != &in[0] || a.id != 7 || a.settled || a.active {
		t.Fatalf("%q, %v, %v, %+v", got, done, err, a)
	}
	got, done, err = a.add(&wire.Transfer{DeliveryID: wire.Some[uint32](8), Settled: wire.Some(true), MessageFormat: wire.Some[uint32](3)}, nil)
	if err != nil || !done || got == nil || len(got) != 0 || !a.settled || a.format != 3 {
		t.Fatalf("%q, %v, %v, %+v", got, done, err, a)
	}
}

func TestDeliveryOfManyFrames(t *testing.T) {
	a := assembly{mode: sendMixed, limit: 1 << 20}
	part := bytes.Repeat([]byte("x"), 1000)
	for i := range 100 {
		f := &wire.Transfer{More: true}
		if i == 0 {
			f = first(1, true)
		} else if i%2 == 0 {
			f.DeliveryID, f.Settled = wire.Some[uint32](1), wire.Some(false)
		}
		got, done, err := a.add(f, part)
		if err != nil || done || got != nil {
			t.Fatalf("frame %d: %v, %v", i, done, err)
		}
		if n := a.size(); n > max(firstPart, int64(2*len(a.body))) {
			t.Fatalf("%d octets take %d", len(a.body), n)
		}
	}
	got, done, err := a.add(&wire.Transfer{}, nil) // the last has no payload
	if err != nil || !done || len(got) != 100_000 || a.size() != 0 {
		t.Fatalf("%d octets, %v, %v, %d held", len(got), done, err, a.size())
	}
}

func TestAbortedDelivery(t *testing.T) {
	a := assembly{mode: sendMixed, limit: 100}
	if _, _, err := a.add(first(1, true), []byte("lost")); err != nil {
		t.Fatal(err)
	}
	got, done, err := a.add(&wire.Transfer{Aborted: true, More: true}, []byte("lost"))
	if err != nil || !done || got != nil || a.active || a.size() != 0 {
		t.Fatalf("%q, %v, %v, %+v", got, done, err, a)
	}
	if got, _, _ := a.add(first(2, false), []byte("kept")); string(got) != "kept" {
		t.Fatalf("%q", got)
	}
}

func TestRefusedTransfers(t *testing.T) {
	for _, c := range []struct {
		name      string
		mode      byte
		before    *wire.Transfer
		transfer  wire.Transfer
		size      int
		condition string
	}{
		{"no delivery-id", sendMixed, nil, wire.Transfer{}, 1, wire.ConditionInvalidField},
		{"another delivery-id", sendMixed, first(1, true), *first(2, false), 1, wire.ConditionInvalidField},
		{"other settled", sendMixed, first(1, true), wire.Transfer{Settled: wire.Some(true)}, 1, wire.ConditionInvalidField},
		{"settled on an unsettled link", sendUnsettled, nil, wire.Transfer{DeliveryID: wire.Some[uint32](1), Settled: wire.Some(true)}, 1, wire.ConditionInvalidField},
		{"unsettled on a settled link", sendSettled, nil, *first(1, false), 1, wire.ConditionInvalidField},
		{"rcv-settle-mode", sendMixed, nil, wire.Transfer{DeliveryID: wire.Some[uint32](1), RcvSettleMode: wire.Some[byte](1)}, 1, wire.ConditionNotImplemented},
		{"resumed", sendMixed, nil, wire.Transfer{DeliveryID: wire.Some[uint32](1), Resume: true}, 1, wire.ConditionNotImplemented},
		{"transaction", sendMixed, nil, wire.Transfer{DeliveryID: wire.Some[uint32](1), State: wire.State{Kind: wire.StateTransactional}}, 1, wire.ConditionNotImplemented},
		{"too large at once", sendMixed, nil, *first(1, true), 101, wire.ConditionMessageSize},
		{"too large together", sendMixed, first(1, true), wire.Transfer{More: true}, 92, wire.ConditionMessageSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := assembly{mode: c.mode, limit: 100}
			if c.before != nil {
				if _, _, err := a.add(c.before, make([]byte, 9)); err != nil {
					t.Fatal(err)
				}
			}
			_, done, err := a.add(&c.transfer, make([]byte, c.size))
			mustRefuse(t, err, c.condition)
			if done || a.active || a.size() != 0 {
				t.Errorf("%v, %+v", done, a)
			}
		})
	}
	a := assembly{mode: sendSettled, limit: 100}
	if _, done, err := a.add(&wire.Transfer{DeliveryID: wire.Some[uint32](1), Settled: wire.Some(true), RcvSettleMode: wire.Some[byte](1)}, nil); !done || err != nil {
		t.Errorf("rcv-settle-mode of a settled transfer: %v, %v", done, err)
	}
}
