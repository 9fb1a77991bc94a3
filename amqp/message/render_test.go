package message

import (
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	"github.com/quorate/quorate/fsm"
)

// A receiver that has asked sees the deadlines that there are, each an integer of
// a type that every client can read, and nothing that the publisher has written
// under their names. Others see what was published.
func TestDeliveryInfo(t *testing.T) {
	published := wire.AppendProperties(nil, &wire.Properties{
		Present: wire.FlagHeaders, Headers: wire.AppendFields(nil, wire.Table{
			{Name: "x-lock-token", Value: wire.String("forged")}, {Name: "x-expires-at", Value: wire.Int64(1)}, {Name: "k", Value: wire.String("v")},
		}),
	})
	m := &fsm.Message{ID: 1, EnqueuedAt: 5, LockedUntil: 7}
	if ChangesProperties(m) {
		t.Error("nobody has asked")
	}
	m.LockToken = "TOKEN"
	if !ChangesProperties(m) {
		t.Fatal("nothing is shown")
	}
	p, err := wire.ParseProperties(RenderProperties(nil, published, m))
	if err != nil {
		t.Fatal(err)
	}
	headers, err := wire.DecodeFields(p.Headers)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.Table{
		{Name: "k", Value: wire.String("v")}, {Name: "x-lock-token", Value: wire.String("TOKEN")},
		{Name: "x-locked-until", Value: wire.Int64(7)}, {Name: "x-lock-remaining", Value: wire.Int64(0)}, {Name: "x-enqueued-at", Value: wire.Int64(5)},
	}
	if len(headers) != len(want) {
		t.Fatalf("the headers are %+v", headers)
	}
	for i, f := range headers {
		if w := want[i]; f.Name != w.Name || f.Value.Tag != w.Value.Tag || f.Value.Int != w.Value.Int || f.Value.Str != w.Value.Str {
			t.Errorf("header %d is %+v, not %+v", i, f, w)
		}
	}
}
