package message

import (
	"bytes"
	"maps"
	"testing"

	"github.com/quorate/quorate/amqp/v091/wire"
	wire10 "github.com/quorate/quorate/amqp/v10/wire"
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

// What a receiver of AMQP 1.0 has added to a message is a header, in front of what the message came with and behind what the
// broker says. A few bytes that stand for many values cost no more than fits, and what is damaged is nothing.
func TestAddedAnnotations(t *testing.T) {
	many := []byte("\xf0\x00\x00\x00\x05\x00\x01\x00\x00\x40") // 65536 times null
	added := pairs(symbol("x-a"), text("new"), symbol("x-n"), wire10.AppendUint(nil, 7), symbol("x-acquired-count"), text("forged"), symbol("x-lock-token"), text("forged"),
		symbol("x-cc"), list(text("k")), symbol("x-many"), list(many, many), symbol("x-long"), text("last"))
	headers := wire.AppendFields(nil, wire.Table{{Name: "x-a", Value: wire.String("old")}, {Name: "k", Value: wire.String("v")}})
	raw := wire.AppendProperties(nil, &wire.Properties{Present: wire.FlagHeaders, Headers: headers})
	for name, p := range map[string]fsm.Payload{
		"0-9-1": old(raw, nil),
		"1.0":   bare(noHeader, pairs(symbol("x-a"), text("old")), wire10.AppendData(application(pairs(text("k"), text("v"))), nil)),
	} {
		m := &fsm.Message{Payload: p, Acquired: 2, LockToken: "TOKEN", Annotations: added}
		got := map[string]string{}
		for _, f := range (Properties{}).Describe(m).Fields {
			for _, h := range f.Value.GetTable().GetFields() {
				if _, twice := got[h.Name]; twice {
					t.Errorf("%s: %s is there twice", name, h.Name)
				}
				got[h.Name] = string(h.Value.Str)
			}
		}
		want := map[string]string{"x-a": "new", "k": "v", "x-n": "", "x-acquired-count": "", "x-lock-token": "TOKEN", "CC": "", "x-long": "last"}
		if !maps.Equal(got, want) {
			t.Errorf("%s: the headers are %v, not %v", name, got, want)
		}
	}
	m := &fsm.Message{Payload: old(raw, nil), Annotations: added[:len(added)-1]}
	if got := RenderProperties(nil, raw, m); !ChangesProperties(m) || !bytes.Equal(got, raw) {
		t.Errorf("damaged: % x", got)
	}
}
