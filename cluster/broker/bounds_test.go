package broker

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/fsm/queue"
	"github.com/quorate/quorate/proto/logpb"
	"github.com/quorate/quorate/proto/peerpb"
)

// longKeys are routing keys that no payload has room for, as the log of a former
// version may have them in a queue's settings.
var longKeys = []string{strings.Repeat("é", 150), strings.Repeat("k", 300), strings.Repeat("k", 70_000)}

// mustHold checks that every queue that letters went to holds these bodies, all
// with the key as far as there is room for it.
func (b *letterbox) mustHold(t *testing.T, key string, bodies ...string) {
	t.Helper()
	for _, r := range b.targets {
		if got := r.bodies(); !slices.Equal(got, bodies) {
			t.Errorf("%s holds %q, want %q", r.spec.Name, got, bodies)
		}
		r.View(func(m *queue.Machine) {
			for x := range m.Messages() {
				raw, _ := r.Payload(x.Ref)
				p := fsm.Payload(raw)
				if !p.Valid() || string(p.RoutingKey()) != fsm.Short(key) || x.Ref.Size != uint32(len(raw)) {
					t.Errorf("%s: valid %v, key %.20q …", r.spec.Name, p.Valid(), p.RoutingKey())
				}
			}
		})
	}
}

// A replicated queue whose dead-letter routing key is too long forwards its
// letters, those that were routed already too, with as much of it as fits.
func TestForwarderLongKey(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t, "a", "b")
		b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = key, true })
		b.die(t, "one")
		b.run()
		b.source.commit(t) // it is routed, and its leader has changed
		b.start()
		b.die(t, "two")
		b.settle(t)
		b.mustHold(t, key, "one", "two")
	}
}

// The same for letters of no outbox.
func TestCourierLongKey(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t, "a", "b")
		b.settings(t, b.source, func(c *logpb.QueueConfig) {
			c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = key, true
			c.DeadLetterStrategy = logpb.QueueConfig_AT_MOST_ONCE
		})
		b.die(t, "one")
		b.w.broker.courier.send(b.source, b.source.sent)
		b.carry(t, func() bool { return false })
		b.mustHold(t, key, "one")
	}
}

// damaged is a payload as it was written behind the length of its routing key
// modulo 256.
func damaged() []byte {
	key := strings.Repeat("k", 300)
	return append(append([]byte{0, byte(len(key) & 0xff)}, key...), 0, 0, 0, 0, 'x')
}

// A message that lies damaged in the log is a letter like any other when it
// dies, and can be handed out, here and at another node: as a body.
func TestDamagedPayload(t *testing.T) {
	raw := damaged()
	if fsm.Payload(raw).Valid() {
		t.Fatal("it is not damaged")
	}
	for _, strategy := range []logpb.QueueConfig_DeadLetterStrategy{logpb.QueueConfig_TRANSACTIONAL, logpb.QueueConfig_AT_MOST_ONCE} {
		b := newLetterbox(t, "a")
		b.settings(t, b.source, func(c *logpb.QueueConfig) { c.DeadLetterStrategy = strategy })
		b.source.apply(t, group.Batch{
			Commands: group.AppendCommand(nil, &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(len(raw))}}),
			Count:    1, Payloads: [][]byte{raw}, Bytes: len(raw),
		})
		b.w.broker.courier.send(b.source, b.source.sent)
		b.carry(t, func() bool { return false })
		b.settle(t)
		b.mustHold(t, "", string(raw))
	}

	w := newWorld(t)
	var d deliveryBatch
	w.broker.add(&d, sections{raw}, &fsm.Delivery{ID: 1, Ref: fsm.Ref{Size: uint32(len(raw))}})
	if len(d.Messages) != 1 || !d.Messages[0].Payload.Valid() || !bytes.Equal(d.Messages[0].Payload.Body(), raw) || len(d.parts[0]) != len(d.Messages[0].Payload) {
		t.Errorf("handed out: %v", d.Messages)
	}
}

// sections are payloads by index.
type sections [][]byte

func (s sections) Payload(r fsm.Ref) ([]byte, error) { return s[r.Index], nil }

// A letter is routed by the key that it carries.
func TestLongKeyRoutes(t *testing.T) {
	for _, key := range longKeys {
		b := newLetterbox(t)
		q := b.w.mustQueue("bound")
		b.w.commit(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_Bind{Bind: &logpb.Bind{
			Vhost: "/", Source: "amq.direct", Destination: "bound", RoutingKey: fsm.Short(key),
		}}})
		b.targets[q.ID] = newReplicated(q, b.w)
		b.settings(t, b.source, func(c *logpb.QueueConfig) {
			c.DeadLetterExchange, c.DeadLetterRoutingKey, c.HasDeadLetterRoutingKey = "amq.direct", key, true
		})
		b.die(t, "one")
		b.settle(t)
		b.mustHold(t, key, "one")
	}
}

// What another node wants in a queue's log is decoded and measured first.
func TestAdmit(t *testing.T) {
	enqueue := func(size int) *logpb.Command {
		return &logpb.Command{Kind: logpb.Command_ENQUEUE, Enqueue: &logpb.Enqueue{Size: uint32(size)}}
	}
	one, two := payload("one"), payload("second")
	both := slices.Concat(one, two)
	commands := commandsOf(enqueue(len(one)), &logpb.Command{Kind: logpb.Command_PURGE}, enqueue(len(two))).Commands
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
		"damaged":          {commandsOf(enqueue(len(damaged()))).Commands, 1, damaged(), false},
		"empty message":    {commandsOf(enqueue(0)).Commands, 1, nil, false},
		"no message":       {commandsOf(&logpb.Command{Kind: logpb.Command_ENQUEUE}).Commands, 1, nil, false},
	} {
		err := admit(&peerpb.Submit{Commands: c.commands, Count: c.count}, c.payload)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func BenchmarkAdmit(b *testing.B) {
	p := payload(strings.Repeat("x", 1000))
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
