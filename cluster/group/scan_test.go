package group

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// commandsOf encodes commands.
func commandsOf(cs ...*logpb.Command) (b []byte) {
	for _, c := range cs {
		b = AppendCommand(b, c)
	}
	return b
}

// What is known of commands without decoding them is what the decoder says: of
// those that nodes submit, all is known, and of what chance makes of them
// nothing is taken for a command that the decoder refuses.
func TestScanIsDecoding(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	session := &logpb.Session{Node: 1, Boot: 7, Num: 3}
	whole := commandsOf(
		&logpb.Command{Kind: logpb.Command_ENQUEUE, Session: session, Seq: 9, OpenedAt: 5, Enqueue: &logpb.Enqueue{
			Size: 300, Head: 8, Routed: true, TtlPlusOne: 7, ScheduleId: "id", Deaths: []*logpb.Death{{Queue: "q", RoutingKeys: []string{"a", "b"}, Time: 3}},
		}},
		&logpb.Command{Kind: logpb.Command_SETTLE, Session: session, Seq: 10, Settle: &logpb.Settle{Consumer: 1, Ranges: []uint64{1, 1 << 40, 3, 4}}},
		&logpb.Command{Kind: logpb.Command_CONSUME, Session: session, Seq: 11, Consume: &logpb.Consume{Consumer: 1, Tag: "t", Priority: -3}},
		&logpb.Command{Kind: logpb.Command_CONFIGURE, Configure: &logpb.Configure{Config: &logpb.QueueConfig{DeliveryLimit: -1, DeadLetterExchange: "x"}}},
		&logpb.Command{Kind: logpb.Command_ROUTE_DEAD, RouteDead: &logpb.RouteDead{First: 1, Routes: []*logpb.DeadRoute{{Targets: []uint64{1, 2, 300}}}}},
	)
	type seen struct {
		enqueue bool
		size    uint64
	}
	list := func(into *[]seen) func(bool, uint64) bool {
		return func(enqueue bool, size uint64) bool {
			*into = append(*into, seen{enqueue, size})
			return true
		}
	}
	known := 0
	for round := range 200_000 {
		b := slices.Clone(whole)
		for range min(round, random.IntN(4)) {
			switch at := random.IntN(len(b)); random.IntN(4) {
			case 0:
				b[at] = byte(random.Uint32())
			case 1:
				b[at] ^= 1 << random.IntN(8)
			case 2:
				b = slices.Delete(b, at, min(len(b), at+1+random.IntN(3)))
			case 3:
				b = slices.Insert(b, at, b[random.IntN(len(b))], byte(random.Uint32()))
			}
		}
		var scanned, decoded []seen
		count := scan(b, list(&scanned))
		if round == 0 && count != 5 {
			t.Fatalf("%d commands are known", count)
		}
		if count < 0 {
			continue
		}
		known++
		n, err := decodeAll(b, list(&decoded))
		if err != nil || n != count || !slices.Equal(scanned, decoded) {
			t.Fatalf("%x: %d commands %v, and decoded %d %v, %v", b, count, scanned, n, decoded, err)
		}
	}
	if known < 1000 {
		t.Errorf("only %d were known", known)
	}
}

// A size has 32 bits. Of a longer number the decoder takes the lowest ones.
func TestScanOfLongSize(t *testing.T) {
	for _, size := range []uint64{0, 5, 1<<32 - 1, 1 << 32, 1<<32 + 5, 1<<63 + 7, 1<<64 - 1} {
		enqueue := protowire.AppendVarint(protowire.AppendTag(nil, sizeField, protowire.VarintType), size)
		command := protowire.AppendVarint(protowire.AppendTag(nil, kindField, protowire.VarintType), uint64(logpb.Command_ENQUEUE))
		command = protowire.AppendBytes(protowire.AppendTag(command, enqueueField, protowire.BytesType), enqueue)
		all := protowire.AppendBytes(protowire.AppendTag(nil, commandsField, protowire.BytesType), command)
		var scanned, decoded []uint64
		n := scan(all, func(_ bool, size uint64) bool {
			scanned = append(scanned, size)
			return true
		})
		m, err := decodeAll(all, func(_ bool, size uint64) bool {
			decoded = append(decoded, size)
			return true
		})
		if n != 1 || m != 1 || err != nil || !slices.Equal(scanned, decoded) || scanned[0] != size&(1<<32-1) {
			t.Errorf("size %d: scanned %v, decoded %v, %v", size, scanned, decoded, err)
		}
	}
}

// An entry that another node sends is refused where it would end the replica that
// applies it, or take many times its length. What older programs may have written
// is not.
func TestEntriesOfALeader(t *testing.T) {
	stamped := func(version uint32, commands ...[]byte) []byte {
		b, err := (&logpb.Entry{Version: version, Now: 5}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		return append(b, bytes.Join(commands, nil)...)
	}
	enqueue := func(size uint32) []byte {
		return commandsOf(&logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: size}})
	}
	tick := commandsOf(&tickCommand)
	for name, c := range map[string]struct {
		data, payloads []byte
		ok             bool
	}{
		"a tick":                       {stamped(1, tick), nil, true},
		"a message":                    {stamped(1, enqueue(9)), []byte("it is one"), true},
		"no commands":                  {stamped(1), nil, true},
		"nothing":                      {nil, nil, true},
		"of an older program":          {tick, nil, true},
		"garbage":                      {[]byte("garbage"), nil, false},
		"cut short":                    {stamped(1, tick)[:len(stamped(1, tick))-1], nil, false},
		"a stamp cut short":            {[]byte{fieldVersion << 3, 0x80}, nil, false},
		"of a later version":           {stamped(2, tick), nil, false},
		"of a later version in pieces": {slices.Concat(stamped(1), stamped(2, tick)), nil, false},
		"a message that is not there":  {stamped(1, enqueue(10)), []byte("too short"), false},
		"a message without an end":     {stamped(1, enqueue(1<<32-1)), []byte("too short"), false},
		"many commands":                {stamped(1, bytes.Repeat([]byte{fieldCommands<<3 | 2, 0}, maxCommands+1)), nil, false},
		"many unknown fields":          {stamped(1, tick, bytes.Repeat([]byte{15<<3 | 2, 0}, maxCommands+1)), nil, false},
		"a long command":               {stamped(1, commandsOf(&logpb.Command{Consume: &logpb.Consume{Tag: strings.Repeat("x", MaxCommandBytes)}})), nil, false},
	} {
		if err := admitEntry(&raft.Log{Data: c.data, Extensions: c.payloads}, 1); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkEntryOfALeader(b *testing.B) {
	message := fsm.AppendPayloadHead(nil, "", "q", nil)
	message = append(message, make([]byte, 1000)...)
	l := &raft.Log{Data: []byte{fieldVersion << 3, 1, fieldNow << 3, 2}}
	for seq := range uint64(256) {
		l.Data = AppendCommand(l.Data, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: &logpb.Session{Node: 1, Boot: 7, Num: 3}, Seq: seq + 1,
			Enqueue: &logpb.Enqueue{Size: uint32(len(message)), Head: 8, Routed: true},
		})
		l.Extensions = append(l.Extensions, message...)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := admitEntry(l, 1); err != nil {
			b.Fatal(err)
		}
	}
}
