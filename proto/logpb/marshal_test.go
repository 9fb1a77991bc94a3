package logpb

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
)

// notUTF8 is a name as a client may choose it.
const notUTF8 = "caf\xe9\xff"

func entry() *Entry {
	return &Entry{Version: 3, Now: -5, Commands: []*Command{
		{
			Kind: Command_ENQUEUE, Session: &Session{Node: 1, Boot: 1 << 40, Num: 7}, Seq: 9,
			Enqueue: &Enqueue{
				Size: 100, Head: 20, HasExpiration: true, DueAt: -1, ScheduleId: notUTF8,
				Deaths: []*Death{{Reason: Death_EXPIRED, Queue: notUTF8, Count: 2, RoutingKeys: []string{"", notUTF8}}, {}},
			},
		},
		{Kind: Command_SETTLE, Settle: &Settle{Outcome: Settle_DISCARD, Ranges: []uint64{0, 1, 1 << 63}}},
		{Kind: Command_CONFIGURE, Configure: &Configure{Config: &QueueConfig{DeadLetterExchange: notUTF8, DeliveryLimit: -1}}},
		{},
	}}
}

// Both codecs write the same bytes and read what the other one writes: hot
// messages lie within others.
func TestBothCodecsAgree(t *testing.T) {
	m := entry()
	unknown := []byte{0xf8, 0x3f, 0x01} // field 1023, as a later version may write
	m.Commands[3].ProtoReflect().SetUnknown(unknown)
	hot, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	cold, err := Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(hot, cold) {
		t.Errorf("MarshalVT writes\n%x\nand Marshal\n%x", hot, cold)
	}
	var byHot, byCold Entry
	if err := byHot.UnmarshalVT(cold); err != nil {
		t.Fatal(err)
	}
	if err := Unmarshal(hot, &byCold); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&byHot, m) || !proto.Equal(&byCold, m) {
		t.Errorf("of\n%v\nUnmarshalVT reads\n%v\nand Unmarshal\n%v", m, &byHot, &byCold)
	}
	for _, e := range []*Entry{&byHot, &byCold} {
		if got := e.Commands[3].ProtoReflect().GetUnknown(); !bytes.Equal(got, unknown) {
			t.Errorf("of the field that this version does not know %x is kept", got)
		}
	}
}

// What clients send as a string need not be UTF-8: names of fields, of queues in
// arguments, consumer tags.
func TestStringsNeedNotBeUTF8(t *testing.T) {
	for _, m := range []proto.Message{
		&Table{Fields: []*Field{{Name: notUTF8, Value: &Value{Tag: 'S', Str: []byte(notUTF8)}}}},
		&CatalogEntry{Commands: []*CatalogCommand{{Body: &CatalogCommand_Bind{Bind: &Bind{
			RoutingKey: notUTF8, Arguments: &Table{Fields: []*Field{{Name: notUTF8}}},
		}}}}},
		&CatalogSnapshot{Queues: []*QueueState{{Declared: &DeclareQueue{Name: notUTF8}}}},
		&QueueSnapshot{Config: &QueueConfig{DeadLetterRoutingKey: notUTF8}, Consumers: []*ConsumerState{{Tag: notUTF8}}},
	} {
		b, err := Marshal(m)
		if err != nil {
			t.Errorf("%T: %v", m, err)
			continue
		}
		if !bytes.Contains(b, []byte(notUTF8)) {
			t.Errorf("%T: the name is not what is written", m)
		}
		read := m.ProtoReflect().New().Interface()
		if err := Unmarshal(b, read); err != nil || !proto.Equal(read, m) {
			t.Errorf("%T: %v is read as %v (%v)", m, m, read, err)
		}
	}
}

// A table as deep as a client can make it is read.
func TestDeepTables(t *testing.T) {
	deep := &Value{Tag: 'F', Table: &Table{}}
	for range 10_000 {
		deep = &Value{Tag: 'F', Table: &Table{Fields: []*Field{{Name: "a", Value: deep}}}}
	}
	b, err := Marshal(deep)
	if err != nil {
		t.Fatal(err)
	}
	if err := Unmarshal(b, new(Value)); err != nil {
		t.Error(err)
	}
}
