package v10

import (
	"maps"
	"testing"
	"time"

	"github.com/quorate/quorate/amqp/v10/wire"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

func annotate(b []byte, name, value string) []byte {
	return wire.AppendString(wire.AppendSymbol(b, name), value)
}

// mustStore parses and stores a message.
func mustStore(t testing.TB, to address, encoded []byte) fsm.Payload {
	t.Helper()
	m := new(wire.Message)
	if err := m.Parse(encoded); err != nil {
		t.Fatal(err)
	}
	p, err := store(to, m, m.Annotations)
	if err != nil || !p.Valid() {
		t.Fatalf("%v, % x", err, p)
	}
	return p
}

// mustDeliver renders a delivery and parses it.
func mustDeliver(t testing.TB, m *fsm.Message) *wire.Message {
	t.Helper()
	whole := append(appendHead(nil, m), plainForm{}.Body(m)...)
	out := new(wire.Message)
	if err := out.Parse(whole); err != nil {
		t.Fatalf("%v: % x", err, whole)
	}
	if n := new(counts).renderedSize(plainForm{}, m); n != len(whole) {
		t.Errorf("a size of %d, want %d", n, len(whole))
	}
	return out
}

// The bare message and the footer come back byte for byte, whatever their encoding; the rest is made anew.
func TestBareMessageComesBack(t *testing.T) {
	annotations := func(names ...string) []byte {
		b := wire.StartAnnotations(nil)
		at := len(b)
		b = wire.StartMap(b)
		for _, n := range names {
			b = annotate(b, n, "client")
		}
		return wire.EndMap(b, at, len(names))
	}
	bare := "\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xd0\x00\x00\x00\x0a\x00\x00\x00\x01\xb1\x00\x00\x00\x01i" + // id in unusual encodings
		"\x00\xa3\x10amqp:data:binary\xa0\x05hello" + "\x00\x53\x75\xb0\x00\x00\x00\x00" + "\x00\x53\x78\xc1\x01\x00"
	for _, c := range []struct {
		name   string
		header *wire.Header
		want   wire.Header
	}{
		{"no header", nil, wire.Header{FirstAcquirer: true}},
		{"all", &wire.Header{Durable: true, Priority: wire.Some[byte](0), TTL: wire.Some[uint32](0), FirstAcquirer: false, DeliveryCount: 9},
			wire.Header{Durable: true, Priority: wire.Some[byte](0), TTL: wire.Some[uint32](0), FirstAcquirer: true}},
		{"most", &wire.Header{Priority: wire.Some[byte](255), TTL: wire.Some[uint32](1<<32 - 1), FirstAcquirer: true},
			wire.Header{Priority: wire.Some[byte](255), TTL: wire.Some[uint32](1<<32 - 1), FirstAcquirer: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var in []byte
			if c.header != nil {
				in = wire.Append(nil, c.header)
			}
			in = append(in, "\x00\x53\x71\xc1\x07\x02\xa3\x03x-d\x40"...) // for one delivery: dropped
			in = append(in, annotations("x-a", "x-exchange", "x-opt-deaths")...)
			in = append(in, bare...)
			p := mustStore(t, address{"e", "k"}, in)
			out := mustDeliver(t, &fsm.Message{Payload: p})
			if string(out.Bare) != bare {
				t.Errorf("% x\nwant % x", out.Bare, bare)
			}
			if out.Header != c.want {
				t.Errorf("%+v, want %+v", out.Header, c.want)
			}
			for name, want := range map[string]string{"x-a": "client", "x-exchange": "e", "x-routing-key": "k", "x-opt-deaths": "client"} {
				if v, _ := out.Annotations.Get(name); string(v.Bytes()) != want {
					t.Errorf("%s %q, want %q", name, v.Bytes(), want)
				}
			}
			names := map[string]int{}
			for w := out.Annotations.Walk(); w.NextPair(); {
				names[string(w.Key.Bytes())]++
			}
			if len(names) != 4 || names["x-exchange"] != 1 {
				t.Errorf("annotations %v", names)
			}
			again := mustDeliver(t, &fsm.Message{Payload: p, Acquired: 2, Failed: 1})
			if again.Header.FirstAcquirer || again.Header.DeliveryCount != 1 {
				t.Errorf("%+v", again.Header)
			}
		})
	}
}

func TestDeathsAreAnnotations(t *testing.T) {
	in := append(wire.Append(nil, &wire.Header{TTL: wire.Some[uint32](5)}), wire.AppendData(nil, []byte("x"))...)
	m := &fsm.Message{Payload: mustStore(t, address{"dlx", "k"}, in), Deaths: []*logpb.Death{
		{Reason: logpb.Death_REJECTED, Queue: "q2", Count: 1, Time: 2000, LastTime: 3000, Exchange: "e2", RoutingKeys: []string{"a", "b"}, LastExchange: "e2"},
		{Reason: logpb.Death_EXPIRED, Queue: "q1", Count: 3, Time: 1000, Exchange: "", RoutingKeys: []string{"q1"}, First: true},
	}}
	out := mustDeliver(t, m)
	if out.Header.TTL.Present || out.Header.FirstAcquirer {
		t.Errorf("%+v", out.Header)
	}
	for name, want := range map[string]string{
		"x-first-death-queue": "q1", "x-first-death-reason": "expired", "x-first-death-exchange": "",
		"x-last-death-queue": "q2", "x-last-death-reason": "rejected", "x-last-death-exchange": "e2",
	} {
		if v, ok := out.Annotations.Get(name); !ok || string(v.Bytes()) != want {
			t.Errorf("%s %q, want %q", name, v.Bytes(), want)
		}
	}
	list, _ := out.Annotations.Get("x-opt-deaths")
	if list.Type != wire.Array || list.Len() != 2 {
		t.Fatalf("%+v", list)
	}
	w := list.Walk()
	w.Next()
	got := map[string]wire.Value{}
	for e := w.Value.Walk(); e.NextPair(); {
		got[string(e.Key.Bytes())] = e.Value
	}
	if string(got["queue"].Bytes()) != "q2" || got["reason"].Type != wire.Symbol || got["count"].Unsigned() != 1 || got["first-time"].Signed() != 2000 || got["last-time"].Signed() != 3000 || got["routing-keys"].Len() != 2 {
		t.Errorf("%+v", got)
	}
}

// A message that has waited says when it was to be ready; one that has not, what its publisher has said.
func TestScheduledTimeIsAnAnnotation(t *testing.T) {
	in := wire.StartAnnotations(nil)
	at := len(in)
	in = wire.AppendLong(wire.AppendSymbol(wire.StartMap(in), "x-scheduled-for"), 1)
	in = wire.AppendData(wire.EndMap(in, at, 1), nil)
	for due, want := range map[fsm.Time]int64{0: 1, 7000: 7000} {
		out := mustDeliver(t, &fsm.Message{Payload: mustStore(t, address{"e", "k"}, in), ScheduledFor: due})
		times := 0
		for w := out.Annotations.Walk(); w.NextPair(); {
			if string(w.Key.Bytes()) == "x-scheduled-for" {
				times++
				if w.Value.Type != wire.Long || w.Value.Signed() != want {
					t.Errorf("%+v, not %d", w.Value, want)
				}
			}
		}
		if times != 1 {
			t.Errorf("it is there %d times", times)
		}
	}
}

// A message of another protocol is delivered as one of this: what the server says goes before what the publisher has
// said in headers of these names.
func TestMessageOfAnotherProtocol(t *testing.T) {
	var fields []byte
	for _, name := range []string{"x-exchange", "x-own", "x-opt-deaths", "x-first-death-queue", "p"} {
		fields = append(append(append(fields, byte(len(name))), name...), "S\x00\x00\x00\x06client"...)
	}
	properties := append([]byte{0x39, 0, 0, 0, 0, byte(len(fields))}, fields...) // headers, delivery-mode, priority, expiration
	properties = append(properties, "\x02\x05\x03700"...)
	m := &fsm.Message{Payload: append(fsm.AppendPayloadHead(nil, "e", "k", properties), "hello"...), Acquired: 1, Failed: 2}
	check := func(header wire.Header, annotations map[string]string) {
		t.Helper()
		out := mustDeliver(t, m)
		var body []byte
		for d := range out.Data {
			body = append(body, d...)
		}
		if string(body) != "hello" || out.Kind != wire.BodyData || out.Header != header {
			t.Errorf("%q with %+v, want %+v", body, out.Header, header)
		}
		got := map[string]string{}
		for w := out.Annotations.Walk(); w.NextPair(); {
			name := string(w.Key.Bytes())
			if _, twice := got[name]; twice {
				t.Errorf("%s is there twice", name)
			}
			got[name] = string(w.Value.Bytes())
		}
		delete(got, "x-opt-deaths")
		if !maps.Equal(got, annotations) {
			t.Errorf("annotations %v, want %v", got, annotations)
		}
	}
	check(wire.Header{Durable: true, Priority: wire.Some[byte](5), TTL: wire.Some[uint32](700), DeliveryCount: 2},
		map[string]string{"x-exchange": "e", "x-routing-key": "k", "x-own": "client", "x-first-death-queue": "client"})
	m.Deaths = []*logpb.Death{{Reason: logpb.Death_REJECTED, Queue: "q", Count: 1, Exchange: "x", LastExchange: "y"}}
	check(wire.Header{Durable: true, Priority: wire.Some[byte](5), DeliveryCount: 2}, map[string]string{
		"x-exchange": "e", "x-routing-key": "k", "x-own": "client", "x-first-death-queue": "q", "x-first-death-reason": "rejected", "x-first-death-exchange": "x",
		"x-last-death-queue": "q", "x-last-death-reason": "rejected", "x-last-death-exchange": "y",
	})
}

// A message costs one allocation on its way in, and none on its way out.
func TestMessagesCostOneAllocation(t *testing.T) {
	in := append(wire.Append(nil, &wire.Header{Durable: true}), wire.AppendData(nil, make([]byte, 100))...)
	m := new(wire.Message)
	if n := testing.AllocsPerRun(100, func() {
		if err := m.Parse(in); err != nil {
			t.Fatal(err)
		}
		if _, err := store(address{"e", "k"}, m, m.Annotations); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	out := &fsm.Message{Payload: mustStore(t, address{"e", "k"}, in)}
	dst := make([]byte, 0, 4096)
	other := &fsm.Message{Payload: append(fsm.AppendPayloadHead(nil, "e", "k", []byte("\x81\x00\x01t\x01r")), "hello"...)}
	for _, out := range []*fsm.Message{out, other} {
		if n := testing.AllocsPerRun(100, func() { appendHead(dst, out) }); n > 0 {
			t.Errorf("%v allocations for a delivery", n)
		}
	}
}

// What receivers have added stands in front of what a message came with. What is damaged, as a backup may bring it, is
// nothing, and neither is what is no annotation.
func TestAddedAnnotations(t *testing.T) {
	added := fsm.AnnotationMap([]*logpb.Annotation{
		{Key: wire.AppendSymbol(nil, "x-a"), Value: wire.AppendString(nil, "new")}, {Key: wire.AppendUlong(nil, 1), Value: wire.AppendNull(nil)},
	})
	stored := wire.AppendData(wire.EndMap(annotate(wire.StartMap(wire.StartAnnotations(nil)), "x-a", "old"), 3, 1), nil)
	for name, p := range map[string]fsm.Payload{"1.0": mustStore(t, address{key: "q"}, stored), "0-9-1": fsm.AppendPayloadHead(nil, "", "q", nil)} {
		got := mustDeliver(t, &fsm.Message{Payload: p, Annotations: added})
		pairs := 0
		for w := got.Annotations.Walk(); w.NextPair(); {
			if pairs++; w.Key.Type != wire.Symbol {
				t.Errorf("%s: a key of type %v", name, w.Key.Type)
			}
		}
		if v, _ := got.Annotations.Get("x-a"); string(v.Bytes()) != "new" || pairs != 3 {
			t.Errorf("%s: %q of %d", name, v.Bytes(), pairs)
		}
		for _, damaged := range [][]byte{added[:len(added)-1], []byte("\xd1\x00\x00\x00\x04\x00\x00\x00\x02"), []byte("x"), fsm.AnnotationMap([]*logpb.Annotation{{}, {}})} {
			mustDeliver(t, &fsm.Message{Payload: p, Annotations: damaged})
		}
	}
}

// How long a delivery takes is decided by how many annotations its message came with, and not also by how many were added.
func TestManyAnnotations(t *testing.T) {
	const all = 300_000
	var more []*logpb.Annotation
	for i := range fsm.MaxAnnotations {
		more = append(more, &logpb.Annotation{Key: wire.AppendSymbol(nil, "x-"+string(rune('0'+i))), Value: wire.AppendNull(nil)})
	}
	b := wire.StartMap(wire.StartAnnotations(nil))
	for range all {
		b = wire.AppendNull(wire.AppendSymbol(b, "x-z"))
	}
	p := mustStore(t, address{key: "q"}, wire.AppendData(wire.EndMap(b, 3, all), nil))
	begun := time.Now()
	appendHead(nil, &fsm.Message{Payload: p, Annotations: fsm.AnnotationMap(more)})
	if took := time.Since(begun); took > time.Second {
		t.Errorf("it takes %v", took)
	}
}
