package queues

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/group/grouptest"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// damaged is a payload as it was written behind the length of its routing key
// modulo 256.
func damaged() []byte {
	key := strings.Repeat("k", 300)
	return append(append([]byte{0, byte(len(key) & 0xff)}, key...), 0, 0, 0, 0, 'x')
}

// A message that lies damaged in the log can be handed out, here and at another
// node: as a body.
func TestDamagedDelivery(t *testing.T) {
	raw := damaged()
	if fsm.Payload(raw).Valid() {
		t.Fatal("it is not damaged")
	}
	w := newWorld(t)
	var d weighedBatch
	w.queues.dispatcher.add(&d, sections{raw}, &fsm.Delivery{ID: 1, Ref: fsm.Ref{Size: uint32(len(raw))}})
	if len(d.Messages) != 1 || !d.Messages[0].Payload.Valid() || !bytes.Equal(d.Messages[0].Payload.Body(), raw) || d.weight != len(d.Messages[0].Payload)+group.DeliveryWeight {
		t.Errorf("handed out: %v", d.Messages)
	}
}

// sections are payloads by index.
type sections [][]byte

func (s sections) Payload(r fsm.Ref) ([]byte, error) { return s[r.Index], nil }

// What another node wants in a queue's log is decoded and measured first.
func TestAdmit(t *testing.T) {
	enqueue := func(size int) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(size)}}
	}
	one, two := grouptest.Payload("one"), grouptest.Payload("second")
	both := slices.Concat(one, two)
	commands := group.BatchOf(enqueue(len(one)), &logpb.Command{Kind: logpb.Command_PURGE}, enqueue(len(two))).Commands
	stamped, err := (&logpb.Entry{Version: 1}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		commands []byte
		count    uint32
		payload  []byte
		ok       bool
	}{
		"whole":            {commands, 3, both, true},
		"no commands":      {nil, 0, nil, true},
		"garbage":          {[]byte("garbage"), 1, nil, false},
		"cut short":        {commands[:len(commands)-1], 3, both, false},
		"another count":    {commands, 2, both, false},
		"stamped":          {append(stamped, commands...), 3, both, false},
		"payload short":    {commands, 3, both[:len(both)-1], false},
		"payload too long": {commands, 3, append(slices.Clone(both), 0), false},
		"damaged":          {group.BatchOf(enqueue(len(damaged()))).Commands, 1, damaged(), false},
		"empty message":    {group.BatchOf(enqueue(0)).Commands, 1, nil, false},
		"no message":       {group.BatchOf(&logpb.Command{Kind: logpb.Command_ENQUEUE}).Commands, 1, nil, false},
	} {
		err := admit(&peerpb.Submit{Commands: c.commands, Count: c.count}, c.payload)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	p := grouptest.Payload(strings.Repeat("x", 1000))
	m, all := &peerpb.Submit{Count: 256}, []byte(nil)
	for seq := range uint64(256) {
		m.Commands = group.AppendCommand(m.Commands, &logpb.Command{
			Kind: logpb.Command_ENQUEUE, Session: &logpb.Session{Node: 1, Boot: 7, Num: 3}, Seq: seq + 1,
			Enqueue: &logpb.Enqueue{Size: uint32(len(p)), Head: 8, Routed: true},
		})
		all = append(all, p...)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := admit(m, all); err != nil {
			b.Fatal(err)
		}
	}
}
